"""All configurations of a study as rows with their ratios, whatever the study is about."""

import itertools
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from ddl_tools.analysis import ratios
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.figures import QUESTIONS, comparison, loader_bound
from ddl_tools.analysis.figures.comparison import COMPARISON
from ddl_tools.analysis.plot.canvas import caption_of, title_of
from ddl_tools.analysis.plot.rows import MOST_ROWS
from ddl_tools.analysis.redraw import redraw, tables_of
from ddl_tools.analysis.result import load
from ddl_tools.analysis.tables import empty_table, runs_table, windows_table
from ddl_tools.launch.study import find_study
from ddl_tools.records.paths import Tree
from ddl_tools.study import Study
from tests.analysis.conftest import (
    MACHINE,
    REFERENCE,
    SPEC,
    MakeRun,
    epoch_row,
    in_blocks,
    turned,
    writer,
)
from tests.analysis.drawn import beside, draw_only, misplaced, rows, words

DDP: dict[str, Any] = {"strategy": "ddp", "gpus_per_node": 2}
SPREAD = (1.0, 1.02, 0.97)


def points(tree: Tree, study: Study | None = None) -> pd.DataFrame:
    return comparison.points(runs_table(tree), windows_table(tree), study)


def test_choices_and_numbers_are_rows_the_fastest_on_top(tree: Tree, make_run: MakeRun) -> None:
    for number, stage in enumerate((1, 0, 2)):
        for repeat, factor in enumerate(SPREAD):
            fields = {"strategy": "deepspeed", "gpus_per_node": 2, "deepspeed_zero_stage": stage}
            make_run((20 + number) * factor, repeat=repeat, **fields)
    table = points(tree)
    figure = QUESTIONS["comparison"].draw(table)
    assert rows(figure) == ["ZeRO stage 1", "ZeRO stage 0", "ZeRO stage 2"]
    assert set(table["base"]) == {"ZeRO stage 0"}, "which changes no default"
    assert table["ratio"].tolist() == pytest.approx([21 / 20, 1, 21 / 22])
    assert "Baseline: ZeRO stage 0." in caption_of(figure)
    assert title_of(figure).endswith("times as fast as ZeRO stage 0: inconclusive")


def test_the_study_names_the_baseline_that_no_run_does(tree: Tree, make_run: MakeRun) -> None:
    """SLURM interleaves no epochs: its records do not name the baseline that the study names."""
    axes = {"strategy": ["ddp", "horovod"]}
    reference = {"reference": {"strategy": "horovod"}}
    study = Study(name="laptop", question="?", base=SPEC, axes=[axes], interleave=reference)
    for run in study.expand():
        make_run(20 + (run.strategy == "ddp"), **run.model_dump())
    table = points(tree, study)
    assert set(table["base"]) == {"Horovod"}
    assert set(table["base_rule"]) == {ratios.REFERENCE}
    assert set(points(tree)["base_rule"]) == {ratios.FEWEST}


def test_more_configurations_than_have_room_are_drawn_without_the_slowest(
    tree: Tree, make_run: MakeRun
) -> None:
    many = MOST_ROWS + 5
    make_run(100, strategy="ddp", gpus_per_node=2)  # the baseline
    for number in range(1, many):
        make_run(20 + number / many, strategy="ddp", gpus_per_node=2, ddp_bucket_mb=100 + number)
    table = points(tree)
    assert len(table) == many
    figure = QUESTIONS["comparison"].draw(table)
    assert rows(figure) == table["label"].tolist()[:MOST_ROWS]
    assert table["base"].iloc[0] not in rows(figure)
    left, right = figure.axes[0].get_xlim()
    assert left < table["ratio"].iloc[0] < right


