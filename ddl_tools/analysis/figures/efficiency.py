"""Parallel efficiency over the number of ranks: measured, stated by the paper, or emulated."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddl_core.registry import MODELS
from ddl_tools.analysis import paper as published
from ddl_tools.analysis.configurations import stack
from ddl_tools.analysis.figures.columns import typed
from ddl_tools.analysis.figures.emulated import emulated_points
from ddl_tools.analysis.figures.scaling import POINTS, SIZES, kind_of, measured
from ddl_tools.analysis.paper import Paper
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import STATED_ONLY, add_caption, panel_figure, styled
from ddl_tools.analysis.plot.labels import Name, name_curves, name_line, name_points
from ddl_tools.analysis.plot.rows import cell_text
from ddl_tools.analysis.question import (
    Question,
    Tables,
    largest,
    question,
    records,
    usable,
    with_line,
)
from ddl_tools.names import WORDS, joined

EFFICIENCY = POINTS | typed("represents_gbit")
EMULATED = "emulated"  # a source of points

_PAPER_RANGE = (4, 1024)  # what it measured: the same axis wherever it stands
_NOTE = "No cluster measured: the paper's statements, and emulated nodes (grey)."
_PANEL = "stated for JUWELS Booster"
_RIGHT = 1.8  # inches beside the panel for names
_GREY, _BAND = "#666666", "#d0d0d0"
_WIDE, _HIGH = 3.0, 3.4  # inches of the panel of statements: at least, and exactly
_OPEN: dict[str, Any] = {"markerfacecolor": "white", "markersize": 4, "linestyle": "none"}
_STATED = ("stated", "derived")  # sources of the paper's points


def efficiency_points(
    configurations: pd.DataFrame, paper: Paper, emulated: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return parallel efficiency over ranks, the paper's statements beside ours.

    Panels are as in `throughput_points`. Statements about a network and a kind of loader stand in
    the panels of settings that go beyond the paper's base, else in a panel of their own; those that
    name no network stand in all panels of their loader. `emulated` are runs on emulated nodes: they
    have the last panel.
    """
    ours = measured(configurations, ["efficiency", "efficiency_low", "efficiency_high"])
    stated = published.efficiency_points(paper)
    stated = stated.assign(kind=stated["loader"].map(kind_of))
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
    return stack([*parts, *([] if emulated is None else [_emulated(emulated)])], EFFICIENCY)


