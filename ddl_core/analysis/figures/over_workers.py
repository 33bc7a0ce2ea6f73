"""Throughput and efficiency over the number of workers."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddl_core.analysis import paper as published
from ddl_core.analysis.arms import ARM_TYPES, KEYS, ORIGIN_TYPES
from ddl_core.analysis.paper import Paper, covers
from ddl_core.analysis.plot import captions, curves, labels, scales, style
from ddl_core.analysis.plot.canvas import STATED_ONLY, drawn_panels, frame, styled
from ddl_core.analysis.plot.style import SEPARATOR
from ddl_core.analysis.seed_papers import PAPERS, SeedPapers

POINTS = {
    "panel": "string",
    "source": "string",
    **ARM_TYPES,
    "local_batch_size": "Int64",
    "world_size_min": "Int64",
    "world_size": "Int64",
    "base_world_size": "Int64",
    "n": "Int64",
    "windows": "Int64",
    "failed": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "bound": "string",
    "approx": "string",
    "statement": "string",
    "printed": "string",
    "place": "string",
    "contradiction": "string",
    **ORIGIN_TYPES,
}

_NESTED = "Of the paper's marks at one place, one is drawn around the other."
_PAPER_RANGE = (4, 1024)  # what it measured: the same axis wherever it stands


def throughput_points(arms: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return throughput (images/s) over workers: a panel per setting, model and loader.

    Formats of one loader share its panel. An arm that was measured at one number of workers says
    nothing here and is left out.
    The paper's panel comes last and is its own, because the hardware is another.
    """
    ours = _measured(_scaling(arms), ["value", "low", "high"])
    ours["order"] = ours["loader"].map(style.loaders(ours["loader"]).index)
    ours = ours.sort_values(["setting", "model", "order"], kind="stable")
    ours["panel"] = ours["loader"].map(style.loader_name) + SEPARATOR + with_model(ours)
    theirs = published.throughput_points(paper).assign(panel=published.SYSTEM)
    return stack([ours, theirs], POINTS)


def speedup_points(arms: pd.DataFrame, seeds: SeedPapers) -> pd.DataFrame:
    """Return the speed-up over workers of studies of several libraries, and the one stated beside.

    It is that of throughput, relative to the fewest workers of the same arm. The stated one is of
    PyTorch-DDP on another machine: it stands in every panel, and in none without ours.
    """
    libraries = arms.groupby("study")["library"].transform("nunique")
    ours = _measured(
        _scaling(arms[libraries > 1]), ["efficiency", "efficiency_low", "efficiency_high"]
    )
    grown = ours["world_size"].astype(float) / ours["base_world_size"].astype(float)
    ours = ours.assign(**{name: ours[name] * grown for name in ("value", "low", "high")})
    ours["panel"] = with_model(ours)
    stated = seeds.stated("M01").to_frame().T
    what = f"{seeds.stated('M01')['printed']} (ResNet44, V100)"
    about = {"source": "stated", "printed": what, "world_size_min": stated["world_size"]}
    theirs = [stated.assign(panel=name, **about) for name in ours["panel"].unique()]
    return stack([ours, *theirs], POINTS)


def efficiency_points(
    arms: pd.DataFrame,
    paper: Paper,
    loaders: Sequence[Sequence[str]],
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
    compare: str | None = None,
) -> pd.DataFrame:
    """Return parallel efficiency over workers for some arms, the paper's statements beside ours.

    Parameters
    ----------
    arms
        An arm table.
    paper
        The paper's numbers.
    loaders
        Groups of loaders; each group gets its own panel.
    models, strategies
        What to keep; empty keeps all. Statements that name no strategy are always kept.
    compare
        Column that must have two or more values in a panel for ours to be shown in it.

    Returns
    -------
    DataFrame
        `POINTS`. Every setting with an arm at two or more world sizes has its own panels, see
        `_panels`. An arm measured at its base only is left out: it is 1 by definition.
    """
    ours = _measured(_scaling(arms), ["efficiency", "efficiency_low", "efficiency_high"])
    theirs = published.efficiency_points(paper)
    ours, theirs = (
        part[_among(part["model"], models) & _among(part["strategy"], strategies)]
        for part in (ours, theirs)
    )
    if compare:
        places = [ours["panel"], ours["loader"], ours["data_format"]]
        ours = ours[ours.groupby(places)[compare].transform("nunique") > 1]
    panels = _panels(ours, theirs, loaders)
    parts = [pd.concat(part) for part in zip(*panels.values(), strict=True)]
    return stack(parts, POINTS, list(panels))


def _measured(table: pd.DataFrame, values: Sequence[str]) -> pd.DataFrame:
    """Return the measured arms with `values` as value, low and high."""
    chosen = {new: table[old] for new, old in zip(("value", "low", "high"), values, strict=True)}
    return table.assign(
        **chosen,
        source="measured",
        bound="value",
        world_size_min=table["world_size"],
        panel=table["setting"],
    )


