"""Throughput over the number of ranks, and over the batch."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import (
    CONFIGURATION,
    stack,
    with_model,
)
from ddl_tools.analysis.figures.columns import ORIGIN, WHO, typed
from ddl_tools.analysis.figures.columns import VALUE as VALUES
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import handles, panel_figure, styled
from ddl_tools.analysis.plot.style import SEPARATOR
from ddl_tools.analysis.question import (
    Question,
    Tables,
    largest,
    question,
    usable,
    with_line,
)
from ddl_tools.estimate import Estimate
from ddl_tools.names import plural

POINTS = typed(
    "panel source",
    WHO,
    "local_batch_size world_size_min world_size base_world_size",
    VALUES,
    "bound approx statement printed place contradiction",
    ORIGIN,
)
BATCHES = typed("panel", WHO, "world_size local_batch_size line", VALUES, ORIGIN)

ENDS = ["value", "low", "high"]
_DASHES: list[Any] = ["solid", (0, (4, 1.5)), (0, (1, 1.5)), *style.SPARE_LINES]


def throughput_points(configurations: pd.DataFrame) -> pd.DataFrame:
    """Return throughput (images/s) over ranks: a panel per setting, model and kind of loader.

    Configurations that were measured at one number of ranks are left out.
    """
    return stack([measured(configurations, ENDS)], POINTS)


def kind_of(loader: str) -> str:
    """Return the loaders that share a panel: those of DALI, those of PyTorch, or one alone."""
    if loader.startswith("dali"):
        return "DALI"
    return style.loader_name("native" if loader == "turbo" else loader)


def measured(configurations: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Return the configurations measured at two or more world sizes, `values` as value, low, high.

    In panels: those of a setting together, by network and in the order of loaders.
    """
    reached = configurations["world_size"].where(configurations["n"] > 0)
    table = configurations[reached.groupby(configurations["curve"]).transform("nunique") > 1]
    table = table.assign(
        **{new: table[old] for new, old in zip(ENDS, values, strict=True)},
        source="measured",
        bound="value",
        world_size_min=table["world_size"],
        kind=table["loader"].map(kind_of),
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


SIZES = "at three numbers of ranks"


@question("throughput_vs_workers")
class ThroughputOfRanks(Question):
    """Throughput over the number of ranks."""

    asks = "How does throughput grow with the number of ranks?"
    notebook = "12_scaling"
    needs = f"a network and loader {SIZES}"
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
            curves.rate_axis(ax, pd.concat([part[ENDS].stack(), ends]))
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
            curves.rate_axis(ax, part[ENDS].stack())
            curves.lines(ax, part, "local_batch_size", "line", looks, markersize=5)
        return figure

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return largest(points, "local_batch_size")

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        growth = _growth(points, ["panel", "line"], "local_batch_size")
        return super().facts(points) | {"growth": growth}
