"""Peak memory of the configurations of a study, the least first, beside its arithmetic."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import ended_runs
from ddl_tools.analysis.figures.columns import ORIGIN, typed
from ddl_tools.analysis.figures.study_rows import (
    REACHED,
    WHO_ROWS,
    Groups,
    listed,
    studies,
    value_range,
)
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import add_caption, handles, panel_figure, styled
from ddl_tools.analysis.plot.labels import Name, name_points
from ddl_tools.analysis.question import Question, Tables, question, records, usable
from ddl_tools.analysis.ratios import without
from ddl_tools.estimate import Estimate
from ddl_tools.names import plural

MEMORY = typed(WHO_ROWS, REACHED, "repeats state throughput speeds", ORIGIN, speeds="string")
GIB = 2**30
_BYTES = 4  # of a number in fp32, in which all strategies keep what they train
_WIDE, _HIGH = 6.4, 3.2  # inches of a panel: at least, and exactly


def memory_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration of each study that shards, the least memory first.

    value is the most memory of any rank in a warm epoch, GiB, over the n runs; low is that of the
    run with the least. state is `state_bytes` in GiB, missing for networks of unknown size.
    throughput is the geometric mean, images/s; speeds are those of the runs of repeats.
    """
    made = ended_runs(runs)
    made = made[made["max_memory_bytes"].notna() | made["lost"]]
    memory = (made["max_memory_bytes"].astype("float64") / GIB).mask(made["lost"])
    known = made["strategy"].where(made["max_memory_bytes"].notna())
    sharded = made["strategy"].eq("fsdp") | (made["deepspeed_zero_stage"] > 0)
    asked = known.groupby(made["study"]).transform("nunique") > 1
    asked &= sharded.groupby(made["study"]).transform("any")
    made = made.assign(speed=made["value"], value=memory)

    def summary(groups: Groups, _: pd.DataFrame) -> list[dict[str, Any]]:
        return [
            value_range(group["value"])
            | {
                "value": group["value"].max(),
                "state": _state(group.iloc[0]) / GIB,
                "speeds": listed(group.loc[group["value"].notna(), "speed"].astype(float)),
                "throughput": np.exp(np.log(group["speed"].dropna().astype(float)).mean()),
            }
            for group in groups
        ]

    table = studies(made[asked], runs, "", summary, MEMORY)
    return table.sort_values(["panel", "value", "label"], ignore_index=True, kind="stable")


def state_bytes(parameters: float, shards: int, ranks: int, momenta: int) -> float:
    """Return what weights, gradients and optimizer state take on one rank, bytes.

    Each of them is four bytes a parameter; the optimizer state is so many `momenta`. They are
    divided among the ranks that share a copy from one kind of shards on, gradients from two,
    weights from three (Rajbhandari et al. 2020, ZeRO, section 5). Buffers and
    second copies of a framework are not in it.
    """
    shared = [shards >= 3, shards >= 2, *[shards >= 1] * momenta]
    return _BYTES * parameters * sum(1 / ranks if part else 1 for part in shared)


def _state(run: pd.Series) -> float:
    """Return `state_bytes` of a run; NaN where its record lacks a part of it."""
    # FSDP keeps whole gradients until the last micro-batch.
    whole_gradients = run["strategy"] == "fsdp" and run["accumulation"] > 1
    # AdamW keeps the first and the second moment of the gradients.
    momenta = {"sgd": int(run["momentum"] > 0), "adamw": 2}.get(run["optimizer"])
    if pd.isna(run["parameters"]) or momenta is None or whole_gradients:
        return np.nan
    shards = 3 if run["strategy"] == "fsdp" else int(run["deepspeed_zero_stage"])
    group = run["world_size"] if pd.isna(run["fsdp_shards"]) else run["fsdp_shards"]  # HSDP
    return state_bytes(run["parameters"], shards, group, momenta)