def _scaling(table: pd.DataFrame) -> pd.DataFrame:
    """Return the arms that were measured at two or more world sizes."""
    reached = table["world_size"].where(table["n"] > 0)
    keys = [table[name] for name in KEYS if name != "world_size"]
    return table[reached.groupby(keys).transform("nunique") > 1]


def _panels(
    ours: pd.DataFrame, theirs: pd.DataFrame, loaders: Sequence[Sequence[str]]
) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Return the panels of each group, each with our rows and the paper's.

    The paper's statements stand in the panels of settings that go beyond its base, else in a panel
    of their own: no number of workers is then common to both.
    """
    panels = {}
    for group in loaders:
        here = ours[ours["loader"].isin(group)]
        shown = [name for name in group if name == group[0] or (here["loader"] == name).any()]
        label = ", ".join(map(style.loader_name, shown)) if len(loaders) > 1 else ""
        covered = [any(covers(stated, name) for name in group) for stated in theirs["loader"]]
        stated = theirs[np.array(covered, dtype=bool)]
        most = here[here["n"] > 0].groupby("panel")["world_size"].max()
        for setting in most.index:
            large = most[setting] > published.BASE_WORLD_SIZE
            rows = here[here["panel"] == setting], stated if large else stated.iloc[:0]
            panels[_panel_name(label, setting)] = rows
        if not (most > published.BASE_WORLD_SIZE).any():
            panels[_panel_name(label, published.SYSTEM)] = here.iloc[:0], stated
    return {
        name: (mine.assign(panel=name), others.assign(panel=name))
        for name, (mine, others) in panels.items()
    }


def _panel_name(label: str, setting: str) -> str:
    return SEPARATOR.join(part for part in (label, setting) if part)


def _among(column: pd.Series, wanted: Sequence[str]) -> pd.Series:
    return column.isin(wanted) | column.isna() if wanted else column.notna() | column.isna()


def with_model(table: pd.DataFrame) -> pd.Series:
    """Return the setting of each arm with the name of its network."""
    return table["setting"].astype("string") + ", " + table["model"].map(style.model_name)


def stack(
    parts: Sequence[pd.DataFrame], types: dict[str, str], panels: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the parts as one table of these columns, panel by panel: as given, or as they come."""
    table = pd.concat([part.reindex(columns=list(types)).astype(types) for part in parts])
    order = {name: number for number, name in enumerate(panels or table["panel"].unique())}
    return table.sort_values(
        "panel", key=lambda panel: panel.map(order), kind="stable", ignore_index=True
    )


@styled
def draw_throughput(points: pd.DataFrame) -> Figure:
    """Return images/s over workers, a panel per setting and one for the paper (its Fig. 3)."""
    points = style.with_framework(points)
    ours, theirs = _split(points)
    figure, panels = _panel_frame(
        "How many images a second do more workers train?",
        points,
        curves.legend(points, "ideal from its own base", "framework"),
        [
            "Question of the paper's Fig. 3.",
            *captions.runs(ours),
            captions.scaling(ours),
            *captions.statements(theirs),
            *([_NESTED] if len(theirs) else []),
            *captions.formats(ours, theirs),
            "The paper prints no throughput: shown is 90 epochs x 1,281,167 images / runtime.",
        ],
        columns=2,
    )
    ranges = _ranges(points[points["panel"].isin(panels)])
    for name, ax in panels.items():
        part = points[points["panel"] == name]
        scales.rate_axis(ax, ranges[name.split(SEPARATOR)[-1]])
        scales.worker_axis(ax, part["world_size"])
        curves.draw_ideals(ax, curves.ideals(part))
        curves.draw_measured(ax, _split(part)[0], points, "framework")
        curves.draw_stated(ax, _split(part)[1], points, "framework")
    return figure


@styled
def draw_speedup(points: pd.DataFrame) -> Figure:
    """Return the speed-up over workers of each library and strategy, beside the stated 10.11."""
    points = style.with_framework(points)
    ours = _split(points)[0]
    figure, panels = _panel_frame(
        "How much faster do more workers train, with each library?",
        points,
        curves.legend(points, "ideal", "framework"),
        [
            "Speed-up: throughput / throughput of the fewest workers of the same arm (measured).",
            *captions.runs(ours, "the ratio"),
            f"Open mark: what {PAPERS['mahon2020']} state, of a base that they do not name; "
            f"{PAPERS['malik2018']} state 'almost linear' up to 256 GPUs, and no number. "
            "[M...]: see docs/reading_the_seeds.md.",
        ],
        columns=1,
    )
    for name, ax in panels.items():
        part = points[points["panel"] == name]
        mine, stated = _split(part)
        scales.rate_axis(ax, part[["value", "low", "high"]].stack())
        ax.set_ylabel("speed-up")
        scales.worker_axis(ax, part["world_size"])
        curves.draw_ideals(ax, curves.ideals(part))
        curves.draw_measured(ax, mine, points, "framework")
        curves.draw_stated(ax, stated, points, "framework")
    return figure


