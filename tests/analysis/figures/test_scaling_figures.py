"""Every figure draws whatever the table holds, and says what it shows."""

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from ddl_core.registry import LOADERS
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.paper import read_paper
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import STATED_ONLY, caption_of, title_of
from ddl_tools.analysis.questions import QUESTIONS
from ddl_tools.analysis.tables import empty_table, runs_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import MakeRun, epoch_row, writer
from tests.analysis.drawn import leaves_the_page

GPU = {"cpu": "Example CPU", "cpu_cores": 48, "device": "cuda", "accelerator": "Example GPU"}


def points(name: str, runs: pd.DataFrame) -> pd.DataFrame:
    return QUESTIONS[name].points(runs, configuration_table(runs), read_paper())


def nothing(make_run: MakeRun) -> None:
    """Leave the tree empty."""


def one(make_run: MakeRun) -> None:
    make_run()


def only_failed(make_run: MakeRun) -> None:
    for repeat in range(2):
        make_run(status="failed", rows=[], system=None, repeat=repeat)


def only_diverged(make_run: MakeRun) -> None:
    for size in (1, 2):
        rows = [epoch_row(0, loss=math.nan), epoch_row(1, loss=math.nan)]
        make_run(strategy="ddp", gpus_per_node=size, rows=rows)


def without_warm_epoch(make_run: MakeRun) -> None:
    make_run(rows=[epoch_row(0)])


def every_model_on_two_machines(make_run: MakeRun) -> None:
    for model in ("resnet50", "resnet101", "resnet152"):
        for nodes in (1, 2, 4):
            for system in (None, GPU):
                study = "cluster" if system else "laptop"
                shape = {"strategy": "ddp", "model": model, "nodes": nodes}
                make_run(30 / nodes, study=study, system=system, **shape)


def both_formats_and_halves(make_run: MakeRun) -> None:
    for loader, read, size in itertools.product(LOADERS, ("folder", "tfrecord"), (1, 2)):
        shape = {"strategy": "ddp", "loader": loader, "gpus_per_node": size, "model": "resnet101"}
        if loader == "synthetic" and read == "tfrecord":
            continue  # there is no such thing
        for work in ("train",) if loader == "synthetic" else ("train", "load"):
            make_run(10 / size, study="loaders", **shape, data_format=read, work=work)


OF_THE_PAPER = ["throughput_vs_workers", "efficiency_native", "efficiency_dali",
                "efficiency_by_model"]  # fmt: skip

FILLINGS = [
    both_formats_and_halves,
    every_model_on_two_machines,
    nothing,
    one,
    only_failed,
    only_diverged,
    without_warm_epoch,
]
WITH_TEXT_INSIDE = FILLINGS[:3]


Fill = Callable[[MakeRun], None]


@pytest.fixture(scope="module")
def tables_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fill], Any]:
    """Return a function that gives the runs and arms of a filling, read once for all figures."""

    @cache
    def read(fill: Fill) -> tuple[pd.DataFrame, pd.DataFrame]:
        tree = Tree(tmp_path_factory.mktemp(fill.__name__) / "results")
        fill(writer(tree))
        runs = runs_table(tree.runs)
        return runs, configuration_table(runs)

    return read


@pytest.mark.parametrize("fill", FILLINGS, ids=lambda fill: fill.__name__)
@pytest.mark.parametrize("name", QUESTIONS)
def test_draws_and_leaves_all_as_it_was(
    name: str, fill: Fill, tables_of: Callable[[Fill], Any]
) -> None:
    settings = dict(matplotlib.rcParams)
    table = QUESTIONS[name].points(*tables_of(fill), read_paper())
    before = table.copy()
    figure = QUESTIONS[name].draw(table)
    FigureCanvasAgg(figure).draw()
    pd.testing.assert_frame_equal(table, before)
    assert dict(matplotlib.rcParams) == settings
    assert plt.get_fignums() == []
    if fill in WITH_TEXT_INSIDE:
        assert not leaves_the_page(figure)


