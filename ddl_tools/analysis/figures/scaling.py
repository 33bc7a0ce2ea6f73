"""Throughput and efficiency over the number of ranks, the batch, or the nodes of an emulation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddl_tools.analysis import estimates
from ddl_tools.analysis import paper as published
from ddl_tools.analysis.configurations import (
    CONFIGURATION,
    CONFIGURATION_TYPES,
    KEYS,
    ORIGIN_TYPES,
    VALUE,
    VALUE_TYPES,
    commits,
    stack,
    told_apart,
    with_model,
    with_settings,
)
from ddl_tools.analysis.paper import RELATED, Paper, covers
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import STATED_ONLY, drawn_panels, frame, handles, styled
from ddl_tools.analysis.plot.style import SEPARATOR
from ddl_tools.analysis.tables import is_emulated
from ddl_tools.labels import REPEATS

POINTS = {
    "panel": "string",
    "source": "string",
    **CONFIGURATION_TYPES,
    "local_batch_size": "Int64",
    "world_size_min": "Int64",
    "world_size": "Int64",
    "base_world_size": "Int64",
    **VALUE_TYPES,
    "bound": "string",
    "approx": "string",
    "statement": "string",
    "printed": "string",
    "place": "string",
    "contradiction": "string",
    **ORIGIN_TYPES,
}
BATCHES = {
    "panel": "string",
    **CONFIGURATION_TYPES,
    "world_size": "Int64",
    "local_batch_size": "Int64",
    "line": "string",
    **VALUE_TYPES,
    **ORIGIN_TYPES,
}
EMULATED = {
    "panel": "string",
    **CONFIGURATION_TYPES,
    "line": "string",
    "emu_link_mbit": "float64",
    "emu_step_ms": "float64",
    "emu_shrink": "float64",
    "world_size": "Int64",
    "n": "Int64",
    "failed": "Int64",
    "unfaithful": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    **ORIGIN_TYPES,
}

_VALUES = ["value", "low", "high"]
_PAPER_RANGE = (4, 1024)  # what it measured: the same axis wherever it stands
_DASHES: list[Any] = ["solid", (0, (4, 1.5)), (0, (1, 1.5)), *style.SPARE_LINES]
# Of an emulated run: told by the panel, by the axis, or by nothing: one step is like another.
_NOT_TOLD = ("framework", "strategy", "nodes", "emu_link_mbit", "train_images", "epochs", *REPEATS)
_SERIES = ["study", "hardware", "setting", "line"]
# Links and the length of a run divide no series: what is drawn is a ratio over them.
_SHARED = {"emu_link_mbit": 0.0, "train_images": pd.NA, "epochs": 0}
_NO_DELAYS = {"emu_straggler": 1.0, "emu_jitter": 0.0}
_UNDISTURBED = ["study", "hardware", "strategy", "undisturbed"]


def throughput_points(arms: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return throughput (images/s) over ranks: a panel per setting, model and loader.

    Formats of one loader share its panel. A configuration that was measured at one number of ranks
    says nothing here and is left out.
    The paper's panel comes last and is its own, because the hardware is another.
    """
    ours = _measured(_scaling(arms), _VALUES)
    ours["order"] = ours["loader"].map(style.loaders(ours["loader"]).index)
    ours = ours.sort_values(["setting", "model", "order"], kind="stable")
    ours["panel"] = ours["loader"].map(style.loader_name) + SEPARATOR + with_model(ours)
    theirs = published.throughput_points(paper).assign(panel=published.SYSTEM)
    return stack([ours, theirs], POINTS)


