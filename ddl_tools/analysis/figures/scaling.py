"""Throughput and efficiency over the number of ranks, and throughput over the batch."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.registry import MODELS
from ddl_tools.analysis import estimates
from ddl_tools.analysis import paper as published
from ddl_tools.analysis.configurations import (
    CONFIGURATION,
    stack,
    with_model,
)
from ddl_tools.analysis.figures.columns import ORIGIN, WHO, typed
from ddl_tools.analysis.figures.columns import VALUE as VALUES
from ddl_tools.analysis.paper import Paper
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import STATED_ONLY, handles, panel_figure, styled
from ddl_tools.analysis.plot.rows import cell_text
from ddl_tools.analysis.plot.style import SEPARATOR
from ddl_tools.analysis.question import (
    Question,
    Tables,
    largest,
    question,
    records,
    usable,
    with_line,
)
from ddl_tools.estimate import Estimate
from ddl_tools.names import WORDS, plural

POINTS = typed(
    "panel source",
    WHO,
    "local_batch_size world_size_min world_size base_world_size",
    VALUES,
    "bound approx statement printed place contradiction",
    ORIGIN,
)
BATCHES = typed("panel", WHO, "world_size local_batch_size line", VALUES, ORIGIN)

_VALUES = ["value", "low", "high"]
_PAPER_RANGE = (4, 1024)  # what it measured: the same axis wherever it stands
_DASHES: list[Any] = ["solid", (0, (4, 1.5)), (0, (1, 1.5)), *style.SPARE_LINES]


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
    table = configurations[reached.groupby(configurations["curve"]).transform("nunique") > 1]
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
    several = reached.groupby(table["batches"]).transform("nunique") > 1
    table = style.with_framework_strategy(table[several])
    loaders = map(style.loader_name, table["loader"], table["data_format"])
    table["panel"] = pd.array(list(loaders), dtype="string") + SEPARATOR + table["where"]
    table["panel"] += ", " + table["model"].map(style.model_name)
    table["line"] = [
        f"{style.strategy_name(framework)}, {plural(ranks, 'rank')}"
        for framework, ranks in zip(table["framework_strategy"], table["world_size"], strict=True)
    ]
    order = ["panel", "line", "local_batch_size"]
    return stack([table.sort_values(order)], BATCHES)


def _growth(points: pd.DataFrame, keys: list[str], x: str) -> dict[str, Any]:
    """Return how throughput grows from the least to the most `x`, of the line where most.

    Nothing without points. Synthetic data is a control where others read.
    """
    known = usable(points[points["value"].notna()])
    if known.empty:
        return {}
    lines = known.sort_values(x).groupby(keys, dropna=False)
    ends = [own.iloc[[0, -1]] for _, own in lines]
    best = max(ends, key=lambda pair: pair["value"].iloc[1] / pair["value"].iloc[0])
    rows = best.to_dict("records")
    first, last = (estimates.of_interval(row["n"], Estimate.of(row)) for row in rows)
    ratio = estimates.product(last, estimates.scaled(first, power=-1))
    return {
        "line": rows[0]["line"],
        "sizes": list(best[x]),
        "ratio": ratio.alone(),
        "doubt": captions.doubt(ratio),
    }


def _remaining(stated: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the efficiencies at the most ranks of each kind of loader, else their lower bound.

    Neither one that follows from statements, nor a statement that another one contradicts.
    """
    doubtful = stated["contradiction"].notna() | stated["source"].eq("derived")
    known = stated[stated["value"].notna() & stated["bound"].ne("upper") & ~doubtful]
    found = []
    for kind, part in known.groupby(known["loader"].map(_kind), sort=False):
        most = part["world_size"].max()
        here = part[part["world_size"] == most]
        values = here.loc[here["bound"] == "value", "value"]
        found.append({"kind": kind, "ranks": most, "known": values, "over": here["value"].min()})
    return found


def line_looks(points: pd.DataFrame, first: int = 0) -> style.Looks:
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


_SIZES = "at three numbers of ranks"


