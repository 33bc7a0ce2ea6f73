"""Throughput and efficiency over the number of ranks, the batch, or the nodes of an emulation."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_core.registry import MODELS
from ddl_tools.analysis import estimates
from ddl_tools.analysis import paper as published
from ddl_tools.analysis.configurations import (
    CONFIGURATION,
    KEYS,
    VALUE,
    commits,
    run_labels,
    specs,
    stack,
    with_model,
    with_settings,
)
from ddl_tools.analysis.figures.columns import ORIGIN, WHO, typed
from ddl_tools.analysis.figures.columns import VALUE as VALUES
from ddl_tools.analysis.paper import Paper
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import STATED_ONLY, handles, panel_figure, styled
from ddl_tools.analysis.plot.style import SEPARATOR
from ddl_tools.analysis.tables import is_emulated
from ddl_tools.labels import REPEATS, plural
from ddl_tools.scaling.emulated import calculated_s

POINTS = typed(
    "panel source", WHO, "local_batch_size world_size_min world_size base_world_size",
    VALUES, "bound approx statement printed place contradiction", ORIGIN,
)  # fmt: skip
BATCHES = typed("panel", WHO, "world_size local_batch_size line", VALUES, ORIGIN)
EMULATED = typed(
    "panel", WHO, "line emu_link_mbit emu_step_ms emu_shrink world_size",
    "n failed unfaithful value low high calculated", ORIGIN,
)  # fmt: skip

_VALUES = ["value", "low", "high"]
_PAPER_RANGE = (4, 1024)  # what it measured: the same axis wherever it stands
_DASHES: list[Any] = ["solid", (0, (4, 1.5)), (0, (1, 1.5)), *style.SPARE_LINES]
# Fields of an emulated run that panel or axis name, or that change no ratio.
_NOT_NAMED = ("framework", "strategy", "nodes", "emu_link_mbit", "train_images", "epochs", *REPEATS)
_SHRUNK = ("ddp_bucket_mb", "ddp_first_bucket_mb", "horovod_fusion_mb")
_SERIES = ["study", "hardware", "setting", "line"]
# Links and the length of a run divide no series: what is drawn is a ratio over them.
_SHARED = {"emu_link_mbit": 0.0, "train_images": pd.NA, "epochs": 0}
_NO_DELAYS = {"emu_straggler": 1.0, "emu_jitter": 0.0}
_UNDISTURBED = ["study", "hardware", "strategy", "undisturbed"]


def throughput_points(configurations: pd.DataFrame) -> pd.DataFrame:
    """Return throughput (images/s) over ranks: a panel per setting, model and kind of loader.

    Configurations that were measured at one number of ranks are left out.
    """
    return stack([_measured(configurations, _VALUES)], POINTS)


def efficiency_points(configurations: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return parallel efficiency over ranks, the paper's statements beside ours.

    Panels are as in `throughput_points`. Statements about a network and a kind of loader stand in
    the panels of settings that go beyond the paper's base, else in a panel of their own; those that
    name no network stand in all panels of their loader.
    """
    ours = _measured(configurations, ["efficiency", "efficiency_low", "efficiency_high"])
    stated = published.efficiency_points(paper)
    stated = stated.assign(kind=stated["loader"].map(_kind))
    parts = [ours]
    pairs = stated.dropna(subset="model").groupby(["model", "kind"])
    for model, kind in sorted(pairs.groups, key=lambda pair: (list(MODELS).index(pair[0]), pair)):
        here = (stated["kind"] == kind) & (stated["model"].eq(model) | stated["model"].isna())
        own = stated[here.fillna(False)]
        alike = ours[(ours["kind"] == kind) & (ours["model"] == model) & (ours["n"] > 0)]
        most = alike.groupby("panel")["world_size"].max()
        large = list(most.index[most > published.BASE_WORLD_SIZE])
        alone = f"{published.SYSTEM}: {kind}, {style.model_name(model)}"
        parts += [own.assign(panel=name) for name in large or [alone]]
    return stack(parts, POINTS)


def _kind(loader: str) -> str:
    """Return the loaders that share a panel: those of DALI, those of PyTorch, or one alone."""
    if loader.startswith("dali"):
        return "DALI"
    return style.loader_name("native" if loader == "turbo" else loader)


