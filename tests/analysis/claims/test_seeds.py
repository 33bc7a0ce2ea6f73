"""Each statement of the two other papers has a verdict, or the reason why it has none."""

import itertools
from collections.abc import Callable

import pandas as pd
import pytest

from ddl_core.analysis.claims import seeds as claims
from ddl_core.analysis.seed_papers import read_seeds
from ddl_core.analysis.tables import runs_table, windows_table
from ddl_core.records.paths import Tree
from tests.analysis.conftest import MakeRun
from tests.analysis.figures.test_libraries import trained

SEEDS = read_seeds()
ARMS = [("torch", "ddp"), ("tensorflow", "horovod"), ("keras", "spmd"), ("mxnet", "kvstore")]
JITTER = (1.0, 1.004, 0.997)

Judge = Callable[[], pd.DataFrame]


@pytest.fixture
def judge(tree: Tree) -> Judge:
    """Return a function that judges what lies in the tree, by statement."""

    def judged() -> pd.DataFrame:
        runs, windows = runs_table(tree.runs), windows_table(tree.runs)
        return claims.judged(runs, windows, SEEDS).set_index("statement")

    return judged


def measured(make_run: MakeRun, efficiency: dict[str, float], repeats: int = 3) -> None:
    """Write all arms with one and two workers; of each library its efficiency with two."""
    for arm, workers, repeat in itertools.product(ARMS, (1, 2), range(repeats)):
        share = efficiency[arm[0]] * 2 if workers == 2 else 1.0
        wall_s = 20 * JITTER[repeat] / share
        top1 = (0.5, 0.72, 0.8 + 0.001 * repeat)
        trained(make_run, arm, wall_s, top1, gpus_per_node=workers, repeat=repeat)


def test_every_statement_has_a_row_without_any_run(judge: Judge) -> None:
    table = judge()
    stated = {*SEEDS.statements["statement"], *SEEDS.orderings["statement"]} - {"D01"}
    assert set(table.index) == stated
    assert (table["why"] != "").all()
    assert (table["here"] == "").all()
    assert set(table["verdict"]) == {claims.UNDECIDED, claims.NOT_TESTABLE}


def test_a_ranking_that_the_records_show_is_confirmed(make_run: MakeRun, judge: Judge) -> None:
    measured(make_run, {"torch": 0.95, "tensorflow": 0.8, "keras": 0.6, "mxnet": 0.5})
    table = judge()
    assert table.loc[["O01", "O02"], "verdict"].tolist() == [claims.CONFIRMED] * 2
    assert "E of PyTorch-DDP / TensorFlow, Horovod 1.19 [" in table.loc["O01", "here"]
    assert "libraries, 2 workers, 2 CPU cores, ResNet50, batch 16" in table.loc["O01", "here"]
    assert "MXNet" in table.loc["O02", "here"]
    assert "PyTorch" not in table.loc["O02", "here"]


def test_a_ranking_the_other_way_is_contradicted(make_run: MakeRun, judge: Judge) -> None:
    measured(make_run, {"torch": 0.6, "tensorflow": 0.8, "keras": 0.5, "mxnet": 0.5})
    table = judge()
    assert table.loc["O01", "verdict"] == claims.CONTRADICTED
    assert table.loc["O01", "why"] == "of 3 comparisons 2 greater, 1 less"
    assert table.loc["O02", "verdict"] == claims.CONFIRMED


def test_a_ranking_without_one_side_is_not_confirmed(make_run: MakeRun, judge: Judge) -> None:
    for arm, workers, repeat in itertools.product(ARMS[:3], (1, 2), range(3)):
        share = {"torch": 1.9, "tensorflow": 1.6, "keras": 1.2}[arm[0]] if workers == 2 else 1.0
        trained(make_run, arm, 20 * JITTER[repeat] / share, gpus_per_node=workers, repeat=repeat)
    table = judge()
    assert table.loc["O01", "verdict"] == claims.UNDECIDED
    assert table.loc["O01", "why"].endswith("not measured with several numbers of workers: mxnet")


def test_one_run_an_arm_decides_nothing(make_run: MakeRun, judge: Judge) -> None:
    measured(make_run, {"torch": 0.95, "tensorflow": 0.8, "keras": 0.6, "mxnet": 0.5}, repeats=1)
    table = judge()
    assert table.loc["O01", "verdict"] == claims.UNDECIDED
    assert "(one start)" in table.loc["O01", "here"]


def test_alike_is_neither(make_run: MakeRun, judge: Judge) -> None:
    measured(make_run, dict.fromkeys(("torch", "tensorflow", "keras", "mxnet"), 0.9))
    table = judge()
    assert table.loc["O01", "verdict"] == claims.UNDECIDED
    assert table.loc["O01", "why"] == "of 3 comparisons 3 equivalent"


def test_what_is_seen_stands_beside_what_is_not_testable(make_run: MakeRun, judge: Judge) -> None:
    measured(make_run, dict.fromkeys(("torch", "tensorflow", "keras", "mxnet"), 0.9))
    table = judge()
    assert table.loc["H01", "verdict"] == claims.NOT_TESTABLE
    assert "speed-up of TensorFlow, Horovod 1.80 [" in table.loc["H01", "here"]
    assert "speed-up of PyTorch-DDP 1.80 [" in table.loc["M01", "here"]
    assert "PyTorch-DDP - TensorFlow, Horovod +0.0 [" in table.loc["O03", "here"]
    assert table.loc["O03", "here"].endswith("equivalent")
    assert "PyTorch-DDP to 60% by workers 1: 40.0 s, 2: 22.2 s" in table.loc["O06", "here"]


def test_a_study_of_one_library_says_nothing(make_run: MakeRun, judge: Judge) -> None:
    for workers in (1, 2):
        trained(make_run, ("torch", "ddp"), gpus_per_node=workers)
    assert (judge()["here"] == "").all()