def test_a_configuration_is_called_by_what_it_changes(tree: Tree, make_run: MakeRun) -> None:
    """Frameworks and their own settings, one at a time."""
    specs = find_study("knobs").expand()
    for number, spec in enumerate(specs):
        place = number % (len(specs) // 3)
        make_run((20 + place) * SPREAD[spec.repeat], study="knobs", **spec.model_dump())
    table = points(tree, find_study("knobs"))
    assert len(table) == len(specs) // 3 == table["label"].nunique()
    assert table["panel"].unique().tolist() == [
        "knobs: synthetic, 2 ranks, ResNet50, 64 px, batch 16, fp32"
    ]
    assert set(table["base"]) == {"PyTorch-DDP, default settings"}
    assert table["value"].is_monotonic_decreasing
    figure = QUESTIONS["comparison"].draw(table)
    assert rows(figure) == table["label"].tolist()
    for name in rows(figure):
        assert not ("DDP" in name and "cycle" in name)
    assert set(table["question"]) == {find_study("knobs").question}
    assert "PyTorch-DDP: bucket 25 MiB, default first bucket," in table["unsaid"].iloc[0]


def test_configurations_without_room_are_counted(tree: Tree, make_run: MakeRun) -> None:
    for number in range(81):
        make_run(20 + number, loader_prefetch=2 + number, **DDP)
    table = points(tree)
    figure = QUESTIONS["comparison"].draw(table)
    assert len(table) == 81
    assert rows(figure) == table["label"].tolist()[:60]
    assert "Rows not drawn (CSV): 21." in caption_of(figure)


def test_nothing_leaves_the_page_or_touches_its_neighbour(tree: Tree, make_run: MakeRun) -> None:
    pairs = list(itertools.product(("ddp", "horovod", "deepspeed"), range(1, 6)))
    for (number, (strategy, ahead)), repeat in itertools.product(enumerate(pairs), (0, 1)):
        fields = {"strategy": strategy, "loader_prefetch": ahead, "gpus_per_node": 2}
        make_run(20 + number + repeat, repeat=repeat, **fields)
    figure = QUESTIONS["comparison"].draw(points(tree))
    assert not misplaced(figure)
    (ax,) = figure.axes
    (right,) = ax.child_axes
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(low.y1 < high.y0 + 1 for high, low in itertools.pairwise(boxes))
    assert all(box.x1 < ax.bbox.x0 for box in boxes)
    texts = [label for label in right.get_yticklabels() if label.get_text()]
    assert len(texts) == len(pairs)
    assert all(label.get_window_extent().x0 > ax.bbox.x1 for label in texts)


@pytest.mark.parametrize(
    ("others", "drawn"),
    [
        ([DDP], True),
        ([DDP, {"strategy": "horovod", "framework": "mxnet"}], False),
        ([{"strategy": "horovod", "repeats": 2}], True),
    ],
    ids=["decidable", "discontinued", "without an interval"],
)
def test_a_table_has_what_nobody_can_choose_or_decide(
    others: list[dict[str, Any]], drawn: bool, tree: Tree, make_run: MakeRun
) -> None:
    for fields in ({"strategy": "single"}, *others):
        about = dict(fields)
        for repeat, factor in enumerate(SPREAD[: about.pop("repeats", 3)]):
            make_run(20 * factor, repeat=repeat, **about)
    assert bool(QUESTIONS["comparison"].figure(points(tree))) == drawn


def test_a_study_that_shards_has_the_scatter_instead(tree: Tree, make_run: MakeRun) -> None:
    for strategy, loader in itertools.product(("ddp", "fsdp"), ("synthetic", "native")):
        for repeat in range(3):
            rows = [epoch_row(one, max_memory_bytes=10**9) for one in range(3)]
            fields = {"strategy": strategy, "loader": loader, "gpus_per_node": 2}
            make_run(rows=rows, study=loader, repeat=repeat, **fields)
    names = ("comparison", "memory_against_throughput")
    drawn = {
        (name, study): isinstance(load(name, str(tree.root), study).parts[0], Figure)
        for name, study in itertools.product(names, ("native", "synthetic"))
    }
    assert [pair for pair, one in drawn.items() if not one] == [("comparison", "synthetic")]


def test_long_names_leave_the_axes_a_third_of_the_width(tree: Tree, make_run: MakeRun) -> None:
    choices = itertools.product(("native", "dali_cpu"), (1, 2), (0, 5000))
    for number, (loader, threads, workers) in enumerate(choices):
        for repeat, factor in enumerate(SPREAD):
            about = {"loader": loader, "cpu_threads": threads, "loader_workers": 1000 + workers}
            more = {"channels_last": bool(number % 2), "ddp_first_bucket_mb": 1.0625 + number % 2}
            make_run((20 + number) * factor, repeat=repeat, **about, **more, **DDP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of matplotlib: a layout without room
        figure = QUESTIONS["comparison"].draw(table := points(tree))
        assert not misplaced(figure)
    assert len(table) == 8
    assert table["label"].str.len().min() > 70
    assert rows(figure) == table["label"].tolist()
    (ax,) = figure.axes
    assert ax.get_position().width > 1 / 3
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(low.y1 < high.y0 + 1 for high, low in itertools.pairwise(boxes))


def test_threads_that_follow_from_the_ranks_are_in_no_name(tree: Tree, make_run: MakeRun) -> None:
    for ranks, loader in itertools.product((1, 2), ("native", "turbo")):
        make_run(strategy="ddp", gpus_per_node=ranks, cpu_threads=2 // ranks, loader=loader)
    table = points(tree)
    assert set(table["label"]) == {
        "native, 1 rank", "turbo, 1 rank", "native, 2 ranks", "turbo, 2 ranks",
    }  # fmt: skip
    told = "1 rank of a node: compute threads 2; 2 ranks of a node: compute threads 1"
    assert set(table["unsaid"]) == {told}


def test_one_configuration_is_a_row_without_a_comparison(tree: Tree, make_run: MakeRun) -> None:
    empty = comparison.points(empty_table())
    assert list(empty) == list(COMPARISON)
    assert "No training measured here yet" in title_of(QUESTIONS["comparison"].draw(empty))
    make_run(20.0, **DDP)
    table = points(tree)
    assert list(table) == list(COMPARISON)
    assert table["label"].tolist() == table["base"].tolist() == ["PyTorch-DDP, native, 2 ranks"]
    assert (
        title_of(QUESTIONS["comparison"].draw(table))
        == "PyTorch-DDP, native, 2 ranks trains 16.0 images/s"
    )


def test_machines_are_panels_with_a_base_each(tree: Tree, make_run: MakeRun) -> None:
    for (repeat, cores), channels in itertools.product(enumerate((2, 64)), (False, True)):
        system = MACHINE | {"cpu_cores": cores}
        make_run(20 / cores, system=system, repeat=repeat, channels_last=channels, **DDP)
    table = points(tree)
    assert sorted(table["panel"].unique()) == [
        "laptop: Example CPU @ 2.00GHz, 2 cores, no GPU",
        "laptop: Example CPU @ 2.00GHz, 64 cores, no GPU",
    ]
    assert table["ratio"].tolist() == pytest.approx([1, 1, 1, 1])
    assert set(table["label"]) == {"channels last", "no channels last"}
    assert table["common"].str.startswith("PyTorch-DDP, native, 2 ranks").all()


def test_what_records_tell_apart_is_another_configuration(tree: Tree, make_run: MakeRun) -> None:
    for (repeat, threads), channels in itertools.product(enumerate((1, 4)), (False, True)):
        system = MACHINE | {"threads": {"compute": 1, "interop": threads}}
        make_run(system=system, repeat=repeat, channels_last=channels, **DDP)
    table = points(tree)
    assert table["n"].tolist() == [1] * 4
    assert sorted(table["label"]) == [
        "channels last (threads interop=1)",
        "channels last (threads interop=4)",
        "no channels last (threads interop=1)",
        "no channels last (threads interop=4)",
    ]


def test_the_baseline_is_the_reference_of_the_study(tree: Tree, make_run: MakeRun) -> None:
    reference = {"strategy": "horovod"}
    in_blocks(make_run, reference, [10.0, 14.0, 31.0], reference=reference)
    in_blocks(make_run, DDP, [8.0, 11.3, 24.6], reference=reference, place=1)
    table = points(tree)
    assert set(table["base"]) == {"Horovod, 1 rank"}
    assert set(table["base_rule"]) == {ratios.REFERENCE}
    figure = QUESTIONS["comparison"].draw(table)
    assert "faster" in beside(figure)
    assert "Baseline: Horovod, 1 rank." in caption_of(figure)
    assert re.fullmatch(
        r"PyTorch-DDP, 2 ranks trains 1\.25 \[.*\] times as fast as Horovod, 1 rank",
        title_of(figure),
    )


def test_lost_configurations_and_runs_in_no_row_are_counted(tree: Tree, make_run: MakeRun) -> None:
    make_run(loader="native", **DDP)
    make_run(loader="turbo", status="failed", rows=[], **DDP)
    make_run(loader="native", work="load", **DDP)
    make_run(loader="synthetic", status="running", rows=[], **DDP)
    cold = [epoch_row(epoch, cold=True) for epoch in range(3)]
    make_run(loader="memory", rows=[*cold, epoch_row(2, "eval")], **DDP)
    table = points(tree)
    assert table["label"].tolist() == ["native", "turbo"]
    assert table["failed"].tolist() == [0, 1]
    figure = QUESTIONS["comparison"].draw(table)
    assert "none: 1 lost" in beside(figure)
    told = "1 run that only load, 1 run without a warm epoch, 1 run not finished"
    assert f"Not drawn: {told}." in caption_of(figure)
    assert "Failed or diverged: 1 run." in caption_of(figure)


def test_an_endless_interval_does_not_squeeze_the_others(tree: Tree, make_run: MakeRun) -> None:
    for repeat, wall_s in enumerate((10.0, 20.0)):
        make_run(wall_s, repeat=repeat, channels_last=True, **DDP)
    make_run(15.0, **DDP)
    low, high = QUESTIONS["comparison"].draw(points(tree)).axes[0].get_xlim()
    assert 0.4 < low < 1 < high < 3


def test_dots_and_cut_bars_are_seen_and_the_baseline_has_a_tick(
    tree: Tree, make_run: MakeRun
) -> None:
    for repeat, (slow, fast) in enumerate(((10.0, 20.0), (10.0, 20.0), (10.0, 5.0))):
        make_run(slow, repeat=repeat, **DDP)
        make_run(fast, repeat=repeat, channels_last=True, **DDP)
    figure = QUESTIONS["comparison"].draw(points(tree))
    figure.draw_without_rendering()
    (ax,) = figure.axes
    left, right = ax.get_xlim()
    dots = [x for line in ax.lines if line.get_marker() == "." for x in line.get_xdata()]
    assert max(dots) == pytest.approx(2.0)
    assert left < min(dots)
    assert right > max(dots) + 0.02 * (right - left)
    assert 1 in ax.get_xticks()
    at_ends = {line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 1}
    assert {left, right} <= at_ends, "the interval of three starts goes beyond both ends"


def test_a_ratio_far_from_the_baseline_leaves_it_a_tick(tree: Tree, make_run: MakeRun) -> None:
    make_run(100.0, **DDP)
    make_run(8.0, channels_last=True, **DDP)
    (ax,) = QUESTIONS["comparison"].draw(points(tree)).axes
    assert 1 in ax.get_xticks()


HOROVOD: dict[str, Any] = {"strategy": "horovod"}
DRIFT = np.array([10.0, 14.0, 31.0, 22.0, 9.0, 12.0])
WOBBLE = np.array([1.01, 0.99, 1.02, 0.98, 1.0, 1.0])


@pytest.fixture
def interleaved(make_run: MakeRun) -> MakeRun:
    """Six starts of three on a drifting machine: horovod at 0.8 of ddp, alike by CPU."""
    cpu_s = DRIFT * WOBBLE
    in_blocks(make_run, REFERENCE, list(DRIFT), cpu_s=list(DRIFT))
    in_blocks(make_run, HOROVOD, list(DRIFT / 0.8 * WOBBLE), cpu_s=list(cpu_s), place=1)
    slow = list(DRIFT * WOBBLE[::-1] ** 20)
    in_blocks(make_run, {"strategy": "deepspeed"}, slow, cpu_s=list(cpu_s), place=2)
    return make_run


def test_ratios_are_those_of_pairs(tree: Tree, interleaved: MakeRun) -> None:
    table = points(tree).set_index("strategy")
    wall, unclear = table.loc["horovod"], table.loc["deepspeed"]
    expected = stats.ttest_1samp(np.log(0.8 / WOBBLE), 0).confidence_interval()
    assert (wall["ratio_low"], wall["ratio_high"]) == pytest.approx(tuple(np.exp(expected)))
    assert wall["ratio"] == pytest.approx(0.8, rel=1e-3)
    assert table["n"].tolist() == [6, 6, 6]
    assert set(table["base"]) == {"PyTorch-DDP"}
    assert (wall["decision"], unclear["decision"]) == ("less", "inconclusive")
    assert wall["cpu_decision"] == unclear["cpu_decision"] == "equivalent"
    ratio = "{ratio:.2f} [{ratio_low:.2f}, {ratio_high:.2f}]".format(**unclear)
    assert ratios.sentences(points(tree)) == [
        "laptop: native, 1 rank, ResNet50, 96 px, batch 16, fp32: throughput / "
        "throughput of PyTorch-DDP, n = 6 starts, 6 pairs of epochs",
        f"  DeepSpeed: {ratio}, inconclusive; per CPU second 1.00 [0.99, 1.02], "
        "equivalent within 5%",
        "  Horovod: 0.80 [0.79, 0.81], slower; per CPU second 1.00 [0.99, 1.02], "
        "equivalent within 5%",
    ]


def test_the_gain_of_more_ranks_is_that_of_each_configuration_itself(
    tree: Tree, make_run: MakeRun
) -> None:
    """By pairs of epochs: Horovod gains and DDP loses, though DDP is faster on both."""
    two = {"gpus_per_node": 2}
    reference = REFERENCE | {"gpus_per_node": 1}
    about: dict[str, Any] = {"reference": reference}
    for fields, wall_s in (
        (reference, DRIFT),
        (REFERENCE | two, DRIFT / 0.9),
        (HOROVOD | {"gpus_per_node": 1}, 2 * DRIFT),
        (HOROVOD | two, 2 * DRIFT / 1.5 * WOBBLE),
    ):
        in_blocks(make_run, fields, list(wall_s), **about)
    table = points(tree).set_index("label")
    gain = table.loc["Horovod, 2 ranks"]
    expected = stats.ttest_1samp(np.log(1.5 / WOBBLE), 0).confidence_interval()
    ends = gain[["growth_ratio_low", "growth_ratio_high"]]
    assert tuple(ends) == pytest.approx(tuple(np.exp(expected)))
    assert (gain["growth_from"], gain["growth_decision"]) == (1, "greater")
    assert table.loc["PyTorch-DDP, 2 ranks", "growth_decision"] == "less"
    assert table.filter(like=", 1 rank", axis=0)["growth_ratio"].isna().all()
    on_two = table.filter(like=", 2 ranks", axis=0)
    assert on_two["ratio"].to_dict() == on_two["growth_ratio"].to_dict()
    assert gain["base"] == "Horovod, 1 rank"
    assert table.loc["Horovod, 1 rank", "base"] == "PyTorch-DDP, 1 rank"
    figure = QUESTIONS["comparison"].draw(points(tree))
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "(a) relative to 1 rank of the same configuration",
        "(b) relative to PyTorch-DDP, 1 rank",
    ]
    assert rows(figure) == [*on_two.index[::-1], "PyTorch-DDP, 1 rank", "Horovod, 1 rank"]
    assert title_of(figure).startswith("Horovod, 2 ranks trains 1.50 [")
    assert title_of(figure).endswith("] times as fast as Horovod, 1 rank")
    lines = ratios.sentences(points(tree))
    assert any("Horovod, 2 ranks: 1.50 [" in one and "of 1 rank" in one for one in lines)
    said = QUESTIONS["comparison"].sentences(points(tree))[-1]
    first, second = said.split(": ")[1].split("; ")
    assert first.startswith("Horovod 1.50 [")
    assert second.startswith("PyTorch-DDP 0.90 [")


def test_networks_are_compared_with_themselves(tree: Tree, make_run: MakeRun) -> None:
    """The baseline of another network is what differs least from the reference."""
    reference = REFERENCE | {"model": "resnet50", "local_batch_size": 32}
    for place, (model, batch) in enumerate(itertools.product(("resnet50", "alexnet"), (32, 16))):
        fields = reference | {"model": model, "local_batch_size": batch}
        wall_s = DRIFT * (1 + place)
        in_blocks(make_run, fields, list(wall_s), place=place, reference=reference)
    table = points(tree).set_index("label")
    assert table["panel"].nunique() == 2
    assert table["base"].to_dict() == {
        f"{model}, batch {batch}": f"{model}, batch 32"
        for model, batch in itertools.product(("ResNet50", "AlexNet"), (32, 16))
    }
    assert table.loc["AlexNet, batch 16", "ratio"] == pytest.approx(3 / 4)
    figure = QUESTIONS["comparison"].draw(points(tree))
    titles = {ax.get_title(loc="left").split()[-1] for ax in figure.axes}
    assert titles == {"ResNet50", "AlexNet"}
    assert rows(figure) == 2 * ["batch 32", "batch 16"]
    assert len({ax.get_xlim() for ax in figure.axes}) == 1
    assert title_of(figure).startswith("AlexNet, batch 32 trains fastest; AlexNet, batch 16 ")


def test_dots_are_the_ratios_that_the_interval_is_of(tree: Tree, interleaved: MakeRun) -> None:
    """On a drifting machine, a start's own throughput would lie far outside."""
    figure = QUESTIONS["comparison"].draw(points(tree))
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "."]
    drawn = dict(zip(rows(figure), [line.get_xdata() for line in dots], strict=True))
    assert drawn["Horovod"] == pytest.approx(0.8 / WOBBLE, rel=1e-5)
    assert drawn["PyTorch-DDP"] == pytest.approx(np.ones(6))
    assert "Bars: 95 % interval of the ratio. Dots: starts." in caption_of(figure)


def test_without_pairs_dots_are_relative_to_the_mean_of_the_baseline(
    tree: Tree, make_run: MakeRun
) -> None:
    for repeat, factor in enumerate(SPREAD):
        make_run(20 * factor, repeat=repeat, **DDP)
        make_run(10 * factor, repeat=repeat, channels_last=True, **DDP)
    table = points(tree).set_index("label")
    dots = np.array(table.loc["channels last", "start_ratios"].split(";"), dtype=float)
    assert dots == pytest.approx(2 * stats.gmean(SPREAD) / np.array(SPREAD), rel=1e-5)
    told = "Bars: 95 % interval of the ratio. Dots: starts, relative to the baseline's mean."
    assert told in caption_of(QUESTIONS["comparison"].draw(points(tree)))


def test_dots_are_named_where_there_are_no_intervals(tree: Tree, make_run: MakeRun) -> None:
    for repeat, factor in enumerate(SPREAD[:2]):
        make_run(20 * factor, repeat=repeat, **DDP)
        make_run(10 * factor, repeat=repeat, channels_last=True, **DDP)
    caption = caption_of(QUESTIONS["comparison"].draw(points(tree)))
    assert "Bars" not in caption
    assert "Dots: starts" in caption


OLD, NEW, LAST = ({"git_commit": one * 40, "git_dirty": False} for one in "abc")


def test_runs_of_another_commit_are_in_no_ratio(tree: Tree, make_run: MakeRun) -> None:
    """The machine was twice as fast when it ran the older code."""
    for repeat, (code, wall_s) in enumerate(((OLD, 10.0), (NEW, 20.0), (LAST, 20.0))):
        make_run(wall_s, provenance=code, repeat=repeat, loader="native", **DDP)
        fast = wall_s / (2.0 + 0.1 * repeat)
        make_run(fast, provenance=code, repeat=repeat, loader="synthetic", **DDP)
    make_run(20.0 / 1.2, provenance=NEW, loader="dali_cpu", **DDP)
    make_run(20.0 / 1.1, provenance=NEW, loader="turbo", **DDP)
    table = points(tree).set_index("loader")
    assert table.loc["dali_cpu", "ratio"] == pytest.approx(1.2)
    assert table.loc["dali_cpu", "start_ratios"] == "1.2"
    assert np.isnan(table.loc["dali_cpu", "ratio_low"])
    both = table.loc["synthetic"]
    expected = stats.ttest_1samp(np.log([2.0, 2.1, 2.2]), 0).confidence_interval()
    assert [both["ratio_low"], both["ratio_high"]] == pytest.approx(list(np.exp(expected)))
    assert "Ratios within each commit." in caption_of(QUESTIONS["comparison"].draw(points(tree)))
    _, text = QUESTIONS["comparison"].sentences(points(tree))
    assert "relative to native (20.2 images/s), within each commit: " in text
    assert ratios.sentences(points(tree))[0].endswith("whole runs, within each commit")


def test_without_a_common_commit_all_runs_are_compared_and_it_is_said(
    tree: Tree, make_run: MakeRun
) -> None:
    make_run(20.0, provenance=OLD, loader="native", **DDP)
    make_run(10.0, provenance=NEW, loader="synthetic", **DDP)
    table = points(tree).set_index("loader")
    assert table.loc["synthetic", "ratio"] == pytest.approx(2.0)
    caption = caption_of(QUESTIONS["comparison"].draw(points(tree)))
    assert "Without a common commit: 1 ratio." in caption
    assert "within each commit" not in caption


def test_windows_of_other_blocks_and_rounds_are_no_pairs(tree: Tree, make_run: MakeRun) -> None:
    turned(make_run, REFERENCE, list(DRIFT))
    again = REFERENCE | {"repeat": 1}
    turned(make_run, again, list(3 * DRIFT), block="b", reference=again)
    late = list(1.5 * DRIFT[:3])
    turned(make_run, HOROVOD, late, block="b", reference=again, place=1, windows=4)
    other = points(tree).set_index("strategy").loc["horovod"]
    assert other["pairs"] == 3
    assert other["ratio"] == pytest.approx(2.0)


def test_an_interval_is_over_starts_and_not_over_windows(tree: Tree, make_run: MakeRun) -> None:
    """Three starts of six windows that are all alike: what differs are the starts."""
    for repeat, factor in enumerate((1.0, 1.2, 1.1)):
        again = REFERENCE | {"repeat": repeat}
        turned(make_run, again, list(DRIFT), block=f"b{repeat}", reference=again)
        turned(make_run, HOROVOD | {"repeat": repeat}, list(factor * DRIFT), block=f"b{repeat}",
               reference=again, place=1)  # fmt: skip
    other = points(tree).set_index("strategy").loc["horovod"]
    assert (other["n"], other["pairs"]) == (3, 18)
    expected = stats.ttest_1samp(-np.log([1.0, 1.2, 1.1]), 0).confidence_interval()
    assert [other["ratio_low"], other["ratio_high"]] == pytest.approx(list(np.exp(expected)))
    assert other["decision"] == "inconclusive"


def test_one_start_says_nothing_of_another(tree: Tree, make_run: MakeRun) -> None:
    turned(make_run, REFERENCE, list(DRIFT))
    turned(make_run, HOROVOD, list(DRIFT / 2), place=1)
    table = points(tree)
    other = table.set_index("strategy").loc["horovod"]
    assert other["ratio"] == pytest.approx(2.0)
    assert other[["ratio_low", "ratio_high", "decision"]].isna().all()
    (_, told) = ratios.sentences(table)
    assert "2.00, fewer than 3 starts" in told
    assert any(
        text.endswith("fewer than 3 starts") for text in beside(QUESTIONS["comparison"].draw(table))
    )


def test_a_second_measurement_is_an_open_mark_beside_the_first(
    tree: Tree, make_run: MakeRun
) -> None:
    for write, factor in ((make_run, 0.5), (writer(tree.second()), 0.25)):
        in_blocks(write, REFERENCE, list(DRIFT))
        in_blocks(write, HOROVOD, list(DRIFT * factor * WOBBLE), place=1)
    tables = tables_of(tree, "laptop", runs_table(tree), windows_table(tree))
    figure = QUESTIONS["comparison"].draw(QUESTIONS["comparison"].points(tables))
    (ax,) = figure.axes
    marks = {
        line.get_markerfacecolor() == "white": float(line.get_xdata()[0])
        for line in ax.lines
        if line.get_marker() == "s" and len(line.get_xdata()) == 1
    }
    assert marks == {False: pytest.approx(2, rel=0.01), True: pytest.approx(4, rel=0.01)}
    assert ax.get_xlim()[1] > 4
    assert "measured again" in words(figure)
    assert "measured again" not in words(QUESTIONS["comparison"].draw(points(tree)))


@pytest.mark.parametrize("again", [0.8, 1.02], ids=["confirmed", "not confirmed"])
def test_a_gain_that_does_not_repeat_is_no_title(
    again: float, tree: Tree, make_run: MakeRun
) -> None:
    """DeepSpeed is slower twice, Horovod faster the first time."""
    deepspeed = HOROVOD | {"strategy": "deepspeed"}
    for write, factor in ((make_run, 0.8), (writer(tree.second()), again)):
        in_blocks(write, REFERENCE, list(DRIFT))
        in_blocks(write, HOROVOD, list(DRIFT * factor * WOBBLE), place=1)
        in_blocks(write, deepspeed, list(DRIFT * 1.25 * WOBBLE), place=2)
    tables = tables_of(tree, "laptop", runs_table(tree), windows_table(tree))
    title = QUESTIONS["comparison"].title(QUESTIONS["comparison"].points(tables))
    if again < 1:
        assert re.match(r"Horovod.* trains 1\.25 .* confirmed", title)
    else:
        assert re.match(r"No gain over .*; DeepSpeed.* reaches 0\.80 .* confirmed", title)


@pytest.mark.parametrize(("factor", "said"), [(1.0, 0), (0.9, 1)])
def test_a_second_start_unlike_the_first_is_a_warning(
    factor: float, said: int, tree: Tree, interleaved: MakeRun
) -> None:
    took = list(DRIFT / factor * WOBBLE)
    in_blocks(interleaved, REFERENCE | {"second_start": True}, took, cpu_s=took, place=3)
    table = points(tree)
    texts = "\n".join(ratios.sentences(table)), "\n".join(QUESTIONS["comparison"].sentences(table))
    assert [text.count("measure again") for text in texts] == [said, said]


def test_a_second_start_of_the_reference_is_a_row(tree: Tree, interleaved: MakeRun) -> None:
    """It is pooled with nothing, and no configuration of the title."""
    title = title_of(QUESTIONS["comparison"].draw(points(tree)))
    before = points(tree).set_index("strategy")["ratio"]
    took = list(DRIFT / 1.01 * WOBBLE)
    in_blocks(interleaved, REFERENCE | {"second_start": True}, took, cpu_s=took, place=3)
    table = points(tree).set_index("label")
    again = table.loc["PyTorch-DDP, second start"]
    assert (again["n"], again["second_start"]) == (6, True)
    figure = QUESTIONS["comparison"].draw(points(tree))
    assert title_of(figure) == title
    assert "second start" not in title
    assert "Second start: same settings." in caption_of(figure)
    assert sum(text.endswith("control") for text in beside(figure)) == 1
    assert again["ratio"] == pytest.approx(1.01, rel=1e-3)
    rest = table[~table["second_start"]].set_index("strategy")["ratio"]
    assert rest.to_dict() == pytest.approx(before.to_dict())
    runs, windows = runs_table(tree), windows_table(tree)
    assert configuration_table(runs, windows)["n"].tolist() == [6, 6, 6]


def test_n_counts_the_starts_that_contribute_and_a_lost_one_is_named(
    tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four starts the last one has no undisturbed round, and its times are three times as long.

    Another configuration failed in one start more, so its ratio is of two.
    """
    for repeat, factor in enumerate((1.0, 1.01, 0.99, 3.0)):
        again = REFERENCE | {"repeat": repeat}
        about: dict[str, Any] = {"block": f"b{repeat}", "reference": again}
        lost = repeat == 3
        turned(make_run, again, [10.0] * 3, cpu_s=[20.0, *[10.0 if lost else 20.0] * 2], **about)
        took, ours = [5.0 * factor] * 3, HOROVOD | {"repeat": repeat}
        cpu_s = [part * factor for part in (5.0 if lost else 10.0, 10.0, 10.0)]
        turned(make_run, ours, took, cpu_s=cpu_s, place=1, **about)
        other = {"strategy": "deepspeed", "repeat": repeat}
        status = "failed" if repeat == 0 else "completed"
        turned(make_run, other, took, place=2, status=status, **about)
    table = points(tree).set_index("strategy")
    assert table["n"].to_dict() == {"ddp": 3, "horovod": 3, "deepspeed": 2}
    for name, row in table.iterrows():
        assert len(row["start_ratios"].split(";")) == row["n"], name
    runs, windows = runs_table(tree), windows_table(tree)
    assert sorted(configuration_table(runs, windows)["n"]) == [2, 3, 3]
    assert sorted(loader_bound.points(runs, windows)["n"]) == [2, 3, 3]
    figure = QUESTIONS["comparison"].draw(points(tree))
    assert "n = 2 to 3 starts" in words(figure)
    assert "starts lost: 1." in caption_of(figure)
    said = ratios.sentences(points(tree))[0]
    assert "n = 2 to 3 starts, lost" in said
    assert "1 (b3)" in said
    draw_only(monkeypatch, "throughput_vs_workers", "comparison")
    redraw(tree, figures=tree.figures)
    page = (tree.figures / "laptop" / "README.md").read_text()
    assert "1 start (`b3`)" in page.split("\n## ")[0]


def test_the_start_that_the_baseline_lacks_is_in_no_ratio(tree: Tree, make_run: MakeRun) -> None:
    for repeat in range(4):
        again = REFERENCE | {"repeat": repeat}
        status = "failed" if repeat == 3 else "completed"
        turned(make_run, again, [10.0], block=f"b{repeat}", reference=again, status=status)
        ours = HOROVOD | {"repeat": repeat}
        turned(make_run, ours, [5.0], block=f"b{repeat}", reference=again, place=1)
    row = points(tree).set_index("strategy").loc["horovod"]
    assert (row["n"], row["start_ratios"]) == (3, "2;2;2")


def test_starts_that_meet_in_the_baseline_alone_are_counted(tree: Tree, make_run: MakeRun) -> None:
    """Of a second network there is no run of the reference, and no two are in one block."""
    for repeat in range(4):
        again = REFERENCE | {"repeat": repeat}
        for place, (fields, wall_s) in enumerate(((DDP, 20.0), (DDP | HOROVOD, 10.0))):
            block, ours = f"b{repeat}{place}", fields | {"model": "alexnet", "repeat": repeat}
            cpu_s = [20.0, *[10.0 if (repeat, place) == (3, 1) else 20.0] * 2]
            about: dict[str, Any] = {"block": block, "reference": again | {"seed": place}}
            turned(make_run, again | {"seed": place}, [10.0] * 3, cpu_s=cpu_s, **about)
            cpu_s = [one * wall_s / 10 for one in (cpu_s[1], 20.0, 20.0)]
            turned(make_run, ours, [wall_s] * 3, cpu_s=cpu_s, place=1, **about)
    table = points(tree)
    row = table[table["model"] == "alexnet"].set_index("strategy").loc["horovod"]
    assert (row["n"], row["start_ratios"]) == (3, "2;2;2")


def test_rounds_that_do_not_count_are_counted_and_named(tree: Tree, make_run: MakeRun) -> None:
    for repeat in range(2):
        again = REFERENCE | {"repeat": repeat}
        cpu_s = [20.0, 20.0, 10.0 if repeat else 20.0]
        turned(make_run, again, [10.0] * 3, cpu_s=cpu_s, block=f"b{repeat}", reference=again)
        turned(make_run, HOROVOD | {"repeat": repeat}, [10.0, 10.0, 90.0], block=f"b{repeat}",
               reference=again, place=1)  # fmt: skip
    table = points(tree)
    assert table.set_index("strategy").loc["horovod", "pairs"] == 5
    (told,) = table["rounds_left_out"].unique()
    assert told == "first rounds (2), 1 disturbed (round 3 of b1)"  # as in the table
    caption = caption_of(QUESTIONS["comparison"].draw(table))
    assert "Left out: first rounds, 1 disturbed." in caption
