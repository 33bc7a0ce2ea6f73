"""Ranks in a container: the words of each runtime, what they see inside, and what is refused."""

import difflib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, NotInstalledError, SpecError
from ddl_core.origin import HOME
from ddl_tools.commit import code
from ddl_tools.doctor.probes import plan_probe
from ddl_tools.launch import commands, preflight
from ddl_tools.launch.commands import Allocation
from ddl_tools.launch.interactive import Engines
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.slurm import script
from ddl_tools.launch.slurm.script import render
from ddl_tools.launch.slurm.site import Container, Site
from ddl_tools.records.probe import ProbeRecord
from ddl_tools.records.provenance import provenance
from ddl_tools.records.run import RunRecord, write_record
from tests.fields import EMULATED
from tests.launch.running import TINY
from tests.launch.slurm.test_script import plan_of
from tests.launch.stand_ins import StandIns
from tests.pictures import write_pictures

RUN, LOGS, DATA = Path("/scratch/runs/one"), Path("/scratch/runs/one/logs/0"), Path("/data/set")
SPEC = RunSpec(strategy="ddp", gpus_per_node=4)
FOUR = {"description": "made", "gpus_per_node": 4, "gpu_request": "gres"}
IMAGE = "/images/ddl.sif"
# In the order of their names, wherever the project lies; in one of them, it is seen with that one.
OTHERS = (DATA, RUN, Path("/tmp"))
SEEN = sorted({*OTHERS, *([] if any(map(HOME.is_relative_to, OTHERS)) else [HOME])})


def site(runtime: str, of_site: dict[str, Any] | None = None, **fields: Any) -> Site:
    container = {"runtime": runtime, "image": IMAGE, **fields}
    return Site.model_validate({**FOUR, **(of_site or {}), "container": container})


def exported(script: str) -> dict[str, str]:
    """Return what a job's script exports of the way in which it starts ranks."""
    lines = [shlex.split(line) for line in script.splitlines() if line.startswith("export DDL_")]
    return dict(word.split("=", 1) for _, word in lines)