@question("throughput_vs_workers")
class ThroughputOfRanks(Question):
    """Throughput over the number of ranks."""

    asks = "How does throughput grow with the number of ranks?"
    notebook = "12_scaling"
    needs = f"a network and loader {_SIZES}"
    over = "world_size"
    columns = "line world_size value n"
    value = "throughput (images/s)"
    text = """
{% if growth %}
- {{ growth.line }} trains {{ growth.ratio }} times as fast on
{{ growth.sizes[1] | plural("rank") }} as on {{ growth.sizes[0] }}
{{ ": " ~ growth.doubt if growth.doubt else "" }}.
{% else %}
- Nothing measured here yet at two numbers of ranks.
{% endif %}
{% for row in rows %}
- {{ row.line }}: {{ row | estimate }} images/s on {{ row.world_size | plural("rank") }}.
{% endfor %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return throughput_points(tables.configurations)

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return images/s over ranks, beside proportional scaling."""
        points = style.with_framework_strategy(points)
        legend = curves.legend(points, "ideal from its own base")
        caption = captions.provenance(points)
        figure, panels = panel_figure(self.title(points), points, legend, caption, 2.1, columns=2)
        for ax, part in panels:
            curves.rank_axis(ax, part["world_size"])
            ends = pd.Series(curves.draw_ideals(ax, part), dtype=float)
            curves.rate_axis(ax, pd.concat([part[_VALUES].stack(), ends]))
            curves.draw_measured(ax, part, points)
        return figure

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return largest(with_line(points))

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        growth = _growth(with_line(points), ["panel", *CONFIGURATION], "world_size")
        return super().facts(points) | {"growth": growth}


@question("throughput_vs_batch_size")
class ThroughputOfBatch(Question):
    """Throughput over the batch of a rank."""

    asks = "How does throughput depend on the batch of a rank?"
    notebook = "11_throughput"
    needs = "a network and loader at three batch sizes"
    over = "local_batch_size"
    columns = "line local_batch_size value n"
    value = "throughput (images/s)"
    text = """
{% if growth %}
- {{ growth.line }} trains {{ growth.ratio }} times as fast with batch {{ growth.sizes[1] }}
as with batch {{ growth.sizes[0] }}{{ ": " ~ growth.doubt if growth.doubt else "" }}.
{% else %}
- Nothing measured here yet at several batch sizes.
{% endif %}
{% for row in rows %}
- {{ row.line }}: {{ row | estimate }} images/s at batch {{ row.local_batch_size }}.
{% endfor %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return batch_points(tables.configurations)

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return images/s over the batch of a rank, in looks of framework and number of ranks."""
        looks = line_looks(points)
        caption = captions.provenance(points)
        figure, panels = panel_figure(self.title(points), points, handles(looks), caption, 2.2)
        for ax, part in panels:
            part = part[part["n"] > 0]
            curves.batch_axis(ax, part["local_batch_size"], "batch of a rank (images)")
            curves.rate_axis(ax, part[_VALUES].stack())
            curves.lines(ax, part, "local_batch_size", "line", looks, markersize=5)
        return figure

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return largest(points, "local_batch_size")

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        growth = _growth(points, ["panel", "line"], "local_batch_size")
        return super().facts(points) | {"growth": growth}


@question("efficiency")
class Efficiency(Question):
    """Parallel efficiency, measured or stated by the paper."""

    asks = "How efficient are more ranks?"
    notebook = "12_scaling"
    needs = f"a network and loader {_SIZES}"
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
        return efficiency_points(tables.configurations, tables.paper)

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return E over ranks, ours and the paper's; without ours, a small figure."""
        points = style.with_framework_strategy(points)
        is_ours = points["source"].eq("measured")
        ours, theirs = points[is_ours], points[~is_ours]
        measured = bool((ours["n"] > 0).any())
        base = captions.counted("G0", points["base_world_size"].dropna()) or "G0 = 4"
        shared = ours["panel"].str.contains(str(WORDS["global_batch_size"]), regex=False).any()
        kept = "global batch" if shared else "batch per rank"
        figure, panels = panel_figure(
            self.title(points),
            points,
            curves.legend(points, "ideal"),
            [
                f"E relative to {base}; {kept} fixed.",
                *captions.provenance(ours, "the ratio"),
                *captions.statements(theirs),
            ],
            2.1 if measured else 1.7,
            columns=2,
            note="" if measured else STATED_ONLY,
        )
        for ax, part in panels:
            own = part["source"].eq("measured")
            mine, stated = part[own], part[~own]
            curves.share_axis(ax, points[["value", "low", "high"]].stack())
            ax.set_ylabel("parallel efficiency E")
            curves.rank_axis(ax, [*mine["world_size"], *(_PAPER_RANGE if len(stated) else ())])
            ax.axhline(1, **style.IDEAL)
            curves.draw_measured(ax, mine, points)
            curves.draw_stated(ax, stated, points)
        return figure

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
            "stated": _remaining(points[points["source"] != "measured"]),
        }
