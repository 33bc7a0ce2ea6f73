"""Every figure draws whatever the table holds, and says what it shows."""

import itertools
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from ddl_core.config import LONGEST_NAME, run_fields
from ddl_core.registry import LOADERS, owner
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import caption_of, save_figure, title_of
from ddl_tools.analysis.question import Tables
from ddl_tools.analysis.tables import empty_table, runs_table
from ddl_tools.records.identity import LEARNING
from ddl_tools.records.paths import Tree
from tests.analysis import drawn
from tests.analysis.conftest import GPU, MACHINE, MakeRun, curve, epoch_row, writer
from tests.analysis.drawn import LONG, OF_RUNS, PAPER, misplaced, points_of, words
from tests.analysis.emulated import emulate
from tests.fields import another


def nothing(make_run: MakeRun) -> None:
    """Leave the tree empty."""


def lost_and_cold(make_run: MakeRun) -> None:
    for repeat in range(2):
        make_run(status="failed", rows=[], system=None, repeat=repeat)
    for size in (1, 2):
        rows = [epoch_row(0, loss=math.nan), epoch_row(1, loss=math.nan)]
        make_run(strategy="ddp", gpus_per_node=size, rows=rows)
    make_run(strategy="horovod", rows=[epoch_row(0)])


def every_model_on_two_machines(make_run: MakeRun) -> None:
    machines = {"laptop": None, "cluster": GPU}
    models = ("resnet50", "resnet101", "resnet152")
    for model, nodes, study in itertools.product(models, (1, 2, 4), machines):
        shape = {"strategy": "ddp", "model": model, "nodes": nodes}
        make_run(30 / nodes, study=study, system=machines[study], **shape)


def both_formats_and_halves(make_run: MakeRun) -> None:
    for loader, read, size in itertools.product(LOADERS, ("folder", "tfrecord"), (1, 2)):
        shape = {"strategy": "ddp", "loader": loader, "gpus_per_node": size, "model": "resnet101"}
        if loader == "synthetic" and read == "tfrecord":
            continue  # there is no such thing
        for work in ("train",) if loader == "synthetic" else ("train", "load"):
            make_run(10 / size, study="loaders", **shape, data_format=read, work=work)


CROWDED: dict[str, Any] = {
    "model": f"package:{LONG}"[:LONGEST_NAME],
    "system": MACHINE | {"cpu": 4 * "Example(R) CPU of $1 or $2, with many cores; "},
    "loader": "dali_gpu",
    "data_format": "tfrecord",
}


def longest_names(make_run: MakeRun) -> None:
    """Let all names be as long as they may be; every second configuration changes all settings."""
    strategies = {"ddp": "torch", "fsdp": "torch", "multiworker": "tensorflow"}
    for (strategy, library), number, many, repeat in itertools.product(
        strategies.items(), (1, 2, 4), (False, True), range(2)
    ):
        rows = [epoch_row(epoch, max_memory_bytes=number * 2**30) for epoch in range(3)]
        rows += curve([0.5, 0.7, 0.8 - 0.1 * many])[-1:]
        for row in rows:
            row.throughput_samples_per_s = (20.0 + repeat) * number
            row.wall_s = row.samples / row.throughput_samples_per_s
        who = CROWDED | {"strategy": strategy, "framework": library, "repeat": repeat, "rows": rows}
        for learning, data in ((False, "fashion_mnist"), (True, LONG)):
            settings = all_changed(strategy, learning) if many else {}
            about = (
                who | {"study": f"{learning:d}{LONG}"[:LONGEST_NAME], "dataset": data} | settings
            )
            shapes = [{"gpus_per_node": number}, {"local_batch_size": 32 * number}]
            halves = [{"work": "load", "rows": rows[:3]}, {"loader": "synthetic"}]
            for shape in [*shapes, *(halves if number == 1 else [])]:
                make_run(**about | shape)
    for nodes, many in itertools.product((1, 2, 4), (False, True)):
        delays = {name: another(name) for name in ("emu_straggler", "emu_jitter", "emu_draws")}
        settings = all_changed("ddp") | delays if many else {}
        emulate(make_run, nodes=nodes, **settings | {"study": LONG})


def all_changed(strategy: str, learning: bool = False) -> dict[str, Any]:
    """Return values of all settings of runs of a strategy, none a default; also of learning."""
    names = list(run_fields())
    settings = names[names.index("accumulation") : names.index("dali_decode")]
    settings += [name for name in names if owner(name) == strategy]
    kept = {"epochs", "eval_every", "min_steps_per_epoch", "profile_steps", "prefix"}
    kept |= set() if learning else LEARNING
    return {name: another(name) for name in settings if name not in kept}


