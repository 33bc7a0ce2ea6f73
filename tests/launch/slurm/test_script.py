"""The job script: a stored text for each kind of machine, and what is refused.

To store new texts after a wanted change:  DDL_WRITE_GOLDEN=1 python -m pytest THIS_FILE
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.launch.slurm.script import JobPlan, render, srun_argv
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.records.ledger import Entry
from tests.commands import output
from tests.fields import EMULATED

GOLDEN = Path(__file__).parent / "sbatch"
STUDY = Path("/shared/results/runs/a study")
ASKED = JobPlan(account="project1", project=Path("/shared/ddl"), python="/shared/venv/python")
NOTHING = replace(ASKED, account=None)

ONE_NODE = {"strategy": "ddp", "gpus_per_node": 4}
FOUR_NODES = {**ONE_NODE, "nodes": 4}
CASES: dict[str, tuple[str, dict[str, Any], JobPlan]] = {
    "juwels_booster-4": ("juwels_booster", {**FOUR_NODES, "strategy": "horovod"}, ASKED),
    "lumi-4": ("lumi", {**FOUR_NODES, "gpus_per_node": 8}, ASKED),
    "localtest-4": ("localtest", {**FOUR_NODES, "gpus_per_node": 1, "device": "cpu"}, NOTHING),
}
BLOCK = "vega-block"


def plan_of(*specs: RunSpec, asked: JobPlan = ASKED, study: Path = STUDY) -> JobPlan:
    """Return the plan of a job of some runs, in folders ``run``, ``run1`` and so on."""
    names = (f"run{number or ''}" for number in range(len(specs)))
    runs = [Entry(spec, study / name, "missing") for spec, name in zip(specs, names, strict=True)]
    return asked.of(runs)


def script(site: str, fields: dict[str, Any], asked: JobPlan = ASKED, **changes: Any) -> str:
    changed = find_site(site).model_copy(update=changes)
    return render(plan_of(RunSpec(**fields), asked=asked), changed)


def block(site: str) -> str:
    """Return the script of a job of two runs, of which one has no checkpoints."""
    specs = [RunSpec(**{**FOUR_NODES, "strategy": one}) for one in ("horovod", "ddp")]
    specs[1] = specs[1].model_copy(update={"checkpoint_every": 0})
    study = Path("/shared/my results/runs/small")  # no study's name has a space
    chosen = find_site(site).model_copy(update={"requeues": 2})
    runs = [
        Entry(*one, "missing") for one in zip(specs, (study / "one", study / "two"), strict=True)
    ]
    return render(ASKED.of(runs), chosen)


@pytest.mark.parametrize("name", [*CASES, BLOCK])
def test_the_script_is_the_stored_one_and_bash_can_read_it(name: str) -> None:
    text = block("vega") if name == BLOCK else script(*CASES[name])
    stored = GOLDEN / f"{name}.sh"
    if os.environ.get("DDL_WRITE_GOLDEN"):
        stored.write_text(text, encoding="utf-8")
    assert text == stored.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", stored], check=True)


@pytest.mark.parametrize(
    ("site", "asked", "named"),
    [
        ("juwels_booster", JobPlan(), "--account PROJECT"),
        ("juwels_booster", JobPlan(account="a b"), "account = 'a b'"),
        ("juwels_booster", JobPlan(account="a", partition="x\n#SBATCH --mem=1"), "partition = "),
        ("generic", JobPlan(time="00:02:00"), "120 s before its limit"),
        ("leonardo", JobPlan("a", time="24:00:01"), r"24:00:00 \(time_max\)"),
    ],
)
def test_options_that_do_not_fit_are_refused(site: str, asked: JobPlan, named: str) -> None:
    with pytest.raises(SpecError, match=named):
        script(site, ONE_NODE, asked)


CPU = {**ONE_NODE, "device": "cpu"}
ONE_MACHINE = "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n"


@pytest.mark.parametrize(
    ("site", "fields", "there", "absent"),
    [
        ("perlmutter", CPU, "--ntasks-per-node=4\n", "gpus-per-node"),
        ("perlmutter", CPU, "--nodes=1\n", "CUDA_VISIBLE_DEVICES"),
        ("lumi", ONE_NODE, "--gpus-per-node=4\n#SBATCH --mem=480G\n", "--rocm"),
        ("lumi", ONE_NODE, "module load lumi-aif-singularity-bindings\n", "unset DDL_CONTAINER"),
        ("roihu", ONE_NODE, '"args":["--nv"]', "unset DDL_CONTAINER"),
        ("lumi", ONE_NODE, 'export MIOPEN_USER_DB_PATH="$DDL_CACHES/miopen"\n', "--exclusive"),
        ("perlmutter", ONE_NODE, "#SBATCH --constraint=gpu\n#SBATCH --qos=regular\n", "partition"),
        ("perlmutter", ONE_NODE, " --gpu-bind=none env CUDA_VISIBLE_DEVICES=3,2,1,0'", "exclusive"),
        ("perlmutter", {**ONE_NODE, "gpus_per_node": 2}, " CUDA_VISIBLE_DEVICES=1,0'", "=3,2"),
        ("frontier", ONE_NODE, "\n#SBATCH --network=disable_rdzv_get\n", "gpus-per-node"),
        ("frontier", ONE_NODE, " --gpus-per-task=1 --gpu-bind=closest'\n", "VISIBLE_DEVICES"),
        ("frontier", ONE_NODE, "MASTER_ADDR=\"$(hostname -i | cut -d ' ' -f 1)\"\n", "hostnames"),
        ("mahti", ONE_NODE, "--gres=gpu:a100:4\n", "gpus-per-node"),
        ("juwels_booster", {**EMULATED, "nodes": 16, "gpus_per_node": 2}, ONE_MACHINE, "gres"),
        ("localtest", CPU, "scontrol requeue", "--no-requeue"),
        ("localtest", {**CPU, "checkpoint_every": 0}, "--no-requeue", "scontrol requeue"),
    ],
)
def test_a_script_asks_for_what_its_run_needs(
    site: str, fields: dict[str, Any], there: str, absent: str
) -> None:
    text = script(site, fields)
    assert there in text
    assert absent not in text


def test_what_was_asked_for_comes_before_what_the_site_says() -> None:
    text = script("generic", ONE_NODE, JobPlan(partition="gpu,other", time="12:00:00"))
    assert "#SBATCH --partition=gpu,other\n#SBATCH --time=12:00:00\n" in text
    assert "account" not in text


def test_options_of_the_job_win_over_further_ones_of_the_site() -> None:
    lines = ("--account=theirs", "--time=48:00:00", "--mail-type=END")
    asked = JobPlan(account="mine", time="01:00:00")
    text = script("generic", ONE_NODE, asked, sbatch_lines=lines)
    given = [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]
    for theirs, mine in (("--account=theirs", "--account=mine"), (lines[1], "--time=01:00:00")):
        assert given.index(theirs) < given.index(mine)  # sbatch takes the last one
    assert "--mail-type=END" in given


def test_options_of_the_step_win_over_further_ones_of_the_site() -> None:
    text = script("generic", ONE_NODE, srun_args=("--mpi=pmi2", "--network=no_vni"))
    assert "DDL_SRUN='srun --mpi=pmi2 --network=no_vni --kill-on-bad-exit=1 " in text
    assert text.index("--mpi=pmi2") < text.index("--mpi=none")  # srun takes the last one


def test_each_rank_sees_the_gpu_of_its_number() -> None:
    words = srun_argv(RunSpec(**{**ONE_NODE, "gpus_per_node": 8}), find_site("lumi"))
    assert words[-5].startswith("--cpu-bind=mask_cpu:0xfe000000000000,")
    see_one = 'export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID; exec "$@"'
    assert words[-4:] == ["sh", "-c", see_one, "rank"]


def test_an_emulated_run_costs_one_machine() -> None:
    alone, site = RunSpec(**{**EMULATED, "nodes": 16}), find_site("juwels_booster")
    own, other = plan_of(alone), plan_of(RunSpec(**ONE_NODE))
    assert own.node_hours(site) == other.node_hours(site)


def test_mpi_is_asked_for_by_horovod_over_mpi_alone() -> None:
    over_mpi, horovod = {"horovod_controller": "mpi"}, {**ONE_NODE, "strategy": "horovod"}
    assert "--mpi=none" in script("vega", ONE_NODE, **over_mpi)
    assert "--mpi=none" in script("vega", {**horovod, "framework": "tensorflow"}, **over_mpi)
    over_gloo = script("vega", horovod)
    assert "--mpi=none" in over_gloo
    assert "HOROVOD_CONTROLLER" not in over_gloo
    both = plan_of(RunSpec(**ONE_NODE), RunSpec(**horovod))  # a block: one of its runs needs it
    text = render(both, find_site("vega").model_copy(update=over_mpi))
    assert "--mpi=pmix_v3" in text
    assert 'export HOROVOD_CONTROLLER="mpi"\n' in text


def test_a_percent_in_a_folder_is_no_placeholder() -> None:
    text = render(plan_of(RunSpec(), study=Path("/50%")), find_site("generic"))
    assert "--output=/50%%/run/logs/slurm-%j.log\n" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"study": Path("/shared/x\n#SBATCH --mem=1")},
        {"asked": replace(ASKED, project=Path("/shared/a\rb"))},
        {"asked": replace(ASKED, python="/shared/\x1b[2J/python")},
    ],
)
def test_a_path_that_would_add_a_line_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="script cannot name a path with"):
        render(plan_of(RunSpec(**ONE_NODE), **wrong), find_site("generic"))


def test_a_projects_path_is_no_command(tmp_path: Path) -> None:
    project = Path('/shared/a "b" $(touch here) `touch there` \\ $HOME')
    site = find_site("generic").model_copy(update={"caches": str(tmp_path / "caches")})
    asked = replace(ASKED, project=project)
    text = render(plan_of(RunSpec(**ONE_NODE), asked=asked), site)
    (line,) = [one for one in text.splitlines() if one.startswith("export PYTHONPATH=")]
    done = subprocess.run(
        ["bash", "-c", f'unset PYTHONPATH; {line}; printf %s "$PYTHONPATH"'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == str(project)
    assert not list(tmp_path.iterdir())


def test_a_job_imports_nothing_from_the_folder_in_which_it_was_submitted(tmp_path: Path) -> None:
    """Its program is a Python that says where it looks; the site's own lines keep the default."""
    setup = (f'export PYTHONPATH="$PYTHONPATH::/modules:"; env >{tmp_path}/seen',)
    caches = str(tmp_path / "caches")
    site = find_site("generic").model_copy(update={"setup": setup, "caches": caches})
    package = tmp_path / "project" / "ddl_tools" / "launch" / "slurm"
    package.mkdir(parents=True)
    (package / "job.py").write_text("import sys; print(*sys.path, sep='\\n')")
    asked = replace(ASKED, project=tmp_path / "project", python=sys.executable)
    (tmp_path / "submitted").mkdir()
    said = output(
        *("bash", "-c", render(plan_of(RunSpec(**ONE_NODE), asked=asked), site)),
        cwd=tmp_path / "submitted",
        **{"PYTHONPATH": ":/mine::", "SLURM_JOB_ID": 17, "MASTER_ADDR": "here"},
    )
    folders = said.splitlines()
    assert folders[:3] == [str(tmp_path / "project"), "/mine", "/modules"]
    assert str(tmp_path / "submitted") not in folders
    assert "PYTHONSAFEPATH" not in (tmp_path / "seen").read_text()