def _measured(configurations: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Return the configurations measured at two or more world sizes, `values` as value, low, high.

    In panels: those of a setting together, by network and in the order of loaders.
    """
    reached = configurations["world_size"].where(configurations["n"] > 0)
    keys = [configurations[name] for name in KEYS if name != "world_size"]
    table = configurations[reached.groupby(keys).transform("nunique") > 1]
    table = table.assign(
        **{new: table[old] for new, old in zip(_VALUES, values, strict=True)},
        source="measured",
        bound="value",
        world_size_min=table["world_size"],
        kind=table["loader"].map(_kind),
        order=table["loader"].map(style.loaders(table["loader"]).index),
    )
    table = table.sort_values(["setting", "model", "order"], kind="stable")
    table["panel"] = table["kind"] + SEPARATOR + with_model(table)
    return table


def batch_points(configurations: pd.DataFrame) -> pd.DataFrame:
    """Return images/s over the batch of a rank: `BATCHES`.

    Of what was measured at two batch sizes or more; batches alone differ along a line. See
    `configuration_table` for the values.
    """
    pairs = zip(configurations["setting"], configurations["local_batch_size"], strict=True)
    where = [name.replace(f", batch {size}", "", 1) for name, size in pairs]
    table = configurations.assign(where=pd.Series(where, configurations.index, dtype=str))
    reached = table["local_batch_size"].where(table["n"] > 0)
    keys = [table[name] for name in ("where", "hardware", *CONFIGURATION, "world_size")]
    table = style.with_framework_strategy(table[reached.groupby(keys).transform("nunique") > 1])
    loaders = map(style.loader_name, table["loader"], table["data_format"])
    table["panel"] = pd.array(list(loaders), dtype="string") + SEPARATOR + table["where"]
    table["panel"] += ", " + table["model"].map(style.model_name)
    table["line"] = [
        f"{style.strategy_name(framework)}, {plural(ranks, 'rank')}"
        for framework, ranks in zip(table["framework_strategy"], table["world_size"], strict=True)
    ]
    order = ["panel", "line", "local_batch_size"]
    return stack([table.sort_values(order)], BATCHES)


def emulated_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return parallel efficiency over emulated nodes: `EMULATED`.

    E = (throughput of G ranks / G) / throughput of one, of the same configuration; low and high
    are its 95 % interval over repeats. One rank sends nothing, so it is the base of all link rates.
    Delayed ranks without a run of one rank have the base of the configuration without delays.
    calculated is E by the calculator of `ddl_tools.scaling.communication`, from the step of one
    rank and the rate of the links. Rejected runs are counted and give no value.
    """
    made = _emulated(runs)
    rows = []
    for _, series in made.groupby(_SERIES, sort=True):
        alone = series[series["world_size"] == 1]
        base = alone if len(alone) else _without_delays(made, series.iloc[0])
        for _, panel in series[series["world_size"] > 1].groupby("emu_link_mbit"):
            sizes = [part for _, part in panel.groupby("world_size")]
            rows += [_row(part, base, panel) for part in ([alone] if len(alone) else []) + sizes]
    table = pd.DataFrame(rows, columns=list(EMULATED))
    if table["study"].nunique() > 1:
        table["panel"] += " (" + table["study"] + ")"
    order = ["study", "emu_link_mbit", "line", "world_size"]
    return stack([table.sort_values(order, ascending=[True, False, True, True])], EMULATED)


def _emulated(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the emulated runs that have ended, with what pools them and what they are called."""
    ended = runs["status"].isin(["completed", "failed"]) & (runs["world_size"] > 0)
    emulated = runs[is_emulated(runs) & ended]
    undisturbed = with_settings(emulated.assign(**_SHARED, **_NO_DELAYS))
    made = with_settings(emulated.assign(**_SHARED)).assign(
        **emulated[list(_SHARED)],
        commit=commits(emulated),
        undisturbed=undisturbed["setting"],
    )
    real = {name: emulated[name] * emulated["emu_shrink"] for name in _SHRUNK}
    apart = run_labels(emulated.assign(**real), _NOT_NAMED)  # sizes of the network that is emulated
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
        "panel": f"links of {mbit:g} Mbit/s",
        "emu_link_mbit": mbit,
        "n": len(known),
        "failed": int((runs["status"] == "failed").sum()),
        "unfaithful": int(runs["unfaithful"].notna().sum()),
        "commit": ";".join(sorted(set(runs["commit"]))),
        **dict.fromkeys([*_VALUES, "calculated"], np.nan),
    }
    if ranks == 1 and len(known):
        row["value"] = 1.0
    elif len(known) and len(bases):
        row |= estimates.scaled(estimates.unpaired_ratio(known, bases), 1 / ranks).columns()
        row["calculated"] = _calculated(RunSpec(**specs(runs.iloc[:1])[0]), bases.mean())
    return row


def _calculated(spec: RunSpec, rate: float) -> float:
    """Return E of an emulated run from the throughput of one rank, nan where nothing models it."""
    alone_s = spec.local_batch_size / rate
    try:
        return alone_s / calculated_s(spec, alone_s, spec.emu_link_mbit)
    except SpecError:
        return float("nan")


@styled
def draw_throughput(points: pd.DataFrame) -> Figure:
    """Return images/s over ranks, beside proportional scaling."""
    points = style.with_framework_strategy(points)
    legend = curves.legend(points, "ideal from its own base")
    caption = captions.provenance(points)
    figure, panels = panel_figure(_grown(points), points, legend, caption, 2.1, columns=2)
    for ax, part in panels:
        curves.rank_axis(ax, part["world_size"])
        ends = pd.Series(curves.draw_ideals(ax, part), dtype=float)
        curves.rate_axis(ax, pd.concat([part[_VALUES].stack(), ends]))
        curves.draw_measured(ax, part, points)
    return figure


@styled
def draw_efficiency(points: pd.DataFrame) -> Figure:
    """Return E over ranks, ours and the paper's; without ours, a small figure."""
    points = style.with_framework_strategy(points)
    is_ours = points["source"].eq("measured")
    ours, theirs = points[is_ours], points[~is_ours]
    measured = bool((ours["n"] > 0).any())
    base = captions.counted("G0", points["base_world_size"].dropna()) or "G0 = 4"
    figure, panels = panel_figure(
        _remains(ours if measured else theirs, "measured" if measured else "stated"),
        points,
        curves.legend(points, "ideal"),
        [
            f"E relative to {base}; batch per rank fixed.",
            *captions.provenance(ours, "the ratio"),
            *captions.statements(theirs),
        ],
        2.1 if measured else 1.7,
        columns=2,
        note="" if measured else STATED_ONLY,
    )
    top = max(1.1, 1.05 * points[["value", "high"]].max().max())
    for ax, part in panels:
        own = part["source"].eq("measured")
        mine, stated = part[own], part[~own]
        ax.set_ylim(0, top)
        ax.set_ylabel("parallel efficiency E")
        curves.rank_axis(ax, [*mine["world_size"], *(_PAPER_RANGE if len(stated) else ())])
        ax.axhline(1, **style.IDEAL)
        curves.draw_measured(ax, mine, points)
        curves.draw_stated(ax, stated, points)
    return figure


def _grown(points: pd.DataFrame) -> str:
    """Return by how much throughput grows from the fewest to the most ranks, at best."""
    known = points[points["value"].notna()]
    if known.empty:
        return "Nothing measured here yet at two numbers of ranks"
    return _growth(known, ["panel", *CONFIGURATION], "world_size", "From {} to {} ranks")


def _growth(known: pd.DataFrame, keys: list[str], x: str, sizes: str) -> str:
    """Return how many times throughput grows from the least to the most `x`, at best of all lines.

    `sizes` says between which two sizes.
    """
    lines = known.sort_values(x).groupby(keys, dropna=False)
    ends = [own.iloc[[0, -1]] for _, own in lines]
    best = max(ends, key=lambda pair: pair["value"].iloc[1] / pair["value"].iloc[0])
    columns = best[["n", *_VALUES]].itertuples(index=False, name=None)
    first, last = (estimates.of_interval(*row) for row in columns)
    ratio = estimates.product(last, estimates.scaled(first, power=-1))
    text = f"throughput grows {style.three_digits(ratio.ratio)}-fold at most"
    return ": ".join(filter(None, [f"{sizes.format(*best[x])}, {text}", captions.doubt(ratio)]))


def _remains(points: pd.DataFrame, how: str) -> str:
    """Return the efficiencies at the most ranks of each kind of loader, else their lower bound.

    Neither one that follows from statements, nor a statement that another one contradicts.
    """
    doubtful = points["contradiction"].notna() | points["source"].eq("derived")
    known = points[points["value"].notna() & points["bound"].ne("upper") & ~doubtful]
    parts = []
    for kind, part in known.groupby(known["loader"].map(_kind), sort=False):
        at = part["world_size"].max()
        here = part[part["world_size"] == at]
        values = here.loc[here["bound"] == "value", "value"]
        reached = captions.span(values) if len(values) else f"over {here['value'].min():.2f}"
        parts.append(f"{reached} on {at} ranks with {kind}")
    return f"Efficiency is {', '.join(parts)}" if parts else f"No efficiency is {how}"


@styled
def draw_batches(points: pd.DataFrame) -> Figure:
    """Return images/s over the batch of a rank, in looks of framework and number of ranks."""
    looks = _line_looks(points)
    title = "Nothing measured here yet at several batch sizes"
    known = points[points["value"].notna()]
    if len(known):
        title = _growth(known, ["panel", "line"], "local_batch_size", "From batch {} to {}")
    caption = captions.provenance(points)
    figure, panels = panel_figure(title, points, handles(looks), caption, 2.2)
    for ax, part in panels:
        part = part[part["n"] > 0]
        curves.batch_axis(ax, part["local_batch_size"], "batch of a rank (images)")
        curves.rate_axis(ax, part[_VALUES].stack())
        curves.lines(ax, part, "local_batch_size", "line", looks, markersize=5)
    return figure


@styled
def draw_emulated(points: pd.DataFrame) -> Figure:
    """Return E over emulated nodes, in the colours of the frameworks, dashed."""
    drawn = points[points["value"].notna()]
    looks = _line_looks(drawn, first=1)
    smaller = captions.counted("", drawn["emu_shrink"])
    calculated, horovod = drawn["calculated"].notna().any(), drawn["strategy"].eq("horovod").any()
    alone = points["world_size"] == 1  # the base, which stands in each panel
    once = points[~alone | ~points.duplicated(["study", "line", "world_size"])]
    rejected = int(once["unfaithful"].sum())
    baseless = sorted(set(points.loc[points["n"] > 0, "line"]) - set(drawn["line"]))
    figure, panels = panel_figure(
        f"EMULATED: {_slowest(drawn)}",
        points,
        handles(looks),
        [
            f"Nodes are network namespaces of one machine; ResNet50's gradients {smaller} times "
            "smaller.",
            *captions.provenance(points, "the ratio"),
            *(["Crosses: calculated, nothing fitted."] if calculated else []),
            *(["Open: one run."] if _single(drawn).any() else []),
            *([f"Rejected: {rejected} runs."] if rejected else []),
            *[f"No run of one rank: {name}." for name in baseless],
            *(["Horovod's negotiation is not scaled."] if horovod else []),
        ],
        2.0,
        columns=3,
    )
    for ax, part in panels:
        part = part[part["value"].notna()]
        curves.rank_axis(ax, part["world_size"], "emulated nodes G")
        ax.set_ylabel("parallel efficiency E")
        ax.set_ylim(0, 1.1)
        ax.axhline(1, **style.IDEAL)
        for number, (line, look) in enumerate(looks.items()):
            own = part[part["line"] == line].sort_values("world_size")
            x = curves.apart(ax, own["world_size"], number, len(looks))
            curves.line(ax, x, own, look | {"markersize": 5})
            ax.plot(x, own["calculated"], "x", color="black", markersize=3.5, zorder=7)
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
    here = most[most["emu_link_mbit"] == rate].sort_values("value")
    ends = here if len(here) < 2 else here.iloc[[-1, 0]]
    reached = " and ".join(f"{one.value:.2f} with {one.line}" for one in ends.itertuples())
    return f"on {most['world_size'].iloc[0]} nodes at {rate:g} Mbit/s, E is {reached}"


def _single(points: pd.DataFrame) -> "pd.Series[bool]":
    """Say which values rest on a single run; the base is 1 by definition."""
    return (points["n"] == 1) & (points["world_size"] > 1)


def _line_looks(points: pd.DataFrame, first: int = 0) -> style.Looks:
    """Return how each line looks: as its framework, with dashes of its own from `first` on.

    The second line of a framework and those after it have markers of their own as well.
    """
    table = style.with_framework_strategy(points).drop_duplicates("line")
    table = table.sort_values(["world_size", "line"])
    looks: style.Looks = {}
    for framework, look in style.strategy_looks(table["framework_strategy"]).items():
        own = table.loc[table["framework_strategy"] == framework, "line"]
        markers = [look["marker"], *style.SPARE_MARKERS]
        for number, line in enumerate(own):
            dashes = _DASHES[(first + number) % len(_DASHES)]
            looks[line] = look | {"linestyle": dashes, "marker": markers[number % len(markers)]}
    return looks