def _emulated(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the efficiencies of emulated nodes with several links, which make a band.

    Horovod's negotiation is not scaled, so it is no rival of the others.
    """
    points = emulated_points(runs)
    sizes = points[points["value"].notna()].groupby(["line", "world_size"])
    several = sizes["represents_gbit"].transform("nunique").reindex(points.index) > 1
    return points[several & points["strategy"].ne("horovod")].assign(
        panel="emulated nodes",
        source=EMULATED,
        bound="value",
        world_size_min=points["world_size"],
        base_world_size=1,
    )


def _remaining(stated: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the efficiencies at the most ranks of each kind of loader, else their lower bound.

    Neither one that follows from statements, nor a statement that another one contradicts.
    """
    doubtful = stated["contradiction"].notna() | stated["source"].eq("derived")
    known = stated[stated["value"].notna() & stated["bound"].ne("upper") & ~doubtful]
    found = []
    for kind, part in known.groupby(known["loader"].map(kind_of), sort=False):
        most = part["world_size"].max()
        here = part[part["world_size"] == most]
        values = here.loc[here["bound"] == "value", "value"]
        found.append({"kind": kind, "ranks": most, "known": values, "over": here["value"].min()})
    return found


@styled
def _draw_measured(title: str, points: pd.DataFrame) -> Figure:
    """Return E over ranks in panels, the paper's statements beside ours."""
    is_ours = points["source"].eq("measured")
    ours, theirs = points[is_ours], points[~is_ours]
    shared = ours["panel"].str.contains(str(WORDS["global_batch_size"]), regex=False).any()
    kept = "global batch" if shared else "batch per rank"
    figure, panels = panel_figure(
        title,
        points,
        curves.legend(points, "ideal"),
        [
            f"E relative to {_base(points)}; {kept} fixed.",
            *captions.provenance(ours, "the ratio"),
            *captions.statements(theirs),
        ],
        2.1,
        columns=2,
    )
    for ax, part in panels:
        own = part["source"].eq("measured")
        mine, stated = part[own], part[~own]
        _axes(ax, points, [*mine["world_size"], *(_PAPER_RANGE if len(stated) else ())])
        curves.draw_measured(ax, mine, points)
        curves.draw_stated(ax, stated, points)
    return figure


@styled
def _draw_stated(title: str, points: pd.DataFrame) -> Figure:
    """Return E over ranks in one panel: the paper's statements, and emulated nodes in grey."""
    emulated = points[points["source"] == EMULATED]
    stated = points[points["source"].isin(_STATED)]
    links = captions.span(emulated["represents_gbit"], "{:.3g}")
    below = f"Grey: emulated links like {links} Gbit/s."
    figure, ((ax, _),) = panel_figure(
        title,
        points.assign(panel=_PANEL),
        [],
        [
            f"E relative to {_base(points)}; batch per rank fixed.",
            "Arrows: bounds.",
            *captions.statements(stated)[1:],
            *([below] if len(emulated) else []),
        ],
        _HIGH,
        note=_NOTE if len(emulated) else STATED_ONLY,
    )
    _axes(ax, points, [*points["world_size"].dropna(), *_PAPER_RANGE])
    taken = _draw_emulated(ax, emulated)
    looks = style.strategy_looks(points[curves.WHO])
    statements = [
        (rows, _name(rows))
        for _, rows in stated.sort_values("value").groupby(["world_size", "statement"], sort=False)
    ]
    for rows, _ in statements:
        curves.mark_stated(ax, rows, looks)
    lost = _write_names(ax, statements, taken)
    add_caption(figure, captions.not_drawn("Names", lost))
    return figure


def _write_names(
    ax: Axes, statements: Sequence[tuple[pd.DataFrame, Name]], taken: Sequence[Name]
) -> int:
    """Write the names of statements right of the last ranks, above a range, or beside a mark.

    `taken` are marks and names to be kept clear of. Return how many had no room.
    """
    most = max((name.x for _, name in statements), default=0)
    right, beside = [], []
    for rows, name in statements:
        least = float(rows["world_size_min"].iloc[0])
        if name.x == most:
            right.append(name)
        elif least < name.x:
            name_line(ax, name._replace(x=(least * name.x) ** 0.5))
        else:
            beside.append(name)
    name_curves(ax, right, _HIGH)
    return name_points(ax, [*taken, *beside], _WIDE, _HIGH, _RIGHT)


def _base(points: pd.DataFrame) -> str:
    return captions.counted("G0", points["base_world_size"].dropna()) or "G0 = 4"


def _axes(ax: Axes, points: pd.DataFrame, ranks: list[float]) -> None:
    curves.share_axis(ax, points[["value", "low", "high"]].stack())
    ax.set_ylabel("parallel efficiency E")
    nodes = " (emulated: nodes)" if points["source"].eq(EMULATED).any() else ""
    curves.rank_axis(ax, ranks, f"ranks G{nodes}")
    ax.axhline(1, **style.IDEAL)


def _name(rows: pd.DataFrame) -> Name:
    """Return what a statement is about, at its mark."""
    row = rows.iloc[0]
    known = rows[curves.WHO].dropna().unique()
    strategy = style.strategy_name(known[0]) if len(known) == 1 else ""
    loader = row["loader"] if rows["loader"].nunique() == 1 else "dali"
    model = "" if pd.isna(row["model"]) else style.model_name(row["model"])
    about = joined(strategy, model, style.loader_name(loader))
    return Name(float(row["world_size"]), row["value"], f"{row['statement']}: {about}", "#444444")


def _draw_emulated(ax: Axes, points: pd.DataFrame) -> list[Name]:
    """Draw the efficiencies of each strategy, and the band of their intervals at all links.

    Return their places, and the names of the bands.
    """
    places: list[Name] = []
    looks = style.strategy_looks(points[curves.WHO])
    known = points[points["value"].notna()]
    for strategy, own in known.groupby(curves.WHO):
        low, high = (own[end].fillna(own["value"]) for end in ("low", "high"))
        band = (
            own.assign(low=low, high=high).groupby("world_size").agg({"low": "min", "high": "max"})
        )
        x = band.index.to_numpy(dtype=float)
        ax.fill_between(x, band["low"], band["high"], color=_BAND, linewidth=0, alpha=0.6, zorder=1)
        marker = looks[str(strategy)]["marker"]
        ax.plot(own["world_size"], own["value"], color=_GREY, marker=marker, zorder=2, **_OPEN)
        text = f"{style.strategy_name(str(strategy))}, emulated"
        places += [Name(x[-1], band["high"].iloc[-1], text, _GREY)]
        places += [Name.of(at) for at in own[["world_size", "value"]].to_numpy(dtype=float)]
    return places


@question("efficiency")
class Efficiency(Question):
    """Parallel efficiency, measured or stated by the paper."""

    asks = "How efficient are more ranks?"
    notebook = "12_scaling"
    needs = f"a network and loader {SIZES}"
    over = "world_size"
    columns = "line world_size efficiency statement"
    text = """
{% if best %}
- {{ best.line }} reaches an efficiency of {{ best | estimate }} on
{{ best.world_size | plural("rank") }}.
{% elif stated %}
- Efficiency is
{% for one in stated %}
{{ one.known | span if one.known | length else "over %.2f" | format(one.over) }}
on {{ one.ranks }} ranks with {{ one.kind }}{{ "" if loop.last else ", " }}
{% endfor %}
.
{% else %}
- No efficiency is measured or stated.
{% endif %}
{% for row in rows %}
- {{ row.line }} on {{ row.world_size | plural("rank") }}: E {{ row.efficiency }}.
{% endfor %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return efficiency_points(tables.configurations, tables.paper, tables.emulated)

    def draw(self, points: pd.DataFrame) -> Figure:
        """Return E over ranks, ours and the paper's; without ours, a small figure."""
        points = style.with_framework_strategy(points)
        ours = points[points["source"] == "measured"]
        if (ours["n"] > 0).any():
            return _draw_measured(self.title(points), points)
        return _draw_stated(self.title(points), points)

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return measured values on the most ranks; without any, each statement of the paper."""
        table = with_line(points)
        if len(ours := largest(table[table["source"] == "measured"])):
            texts = [cell_text(row, "value") for row in ours.to_dict("records")]
            return ours.assign(efficiency=texts)
        stated = table[table["source"] == "stated"].drop_duplicates(["statement", "world_size"])
        stated = stated.sort_values(["world_size", "value"], ascending=False)
        return stated.assign(efficiency=stated["printed"])

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        best = usable(largest(with_line(points[points["source"] == "measured"])))
        return super().facts(points) | {
            "best": next(iter(records(best)), None),
            "stated": _remaining(points[points["source"].isin(_STATED)]),
        }