def least_of_each(points: pd.DataFrame) -> pd.DataFrame:
    """Return the configuration with the least memory of each strategy, the least first.

    A strategy is compared by the best of its settings: a default may reserve more than it needs.
    """
    table = style.with_framework_strategy(points)
    return table.sort_values("value", kind="stable").drop_duplicates("framework_strategy")


def _doubt(one: Mapping[str, Any], other: Mapping[str, Any], column: str) -> str:
    """Return the doubt about the ratio of two configurations in a column of their runs."""
    return captions.doubt(_ratio(one, other, column))


def _ratio(one: Mapping[str, Any], other: Mapping[str, Any], column: str) -> Estimate:
    """Return the ratio of two configurations in a column of their runs."""
    runs = (np.array(row[column].split(";"), dtype=float) for row in (one, other))
    return estimates.unpaired_ratio(*runs)


def _saved(points: pd.DataFrame, fastest: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the least and the most memory of the configurations that are as fast as the fastest.

    As fast is within 5 %, and not slower for sure. None if their memory is alike, too.
    """
    same = points[points["panel"] == fastest["panel"]]
    rows = records(same.sort_values("value", kind="stable"))
    fast = [row for row in rows if _as_fast(row, fastest)]
    least, most = fast[0], fast[-1]
    if most["value"] <= (1 + estimates.MARGIN) * least["value"]:
        return None
    memory, speed = _gain(least, most)
    return {
        "least": least,
        "most": most,
        "than": without(most["label"], least["label"]),
        "memory": memory,
        "speed": f"{speed:.2f}",
        "doubt": captions.doubt(speed),
    }


def saving(
    points: pd.DataFrame, least: Mapping[str, Any], most: Mapping[str, Any]
) -> tuple[float, Estimate] | None:
    """Return the ratios of memory and throughput of two configurations, named by rows of others.

    None if `points` lack one of the two.
    """
    rows = points[points["n"] > 0].drop_duplicates("label").set_index("label")
    if not {least["label"], most["label"]} <= set(rows.index):
        return None
    return _gain(*(rows.loc[row["label"]] for row in (least, most)))


def _gain(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> tuple[float, Estimate]:
    """Return the ratios of memory and throughput of two configurations."""
    return one["value"] / other["value"], _ratio(one, other, "speeds")


def _as_fast(row: Mapping[str, Any], fastest: Mapping[str, Any]) -> bool:
    ratio = _ratio(row, fastest, "speeds")
    slower = estimates.decision(ratio) == estimates.LESS
    return ratio.value * (1 + estimates.MARGIN) >= 1 and not slower


@question("memory_per_rank")
class Memory(Question):
    """Peak memory of a rank: a table; the figure is that of `Tradeoff`."""

    asks = "How much memory does a rank need?"
    notebook = "20_memory"
    needs = "FSDP or ZeRO beside another strategy, and runs with their memory"
    columns = "label value state throughput n"
    value = "peak memory of a rank (GiB), [range of runs]"
    text = """
{% macro of(row) %}
{{ row.label }}, {{ "%.2f" | format(row.value) }} GiB at {{ row.throughput | number }} images/s
{% endmacro %}
{% if not each %}
- No study measured here has recorded the memory of two strategies.
{% else %}
- {{ each[0].label }} needs {{ (each[0].value / each[-1].value) | percent }} of the least memory of
{{ each[-1].strategy }}{{ ": " ~ doubt if doubt else "" }}.
- Least memory: {{ of(each[0]) }}; highest throughput: {{ of(fastest) }}.
- Least memory of each strategy (GiB):
{% for row in each %}
{{ row.strategy }} {{ "%.2f" | format(row.value) }}{{ "" if loop.last else "; " }}
{% endfor %}
.
{% endif %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return memory_points(tables.runs)

    def enough(self, points: pd.DataFrame) -> bool:
        return False

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return points[points["n"] > 0]

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        """Return the least memory of all configurations and of each strategy, and the fastest."""
        known = usable(self.rows(points))
        if known.empty:
            return {"each": []}
        each = least_of_each(known)
        return {
            "each": [
                row | {"strategy": style.strategy_name(row["framework_strategy"])}
                for row in records(each)
            ],
            "doubt": _doubt(each.iloc[0].to_dict(), each.iloc[-1].to_dict(), "repeats"),
            "fastest": records(known.loc[[known["throughput"].idxmax()]])[0],
        }


@question("memory_against_throughput")
class Tradeoff(Memory):
    """Peak memory of a rank against throughput."""

    asks = "What does less memory cost in throughput?"
    text = """
{% if not each %}
- No study measured here has recorded the memory of two strategies.
{% else %}
{% if saved %}
- {{ saved.least.label }} needs {{ saved.memory | percent }} of the memory of
{{ saved.than }} at {{ saved.speed }} times its throughput
{{ "(" ~ saved.doubt ~ ")" if saved.doubt else "" }}.
{% endif %}
- {% if each[0].label == fastest.label %}
{{ fastest.label }} is the fastest, with the least memory.
{% else %}
{{ each[0].label }} needs {{ (each[0].value / fastest.value) | percent }} of the memory of the
fastest, {{ fastest.label }}{{ ": " ~ doubt if doubt else "" }}.
- It trains {{ (each[0].throughput / fastest.throughput) | percent }} as many images/s
{{ ": " ~ slower if slower else "" }}.
{% endif %}
{% endif %}
"""

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        """Return the facts of `Memory`, with the doubts about the least against the fastest.

        ``saved`` is what the fastest configurations differ in, see `_saved`.
        """
        found = super().facts(points)
        if found["each"]:
            pair = found["each"][0], found["fastest"]
            found |= {"doubt": _doubt(*pair, "repeats"), "slower": _doubt(*pair, "speeds")}
            found["saved"] = _saved(usable(self.rows(points)), found["fastest"])
        return found

    def enough(self, points: pd.DataFrame) -> bool:
        return True

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return the throughput of each configuration over its memory, and that of each run."""
        points = style.with_framework_strategy(points[points["n"] > 0])
        looks = style.strategy_looks(points["framework_strategy"])
        figure, panels = panel_figure(
            self.title(points),
            points,
            handles(style.strategies_named(looks)),
            [
                "Large marks: the most memory of any rank in measured epochs, mean throughput; "
                "dots: runs. On a CPU, memory before the network is subtracted.",
                *captions.provenance(points, ""),
            ],
            _HIGH,
        )
        for ax, table in panels:
            names = _names(table, looks)
            for row in table.to_dict("records"):
                look = looks[row["framework_strategy"]]
                starts = (row[name].split(";") for name in ("repeats", "speeds"))
                memory, speed = (np.array(one, dtype=float) for one in starts)
                names += [Name.of(at) for at in zip(memory, speed, strict=True)]
                if row["n"] > 1:
                    ax.plot(memory, speed, ".", markersize=3, color=look["color"], alpha=0.6)
                ax.plot(row["value"], row["throughput"], linestyle="none", zorder=5, **look)
            ax.margins(0.08)
            ax.set_xlabel("peak memory of a rank (GiB)")
            ax.set_ylabel("throughput (images/s)")
            lost = name_points(ax, names, _WIDE, _HIGH)
            add_caption(figure, captions.not_drawn("Names", lost))
        return figure


def _names(table: pd.DataFrame, looks: style.Looks) -> list[Name]:
    """Return what each mark is called, beside its strategy and the number of ranks of most."""
    if table.empty:
        return []
    usual = plural(int(table["world_size"].mode().iloc[0]), "rank")
    found = []
    for row in table.to_dict("records"):
        strategy = row["framework_strategy"]
        text = without(row["label"], f"{style.strategy_name(strategy)}, {usual}")
        place = row["value"], row["throughput"]
        found.append(Name.of(place, text, looks[strategy]["color"]))
    return found