Fill = Callable[[MakeRun], None]
FILLINGS = [
    both_formats_and_halves,
    every_model_on_two_machines,
    longest_names,
    nothing,
    lost_and_cold,
]
DRAWN = [
    (name, fill) for name in drawn.DRAWN for fill in (FILLINGS if name in OF_RUNS else [nothing])
]


@pytest.fixture(scope="module")
def tables_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fill], Tables]:
    """Return a function that reads the runs and configurations of a filling once."""

    @cache
    def read(fill: Fill) -> Tables:
        tree = Tree(tmp_path_factory.mktemp(fill.__name__) / "results")
        fill(writer(tree))
        runs = runs_table(tree)
        return Tables(runs, configuration_table(runs), PAPER)

    return read


def test_settings_of_the_user_change_no_picture(tables_of: Callable, tmp_path: Path) -> None:
    """Those of a matplotlibrc, of whatever: a page of published figures has one look."""
    name, fill = next(one for one in DRAWN if one[1] is not nothing)
    table = QUESTIONS[name].points(tables_of(fill))
    pictures = []
    for theirs in ({}, {"savefig.bbox": "tight", "path.sketch": (1, 100, 2), "font.size": 30}):
        with matplotlib.rc_context(theirs):
            paths = save_figure(QUESTIONS[name].draw(table), table, tmp_path / f"{len(pictures)}")
        pictures.append(next(one for one in paths if one.suffix == ".png").read_bytes())
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize(("name", "fill"), DRAWN)
def test_draws_and_leaves_all_as_it_was(name: str, fill: Fill, tables_of: Callable) -> None:
    settings = dict(matplotlib.rcParams)
    table = QUESTIONS[name].points(tables_of(fill))
    before = table.copy()
    figure = QUESTIONS[name].draw(table)
    found = misplaced(figure)
    pd.testing.assert_frame_equal(table, before)
    assert dict(matplotlib.rcParams) == settings
    assert plt.get_fignums() == []
    assert not found
    assert min(ax.get_position().width for ax in figure.axes) > 1 / 5
    if QUESTIONS[name].answered_by(table, of_runs=False):
        answer = QUESTIONS[name]
        assert 1 <= len(answer.sentences(table)) <= 4
        assert 1 <= len(answer.table(table)) <= 10


@pytest.mark.parametrize("name", ["throughput_vs_workers", "comparison", "efficiency"])
def test_caption_says_how_often_on_what_and_when(name: str, tree: Tree, laptop: MakeRun) -> None:
    laptop(strategy="ddp", gpus_per_node=2, status="failed", rows=[], repeat=5)
    caption = caption_of(QUESTIONS[name].draw(points_of(name, runs_table(tree))))
    assert "Bars: 95 % interval of the" in caption
    assert "; n = 3 starts; commit 01234567." in caption
    assert "Failed or diverged: 1 run." in caption
    assert f"Example CPU @ 2.00GHz, 2 cores, no GPU ({captions.METHOD_ONLY})" in caption


def test_a_figure_of_statements_alone_says_so_and_is_small() -> None:
    for name in ("efficiency", "kernel_shares", "accuracy_vs_batch_size"):
        figure = QUESTIONS[name].draw(points_of(name, empty_table()))
        assert "No run measured here: only" in title_of(figure)
        assert "n = " not in caption_of(figure)
        assert figure.get_figwidth() == style.STATED_WIDTH < style.WIDTH
        assert all(to_hex(ax.spines["left"].get_edgecolor()) == style.PALE for ax in figure.axes)


def test_caption_on_a_gpu_does_not_speak_of_overhead(tree: Tree, make_run: MakeRun) -> None:
    for strategy in ("ddp", "horovod"):
        make_run(system=GPU, strategy=strategy)
    table = points_of("comparison", runs_table(tree))
    caption = caption_of(QUESTIONS["comparison"].draw(table))
    assert "Example GPU; n = " in caption
    assert captions.METHOD_ONLY not in caption


