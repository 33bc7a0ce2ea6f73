"""The axes of a study are the axes of its figure, whatever the study is about."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ddl_core.analysis.figures import comparison, ratios
from ddl_core.analysis.figures.comparison import COMPARISON
from ddl_core.analysis.tables import empty_table, runs_table, windows_table
from ddl_core.launch.plan import find_study
from ddl_core.records.paths import Tree
from ddl_core.spec.labels import REPEATS
from tests.analysis.conftest import MACHINE, MakeRun, epoch_row, in_blocks
from tests.fields import ALONE, changed, is_of_the_box

DDP: dict[str, Any] = {"strategy": "ddp", "gpus_per_node": 2}
SPREAD = (1.0, 1.02, 0.97)


def points(tree: Tree, question: str = "") -> pd.DataFrame:
    return comparison.points(runs_table(tree.runs), windows_table(tree.runs), question)


def drawn(table: pd.DataFrame) -> Figure:
    figure = comparison.draw(table)
    FigureCanvasAgg(figure).draw()
    return figure


def caption(figure: Figure) -> str:
    return figure.texts[-1].get_text().replace("\n", " ")


def rows(figure: Figure) -> list[str]:
    """Return the names of all rows, from the top."""
    return [
        label.get_text().replace("\n", " ") for ax in figure.axes for label in ax.get_yticklabels()
    ]


def beside(figure: Figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def write_grid(make_run: MakeRun, repeats: int = 1, **axes: list[Any]) -> int:
    """Write a run, or several, of each combination, each a little slower than the one before."""
    combinations = list(itertools.product(*axes.values()))
    for repeat in range(repeats):
        for number, values in enumerate(combinations):
            wall_s = (20 + number) * SPREAD[repeat]
            make_run(wall_s, repeat=repeat, **DDP | dict(zip(axes, values, strict=True)))
    return len(combinations)


def test_three_sizes_of_a_bucket_are_a_curve_over_it(tree: Tree, make_run: MakeRun) -> None:
    write_grid(make_run, 3, ddp_bucket_mb=[25, 1, 100])
    table = points(tree)
    assert table["label"].tolist() == ["bucket 25 MiB", "bucket 1 MiB", "bucket 100 MiB"]
    assert table["at"].tolist() == [25, 1, 100]
    assert set(table["axis"]) == {"ddp_bucket_mb"}
    assert table["ratio"].tolist() == pytest.approx([1, 20 / 21, 20 / 22])
    figure = drawn(table)
    (ax,) = figure.axes
    assert ax.get_xlabel() == "bucket (MiB)"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "25", "100"]
    assert "Base: bucket 25 MiB (no arm is named as reference" in caption(figure)


def test_the_other_field_makes_the_lines(tree: Tree, make_run: MakeRun) -> None:
    write_grid(make_run, ddp_bucket_mb=[1, 25, 100], ddp_compression=["none", "fp16"])
    table = points(tree)
    assert set(table["axis"]) == {"ddp_bucket_mb"}
    assert table.groupby("line")["at"].agg(sorted).to_dict() == {
        "no compression": [1, 25, 100],
        "compression fp16": [1, 25, 100],
    }
    figure = drawn(table)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:2] == ["compression fp16", "no compression"]


def test_choices_are_no_axis(tree: Tree, make_run: MakeRun) -> None:
    for stage in (0, 1, 2):
        make_run(20 + stage, strategy="deepspeed", gpus_per_node=2, deepspeed_zero_stage=stage)
    table = points(tree)
    assert table["axis"].isna().all()
    assert rows(drawn(table)) == ["ZeRO stage 0", "ZeRO stage 1", "ZeRO stage 2"]


def test_a_study_of_knobs_is_one_axis_of_its_arms(tree: Tree, make_run: MakeRun) -> None:
    """Frameworks and their own settings, one at a time: each arm is told what it changes."""
    specs = find_study("knobs").expand()
    for number, spec in enumerate(specs):
        arm = number % (len(specs) // 3)
        make_run((20 + arm) * SPREAD[spec.repeat], study="knobs", **spec.model_dump())
    table = points(tree, find_study("knobs").question)
    assert len(table) == len(specs) // 3 == table["label"].nunique()
    assert table["panel"].unique().tolist() == [
        "knobs: synthetic, 2 workers, ResNet50, image size 64, batch 16, fp32"
    ]
    assert set(table["base"]) == {"PyTorch-DDP, default settings"}
    assert table["value"].is_monotonic_decreasing
    figure = drawn(table)
    assert rows(figure) == table["label"].tolist()
    for name in rows(figure):
        assert not ("DDP" in name and "cycle" in name)
    title = figure.texts[0].get_text().replace("\n", " ")
    assert title == find_study("knobs").question
    assert "PyTorch-DDP: bucket 25 MiB, no bucket view" in caption(figure)


def test_forty_arms_of_four_fields_are_all_there(tree: Tree, make_run: MakeRun) -> None:
    arms = write_grid(
        make_run,
        local_batch_size=[4, 8, 16, 32, 64],
        channels_last=[False, True],
        precision=["fp32", "bf16"],
        cpu_threads=[1, 2],
    )
    table = points(tree)
    assert len(table) == arms == 40
    figure = drawn(table)
    assert rows(figure) == table["label"].tolist()
    assert rows(figure)[0] == "compute threads 1, batch 4, fp32, no channels last"
    assert "No room" not in caption(figure)
    assert "fp32" not in table["panel"].iloc[0]


def test_arms_without_room_are_named_and_the_base_stays(tree: Tree, make_run: MakeRun) -> None:
    make_run(200, **DDP)  # the slowest, and nothing but defaults
    write_grid(make_run, seed=[0], loader_prefetch=list(range(3, 83)))
    table = points(tree).assign(axis=None)
    figure = drawn(table)
    shown = rows(figure)
    assert len(table) == 81
    assert len(shown) == 58
    assert shown[-1] == "prefetched batches 2"
    rest = [name for name in table["label"] if name not in shown]
    assert f"No room for {len(rest)} arms, see the CSV (images/s): {rest[0]} (" in caption(figure)
    assert f"{len(rest) - 6} more." in caption(figure)


@pytest.mark.parametrize("arms", [3, 13, 40])
def test_nothing_leaves_the_page_or_touches_its_neighbour(
    tree: Tree, make_run: MakeRun, arms: int
) -> None:
    strategies = ["ddp", "horovod", "deepspeed"][: min(arms, 3)]
    prefetch = range(1, 1 + -(-arms // len(strategies)))
    pairs = list(itertools.product(strategies, prefetch))[:arms]
    for number, (strategy, ahead) in enumerate(pairs):
        fields = {"strategy": strategy, "loader_prefetch": ahead, "gpus_per_node": 2}
        make_run(20 + number, repeat=0, **fields)
        make_run(21 + number, repeat=1, **fields)
    table = points(tree, "Is it $1 or $2? " * 12).assign(axis=None)
    figure = drawn(table)
    page = figure.bbox
    boxes = [text.get_window_extent() for text in figure.texts]
    for ax in figure.axes:
        labels = [label.get_window_extent() for label in ax.get_yticklabels()]
        assert all(low.y1 < high.y0 + 1 for high, low in itertools.pairwise(labels))
        assert all(label.x1 < ax.bbox.x0 for label in labels)
        texts = [text.get_window_extent() for text in ax.texts]
        assert all(text.x0 > ax.bbox.x1 for text in texts)
        boxes += labels + texts
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 for box in boxes)
    assert all(page.y0 <= box.y0 and box.y1 <= page.y1 for box in boxes)


@pytest.mark.parametrize(
    "field", [name for name in ALONE if name not in REPEATS and not is_of_the_box(name)]
)
def test_no_field_is_pooled_and_each_is_told(tree: Tree, make_run: MakeRun, field: str) -> None:
    for number, spec in enumerate(changed(field)):
        make_run(20.0 + number, **spec.model_dump())
    table = points(tree)
    if field in ("work", "optimizer", "schedule", "profile_steps"):
        return  # no training, a study of accuracy, or without the profile that it asks for
    assert table["n"].tolist() == [1, 1]
    assert table["label"].nunique() == 2
    assert "" not in set(table["label"])


def test_a_study_that_asks_otherwise_stands_elsewhere(tree: Tree, make_run: MakeRun) -> None:
    make_run(**DDP)
    assert points(tree).empty
    assert list(points(tree)) == list(COMPARISON)
    figure = drawn(comparison.points(empty_table()))
    assert "No study measured here has trained two arms" in caption(figure)


def test_machines_are_panels_with_a_base_each(tree: Tree, make_run: MakeRun) -> None:
    for repeat, cores in enumerate((2, 64)):
        for channels in (False, True):
            system = MACHINE | {"cpu_cores": cores}
            make_run(20 / cores, system=system, repeat=repeat, channels_last=channels, **DDP)
    table = points(tree)
    assert sorted(table["panel"].unique()) == [
        "laptop: Example CPU @ 2.00GHz, 2 cores, no GPU",
        "laptop: Example CPU @ 2.00GHz, 64 cores, no GPU",
    ]
    assert table["ratio"].tolist() == pytest.approx([1, 1, 1, 1])
    assert set(table["label"]) == {"channels last", "no channels last"}
    assert "All arms: PyTorch-DDP, native, 2 workers" in caption(drawn(table))


def test_what_records_tell_apart_is_another_arm(tree: Tree, make_run: MakeRun) -> None:
    for repeat, threads in enumerate((1, 4)):
        for channels in (False, True):
            system = MACHINE | {"threads": {"compute": 1, "interop": threads}}
            make_run(system=system, repeat=repeat, channels_last=channels, **DDP)
    table = points(tree)
    assert table["n"].tolist() == [1] * 4
    assert set(table["label"]) == {
        f"{name} (threads interop={threads})"
        for name in ("channels last", "no channels last")
        for threads in (1, 4)
    }


def test_the_reference_of_turns_is_the_base_and_pairs_count(tree: Tree, make_run: MakeRun) -> None:
    drift = np.array([10.0, 14.0, 31.0, 22.0, 9.0, 12.0])
    reference = {"strategy": "horovod"}
    wobble = np.array([1.0, 1.01, 0.99, 1.0, 1.02, 0.98])
    in_blocks(make_run, reference, list(drift), reference=reference)
    took = list(drift * 0.8 * wobble)
    in_blocks(make_run, {"strategy": "ddp"}, took, reference=reference, place=1)
    table = points(tree).set_index("strategy")
    assert set(table["base"]) == {"Horovod"}
    assert set(table["base_rule"]) == {comparison.REFERENCE}
    (known,) = (
        ratios.points(runs_table(tree.runs), windows_table(tree.runs))
        .query("clock == 'wall'")
        .to_dict("records")
    )
    own = table.loc["ddp"]
    assert (own["ratio"], own["ratio_low"], own["ratio_high"]) == pytest.approx(
        (known["value"], known["low"], known["high"])
    )
    assert own["decision"] == "greater"
    figure = drawn(table.reset_index())
    assert "faster" in beside(figure)
    assert "Base: Horovod (the study's reference arm)." in caption(figure)


def test_lost_arms_and_runs_in_no_row_are_told(tree: Tree, make_run: MakeRun) -> None:
    make_run(loader="native", **DDP)
    make_run(loader="turbo", status="failed", rows=[], **DDP)
    make_run(loader="native", work="load", **DDP)
    make_run(loader="synthetic", status="running", rows=[], **DDP)
    cold = [epoch_row(epoch, cold=True) for epoch in range(3)]
    make_run(loader="memory", rows=[*cold, epoch_row(2, "eval")], **DDP)
    table = points(tree)
    assert table["label"].tolist() == ["native", "turbo"]
    assert table["failed"].tolist() == [0, 1]
    figure = drawn(table)
    assert "0, 1 lost" in beside(figure)
    assert "none" in beside(figure)
    told = "1 run that only load, 1 run without a warm epoch, 1 run not finished"
    assert f"Not drawn: {told}." in caption(figure)
    assert "failed or diverged: 1 run." in caption(figure)


def test_one_run_an_arm_decides_nothing(tree: Tree, make_run: MakeRun) -> None:
    write_grid(make_run, channels_last=[False, True])
    table = points(tree)
    assert table["decision"].isna().all()
    assert table["ratio_low"].isna().all()
    assert "Holm" not in caption(drawn(table))


def test_all_lost_is_no_reason_to_fail(tree: Tree, make_run: MakeRun) -> None:
    for channels in (False, True):
        make_run(status="failed", rows=[], channels_last=channels, **DDP)
    table = points(tree)
    assert table["ratio"].isna().all()
    assert rows(drawn(table)) == ["channels last", "no channels last"]


def test_an_endless_interval_does_not_squeeze_the_others(tree: Tree, make_run: MakeRun) -> None:
    for repeat, wall_s in enumerate((10.0, 20.0)):
        make_run(wall_s, repeat=repeat, channels_last=True, **DDP)
    make_run(15.0, **DDP)
    table = points(tree)
    figure = drawn(table)
    low, high = figure.axes[0].get_xlim()
    assert 9 < low < 21.3 < high < 50
    assert "intervals that reach its end go on" in caption(figure)
