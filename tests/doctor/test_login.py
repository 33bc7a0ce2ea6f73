"""What a login node tells of a site: modules, caches, shared file systems."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from ddl_core.config import RunSpec
from ddl_tools.doctor import login_node
from ddl_tools.doctor.finding import Finding
from ddl_tools.launch.slurm.site import Site, expand
from ddl_tools.processes import safe_imports
from ddl_tools.records.paths import results
from tests.commands import run
from tests.doctor.conftest import NODES
from tests.launch.fixtures import Mount
from tests.launch.stand_ins import StandIns

SPEC = RunSpec.parse({"strategy": "ddp", "nodes": 2})

# What a module system makes of its login shell: loads a module, or says in its own way that it
# cannot; the old one reports success even so.
MODULES = """
module() {
  for name in "${@:2}"; do
    case "$name" in
      GCC) ;;
      old) echo "old: ERROR: Unable to locate a modulefile" >&2 ;;
      slow) sleep 60 ;;
      *) echo "Lmod has detected the following error: unknown: $name" >&2; return 1 ;;
    esac
  done
}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Log in with a home folder of one's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def log_in(home: Path, text: str) -> None:
    """Have a login shell read some lines last: not a module system of this machine."""
    (home / ".bash_profile").write_text(f"unset BASH_ENV\n{text}")


def found(**fields: object) -> dict[str, Finding]:
    site = Site.model_validate({"description": "made", **fields})
    findings = login_node.examine(site, SPEC, results())
    return {one.subject: one for one in findings}


@pytest.mark.parametrize(
    ("fields", "detail", "state"),
    [
        ({}, "0.28.1, with Gloo", "ok"),
        ({"gpus_per_node": 4, "gpu_request": "gres"}, "0.28.1, with Gloo", "warn"),
        ({"gpus_per_node": 4, "gpu_request": "gres"}, "0.28.1, with Gloo NCCL", "ok"),
        ({"horovod_controller": "mpi"}, "0.28.1, with Gloo NCCL", "warn"),
    ],
)
def test_horovod_is_judged_by_what_the_sites_jobs_need(fields, detail, state) -> None:
    site = Site.model_validate({"description": "made", **fields})
    assert login_node.of_site(Finding("horovod", "ok", detail), site).state == state
    other = Finding("deepspeed", "ok", detail)
    assert login_node.of_site(other, site) == other


@pytest.mark.parametrize(
    ("modules", "state", "words"),
    [
        ((), "ok", "none needed"),
        (("GCC",), "ok", "GCC"),
        (("GCC", "CUDA/99"), "bad", "unknown: CUDA/99"),
        (("old",), "bad", "Unable to locate"),
    ],
)
def test_modules(home: Path, alone: StandIns, modules, state, words) -> None:
    log_in(home, MODULES)
    one = found(modules=modules)["modules"]
    assert one.state == state
    assert words in one.detail
    assert state == "ok" or "module avail" in one.remedy


def test_modules_are_loaded_with_the_users_own_variables(home: Path, alone: StandIns) -> None:
    log_in(home, "module() { env >~/seen; }")
    with safe_imports():  # as in all that `ddl` does
        assert found(modules=("GCC",))["modules"].state == "ok"
    assert "PYTHONSAFEPATH" not in (home / "seen").read_text()


def test_a_module_system_that_hangs_is_a_finding(home, alone, monkeypatch) -> None:
    log_in(home, MODULES)
    monkeypatch.setattr(login_node, "SHELL_PATIENCE_S", 1.0)
    assert "over 1 s" in found(modules=("slow",))["modules"].detail


@pytest.mark.parametrize("folder", ["$NOT_SET_HERE/caches", "${NOT_SET_HERE:?}/caches"])
def test_caches_of_a_variable_that_is_not_set_are_refused(folder, home, alone, monkeypatch) -> None:
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    one = found(caches=f"{home}{folder}")["caches"]
    assert one.state == "bad"
    assert "NOT_SET_HERE" in one.detail
    assert not (home / "caches").exists()


def test_caches_are_made_where_the_machine_says(home, alone, monkeypatch) -> None:
    monkeypatch.setenv("SCRATCH_OF_TEST", str(home / "scratch"))
    one = found(caches="$SCRATCH_OF_TEST/caches")["caches"]
    assert one.state == "ok"
    assert f"{home}/scratch/caches on " in one.detail