@pytest.mark.parametrize("name", ["throughput_vs_workers", "comparison", "efficiency_native"])
def test_caption_says_how_often_on_what_and_when(name: str, tree: Tree, laptop: MakeRun) -> None:
    laptop(strategy="ddp", gpus_per_node=2, status="failed", rows=[], repeat=5)
    caption = caption_of(QUESTIONS[name].draw(points(name, runs_table(tree.runs))))
    assert "n = 3 starts; bars: 95 % interval of the" in caption
    assert "Failed or diverged: 1 run." in caption
    assert "Example CPU @ 2.00GHz, 2 cores, no GPU (overhead, not hardware)" in caption
    assert "Commit 01234567." in caption


def test_efficiency_names_base_and_finding(tree: Tree, laptop: MakeRun) -> None:
    figure = QUESTIONS["efficiency_native"].draw(points("efficiency_native", runs_table(tree.runs)))
    assert "E relative to G0 = 1; batch per rank fixed." in caption_of(figure)
    assert "Open marks: stated for JUWELS Booster" in caption_of(figure)
    assert title_of(figure).startswith("ResNet50, native loader: E is 0.")


def test_caption_without_runs_speaks_of_none() -> None:
    figure = QUESTIONS["efficiency_dali"].draw(points("efficiency_dali", empty_table()))
    assert "n = " not in caption_of(figure)
    assert "G0 = 4" in caption_of(figure)


def test_caption_on_a_gpu_does_not_speak_of_overhead(tree: Tree, make_run: MakeRun) -> None:
    for strategy in ("ddp", "horovod"):
        make_run(system=GPU, strategy=strategy)
    caption = caption_of(QUESTIONS["comparison"].draw(points("comparison", runs_table(tree.runs))))
    assert "Example GPU." in caption
    assert captions.METHOD_ONLY not in caption


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name.startswith("efficiency")])
def test_ideal_is_always_drawn(name: str) -> None:
    for ax in QUESTIONS[name].draw(points(name, empty_table())).axes:
        assert any(list(line.get_ydata()) == [1, 1] for line in ax.lines)


def test_medians_and_intervals_are_where_they_belong(tree: Tree, laptop: MakeRun) -> None:
    table = points("efficiency_native", runs_table(tree.runs))
    row = table[table["loader"].eq("native") & table["world_size"].eq(2)].iloc[0]
    ax, _ = QUESTIONS["efficiency_native"].draw(table).axes
    (bars,) = [container for container in ax.containers if container.has_yerr]
    line, _, (segments,) = bars.lines
    (bottom, top) = segments.get_segments()[1][:, 1]
    assert (bottom, top) == pytest.approx((row["low"], row["high"]))
    assert line.get_ydata()[1] == pytest.approx(row["value"])


def seen(ax: Axes, workers: int | None = None) -> set[tuple[str, str]]:
    """Return colour and marker of all that is drawn, or of all at a number of workers."""
    drawn = [line for line in ax.lines if line.get_marker() not in ("None", "")]
    if workers:
        drawn = [line for line in drawn if round(line.get_xdata()[0]) == workers]
    return {(to_hex(line.get_color()), line.get_marker()) for line in drawn}


def test_networks_differ_in_colour_and_marker_and_are_in_the_legend(
    tree: Tree, make_run: MakeRun
) -> None:
    every_model_on_two_machines(make_run)
    table = points("efficiency_by_model", runs_table(tree.runs))
    figure = QUESTIONS["efficiency_by_model"].draw(table)
    looks = style.model_looks(table["model"])
    expected = {(look["color"].lower(), look["marker"]) for look in looks.values()}
    assert len(expected) == 3
    ours = [ax for ax in figure.axes if "laptop" in ax.get_title(loc="left")]
    assert ours
    caps = {(hue, "_") for hue, _ in expected}
    assert all(seen(ax) - caps == expected for ax in ours)
    entries = [entry.get_text() for entry in figure.legends[0].get_texts()]
    for name in ("ResNet50", "ResNet101", "ResNet152"):
        assert {f"{name}, measured", f"{name}, paper"} <= {*entries}
    assert not any("PyTorch-DDP" in entry for entry in entries)


