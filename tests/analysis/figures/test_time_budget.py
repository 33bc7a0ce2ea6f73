"""Where an epoch's time goes, and what each cause costs against the base: by hand."""

from typing import Any

import pandas as pd
import pytest

from ddl_core.timing import Spent
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.figures.shares import BUDGET, CAUSES, TRAINING, epoch_points
from ddl_tools.analysis.plot.canvas import caption_of, title_of
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import MakeRun, epoch_row
from tests.analysis.drawn import beside, configurations

BASE = {"start": 0.5, "data": 1.5, "compute": 16.0, "transfer": 0, "waiting": 0, "update": 2.0,
        "end": 0.0}  # fmt: skip
GROWN = {"start": 0.5, "data": 0.5, "compute": 9.0, "transfer": 2.0, "waiting": 1.5, "update": 1.0,
         "end": 0.5}  # fmt: skip


def measure(make_run: MakeRun, spent: dict[str, float], evaluation_s: float = 0.0, **fields: Any):
    """Write a run with one cold and one warm epoch whose time went as `spent` says."""
    known = Spent(**{f"{name}_s": seconds for name, seconds in spent.items()})
    rows = [epoch_row(0, wall_s=99.0, spent=known), epoch_row(0, "eval", wall_s=99.0)]
    rows += [epoch_row(1, wall_s=sum(spent.values()), spent=known)]
    if evaluation_s:
        rows.append(epoch_row(1, "eval", wall_s=evaluation_s))
    make_run(rows=rows, **{"strategy": "ddp", **fields})


def budget(tree: Tree) -> pd.DataFrame:
    runs = runs_table(tree)
    return epoch_points(runs, configuration_table(runs))


def by_cause(points: pd.DataFrame, workers: int, column: str) -> dict[str, float]:
    return points[points["world_size"] == workers].set_index("cause")[column].to_dict()


def test_shares_are_of_the_warm_epoch_with_its_evaluation(tree: Tree, make_run: MakeRun) -> None:
    measure(make_run, BASE, evaluation_s=5.0)
    points = budget(tree)
    assert list(points.columns) == list(BUDGET)
    assert list(points["cause"]) == CAUSES
    shares = by_cause(points, 1, "value")
    assert shares == pytest.approx({name: s / 25 for name, s in BASE.items()} | {"evaluation": 0.2})
    assert points["value"].sum() == pytest.approx(1, abs=1e-9)
    assert points[["loss", "efficiency"]].isna().all(axis=None)  # the base has lost nothing
    figure = QUESTIONS["time_budget"].draw(points)
    assert [text.split() for text in beside(figure)[1:]] == [["1"]]
    assert " computes for 64 % of an epoch" in title_of(figure)


def test_losses_add_up_to_what_efficiency_lacks(tree: Tree, make_run: MakeRun) -> None:
    measure(make_run, BASE, evaluation_s=5.0)
    measure(make_run, GROWN, evaluation_s=5.0, gpus_per_node=2)
    points = budget(tree)
    efficiency = 20.0 / (2 * 15.0)  # E_G = G0 T_G0 / (G T_G)
    assert points["efficiency"].dropna().tolist() == pytest.approx([efficiency] * len(CAUSES))
    losses = by_cause(points, 2, "loss")
    # 2 workers x 15 s = 30 worker-seconds an epoch; ideal were the 20 of the base
    expected = {name: (2 * GROWN[name] - BASE[name]) / 30 for name in TRAINING}
    assert expected["data"] == pytest.approx(-0.5 / 30)
    assert {name: losses[name] for name in TRAINING} == pytest.approx(expected)
    assert sum(losses[name] for name in TRAINING) == pytest.approx(1 - efficiency)
    assert pd.isna(losses["evaluation"])