@pytest.mark.usefixtures("laptop")
def test_efficiency_names_base_and_finding_and_draws_values_and_intervals(tree: Tree) -> None:
    table = points_of("efficiency", runs_table(tree))
    figure = QUESTIONS["efficiency"].draw(table)
    assert "E relative to G0 = 1 to 4; batch per rank fixed." in caption_of(figure)
    assert "Open marks: stated for JUWELS Booster" in caption_of(figure)
    assert "reaches an efficiency of 0." in title_of(figure)
    row = table[table["loader"].eq("native") & table["world_size"].eq(2)].iloc[0]
    (bars,) = [container for container in figure.axes[0].containers if container.has_yerr]
    line, _, (segments,) = bars.lines
    (bottom, top) = segments.get_segments()[1][:, 1]
    assert (bottom, top) == pytest.approx((row["low"], row["high"]))
    assert line.get_ydata()[1] == pytest.approx(row["value"])


def test_statements_stand_at_their_values_in_the_looks_of_their_frameworks() -> None:
    table = points_of("efficiency", empty_table())
    figure = QUESTIONS["efficiency"].draw(table)
    (ax,) = figure.axes
    looks = {(to_hex(line.get_color()), line.get_marker()) for line in ax.lines}
    horovod, grey = style.STRATEGY_COLOURS["horovod"].lower(), style.UNNAMED_LOOK
    assert {(horovod, "s"), (grey["color"], grey["marker"]), (grey["color"], "_")} <= looks
    names = {text.get_text() for text in ax.texts} - {""}
    assert {name.partition(":")[0] for name in names} == set(table["statement"])
    assert {"E02: ResNet50, DALI (CPU)", "E05: Horovod, ResNet50, native", "E13: native"} <= names
    assert "contradicts another statement (C2, C3, C4, C5, C9)" in caption_of(figure)
    drawn = {
        (float(x), float(y))
        for ax in figure.axes
        for line in ax.lines
        for x, y in zip(np.atleast_1d(line.get_xdata()), line.get_ydata(), strict=True)
    }
    values = table[table["bound"] == "value"]
    assert drawn >= set(zip(values["world_size"].astype(float), values["value"], strict=True))
    for ax in figure.axes:
        assert any(list(line.get_ydata()) == [1, 1] for line in ax.lines), "the ideal"


def test_emulated_nodes_stand_in_grey_beside_the_paper(tree: Tree, make_run: MakeRun) -> None:
    for nodes, repeat in itertools.product((1, 4), range(3)):
        for mbit, strategy in itertools.product((6, 12) if nodes > 1 else (6,), ("ddp", "horovod")):
            efficiency = (0.6 + mbit / 40 if nodes > 1 else 1.0) * (1 + repeat / 100)
            about = {"nodes": nodes, "strategy": strategy, "repeat": repeat, "emu_link_mbit": mbit}
            emulate(make_run, efficiency, study="emulation", **about)
    runs = runs_table(tree)
    tables = Tables(empty_table(), configuration_table(empty_table()), PAPER, emulated=runs)
    table = QUESTIONS["efficiency"].points(tables)
    added = table[table["source"] == "emulated"]
    assert set(added["strategy"]) == {"ddp"}, "Horovod's negotiation is not scaled"
    assert added["value"].tolist() == pytest.approx([1, 0.9, 1, 0.75], rel=0.01)
    figure = QUESTIONS["efficiency"].draw(table)
    said = words(figure)
    assert "No cluster measured" in said
    assert "PyTorch-DDP, emulated" in said
    assert captions.EMULATING in said
    assert captions.METHOD_ONLY not in said
    assert not misplaced(figure)


def test_a_title_repeats_only_statements_that_nothing_contradicts() -> None:
    """Neither D04, which follows from rounded times, nor E13, which E07 contradicts."""
    title = title_of(QUESTIONS["efficiency"].draw(points_of("efficiency", empty_table())))
    told = "Efficiency is over 0.65 on 1024 ranks with DALI, 0.33 to 0.50 on 128 ranks with native."
    assert title.startswith(told)


def test_formats_differ_in_the_look_and_are_explained(tree: Tree, make_run: MakeRun) -> None:
    both_formats_and_halves(make_run)
    table = points_of("throughput_vs_workers", runs_table(tree))
    figure = QUESTIONS["throughput_vs_workers"].draw(table)
    entries = {entry.get_text() for entry in figure.legends[0].get_texts()}
    assert {"native, folders", "native, TFRecord", "DALI (CPU), TFRecord", "synthetic"} <= entries
    (ax,) = [ax for ax in figure.axes if "native" in ax.get_title(loc="left")]
    marked = [line for line in ax.lines if line.get_marker() == style.STRATEGY_MARKERS["ddp"]]
    assert {line.get_markersize() for line in marked} == {6.0, 8.0}