@pytest.mark.parametrize(
    ("image", "state", "words"),
    [
        ("$IMAGES_OF_TEST/ddl.sif", "ok", "/ddl.sif on "),
        ("$IMAGES_OF_TEST/gone.sif", "bad", "gone.sif does not exist"),
        ("$NOT_SET_HERE/ddl.sif", "bad", "NOT_SET_HERE is not set"),
        ("nvcr.io#nvidia/pytorch:26.02-py3", "unknown", "is no path"),
    ],
)
def test_the_image_of_a_container_has_to_be_there(
    tmp_path, alone, monkeypatch, image, state, words
) -> None:
    assert "image" not in found()
    (tmp_path / "ddl.sif").touch()
    monkeypatch.setenv("IMAGES_OF_TEST", str(tmp_path))
    monkeypatch.setattr(login_node, "LOCAL", frozenset())
    one = found(container={"runtime": "apptainer", "image": image})["image"]
    assert one.state == state
    assert words in one.detail
    assert state == "ok" or "image" in one.remedy


@pytest.mark.parametrize(
    "fields",
    [
        {"modules": ["x;touch${IFS}made"]},
        {"modules": ["x$(touch made)"]},
        {"modules": ["GCC&"]},
        {"modules": ["-x"]},
        {"caches": "/tmp/x$(touch made)"},
        {"caches": "/tmp/${x:-$(touch made)}"},
        {"caches": "/tmp/${x@P}"},
        {"caches": "/tmp/$((1))"},
    ],
)
def test_a_site_file_whose_names_are_commands_is_refused(fields) -> None:
    with pytest.raises(ValidationError):
        Site.model_validate({"description": "made", **fields})


def test_a_dry_run_loads_no_modules_and_makes_no_folder(home: Path, alone: StandIns) -> None:
    log_in(home, "touch ~/logged_in; module() { :; }")
    site = Site.model_validate({"description": "made", "modules": ["GCC"], "caches": "$HOME/made"})
    findings = login_node.examine(site, SPEC, results(), dry_run=True)
    states = {one.subject: one.state for one in findings}
    assert (states["modules"], states["caches"]) == ("unknown", "unknown")
    assert not {"logged_in", "made"} & {path.name for path in home.iterdir()}


@pytest.mark.parametrize(
    ("folder", "expanded"),
    [
        ("$A/b", "/a/b"),
        ("${A}b", "/ab"),
        ("${A:-/other}/b", "/a/b"),
        ("${EMPTY:-/other}/b", "/other/b"),
        ("${NONE:-/other}/b", "/other/b"),
        ("${A:?}/$EMPTY.b", "/a/.b"),
    ],
)
def test_folders_are_expanded_as_a_shell_does(folder: str, expanded: str) -> None:
    variables = {"A": "/a", "EMPTY": ""}
    assert str(expand(folder, variables)) == expanded
    shell = run("bash", "-c", f'printf %s "{folder}"', env=variables)
    assert shell.stdout == expanded


@pytest.mark.parametrize("folder", ["$NONE", "${NONE}", "${NONE:?}", "${EMPTY:?}"])
def test_a_variable_that_is_not_set_is_named(folder: str) -> None:
    with pytest.raises(KeyError, match=folder.strip("${}:?")):
        expand(folder, {"EMPTY": ""})


def test_a_cache_folder_on_a_read_only_file_system(home, alone, mount: Mount) -> None:
    folder = mount("ro")
    one = found(caches=str(folder / "caches"))["caches"]
    assert one.state == "bad"
    assert "Read-only file system" in one.detail
    assert "caches in the site's file" in one.remedy


def test_a_folder_that_machines_do_not_share(home, alone, mount: Mount, monkeypatch) -> None:
    monkeypatch.setenv("DDL_RESULTS", str(mount("size=1m")))
    one = found()["results shared"]
    assert one.state == "warn"
    assert "on tmpfs" in one.detail
    monkeypatch.setattr(login_node, "LOCAL", frozenset())
    assert found()["results shared"].state == "ok"


def test_where_this_is(alone: StandIns, monkeypatch) -> None:
    place, finding = login_node.where()
    assert (place, finding.state) == ("machine", "bad")
    assert "no controller" in finding.detail
    alone.add("sinfo", NODES)
    place, finding = login_node.where()
    assert (place, finding.state) == ("login node", "ok")
    assert NODES.rstrip() in finding.detail
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert login_node.where()[0] == "job"
