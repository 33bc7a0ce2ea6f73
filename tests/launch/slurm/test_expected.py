"""The expected time of runs on a site: known of records and of the paper, beside their limit."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from ddl_core.config import RunSpec
from ddl_tools.launch.slurm.expected import expected_times
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.run import read_record
from tests.analysis.conftest import writer
from tests.launch.running import change, ddl, study_file
from tests.launch.stand_ins import StandIns

PAPER: dict[str, Any] = {
    "dataset": "imagenet",
    "data_format": "tfrecord",
    "loader": "dali_gpu",
    "loader_workers": 8,
    "model": "resnet50",
    "strategy": "ddp",
    "device": "cuda",
    "image_size": 224,
    "local_batch_size": 64,
    "train_images": None,
    "gpus_per_node": 4,
    "epochs": 90,
}


def on(site: str, *specs: RunSpec, tree: Tree) -> list[float | None]:
    """Return the expected hours of some runs."""
    found = expected_times(specs, site, find_site(site), tree)
    return [found[one.run_id].hours if one.run_id in found else None for one in specs]


@pytest.mark.parametrize(
    ("changes", "hours"),
    [
        ({}, 13),
        ({"epochs": 45}, 6.5),
        ({"min_steps_per_epoch": 10_000}, 26),  # 5004 steps twice
        ({"model": "resnet101"}, None),
        ({"strategy": "deepspeed"}, None),
        ({"loader": "synthetic", "data_format": "folder"}, None),
        ({"local_batch_size": 32}, None),
        ({"image_size": 64}, None),
        ({"dataset": "own"}, None),
    ],
)
def test_the_papers_runs_take_the_papers_time(
    tmp_path: Path, changes: dict[str, Any], hours: float | None
) -> None:
    spec = RunSpec(**PAPER | {"eval_every": 0} | changes)
    (found,) = on("juwels_booster", spec, tree=Tree(tmp_path))
    assert found == (hours and pytest.approx(hours, rel=0.01))  # 12.5 to 13.5, the middle of logs
    assert on("generic", spec, tree=Tree(tmp_path)) == [None]  # which is another machine


def test_own_jobs_of_the_same_configuration_say_how_long_others_take(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    make = writer(tree)
    for ranks in (1, 2):
        directory = make(36.0 / ranks, strategy="ddp", nodes=ranks)  # 320 images an epoch
        change(directory, job_id="1")
    changes = {"epochs": 300, "nodes": 1, "schedule": "cosine"}
    spec = read_record(directory).spec.model_copy(update=changes)
    larger, other = (spec.model_copy(update=one) for one in ({"nodes": 9}, {"loader_workers": 3}))
    ours, beyond, unlike = on("generic", spec, larger, other, tree=tree)
    assert ours == pytest.approx(3, rel=0.2)
    assert (beyond, unlike) == (None, None)  # more than four times as many ranks; other settings


def test_a_damaged_record_is_named_once_for_all_networks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = Tree(tmp_path)
    RunFiles(writer(tree)(36.0, strategy="ddp")).record.write_text("{")
    specs = [RunSpec(**PAPER | {"model": one}) for one in ("resnet50", "resnet101", "resnet152")]
    on("juwels_booster", *specs, tree=tree)
    assert len(caplog.messages) == 1


@pytest.fixture
def slurm(stand_ins: StandIns) -> StandIns:
    """Stand-ins for a SLURM whose queue is empty."""
    stand_ins.add("squeue")
    return stand_ins


def dry_run(path: Path, *options: object) -> Result:
    site = ("--site", "juwels_booster", "--account", "p", "--max-node-hours", 10**6)
    return ddl("study", "submit", path, *site, *options, "--dry-run", status=0)


@pytest.mark.usefixtures("slurm")
def test_a_limit_below_the_expected_time_is_a_warning(tmp_path: Path) -> None:
    path = study_file(tmp_path, **PAPER | {"nodes": [1, 64], "checkpoint_every": 5})
    shown = dry_run(path)
    (line,) = [one for one in shown.stderr.splitlines() if "expected to exceed" in one]
    assert "time limit: 1 of 2 jobs, e.g." in line
    assert all(part in line for part in ("13.0 h, limit 01:00:00", "--time", "continue from"))
    *_, total = (line for line in shown.stdout.splitlines() if line.startswith("total"))
    assert total.split()[-2:] == ["65.0", "29.1"]  # (1 + 64) x 1 h at most, 13 h + 64 x 0.252 h
    planned = ddl("study", "plan", path, "--site", "juwels_booster", "--dry-run", status=0)
    assert line in planned.stderr.splitlines()
    assert total in planned.output.splitlines()
    assert "rates of JUWELS Booster" in planned.output
    assert "expected to exceed" not in dry_run(path, "--time", "14:00:00").stderr
    assert "expected to exceed" in dry_run(path, "--time", "12:00:00").stderr


@pytest.mark.usefixtures("slurm")
def test_a_block_takes_as_long_as_its_runs(tmp_path: Path) -> None:
    fields = {"epochs": 45, "checkpoint_every": 5, "schedule": ["step", "cosine"]}
    path = study_file(tmp_path, **PAPER | fields)  # 6.5 h each
    assert "expected to exceed" not in dry_run(path, "--by", "block", "--time", "14:00:00").stderr
    shown = dry_run(path, "--by", "block", "--time", "12:00:00")
    assert "time limit: 1 of 1 job," in shown.stderr


@pytest.mark.usefixtures("slurm")
def test_where_no_rate_is_known_nothing_is_expected(tmp_path: Path) -> None:
    shown = dry_run(study_file(tmp_path, strategy="ddp", nodes=[1, 4]))
    assert "expected" not in shown.output


@pytest.mark.usefixtures("slurm")
def test_a_folder_says_how_many_images_an_epoch_has(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "results")
    directory = writer(tree)(36.0, strategy="ddp", dataset="own", train_images=None)
    change(directory, job_id="1")
    for split in ("train", "val"):
        (tmp_path / "own" / split / "a").mkdir(parents=True)
        for number in range(640):
            (tmp_path / "own" / split / "a" / f"{number}.jpg").touch()
    run = read_record(directory).spec.model_dump(mode="json") | {"schedule": "cosine"}
    path = study_file(tmp_path, **run)
    shown = dry_run(path, "--site", "generic", "--results", tree.root, "--data", tmp_path / "own")
    assert "expected" in shown.output