def test_networks_of_the_paper_have_the_looks_of_ours() -> None:
    figure = QUESTIONS["efficiency_by_model"].draw(points("efficiency_by_model", empty_table()))
    dali, native = figure.axes
    looks = {name: style.MODEL_COLOURS[name].lower() for name in style.MODEL_COLOURS}
    hues = {hue for hue, _ in seen(dali)}
    assert hues == {looks[name] for name in ("resnet50", "resnet101", "resnet152")}
    assert seen(native, 512) == {
        (looks["resnet50"], "_"),
        (style.UNNAMED_COLOUR, style.UNNAMED_MARKER),
    }
    assert "Grey: no framework or network named." in caption_of(figure)
    assert "contradicts another statement (C2, C3, C4, C5, C9)" in caption_of(figure)


@pytest.mark.parametrize(
    "name", [*OF_THE_PAPER, "efficiency_by_loader", "kernel_shares", "accuracy_vs_batch_size"]
)
def test_a_figure_without_a_run_says_so_and_is_small(name: str) -> None:
    figure = QUESTIONS[name].draw(points(name, empty_table()))
    assert "No run measured here: only" in title_of(figure)
    assert figure.get_figwidth() == style.STATED_WIDTH < style.WIDTH
    assert all(to_hex(ax.spines["left"].get_edgecolor()) == style.PALE for ax in figure.axes)


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_a_figure_with_a_run_is_large_and_claims_no_lack(
    name: str, tree: Tree, make_run: MakeRun
) -> None:
    every_model_on_two_machines(make_run)
    for nodes in (1, 2):
        make_run(30 / nodes, strategy="ddp", loader="dali_cpu", nodes=nodes, study="dali")
    figure = QUESTIONS[name].draw(points(name, runs_table(tree.runs)))
    assert STATED_ONLY not in title_of(figure)
    assert figure.get_figwidth() == style.WIDTH


def test_both_kinds_of_dali_share_a_panel_that_names_them(tree: Tree, make_run: MakeRun) -> None:
    for loader, nodes in itertools.product(("dali_cpu", "dali_reader_cpu"), (1, 2)):
        make_run(30 / nodes, strategy="ddp", loader=loader, nodes=nodes, model="resnet50")
    table = points("efficiency_dali", runs_table(tree.runs))
    (panel,) = table.loc[table["source"] == "measured", "panel"].unique()
    assert panel.startswith("DALI (CPU), DALI reader (CPU) \N{MIDDLE DOT} ")
    assert not table["panel"].str.startswith("DALI (GPU), ").any()


def test_formats_differ_in_the_look_and_are_explained(tree: Tree, make_run: MakeRun) -> None:
    both_formats_and_halves(make_run)
    figure = QUESTIONS["efficiency_by_loader"].draw(
        points("efficiency_by_loader", runs_table(tree.runs))
    )
    entries = [entry.get_text() for entry in figure.legends[0].get_texts()]
    assert {"native, folders", "native, TFRecord", "DALI (CPU), TFRecord", "synthetic"} <= {
        *entries
    }
    (ax,) = [ax for ax in figure.axes if "loaders" in ax.get_title(loc="left")]
    marked = [line for line in ax.lines if line.get_marker() == style.marker("ddp")]
    assert {line.get_markersize() for line in marked} == {6.0, 8.0}


@pytest.mark.parametrize("name", ["throughput_vs_workers", "efficiency_dali"])
def test_what_is_stated_stands_at_its_number_of_workers(name: str) -> None:
    table = points(name, empty_table())
    figure = QUESTIONS[name].draw(table)
    known = set(table["world_size"].dropna()) | set(table["world_size_min"].dropna())
    lines = [line for ax in figure.axes for line in ax.lines]
    marked = [line for line in lines if len(np.atleast_1d(line.get_xdata())) == 1]
    assert marked
    assert {float(np.atleast_1d(line.get_xdata())[0]) for line in marked} <= known
