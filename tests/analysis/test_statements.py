"""Statements of papers stand beside the ratios of figures, and say where these point."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ddl_tools.analysis import statements
from ddl_tools.analysis.paper import AACH, RELATED, Paper, read_paper
from ddl_tools.analysis.statements import INCONCLUSIVE, NOT_TESTED, OTHER, SAME
from ddl_tools.records.paths import FIGURES, STUDIES, Tree, committed
from tests.analysis.conftest import MakeRun, curve

PAPER = read_paper()
SPREAD = (0.99, 1.0, 1.01)


def asked(row: str, direction: str, quantity: str = "throughput") -> Paper:
    """Return the papers with a single ratio of the study `laptop` that a statement is about."""
    figure = "comparison" if quantity in ("throughput", "speed-up") else "accuracy_vs_batch_size"
    one = [AACH, "O02", "laptop", figure, row, quantity, direction]
    return replace(PAPER, measured_here=pd.DataFrame([one], columns=list(PAPER.measured_here)))


def results(tree: Tree, row: str, quantity: str = "throughput") -> dict[str, str]:
    """Return where a ratio points, by the direction that the paper would claim."""
    found = {}
    for direction in ("greater", "less", "equivalent"):
        (found[direction],) = statements.compared(tree, asked(row, direction, quantity))["result"]
    return found


def measure(make_run: MakeRun, wall_s: float, spread: tuple[float, ...] = SPREAD, **spec) -> None:
    for repeat, factor in enumerate(spread):
        make_run(wall_s * factor, repeat=repeat, **{"gpus_per_node": 2} | spec)


@pytest.mark.parametrize(
    ("wall_s", "decision"), [(16.0, "greater"), (25.0, "less"), (20.0, "equivalent")]
)
def test_a_ratio_points_one_way(
    tree: Tree, make_run: MakeRun, wall_s: float, decision: str
) -> None:
    measure(make_run, 20.0, strategy="ddp")
    measure(make_run, wall_s, strategy="horovod")
    words = dict.fromkeys(("greater", "less", "equivalent"), OTHER) | {decision: SAME}
    assert results(tree, "Horovod") == words
    paper = asked("Horovod", "greater")
    listed = statements.listed(paper, statements.compared(tree, paper)).set_index("statement")
    here = listed[listed["paper"] == AACH].loc["O02", "here"]
    assert f"{words['greater']}: Horovod: {20 / wall_s:.2f} [" in here
    assert here.endswith(" times PyTorch-DDP (laptop)")


@pytest.mark.parametrize("spread", [(0.6, 1.0, 1.7), (1.0,)])
def test_a_wide_interval_and_one_start_are_inconclusive(
    tree: Tree, make_run: MakeRun, spread: tuple[float, ...]
) -> None:
    measure(make_run, 20.0, spread, strategy="ddp")
    measure(make_run, 16.0, spread[::-1], strategy="horovod")
    assert set(results(tree, "Horovod").values()) == {INCONCLUSIVE}


def test_more_ranks_are_compared_with_the_fewest(tree: Tree, make_run: MakeRun) -> None:
    measure(make_run, 20.0, strategy="ddp", gpus_per_node=1)
    measure(make_run, 12.0, strategy="ddp", gpus_per_node=2)
    assert results(tree, "2 ranks", "speed-up")["greater"] == SAME


def test_accuracies_are_compared_by_schedule_and_over_the_batch(
    tree: Tree, make_run: MakeRun
) -> None:
    tops = {("cosine", 1): 0.7, ("cosine", 20): 0.5, ("step", 1): 0.6, ("step", 20): 0.6}
    for (schedule, size), top1 in tops.items():
        for repeat, more in enumerate((-0.001, 0.0, 0.001)):
            about = {"dataset": "fashion_mnist", "loader": "memory", "accumulation": size}
            make_run(rows=curve([top1 + more]), schedule=schedule, repeat=repeat, **about)
    assert results(tree, "SGD, step, batch 16", "accuracy")["less"] == SAME
    assert results(tree, "SGD, step, batch 320", "accuracy")["greater"] == SAME
    assert results(tree, "SGD, cosine, batch 320", "accuracy lost")["greater"] == SAME
    assert results(tree, "SGD, step, batch 320", "accuracy lost")["equivalent"] == SAME


def test_without_records_nothing_is_tested_and_each_statement_has_a_line(tmp_path: Path) -> None:
    found = statements.compared(Tree(tmp_path), PAPER)
    listed = statements.listed(PAPER, found)
    assert found.empty
    assert len(listed) == len(PAPER.claims)
    assert not listed.duplicated(["paper", "statement"]).any()
    assert listed["here"].str.match(rf"{NOT_TESTED}: needs \w").all()
    assert set(listed["paper"]) == {AACH, *RELATED}
    against, asked = statements.answer(PAPER, found)
    assert re.match(r"[1-9]\d* of 63 statements are contradicted by the paper itself", against)
    assert against.endswith("; 3 more hold with exceptions.")
    assert asked.startswith("0 are asked here")
    assert "63 are not tested" in asked


@pytest.mark.slow
def test_each_published_ratio_is_that_of_its_figure() -> None:
    found = statements.compared(committed(), PAPER)
    assert len(found) == len(PAPER.measured_here)
    own = found[found["quantity"] == "throughput"]
    for row in own.to_dict("records"):
        points = pd.read_csv(FIGURES / row["study"] / "comparison.csv").set_index("label")
        one = points.loc[row["row"]]
        shown = f"{one['ratio']:.2f} [{one['ratio_low']:.2f}, {one['ratio_high']:.2f}] times "
        assert row["ratio"] == shown + one["base"]
        assert row["result"] == (SAME if one["decision"] == row["direction"] else OTHER)


def test_statements_name_studies_and_numbers_that_exist() -> None:
    keys = ["paper", "statement"]
    assert set(map(tuple, PAPER.measured_here[keys].to_numpy())) <= set(
        map(tuple, PAPER.claims[keys].to_numpy())
    )
    plans = PAPER.claims["plan"].dropna().str.split(";").explode()
    for name in {*plans, *PAPER.measured_here["study"]}:
        assert (STUDIES / f"{name}.yaml").exists()
    assert PAPER.claims[["claim", "place", "needs"]].notna().all(axis=None)


def test_the_paper_itself_contradicts_some_statements(tmp_path: Path) -> None:
    listed = statements.listed(PAPER, statements.compared(Tree(tmp_path), PAPER))
    own = listed[listed["paper"] == AACH].set_index("statement")["against"]
    assert own["E02"] == "0.76 (E02) against 0.914 (D04)"
    assert own["R10"] == "286 s (D59) against >425 s (D60)"
    assert own["O28"].endswith("one of 3 such pairs of 3")
    assert not own["O28"].startswith("with exceptions")
    assert own["O26"].startswith("with exceptions: ")
    assert (own[["O01", "O29", "O30", "E01"]] == "").all()
    assert (listed.loc[listed["paper"] != AACH, "against"] == "").all()