def speedup_points(arms: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return the speed-up over ranks of studies of several libraries, and the one stated beside.

    It is that of throughput, relative to the fewest ranks of the same configuration. The stated one
    is of PyTorch-DDP on another machine: it stands in every panel, and in none without ours.
    """
    libraries = arms.groupby("study")["framework"].transform("nunique")
    ours = _measured(
        _scaling(arms[libraries > 1]), ["efficiency", "efficiency_low", "efficiency_high"]
    )
    grown = ours["world_size"].astype(float) / ours["base_world_size"].astype(float)
    ours = ours.assign(**{name: ours[name] * grown for name in _VALUES})
    ours["panel"] = with_model(ours)
    stated = paper.stated("M01").to_frame().T
    what = f"{paper.stated('M01')['printed']} (ResNet44, V100)"
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
    """Return parallel efficiency over ranks for some arms, the paper's statements beside ours.

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
    return table.assign(
        **{new: table[old] for new, old in zip(_VALUES, values, strict=True)},
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
    of their own: no number of ranks is then common to both.
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


def batch_points(arms: pd.DataFrame) -> pd.DataFrame:
    """Return images/s over the batch of a rank: `BATCHES`.

    Of what was measured at two batch sizes or more; batches alone differ along a line. See
    `configuration_table` for the values.
    """
    batch = ", batch " + arms["local_batch_size"].astype("string")
    pairs = zip(arms["setting"], batch, strict=True)
    table = arms.assign(
        where=pd.Series([name.replace(one, "", 1) for name, one in pairs], arms.index, dtype=str)
    )
    reached = table["local_batch_size"].where(table["n"] > 0)
    keys = [table[name] for name in ("where", "hardware", *CONFIGURATION, "world_size")]
    table = style.with_framework_strategy(table[reached.groupby(keys).transform("nunique") > 1])
    loaders = map(style.loader_name, table["loader"], table["data_format"])
    table["panel"] = pd.array(list(loaders), dtype="string") + SEPARATOR + table["where"]
    table["panel"] += ", " + table["model"].map(style.model_name)
    table["line"] = [
        f"{style.strategy_name(framework)}, {ranks} worker{'s' if ranks > 1 else ''}"
        for framework, ranks in zip(table["framework_strategy"], table["world_size"], strict=True)
    ]
    order = ["panel", "line", "local_batch_size"]
    return stack([table.sort_values(order)], BATCHES)


def emulated_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return parallel efficiency over emulated nodes: `EMULATED`.

    E = (throughput of G ranks / G) / throughput of one, of the same arm; low and high are its 95 %
    interval over repeats. One rank sends nothing: whatever the rate of its link, it is the base of
    all rates; and an arm of delayed ranks that has none has that of the same arm without delays.
    Runs that were unfaithful are counted and give no value.
    """
    made = _emulated(runs)
    rows = []
    for _, arm in made.groupby(_SERIES, sort=True):
        alone = arm[arm["world_size"] == 1]
        base = alone if len(alone) else _without_delays(made, arm.iloc[0])
        for _, panel in arm[arm["world_size"] > 1].groupby("emu_link_mbit"):
            own = [part for _, part in panel.groupby("world_size")]
            rows += [_row(part, base, panel) for part in ([alone] if len(alone) else []) + own]
    table = pd.DataFrame(rows, columns=list(EMULATED))
    order = ["study", "emu_link_mbit", "line", "world_size"]
    return stack([table.sort_values(order, ascending=[True, False, True, True])], EMULATED)


def _emulated(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the emulated runs that have ended, with what pools them and what they are called."""
    ended = runs["status"].isin(["completed", "failed"]) & (runs["world_size"] > 0)
    emulated = runs[is_emulated(runs) & ended]
    undisturbed = with_settings(emulated.assign(**_SHARED, **_NO_DELAYS))
    made = with_settings(emulated.assign(**_SHARED)).assign(
        emu_link_mbit=emulated["emu_link_mbit"],
        commit=commits(emulated),
        undisturbed=undisturbed["setting"],
    )
    apart = told_apart(emulated, _NOT_TOLD)
    made["line"] = [
        ", ".join(filter(None, (style.strategy_name(strategy), label))) + differs
        for strategy, label, differs in zip(made["strategy"], apart, made["differs"], strict=True)
    ]
    faithful = (made["status"] == "completed") & made["unfaithful"].isna()
    return made.assign(value=made[VALUE].where(faithful))


def _without_delays(made: pd.DataFrame, delayed: pd.Series) -> pd.DataFrame:
    """Return the runs of one rank that are like `delayed`, but for its delays."""
    alike = (made[_UNDISTURBED] == delayed[_UNDISTURBED]).all(axis=1)
    without = (made[list(_NO_DELAYS)] == pd.Series(_NO_DELAYS)).all(axis=1)
    return made[alike & without & (made["world_size"] == 1)]


def _row(runs: pd.DataFrame, base: pd.DataFrame, panel: pd.DataFrame) -> dict[str, Any]:
    first, ranks = runs.iloc[0], int(runs["world_size"].iloc[0])
    mbit = panel["emu_link_mbit"].iloc[0]
    known, bases = (part["value"].dropna().to_numpy(float) for part in (runs, base))
    row = {name: first[name] for name in EMULATED if name in first} | {
        "panel": f"{mbit:g} Mbit/s ({first['study']})",
        "emu_link_mbit": mbit,
        "n": len(known),
        "failed": int((runs["status"] == "failed").sum()),
        "unfaithful": int(runs["unfaithful"].notna().sum()),
        "commit": ";".join(sorted(set(runs["commit"]))),
        **dict.fromkeys(_VALUES, np.nan),
    }
    if ranks == 1 and len(known):
        row["value"] = 1.0
    elif len(known) and len(bases):
        found = estimates.scaled(estimates.unpaired_ratio(known, bases), 1 / ranks)
        row |= {"value": found.ratio, "low": found.low, "high": found.high}
    return row


@styled
def draw_throughput(points: pd.DataFrame) -> Figure:
    """Return images/s over ranks, a panel per setting and one for the paper (its Fig. 3)."""
    points = style.with_framework_strategy(points)
    ours = points[points["source"] == "measured"]
    told = [] if len(ours) == len(points) else ["Crosses: 90 epochs x 1,281,167 images / runtime."]
    figure, panels = _panel_frame(
        _grown(points, "throughput"),
        points,
        "ideal from its own base",
        [*captions.provenance(ours), *told],
        columns=2,
    )
    drawn = points[points["panel"].isin(panels)]
    ideal = pd.concat([curves.ideals(part) for _, part in drawn.groupby("panel")])
    for name, ax in panels.items():
        part = points[points["panel"] == name]
        # Panels of one setting have one axis.
        alike = drawn["panel"].str.split(SEPARATOR).str[-1] == name.split(SEPARATOR)[-1]
        shared = drawn.loc[alike, "panel"]
        reached = [drawn.loc[alike, _VALUES].stack(), ideal[ideal["panel"].isin(shared)]["end"]]
        curves.rate_axis(ax, pd.concat(reached))
        curves.rank_axis(ax, part["world_size"])
        curves.draw_ideals(ax, curves.ideals(part))
        _draw(ax, part, points)
    return figure


@styled
def draw_speedup(points: pd.DataFrame) -> Figure:
    """Return the speed-up over ranks of each library and strategy, beside the stated 10.11."""
    points = style.with_framework_strategy(points)
    ours = points[points["source"] == "measured"]
    figure, panels = _panel_frame(
        _grown(ours, "throughput"),
        points,
        "ideal",
        [*captions.provenance(ours, "the ratio"), f"Open: {RELATED['mahon2020']}, 12 GPUs [M1]."],
        columns=1,
    )
    for name, ax in panels.items():
        part = points[points["panel"] == name]
        curves.rate_axis(ax, part[_VALUES].stack(), "speed-up")
        curves.rank_axis(ax, part["world_size"])
        curves.draw_ideals(ax, curves.ideals(part))
        _draw(ax, part, points)
    return figure


@styled
def draw_efficiency(points: pd.DataFrame, what: str = "", by: str = "framework_strategy") -> Figure:
    """Return E over ranks; `what` begins the title, colours tell the column `by`."""
    points = style.with_framework_strategy(points)
    ours, theirs = _split(points)
    base = captions.counted("G0", ours["base_world_size"].dropna()) or "G0 = 4"
    unnamed = by == "model" and theirs["strategy"].isna().any()
    figure, panels = _panel_frame(
        f"{what}: {_remains(ours if (ours['n'] > 0).any() else theirs)}",
        points,
        "ideal",
        [
            f"E relative to {base}; batch per rank fixed.",
            *captions.provenance(ours, "the ratio"),
            *captions.statements(theirs),
            *(["Grey: no framework or network named."] if unnamed else []),
        ],
        columns=2,
        by=by,
    )
    top = max(1.1, 1.05 * points[["value", "high"]].max().max())
    for name, ax in panels.items():
        part = points[points["panel"] == name]
        mine, stated = _split(part)
        ax.set_ylim(0, top)
        ax.set_ylabel("parallel efficiency E")
        curves.rank_axis(ax, [*mine["world_size"], *(_PAPER_RANGE if len(stated) else ())])
        ax.axhline(1, **style.IDEAL)
        _draw(ax, part, points, by)
    return figure


def _grown(points: pd.DataFrame, what: str) -> str:
    """Return by how much a quantity grows from the fewest to the most ranks, at best."""
    known = points[(points["bound"] == "value") & points["value"].notna()]
    known = known[known["source"] == "measured"] if (known["n"] > 0).any() else known
    if known.empty:
        return "Nothing measured here yet at two numbers of ranks"
    best, ratio = _steepest(
        known, ["panel", "loader", "model", "strategy", "framework"], "world_size"
    )
    whose = "" if (points["n"] > 0).any() else " in the paper"
    return (
        f"From {best['least']:.0f} to {best['most']:.0f} ranks, {what} grows "
        f"{style.three_digits(ratio)}-fold at most{whose}"
    )


def _steepest(known: pd.DataFrame, keys: list[str], x: str) -> tuple[pd.Series, float]:
    """Return the line that grows most from its least to its most `x`, and how many times."""
    lines = known.sort_values(x).groupby(keys, dropna=False).agg(
        first=("value", "first"), last=("value", "last"), least=(x, "min"), most=(x, "max")
    )  # fmt: skip
    grown = (lines["last"] / lines["first"]).to_numpy()
    return lines.iloc[grown.argmax()], float(grown.max())


def _remains(points: pd.DataFrame) -> str:
    """Return the efficiencies at the most ranks."""
    known = points[(points["bound"] == "value") & points["value"].notna()]
    if known.empty:
        return "no value is known"
    at = known["world_size"].max()
    return f"E is {captions.span(known.loc[known['world_size'] == at, 'value'])} on {at} ranks"


def _split(points: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    ours = points["source"] == "measured"
    return points[ours], points[~ours]


def _draw(
    ax: Axes, part: pd.DataFrame, points: pd.DataFrame, by: str = "framework_strategy"
) -> None:
    ours, theirs = _split(part)
    curves.draw_measured(ax, ours, points, by)
    curves.draw_stated(ax, theirs, points, by)


def _panel_frame(
    title: str,
    points: pd.DataFrame,
    ideal: str,
    caption: Sequence[str],
    columns: int,
    by: str = "framework_strategy",
) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure and the axes of each panel; without ours, a small one."""
    panels = drawn_panels(points)
    none = not (points["n"] > 0).any()
    figure, axes = frame(
        title,
        panels,
        [1.9 if none else 2.1] * -(-len(panels) // (1 if none else columns)),
        curves.legend(points, ideal, by),
        [*caption, *captions.panels_not_drawn(points, panels)],
        note=STATED_ONLY if none else "",
    )
    return figure, dict(zip(panels, axes, strict=True))


@styled
def draw_batches(points: pd.DataFrame) -> Figure:
    """Return images/s over the batch of a rank, in looks of framework and number of ranks."""
    panels, looks = drawn_panels(points), _line_looks(points, "world_size")
    title = "Nothing measured here yet at two batch sizes"
    known = points[points["value"].notna()]
    if len(known):
        best, ratio = _steepest(known, ["panel", "line"], "local_batch_size")
        title = (
            f"From batch {best['least']:.0f} to {best['most']:.0f}, throughput grows "
            f"{ratio:.2f}-fold at most"
        )
    figure, axes = frame(
        title,
        panels,
        [2.2] * len(panels),
        handles(looks),
        [*captions.provenance(points), *captions.panels_not_drawn(points, panels)],
    )
    for name, ax in zip(panels, axes, strict=True):
        part = points[(points["panel"] == name) & (points["n"] > 0)]
        curves.value_axis(ax, part["local_batch_size"], "batch of a rank (images)")
        curves.rate_axis(ax, part[_VALUES].stack())
        curves.lines(ax, part, "local_batch_size", "line", looks, markersize=5)
    return figure


@styled
def draw_emulated(points: pd.DataFrame) -> Figure:
    """Return E over emulated nodes, in the colours of the frameworks, dashed."""
    drawn = points[points["value"].notna()]
    panels, looks = drawn_panels(points), _line_looks(drawn, "line")
    smaller = captions.counted("", drawn["emu_shrink"])
    alone = points["world_size"] == 1  # the base, which stands in each panel
    once = points[~alone | ~points.duplicated(["study", "line", "world_size"])]
    rejected = int(once["unfaithful"].sum())
    baseless = sorted(set(points.loc[points["n"] > 0, "line"]) - set(drawn["line"]))
    figure, axes = frame(
        f"EMULATED: {_slowest(drawn)}",
        panels,
        [2.0] * -(-len(panels) // min(3, len(panels))),
        handles(looks),
        [
            f"Nodes are network namespaces of one machine; ResNet50's gradients {smaller} times "
            "smaller.",
            *captions.provenance(points, "the ratio"),
            *(["Open: one run."] if _single(drawn).any() else []),
            *([f"Rejected: {rejected} runs."] if rejected else []),
            *[f"No run of one rank: {name}." for name in baseless],
            *captions.panels_not_drawn(points, panels),
        ],
    )
    for name, ax in zip(panels, axes, strict=True):
        part = drawn[drawn["panel"] == name]
        curves.rank_axis(ax, part["world_size"], "emulated nodes G")
        ax.set_ylabel("parallel efficiency E")
        ax.set_ylim(0, 1.1)
        ax.axhline(1, **style.IDEAL)
        for number, (line, look) in enumerate(looks.items()):
            own = part[part["line"] == line].sort_values("world_size")
            x = curves.apart(ax, own["world_size"], number, len(looks))
            curves.line(ax, x, own, look | {"markersize": 5})
            one = _single(own)
            ax.plot(x[one], own.loc[one, "value"], zorder=6, markersize=5,
                    **look | {"linestyle": "none", "markerfacecolor": "white"})  # fmt: skip
    return figure


def _slowest(drawn: pd.DataFrame) -> str:
    """Return the efficiencies on the most nodes, at the slowest links with the most repeats."""
    if drawn.empty:
        return "nothing measured here yet"
    most = drawn[drawn["world_size"] == drawn["world_size"].max()]
    fewest = most.groupby("emu_link_mbit")["n"].min()
    rate = fewest.index[fewest == fewest.max()].min()
    reached = captions.span(most.loc[most["emu_link_mbit"] == rate, "value"])
    return f"on {most['world_size'].iloc[0]} nodes at {rate:g} Mbit/s, E is {reached}"


def _single(points: pd.DataFrame) -> "pd.Series[bool]":
    """Say which values rest on a single run; the base is 1 by definition."""
    return (points["n"] == 1) & (points["world_size"] > 1)


def _line_looks(points: pd.DataFrame, dashes: str) -> style.Looks:
    """Return how each line looks: its framework's colour and mark, dashes by another column."""
    table = (
        style.with_framework_strategy(points)
        .drop_duplicates("line")
        .sort_values(["world_size", "line"])
    )
    frameworks = style.strategy_looks(table["framework_strategy"])
    looks: style.Looks = {}
    for framework, look in frameworks.items():
        own = table[table["framework_strategy"] == framework]
        among = sorted(table[dashes].unique()) if dashes != "line" else list(own["line"])
        for line, value in zip(own["line"], own[dashes], strict=True):
            turn = among.index(value) + (dashes == "line")
            looks[line] = look | {"linestyle": _DASHES[turn % len(_DASHES)]}
    return looks