@styled
def _efficiency(
    points: pd.DataFrame, title: str, question: str, columns: int = 1, by: str = "framework"
) -> Figure:
    points = style.with_framework(points)
    ours, theirs = _split(points)
    unnamed = by == "model" and (theirs["strategy"].isna()).any()
    figure, panels = _panel_frame(
        title,
        points,
        curves.legend(points, "ideal", by),
        [
            f"Question of the paper's {question}.",
            *captions.runs(ours, "the ratio"),
            captions.base(ours),
            captions.scaling(ours),
            *captions.statements(theirs),
            *([_NESTED] if len(theirs) else []),
            *([f"{curves.NO_FRAMEWORK}: the paper names no framework."] if unnamed else []),
            *captions.formats(ours, theirs),
        ],
        columns,
        by,
    )
    top = max(1.1, 1.05 * points[["value", "high"]].max().max())
    for name, ax in panels.items():
        ours, theirs = _split(points[points["panel"] == name])
        ax.set_ylim(0, top)
        ax.set_ylabel("parallel efficiency E")
        scales.worker_axis(ax, [*ours["world_size"], *(_PAPER_RANGE if len(theirs) else ())])
        ax.axhline(1, **style.IDEAL)
        curves.draw_measured(ax, ours, points, by)
        curves.draw_stated(ax, theirs, points, by)
    return figure


def draw_native(points: pd.DataFrame) -> Figure:
    """Return E over workers with the native loader (the paper's Fig. 5)."""
    return _efficiency(points, "Does the native loader keep more workers busy? ResNet50", "Fig. 5")


def draw_dali(points: pd.DataFrame) -> Figure:
    """Return E over workers with DALI on the CPU and on the GPU (Fig. 4)."""
    return _efficiency(points, "Does DALI keep more workers busy? ResNet50", "Fig. 4", columns=2)


def draw_by_model(points: pd.DataFrame) -> Figure:
    """Return E over workers of PyTorch-DDP for each network (Fig. 6)."""
    title = "Do larger networks scale better? PyTorch-DDP"
    return _efficiency(points, title, "Fig. 6", by="model")


def draw_by_loader(points: pd.DataFrame) -> Figure:
    """Return E over workers for each loader with ResNet101 (Fig. 7)."""
    return _efficiency(points, "Does the loader decide how ResNet101 scales?", "Fig. 7")


def _split(points: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    ours = points["source"] == "measured"
    return points[ours], points[~ours]


def _panel_frame(
    title: str,
    points: pd.DataFrame,
    legend: Sequence[Artist],
    caption: Sequence[str],
    columns: int,
    by: str = "framework",
) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure and the axes of each panel: the paper's many texts need more room.

    Where there are only these, the figure is a small one.
    """
    panels = drawn_panels(points)
    ours, theirs = _split(points)
    none = not (ours["n"] > 0).any()
    columns = 1 if none else columns
    stated = set(theirs["panel"])
    heights = [1.8 if none else 2.4 if name in stated else 2.0 for name in panels]
    figure, axes = frame(
        title,
        panels,
        [max(heights[first : first + columns]) for first in range(0, len(panels), columns)],
        legend,
        [*caption, *captions.panels_not_drawn(points, panels)],
        right=_label_inches(points, panels, by),
        note=STATED_ONLY if none else "",
    )
    return figure, dict(zip(panels, axes, strict=True))


def _ranges(points: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the values that panels of one setting must all have room for, by setting."""
    ideal = pd.concat([curves.ideals(part) for _, part in points.groupby("panel")])
    columns = ["value", "low", "high"]
    values = pd.concat(
        [*(points.set_index("panel")[name] for name in columns), ideal.set_index("panel")["end"]]
    )
    settings = values.index.str.split(SEPARATOR).str[-1]
    return dict(iter(values.groupby(settings)))


def _label_inches(points: pd.DataFrame, panels: list[str], by: str) -> list[float]:
    """Return the room that the texts right of each panel's last column need."""
    rooms = []
    for name in panels:
        part = _split(points[points["panel"] == name])[1]
        last = part["world_size"] == part["world_size"].max()
        widest = style.widest(curves.stated_texts(part, by)[last], labels.POINTS)
        rooms.append((widest + labels.LED_POINTS) / 72 - 0.1 if widest else 0.0)
    return rooms
