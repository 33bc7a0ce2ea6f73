"""The pages on adding a framework, a loader, a network and a machine tell the truth."""

import shlex
from pathlib import Path

import pandas as pd
import pytest

from ddl_core.registry import LOADERS, MODELS, STRATEGIES, Entry
from ddl_tools.analysis.questions import QUESTIONS
from ddl_tools.records.paths import PROJECT, Tree
from tests import pages
from tests.analysis.conftest import MakeRun, epoch_row, make_run, tree  # noqa: F401
from tests.guides import LIBRARY, PAGES, followed
from tests.pictures import write_pictures

STUDY = """
name: new
question: Does a name that is new stand in every list and figure?
base: {gpus_per_node: 2, image_size: 96, local_batch_size: 16, epochs: 3, train_images: 320}
axes: {strategy: [ddp, manual], loader: [native, halfway], model: [resnet50, lenet]}
repeats: 1
"""
NAMES = ("all-reduce by hand", "turbo with Pillow", "LeNet")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = followed(tmp_path_factory.mktemp("guides"))
    (copy / "studies" / "new.yaml").write_text(STUDY)
    return copy


def ddl(project: Path, *words: str) -> str:
    """Run `ddl` of the copy."""
    return pages.ddl(project, project, *words)


def test_the_new_names_stand_in_every_list(project: Path) -> None:
    plan = ddl(project, "study", "plan", "new", "--dry-run")
    assert plan.count("missing ") == 8
    asked = ["study", "submit", "new", "--site", "mymachine", "--account", "mine", "--dry-run"]
    jobs = ddl(project, *asked)
    assert jobs.count("#SBATCH --gres=gpu:2") == 8
    for name in NAMES:
        assert name in jobs
    offered = ddl(project, "run", "--help")
    assert all(name in offered for name in ("manual", "halfway", "lenet"))


def teach(patch: pytest.MonkeyPatch) -> None:
    """Let records with the new names be made in this process; the copy has them by itself."""
    for table, name in ((STRATEGIES, "manual"), (LOADERS, "halfway"), (MODELS, "lenet")):
        patch.setitem(table, name, Entry("nowhere:Thing"))


@pytest.mark.slow
def test_all_figures_are_drawn(
    project: Path,
    tree: Tree,  # noqa: F811
    make_run: MakeRun,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    teach(monkeypatch)
    new = {"strategy": "manual", "loader": "halfway", "model": "lenet"}
    free, old = {**new, "loader": "synthetic"}, {"strategy": "ddp", "model": "lenet"}
    for size in (1, 2):
        for work in ({}, {"work": "load"}):
            make_run(20 / size, **new, **work, gpus_per_node=size)
        make_run(18 / size, **free, gpus_per_node=size)
        make_run(16 / size, **old, gpus_per_node=size)
    rows = [epoch_row(0), epoch_row(0, "eval", top1=0.5)]
    for schedule in ("step", "cosine"):
        for accumulation in (1, 20):
            make_run(rows=rows, study="seen", schedule=schedule, accumulation=accumulation, **new)
    ddl(project, "figures", "--results", str(tree.root))
    for name in ("comparison", "loader_bound", "time_budget", "accuracy_vs_batch_size"):
        points = pd.concat(map(pd.read_csv, tree.figures.rglob(f"{name}.csv")))
        for column in new.keys() & set(points):
            assert new[column] in set(points[column]), name
    drawn = {path.stem for path in tree.figures.rglob("*.svg")}
    # Nothing took turns, was profiled or emulated; one library, one batch size, two
    # numbers of ranks, no data with a target.
    others = {"throughput_vs_workers", "throughput_vs_batch_size", "time_to_accuracy"}
    others |= {"time_shares", "accuracy_by_library", "efficiency_emulated"}
    others |= {"memory_per_rank"}  # which these records do not tell
    assert set(QUESTIONS) - drawn <= others
    judge = f"""
from pathlib import Path
from ddl_tools.analysis import claims, paper, tables
print(len(claims.judged(tables.runs_table(Path({str(tree.runs)!r})), paper.read_paper().claims)))
"""
    assert int(pages.python(project, project, "-c", judge).splitlines()[-1]) > 50


def commands(page: str) -> list[list[str]]:
    """Return what a page lets train."""
    text = (PROJECT / "docs" / page).read_text().replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("ddl run")]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_new_library_trains_as_torch_does(project: Path, tmp_path: Path) -> None:
    assert "DDL_PYTHON_PLAIN" in (PROJECT / "docs" / LIBRARY).read_text()
    compared = f"""
import os, sys
from pathlib import Path
sys.path.append({str(PROJECT)!r})
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[-1:])
os.environ["DDL_PYTHON_PLAIN"] = sys.executable
from tests.frameworks.equality import Training, assert_equal
training = Training({{}})
got = training.run(Path({str(tmp_path)!r}) / "two", "plain", "sockets")
assert_equal(got, training.torch)
"""
    pages.python(project, project, "-c", compared)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("page", [pytest.param(PAGES[0], marks=pytest.mark.extended), *PAGES[1:]])
def test_the_new_names_train(page: str, project: Path, tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "images", 80, 20)
    (words,) = commands(page)
    said = ddl(project, *words, "--data", str(images), "--results", str(tmp_path / "results"))
    assert "completed" in said
