"""Ratios to a reference arm from windows that were planted."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from ddl_core.analysis.arms import arm_table
from ddl_core.analysis.figures import comparison, ratios
from ddl_core.analysis.figures.ratios import RATIOS
from ddl_core.analysis.redraw import redraw
from ddl_core.analysis.tables import empty_table, empty_windows, runs_table, windows_table
from ddl_core.records.paths import Tree
from tests.analysis.conftest import MACHINE, MakeRun, in_blocks, turned

DDP: dict[str, Any] = {"strategy": "ddp"}
HOROVOD: dict[str, Any] = {"strategy": "horovod"}
DEEPSPEED: dict[str, Any] = {"strategy": "deepspeed"}
DRIFT = np.array([10.0, 14.0, 31.0, 22.0, 9.0, 12.0])
WOBBLE = np.array([1.01, 0.99, 1.02, 0.98, 1.0, 1.0])


def points(tree: Tree) -> pd.DataFrame:
    return ratios.points(runs_table(tree.runs), windows_table(tree.runs))


def text(figure: Figure) -> str:
    artists = [*figure.texts, *(text for ax in figure.axes for text in ax.texts)]
    return " ".join(artist.get_text() for artist in artists).replace("\n", " ")


@pytest.fixture
def study(make_run: MakeRun) -> MakeRun:
    """Three arms, six starts each, on a drifting machine: horovod at 0.8 of ddp, alike by CPU."""
    cpu_s = DRIFT * WOBBLE
    in_blocks(make_run, DDP, list(DRIFT), cpu_s=list(DRIFT))
    in_blocks(make_run, HOROVOD, list(DRIFT / 0.8 * WOBBLE), cpu_s=list(cpu_s), place=1)
    slow = list(DRIFT * WOBBLE[::-1] ** 20)
    in_blocks(make_run, DEEPSPEED, slow, cpu_s=list(cpu_s), place=2)
    return make_run


def test_ratios_are_those_of_pairs(tree: Tree, study: MakeRun) -> None:
    table = points(tree).set_index(["strategy", "clock"])
    assert set(table.index) == {
        (strategy, clock) for strategy in ("horovod", "deepspeed") for clock in ("wall", "cpu")
    }, "the reference is no row of its own"
    wall = table.loc["horovod", "wall"]
    expected = stats.ttest_1samp(np.log(0.8 / WOBBLE), 0).confidence_interval()
    assert (wall["low"], wall["high"]) == pytest.approx(tuple(np.exp(expected)))
    assert wall["value"] == pytest.approx(0.8, rel=1e-3)
    assert table["n"].tolist() == [6, 6, 6, 6]
    assert set(table["reference"]) == {"PyTorch-DDP, native, 1 worker"}
    assert table["decision"].to_dict() == {
        ("horovod", "wall"): "less",
        ("horovod", "cpu"): "equivalent",
        ("deepspeed", "wall"): "cannot say",
        ("deepspeed", "cpu"): "equivalent",
    }


def test_settings_and_machines_are_not_pooled(tree: Tree, study: MakeRun) -> None:
    """The same arm in other hands: another row, with its own pairs."""
    for change in (
        {"image_size": 64},
        {"system": MACHINE | {"cpu": "Another CPU"}, "seed": 1},
        {"system": MACHINE | {"cpu_cores": 4}, "seed": 2},
    ):
        in_blocks(study, HOROVOD, list(DRIFT[:3] / 2), place=3, **change)
    table = points(tree)
    wall = table[(table["strategy"] == "horovod") & (table["clock"] == "wall")]
    assert sorted(zip(wall["n"], wall["value"].round(2), strict=True)) == [
        (3, 2.0),
        (3, 2.0),
        (3, 2.0),
        (6, 0.8),
    ]
    assert wall["panel"].nunique() == 4


def test_windows_of_other_blocks_and_rounds_are_no_pairs(tree: Tree, make_run: MakeRun) -> None:
    turned(make_run, DDP, list(DRIFT))
    again = DDP | {"repeat": 1}
    turned(make_run, again, list(3 * DRIFT[:4]), block="b", reference=again)
    late = list(1.5 * DRIFT[:3])
    turned(make_run, HOROVOD, late, block="b", reference=again, place=1, windows=4)
    table = points(tree)
    assert table["pairs"].tolist() == [3, 3]
    assert table["value"].tolist() == pytest.approx([2.0, 2.0])


def test_an_interval_is_over_starts_and_not_over_windows(tree: Tree, make_run: MakeRun) -> None:
    """Two starts of six windows that are all alike: what differs are the starts."""
    for repeat, factor in enumerate((1.0, 1.2)):
        again = DDP | {"repeat": repeat}
        turned(make_run, again, list(DRIFT), block=f"b{repeat}", reference=again)
        turned(make_run, HOROVOD | {"repeat": repeat}, list(factor * DRIFT), block=f"b{repeat}",
               reference=again, place=1)  # fmt: skip
    table = points(tree)
    assert table["n"].tolist() == [2, 2]
    assert table["pairs"].tolist() == [12, 12]
    expected = stats.ttest_1samp(-np.log([1.0, 1.2]), 0).confidence_interval()
    assert table[["low", "high"]].values.tolist() == [pytest.approx(list(np.exp(expected)))] * 2
    assert set(table["decision"]) == {"cannot say"}


def test_one_start_says_nothing_of_another(tree: Tree, make_run: MakeRun) -> None:
    turned(make_run, DDP, list(DRIFT))
    turned(make_run, HOROVOD, list(DRIFT / 2), place=1)
    table = points(tree)
    assert table["value"].tolist() == pytest.approx([2.0, 2.0])
    assert table[["low", "high", "decision"]].isna().all(axis=None)
    (_, told) = ratios.sentences(table)
    assert "2.00, one start" in told
    assert not {"faster", "slower"} & set(told.split())
    said = text(ratios.draw(table))
    assert "wall 2.00: one start" in said


def test_a_second_start_of_the_reference_is_a_row_and_pooled_with_nothing(
    tree: Tree, study: MakeRun
) -> None:
    before = points(tree)
    took = list(DRIFT / 1.01 * WOBBLE)
    in_blocks(study, DDP | {"second_start": True}, took, cpu_s=took, place=3)
    table = points(tree)
    again = table[table["second_start"]]
    assert again["value"].tolist() == pytest.approx([1.01, 1.01], rel=1e-3)
    assert again["panel"].unique().tolist() == before["panel"].unique().tolist()
    rest = table[~table["second_start"]].reset_index(drop=True)
    pd.testing.assert_frame_equal(rest, before)
    figure = ratios.draw(table)
    FigureCanvasAgg(figure).draw()
    names = [label.get_text().replace("\n", " ") for label in figure.axes[0].get_yticklabels()]
    assert "native PyTorch-DDP, 1 worker (second start)" in names
    runs, windows = runs_table(tree.runs), windows_table(tree.runs)
    assert arm_table(runs, windows)["n"].tolist() == [6, 6, 6]
    labels = comparison.points(runs, windows).set_index("label")
    assert labels.loc["PyTorch-DDP, second start", "n"] == 6
    assert labels.loc["PyTorch-DDP", "n"] == 6


def test_rounds_that_do_not_count_are_counted_and_named(tree: Tree, make_run: MakeRun) -> None:
    for repeat in range(2):
        again = DDP | {"repeat": repeat}
        cpu_s = [20.0, 20.0, 10.0 if repeat else 20.0]
        turned(make_run, again, [10.0] * 3, cpu_s=cpu_s, block=f"b{repeat}", reference=again)
        turned(make_run, HOROVOD | {"repeat": repeat}, [10.0, 10.0, 90.0], block=f"b{repeat}",
               reference=again, place=1)  # fmt: skip
    table = points(tree)
    assert table["pairs"].tolist() == [5, 5]
    (told,) = table["left_out"].unique()
    assert told == "first of a start: 2; disturbed: 1 (round 4 of block 2)"
    assert told in text(ratios.draw(table))


def test_studies_without_turns_and_loading_do_not_stand_there(tree: Tree, study: MakeRun) -> None:
    study(study="another", strategy="horovod")
    before = len(points(tree))
    turned(study, HOROVOD | {"work": "load"}, list(DRIFT), place=4)
    table = points(tree)
    assert len(table) == before
    assert set(table["study"]) == {"laptop"}


def test_a_lost_arm_has_no_pairs_and_says_so(tree: Tree, study: MakeRun) -> None:
    turned(study, HOROVOD | {"loader": "turbo"}, list(DRIFT), place=3, status="failed", seed=1)
    table = points(tree)
    lost = table[table["loader"] == "turbo"]
    assert lost["n"].tolist() == [0, 0]
    assert lost["failed"].tolist() == [1, 1]
    assert lost["value"].isna().all()
    said = text(ratios.draw(table))
    assert "wall: no pairs, 1 lost" in said
    assert "failed or diverged: 1 run." in said


def test_figure_tells_ratio_interval_pairs_and_decision(tree: Tree, study: MakeRun) -> None:
    figure = ratios.draw(points(tree))
    FigureCanvasAgg(figure).draw()
    said = text(figure)
    assert "wall 0.80 [0.79, 0.81] n = 6: less" in said
    assert "CPU 1.00 [0.99, 1.02] n = 6: equivalent" in said
    assert "against PyTorch-DDP, native, 1 worker" in figure.axes[0].get_title(loc="left").replace(
        "\n", " "
    )
    assert "6 pairs; starts: n = 6" in said
    low, high = figure.axes[0].get_xlim()
    assert low < 0.8 < 1.05 < high
    assert math.isclose(figure.axes[0].get_ylim()[1], -0.5)


def test_nothing_measured_says_so() -> None:
    table = ratios.points(empty_table(), empty_windows())
    assert list(table) == list(RATIOS)
    figure = ratios.draw(table)
    FigureCanvasAgg(figure).draw()
    assert "No study measured here has let its arms take turns" in text(figure)
    assert figure.get_figheight() < 3


def test_redraw_reads_the_windows_back(tree: Tree, study: MakeRun, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    redraw(tree, figures=figures, studies=["laptop"])
    drawn = pd.read_csv(figures / "laptop" / "ratios.csv")
    assert drawn["value"].tolist() == pytest.approx(points(tree)["value"].tolist(), rel=1e-5)


def test_the_same_in_words(tree: Tree, study: MakeRun) -> None:
    first, deepspeed, horovod = ratios.sentences(points(tree))
    assert first == (
        "images a second against PyTorch-DDP, native, 1 worker, starts: n = 6, pairs of windows: 6"
    )
    assert horovod == (
        "  Horovod, native, 1 worker: 0.80 [0.79, 0.81], slower; "
        "per CPU second 1.00 [0.99, 1.02], alike within 5%"
    )
    assert deepspeed.startswith("  DeepSpeed, native, 1 worker: ")
    assert "cannot say; per CPU second" in deepspeed


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.45, 1.6), (0.19, 2.5), (0.05, 30.0)])
def test_numbers_below_the_axis_do_not_touch(low: float, high: float) -> None:
    ticks = ratios._ticks(low, high, 320.0)
    places = 320 * np.log(np.array(ticks) / low) / np.log(high / low)
    assert len(ticks) > 2
    assert np.diff(places).min() >= ratios._TICK_POINTS