def step(
    monkeypatch: pytest.MonkeyPatch, found: Site, spec: RunSpec = SPEC, caches: str = "/tmp/mine"
) -> list[str]:
    """Return the step that a job of a run starts, from what its script exports."""
    for name, value in exported(render(plan_of(spec), found)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", str(spec.nodes))
    monkeypatch.setenv("DDL_CACHES", caches)
    return list(commands.command(spec, "worker", RUN, LOGS, DATA).step)


def parts(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words of a step before its task, and those of its ranks."""
    task = words.index(commands.INSIDE + commands.TASK)
    assert words[task - 2 : task] == ["sh", "-c"]
    assert words[task + 1 : task + 3] == [str(LOGS / "srun" / "attempt_0"), str(HOME)]
    return words[: task - 2], words[task + 3 :]


OPTIONS = (
    "--nodes=1 --ntasks=4 --ntasks-per-node=4",
    "--kill-on-bad-exit=1 --distribution=block --cpus-per-task=1 --mpi=none",
)
BEFORE = {
    "apptainer": "apptainer exec {--bind=} --nv --no-home /images/ddl.sif",
    "singularity": "singularity exec {--bind=} --nv --no-home /images/ddl.sif",
    "podman-hpc": "podman-hpc run --rm --env-host --network=host --ipc=host --pid=host {--volume=} "
    "--gpu --no-home /images/ddl.sif",
    "charliecloud": "env -u TMPDIR ch-run {--bind=} --no-home /images/ddl.sif --",
}


def bound(option: str) -> str:
    return " ".join(f"{option}{one}:{one}" for one in SEEN)


@pytest.mark.parametrize("runtime", BEFORE)
def test_a_runtime_stands_before_each_rank(
    runtime: str, job: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rank = parts(step(monkeypatch, site(runtime, args=["--no-home"], python="/py/python")))
    text = BEFORE[runtime]
    for option in ("--bind=", "--volume="):
        text = text.replace(f"{{{option}}}", bound(option))
    assert before == [str(job.folder / "srun"), *" ".join((*OPTIONS, text)).split()]
    assert rank == ["/py/python", "-m", "worker", str(RUN)]


def test_pyxis_is_a_part_of_srun(job: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    found = site("pyxis", {"visible_devices": "unset"}, args=["--no-container-mount-home"])
    before, rank = parts(step(monkeypatch, found))
    mounts = ",".join(f"{one}:{one}" for one in SEEN)
    own = f"--container-image={IMAGE} --container-mounts={mounts} --no-container-mount-home"
    words = f"{OPTIONS[0]} {own} {OPTIONS[1]} env -u CUDA_VISIBLE_DEVICES"
    assert before == [str(job.folder / "srun"), *words.split()]
    assert rank == ["python3", "-m", "worker", str(RUN)]


def test_the_container_engine_of_alps_has_its_mounts_in_a_file(
    job: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACE", "/users/me")
    before, rank = parts(step(monkeypatch, site("ce", image="$PLACE/.edf/ddl.toml")))
    words = f"{OPTIONS[0]} --environment=/users/me/.edf/ddl.toml {OPTIONS[1]}"
    assert before == [str(job.folder / "srun"), *words.split()]
    assert rank == ["python3", "-m", "worker", str(RUN)]
    with pytest.raises(ValidationError, match="has the mounts"):
        site("ce", binds=["/data"])


@pytest.mark.parametrize("runtime", [*BEFORE, "pyxis", "ce"])
def test_scripts_with_and_without_a_container_differ_in_one_place(runtime: str) -> None:
    with_it = render(plan_of(SPEC), site(runtime)).splitlines()
    without = render(plan_of(SPEC), Site.model_validate(FOUR)).splitlines()
    lines = [line for line in difflib.ndiff(without, with_it) if line[0] in "+-"]
    changed = {line.partition("=")[0] for line in lines if "#" not in line}
    assert changed == {"- unset DDL_CONTAINER", "+ export DDL_CONTAINER"}


@pytest.mark.parametrize(
    ("runtime", "of_site", "spec", "option"),
    [
        ("apptainer", {}, {}, "--nv"),
        ("singularity", {"visible_variable": "ROCR_VISIBLE_DEVICES"}, {}, "--rocm"),
        ("apptainer", {"visible_variable": "HIP_VISIBLE_DEVICES"}, {}, "--rocm"),
        ("apptainer", {}, {"device": "cpu"}, None),
        ("charliecloud", {}, {}, None),
    ],
)
def test_a_container_gets_the_gpus_of_its_node(
    runtime: str, of_site: dict[str, Any], spec: dict[str, Any], option: str | None
) -> None:
    found = site(runtime, of_site, args=["--mine"]).container_of(RunSpec(**spec))
    assert found is not None
    assert found.args == ((option, "--mine") if option else ("--mine",))
    found = site(runtime, of_site, gpu_option=False).container_of(RunSpec(**spec))
    assert found is not None
    assert found.args == ()


def test_what_lies_below_a_bound_folder_is_not_bound_again(
    job: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACE", "/scratch")
    binds = ["$PLACE", "/data:/elsewhere:ro", f"{HOME.parent}"]
    before, _ = parts(step(monkeypatch, site("apptainer", binds=binds), caches="/scratch/me/mine"))
    given = [word.removeprefix("--bind=") for word in before if word.startswith("--bind=")]
    own = ["/scratch:/scratch", "/data:/elsewhere:ro", f"{HOME.parent}:{HOME.parent}"]
    assert given == [*own, "/data/set:/data/set"]


@pytest.mark.parametrize(
    ("fields", "folder", "named"),
    [
        ({"image": "$NOT_SET_HERE/x.sif"}, "/run", "NOT_SET_HERE"),
        ({"binds": ["${NOT_SET_HERE:?}"]}, "/run", "NOT_SET_HERE"),
        ({}, "/a,b", "','"),
        ({}, "/a:b", "':'"),
    ],
)
def test_what_cannot_be_bound_is_named(fields: dict[str, Any], folder: str, named: str) -> None:
    container = Container.model_validate({"runtime": "apptainer", "image": IMAGE, **fields})
    with pytest.raises(LaunchError, match=named):
        container.words([Path(folder)], {})


def test_images_may_be_named_by_the_registry_that_has_them() -> None:
    made = Container(runtime="podman-hpc", image="docker://nvcr.io/nvidia/pytorch:26.02-py3")
    assert made.words([], {})[1][-1] == "docker://nvcr.io/nvidia/pytorch:26.02-py3"


def test_inside_the_projects_code_comes_first(tmp_path: Path) -> None:
    """The task is executed as srun would: the image's own packages stay, the user's do not."""
    show = "import os, sys; print(os.environ['PYTHONPATH'], os.environ['PYTHONNOUSERSITE'])"
    task = ["sh", "-c", commands.INSIDE + commands.TASK, tmp_path, "/shared/ddl"]
    for given, seen in (({}, "/shared/ddl"), ({"PYTHONPATH": "/image"}, "/shared/ddl:/image")):
        numbers = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"}
        variables = {"PATH": os.environ["PATH"], **numbers, **given}
        subprocess.run([*task, sys.executable, "-c", show], env=variables, check=True)
        assert (tmp_path / "3" / "stdout.log").read_text() == f"{seen} 1\n"


def test_ranks_inside_get_no_modules_and_know_their_image_and_commit(
    job: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/modules/python3.9")
    assert "/modules/python3.9" in commands.environment(SPEC)["PYTHONPATH"]
    step(monkeypatch, site("apptainer"))
    inside = commands.environment(SPEC)
    assert "PYTHONPATH" not in inside
    known = code()
    assert inside.get("DDL_COMMIT") == (None if known["git_dirty"] else known["git_commit"])
    monkeypatch.setenv("DDL_INSIDE", inside["DDL_INSIDE"])
    assert provenance()["container"] == "apptainer ddl.sif"


def test_the_leader_needs_no_torch_of_its_own(
    job: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    spec = RunSpec(strategy="horovod", prefix="no-such-program -v", compile=True)
    with pytest.raises(NotInstalledError, match="'torch'"):
        preflight.check_run(spec)
    _, rank = parts(step(monkeypatch, site("apptainer"), spec))
    preflight.check_run(spec)
    assert rank[:3] == ["no-such-program", "-v", "python3"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('runtime = "docker"\nimage = "x"', r"container.runtime = 'docker': .*'apptainer'"),
        ('runtime = "pyxis"', r"container.image"),
        ('runtime = "pyxis"\nimage = "--x"', r"container.image = '--x'"),
        ('runtime = "pyxis"\nimage = "$(touch x)"', r"container.image"),
        ('runtime = "pyxis"\nimage = "/${x@P}"', r"container.image = .*is written as"),
        ('runtime = "pyxis"\nimage = "x"\nargs = ["bash"]', r"container.args.0 = 'bash'"),
        ('runtime = "pyxis"\nimage = "x"\nargs = ["--a b"]', r"container.args.0 = '--a b'"),
        ('runtime = "pyxis"\nimage = "x"\nbinds = ["-v"]', r"container.binds.0 = '-v'"),
        ('runtime = "pyxis"\nimage = "x"\nbinds = ["/a,/b"]', r"container.binds.0 = '/a,/b'"),
        ('runtime = "pyxis"\nimage = "x"\npython = "-c"', r"container.python = '-c'"),
        (
            'runtime = "pyxis"\nimage = "x"\nbind = []',
            r"container.bind = .*did you mean binds",
        ),
    ],
)
def test_a_wrong_container_is_named_with_its_value(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(f'description = "x"\n[container]\n{line}\n')
    with pytest.raises(SpecError, match=message):
        Site.load(path)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"framework": "keras", "strategy": "spmd", "model": "resnet8"}, "framework = 'keras'"),
        (EMULATED, "emulated nodes"),
    ],
)
def test_what_runs_outside_of_a_container_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        site("apptainer", {"gpus_per_node": 0, "gpu_request": "none"}).check(RunSpec(**fields))


def test_an_installed_project_is_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "IN_CLONE", False)
    render(plan_of(SPEC), Site.model_validate(FOUR))
    with pytest.raises(SpecError, match=r"would bring them .*from a clone"):
        render(plan_of(SPEC), site("apptainer"))


@pytest.mark.parametrize("work", ["train", "probe"])
def test_a_run_binds_the_data_that_its_record_names(
    work: str, tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.add("srun", status=1)
    images = write_pictures(tmp_path / "images", 32, 8)
    run_dir = tmp_path / "run"
    if work == "probe":
        spec = RunSpec(work="probe", device="cpu")
        plan_probe(run_dir, ProbeRecord(name="x", site=None, spec=spec, data_dir=str(images)))
    else:
        spec = RunSpec(**{**TINY, "loader": "native"})
        write_record(run_dir, RunRecord.plan("small", spec, str(images)))
    step(monkeypatch, site("charliecloud"), spec, caches=str(tmp_path / "mine" / "caches"))
    with pytest.raises(LaunchError):
        run_ranks(run_dir)
    (call,) = stand_ins.calls("srun")[:1]
    for folder in (images, run_dir):
        assert f"--bind={folder}:{folder} " in call


def test_a_wrong_variable_is_one_sentence(job: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_CONTAINER", '{"runtime": "apptainer"}')
    with pytest.raises(LaunchError, match="DDL_CONTAINER") as refused:
        Allocation.current()
    assert "\n" not in str(refused.value)


def test_engines_are_not_started_beside_a_container(
    job: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    step(monkeypatch, site("apptainer"))
    with pytest.raises(LaunchError, match="outside of a container"):
        Engines(SPEC)