def test_efficiency_is_that_of_all_figures(tree: Tree, make_run: MakeRun) -> None:
    """The mean over repeats of times, 0.70, is not the ratio of throughputs."""
    for repeat, slower in enumerate((1.0, 1.5, 4.0)):
        measure(make_run, {name: slower * s for name, s in BASE.items()}, repeat=repeat)
        measure(make_run, GROWN, gpus_per_node=2, repeat=repeat)
    efficiency = configurations(tree).set_index("world_size").loc[2, "efficiency"]
    points = budget(tree)
    assert set(points["efficiency"].dropna()) == {efficiency}
    assert efficiency == pytest.approx(20 * 6 ** (1 / 3) / 30)
    assert points["loss"].sum() == pytest.approx(1 - efficiency)


def test_repeats_are_averaged_and_their_extremes_told(tree: Tree, make_run: MakeRun) -> None:
    measure(make_run, BASE)
    measure(make_run, BASE | {"compute": 36.0}, repeat=1)
    points = budget(tree).set_index("cause")
    row = points.loc["compute"]
    assert (row["n"], row["low"], row["high"]) == (2, 16 / 20, 36 / 40)
    assert row["value"] == pytest.approx((16 / 20 + 36 / 40) / 2)
    assert row["worker_s_per_image"] == pytest.approx(26 / 320)


def test_runs_that_do_not_tell_are_counted_and_left_out(tree: Tree, make_run: MakeRun) -> None:
    make_run(strategy="horovod", rows=[epoch_row(0), epoch_row(1, spent=None)])  # an older version
    make_run(work="load", repeat=1)
    measure(make_run, BASE)
    measure(make_run, BASE, repeat=2, status="failed")
    points = budget(tree)
    silent, told = points[points["cause"].isna()], points[points["cause"].notna()]
    assert silent[["strategy", "n"]].to_numpy().tolist() == [["horovod", 0]]
    assert "Without this account, not drawn (CSV): 1." in caption_of(
        QUESTIONS["time_budget"].draw(points)
    )
    assert told[["strategy", "n", "failed"]].drop_duplicates().to_numpy().tolist() == [
        ["ddp", 1, 1]
    ]


def test_records_whose_backward_pass_waits_are_not_drawn(tree: Tree, make_run: MakeRun) -> None:
    for fields in (
        {"strategy": "ddp"},
        {"strategy": "deepspeed", "deepspeed_zero_stage": 2},
        {"strategy": "deepspeed", "deepspeed_zero_stage": 1, "deepspeed_overlap_comm": True},
        {"strategy": "ddp", "ddp_compression": "powersgd", "checkpoint_every": 0},
    ):
        measure(make_run, BASE, gpus_per_node=2, **fields)
    counts = budget(tree).groupby("panel")["cause"].count()
    assert sorted(counts) == [0, 0, 0, len(CAUSES)]


def test_grown_configurations_are_shown_with_their_costs(tree: Tree, make_run: MakeRun) -> None:
    measure(make_run, BASE)
    measure(make_run, GROWN, gpus_per_node=2)
    points = budget(tree)
    _, text = QUESTIONS["time_budget"].sentences(points)
    lost = "efficiency 0.67; lost to transfer 13 %, waiting 10 %, compute 7 %, other 3 %; of an"
    assert lost in text
    assert "compute 60 %" in text
    figure = QUESTIONS["time_budget"].draw(points)
    (ax,) = figure.axes
    (told,) = beside(figure)[1:]
    assert " ".join(told.split()) == "1 0.67 transfer 13 %, waiting 10 %, compute 7 %"
    assert "reaches an efficiency of 0.67; transfer costs most (13 %)" in title_of(figure)
    idle = {**GROWN, "transfer": 0.0, "waiting": 3.5}
    measure(make_run, BASE, strategy="horovod")
    measure(make_run, idle, strategy="horovod", gpus_per_node=2)
    title = title_of(QUESTIONS["time_budget"].draw(budget(tree)))
    assert title.startswith("Horovod, native reaches ")
    assert "; waiting for slower ranks costs most (" in title
    widths = [bar.get_width() for bar in ax.patches]
    assert sum(widths) == pytest.approx(1)
    shares = by_cause(points, 2, "value")
    assert max(widths) == pytest.approx(shares["compute"])
    assert any(width == pytest.approx(shares["start"] + shares["data"]) for width in widths)
