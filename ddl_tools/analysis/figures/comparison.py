"""Throughput of all configurations of a study, beside its ratio to the baseline; best first."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator

from ddl_core.config import run_fields
from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import ended_runs, specs
from ddl_tools.analysis.confirmation import (
    CONFIRMED,
    OTHERWISE,
    SAME_DIRECTION,
    UNDECIDED,
    beside,
    outcomes,
)
from ddl_tools.analysis.estimates import MARGIN
from ddl_tools.analysis.figures.columns import ORIGIN, typed
from ddl_tools.analysis.figures.study_rows import (
    BELOW,
    REACHED,
    WHO_ROWS,
    Groups,
    draw_runs,
    listed,
    studies,
)
from ddl_tools.analysis.interleaving import (
    CPU,
    Interleaved,
    counted,
    lost_starts,
)
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import handles, styled
from ddl_tools.analysis.plot.captions import word
from ddl_tools.analysis.plot.rows import (
    draw_values,
    mark_cut,
    row_figure,
)
from ddl_tools.analysis.question import Question, Tables, question, records, several_starts
from ddl_tools.analysis.ratios import (
    CONTROL,
    FEWEST,
    LOST_STARTS,
    NEAREST,
    REFERENCE,
    SHIFTED,
    SYNTHETIC,
    commits_of,
    compared,
    controls,
    grown,
    growths,
    nearest,
    shifted,
    within_commits,
    without,
)
from ddl_tools.estimate import Estimate
from ddl_tools.names import joined, plural
from ddl_tools.records.identity import REPEATS
from ddl_tools.records.rounds import DISTURBED, FIRST
from ddl_tools.study import Study

_OUTCOMES = {
    CONFIRMED: "confirmed",
    SAME_DIRECTION: "same direction when measured again",
    UNDECIDED: "not confirmed",
    OTHERWISE: "not confirmed",
}
COMPARISON = typed(
    WHO_ROWS,
    REACHED,
    "windows base base_rule ratio ratio_low ratio_high start_ratios decision",
    "pairs cpu_ratio cpu_ratio_low cpu_ratio_high cpu_decision",
    "growth_from growth_ratio growth_ratio_low growth_ratio_high growth_decision",
    "common unsaid left_out rounds_left_out",
    ORIGIN,
)

_NAMES = ["label", "base"]
_BEYOND = 2.0  # an axis goes no further than this from the ratios for the sake of an interval
_STEPS = [1, 2, 2.5, 5, 10]  # between ticks: 1 is a multiple of those that are no longer
_BAND = f"within {100 * MARGIN:g} % of the baseline"
_OPEN: dict[str, Any] = {"markerfacecolor": "white", "markersize": 4}
_THIN: dict[str, Any] = {"elinewidth": 0.7, "capsize": 0, "zorder": 4}
_AGAIN: style.Looks = {"measured again": {"color": "#555555", "marker": "o"} | _OPEN}


def points(
    runs: pd.DataFrame, windows: pd.DataFrame | None = None, study: Study | None = None
) -> pd.DataFrame:
    """Return one row per configuration of each study, best first.

    A panel is a study with one network and, where its runs come from several, a machine with its
    software. `runs` and `windows` are as `runs_table` and `windows_table` have them, of one study
    or of several. `study` is the definition of a single study, where it is known.

    Returns
    -------
    DataFrame
        label names the fields in which the configurations of a study differ. value (images/s) is
        the geometric mean over the runs, over blocks of its ``windows`` where interleaved, low and
        high its 95 % interval. ratio is to the configuration called base, from ``pairs`` of windows
        of one block and round where known; start_ratios are those of the n starts that contribute
        to it (to value where there is no ratio), cpu_ratio is the same per CPU second. base is the
        reference that the windows name, or else the study; for another network the configuration
        that differs least from it, and without one that which changes fewest defaults. On more
        ranks than these have, base is the same configuration on as many, where it was measured.
        decision is what the interval of the ratio says, see `estimates.decision`. growth_ratio is
        to the same configuration on its fewest ranks, growth_from; missing there.
    """
    made = ended_runs(runs, second_starts=True)
    kept = made.loc[~made["lost"], ["study", "run_id"]]
    own = None if windows is None else windows.merge(kept, on=["study", "run_id"])
    wall, cpu = Interleaved(own), Interleaved(own, CPU)
    references = set() if windows is None else set(windows["reference"].dropna())
    if not references and study and study.interleave:  # runs of SLURM name none
        fits = study.interleave.is_reference
        references = {run.run_id for run in study.expand() if fits(run)}

    named = specs(made[made["run_id"].isin(references)].head(1))
    like = named[0] if named else None

    def summary(groups: Groups, firsts: pd.DataFrame) -> list[dict[str, Any]]:
        is_reference = [bool(set(group["run_id"]) & references) for group in groups]
        first = _base(groups, firsts, is_reference, like)
        rule = REFERENCE if is_reference[first] else NEAREST if like else FEWEST
        rows, fewest = [], _on_fewest_ranks(firsts)
        for place, group in enumerate(groups):
            base = _same_on_fewer(place, first, firsts)
            own, base_wall = wall.sample(group), wall.sample(groups[base])
            ratios = wall.starts(own, base_wall)
            row = {
                "n": len(ratios) or own.mean.n,
                **own.mean.columns(),
                "windows": counted(own.windows),
                "pairs": counted(own.windows.keys() & base_wall.windows.keys()),
                "base": firsts["label"][base],
                "base_rule": rule,
                "start_ratios": listed(ratios),
            }
            if place == base:
                row["ratio"] = 1.0 if len(own.values) else np.nan
            else:
                row |= _compared(wall.compare(own, base_wall), "ratio", "decision")
                by_cpu = cpu.ratio(cpu.sample(group).windows, cpu.sample(groups[base]).windows)
                row |= _compared(by_cpu, "cpu_ratio", "cpu_decision") if by_cpu else {}
            if place != fewest[place]:
                growth = wall.compare(own, wall.sample(groups[fewest[place]]))
                row["growth_from"] = firsts["world_size"][fewest[place]]
                row |= _compared(growth, "growth_ratio", "growth_decision")
            rows.append(row)
        return rows

    question = study.question if study else ""
    table = studies(made, runs, question, summary, COMPARISON)
    rounds = {} if windows is None else _rounds_left_out(windows)
    return table.assign(rounds_left_out=table["study"].map(rounds).astype("string"))


def _compared(ratio: Estimate, name: str, decision: str) -> dict[str, Any]:
    decided = None if np.isnan(ratio.low) else estimates.decision(ratio)
    return ratio.columns(name) | {decision: decided}


def _base(
    groups: Groups,
    firsts: pd.DataFrame,
    is_reference: Sequence[bool],
    like: dict[str, Any] | None,
) -> int:
    """Return the place of the baseline: a reference, or what differs least from its fields."""
    fields = specs(firsts)
    named = style.with_framework_strategy(firsts)["framework_strategy"]
    strategies, loaders = style.strategies(named), style.loaders(firsts["loader"])

    def order(place: int) -> tuple[Any, ...]:
        spec, known = fields[place], groups[place]["value"].notna().any()
        look = strategies.index(named.iloc[place]), loaders.index(spec["loader"])
        return (not is_reference[place], not known, _changes(spec, like), *look, place)

    return min(range(len(groups)), key=order)


def _changes(spec: dict[str, Any], other: dict[str, Any] | None) -> int:
    """Return how many fields of a run differ from those of another one, or from their default."""
    than = other or {name: about.default for name, about in run_fields().items()}
    return sum(than[name] != value for name, value in spec.items() if name not in REPEATS)


def _same_on_fewer(place: int, base: int, firsts: pd.DataFrame) -> int:
    """Return the place of the same configuration on the ranks of the baseline, else the baseline.

    A ratio of more ranks then says what these change, and nothing else.
    """
    sizes = firsts["world_size"]
    same = firsts["curve"].eq(firsts["curve"][place]) & sizes.eq(sizes[base])
    return int(same.idxmax()) if same.any() and sizes[place] > sizes[base] else base


def _on_fewest_ranks(firsts: pd.DataFrame) -> list[int]:
    """Return for each configuration the place of the same one on the fewest ranks."""
    return list(firsts.groupby("curve")["world_size"].transform("idxmin"))


def _rounds_left_out(windows: pd.DataFrame) -> dict[str, str]:
    """Return of each study how many rounds do not count, which were disturbed, and lost starts."""
    texts: dict[str, str] = {}
    lost = lost_starts(windows)
    rounds = windows[windows["round"].notna()].drop_duplicates(["study", "block", "round"])
    for study, own in rounds.groupby("study"):
        gone = own[own["left_out"].eq(DISTURBED).fillna(False)].sort_values(["block", "round"])
        named = [
            f"{int(one)} of {block}"
            for one, block in zip(gone["round"], gone["block"], strict=True)
        ]
        first = int(own["left_out"].eq(FIRST).sum())
        texts[str(study)] = joined(
            f"first rounds ({first})" if first else "",
            f"{len(named)} disturbed (round {', '.join(named)})" if named else "",
        )
        if blocks := lost.get(str(study)):
            texts[str(study)] += f"{LOST_STARTS}{len(blocks)} ({', '.join(blocks)})"
    return texts


def _in_panels(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with a panel of its own for what more ranks change, and shorter labels."""
    parts = []
    for name, panel in points.groupby("panel", sort=False):
        if points["model"].nunique() > 1:
            network = style.model_name(panel["model"].iloc[0])
            label, base = ([without(name, network) for name in panel[one]] for one in _NAMES)
            panel = panel.assign(label=label, base=base)
        more = grown(panel)
        if more.any():
            first = panel[panel["label"] == panel["base"]].iloc[0]
            few = plural(first["world_size"], "rank")
            same = panel[more].assign(panel=f"{name}, relative to {few} of the same configuration")
            parts.append(same.sort_values("ratio", ascending=False, kind="stable"))
            panel = panel[~more].assign(panel=f"{name}, relative to {first['label']}")
        parts.append(panel)
    return pd.concat(parts) if parts else points


def _measured_again(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that were measured again, at the ratio found then, a little higher."""
    if "again_ratio" not in table:
        return table.iloc[:0]
    known = table[table["again_ratio"].notna() & (table["label"] != table["base"])]
    ends = {end: known[f"again_ratio_{end}"] for end in ("low", "high")}
    return known.assign(value=known["again_ratio"], **ends, row=known["row"] - BELOW)


def _has_ratios(table: pd.DataFrame) -> bool:
    return bool(table["ratio"].notna().any())


def _draw(
    ax: Axes, table: pd.DataFrame, looks: style.Looks
) -> tuple[list[pd.DataFrame], list[tuple[float, float]]]:
    """Draw a panel; return its ratios by measurement, and the ends of an axis that these need."""
    table = table.assign(value=table["ratio"], low=table["ratio_low"], high=table["ratio_high"])
    dots = draw_runs(ax, table, looks, "start_ratios")
    draw_values(ax, table, looks)
    ax.axvspan(1 / (1 + MARGIN), 1 + MARGIN, color=style.BOUND_COLOUR, linewidth=0, zorder=0)
    ax.axvline(1, **style.IDEAL)
    again = _measured_again(table)
    if again.empty:
        return [table], [_ends(table, dots)]
    draw_values(ax, again, {name: look | _OPEN | _THIN for name, look in looks.items()})
    return [table, again], [_ends(table, dots), _ends(again, [])]


def _tick_baseline(ax: Axes) -> None:
    """Give the ticks of an axis of ratios round distances, and one at 1."""
    locator = ax.xaxis.get_major_locator()
    assert isinstance(locator, MaxNLocator)  # of `row_figure`
    locator.set_params(steps=_STEPS)
    ticks = ax.get_xticks()
    nearest = ticks[np.argmin(abs(ticks - 1))]
    ax.xaxis.set_major_locator(FixedLocator(ticks - nearest + 1))


def _ends(table: pd.DataFrame, dots: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis: ratios, dots, intervals, margin, but no endless interval."""
    values = table["value"].dropna()
    reach = [1 / (1 + MARGIN), 1 + MARGIN, *values]
    low = max(np.nanmin([*reach, *table["low"]]), values.min() / _BEYOND)
    high = min(np.nanmax([*reach, *table["high"]]), values.max() * _BEYOND)
    low, high = min([low, *dots]), max([high, *dots])
    room = 0.04 * (high - low)
    return float(low - room), float(high + room)


def _best(points: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the fastest configuration, of those that are faster for sure if any is.

    `controls` are no configurations that one can use. Where several are compared with themselves
    on fewer ranks, it is the one that gains most. The baseline if nothing is compared with it.
    """
    usable = (points["n"] > 0) & ~controls(points)
    others = usable & points["ratio"].notna() & (points["label"] != points["base"])
    if not others.any():
        return points[usable].head(1)
    more = others & pd.concat([grown(panel) for _, panel in points.groupby("panel")])
    chosen = points[more if more.any() else others]
    faster = chosen[chosen["decision"].eq(estimates.GREATER).fillna(False)]
    return (chosen if faster.empty else faster).sort_values("ratio").tail(1)


def _slower(points: pd.DataFrame, best: dict[str, Any]) -> pd.DataFrame:
    """Return what is slower for sure, and confirmed, where the gain of the best one is not.

    It is the slowest of as many ranks as the baseline; no row where a gain may be named.
    """
    if not best or best["outcome"] not in (UNDECIDED, OTHERWISE):
        return points.iloc[:0]
    sure = (points["outcome"] == CONFIRMED) & (points["decision"] == estimates.LESS)
    alike = (points["base"] == best["base"]) & (points["world_size"] == best["world_size"])
    return points[(sure & alike).fillna(False) & ~controls(points)].sort_values("ratio").head(1)


def _cells(row: pd.Series) -> list[str]:
    """Return what a row is or decides: its numbers are in the table."""
    if not row["n"]:
        return [f"none: {row['failed']} lost"]
    if row["label"] == row["base"]:
        return ["baseline"]
    return [CONTROL if row["control"] else word(row).partition(" within")[0]]


def _caption(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return []
    bases = points["base"][points["label"] == points["base"]].unique()
    more = any(grown(panel).any() for _, panel in points.groupby("panel"))
    to = "" if points["pairs"].any() else ", relative to the baseline's mean"
    panels = [panel for _, panel in points.groupby("panel")]
    other = sum(not base & one for base, others in map(commits_of, panels) for one in others)
    again = points["second_start"].any()
    free = controls(points) & ~points["second_start"]
    left_out = points["rounds_left_out"].dropna()
    rounds = dict.fromkeys(re.sub(r" \(.*?\)", "", text) for text in left_out)
    return [
        *([f"Baseline: {bases[0]}."] if points["panel"].nunique() == 1 and not more else []),
        *captions.provenance(points, "the ratio"),
        *([f"Dots: starts{to}."] if (points["n"] > 1).any() else []),
        *(["Ratios within each commit."] if any(map(within_commits, panels)) else []),
        *([f"Without a common commit: {plural(other, 'ratio')}."] if other else []),
        *(["Second start: same settings."] if again else []),
        *(["Synthetic: no loader."] if free.any() else []),
        *[f"Left out: {text}." for text in rounds if text],
        *[f"Not drawn: {text}." for text in points["left_out"].dropna().unique() if text],
    ]


@question("comparison")
class Comparison(Question):
    """The ratio of each configuration to the baseline, beside that of a second measurement."""

    asks = "Which configuration trains fastest?"
    notebook = "11_throughput"
    columns = "label value ratio decision again n"
    value = "throughput (images/s)"
    text = """
{% macro against(row) %}
{{ row.short }} {{ row | estimate("ratio", ".2f") }}
{% if row | word %}
({{ row | word }}
{% if row.changed or row.apart %}
, {% if row.apart %}{{ row | estimate("again_ratio", ".2f") }}{% endif %}
{{ " and " if row.apart and row.changed else " " }}
{% if row.changed %}{{ row | word("again_") }}{% endif %}
 when measured again
{% endif %}
)
{% endif %}
{% endmacro %}
{% if not best %}
- No training measured here yet.
{% elif best.label == best.base or not best | estimate("ratio") %}
- {{ best.label }} trains {{ best | estimate }} images/s.
{% elif slower %}
- No gain over {{ slower.base }} is confirmed; {{ slower.label }} reaches
{{ slower | estimate("ratio", ".2f") }} of it, confirmed.
{% else %}
{% if best.decision == "less" %}
- {{ best.base }} trains fastest; {{ best.label }} reaches
{{ best | estimate("ratio", ".2f") }} of it
{% else %}
- {{ best.label }} trains {{ best | estimate("ratio", ".2f") }} times as fast as {{ best.base }}
{% if best.decision != "greater" %}: {{ best | word }}{% endif %}
{% endif %}
{% if best.outcome %}, {{ best.outcome }}{% endif %}
.
{% endif %}
{% for row in shifted %}
- {{ row.label }} {{ row | estimate("ratio", ".2f") }}: {{ because }}.
{% endfor %}
{% for one in groups if one.rows or one.first.label != best.label %}
{% if one.rows %}
- Throughput {{ "by " ~ one.factor if one.factor else "of the fastest and the slowest" }},
relative to {{ one.first.label }} ({{ one.first.value | number }} images/s)
{{ ", within each commit" if one.within_commits else "" }}:
{% if one.rows | length > 4 %}
from {{ against(one.rows[-1]) }} to {{ against(one.rows[0]) }}
{% else %}
{% for row in one.rows %}{{ against(row) }}{{ "" if loop.last else "; " }}{% endfor %}
{% endif %}
{% else %}
- {{ one.first.label }}: {{ one.first | estimate }} images/s
{% endif %}
.
{% endfor %}
{% if growths %}
- Throughput on {{ growths[0].world_size | plural("rank") }}, relative to
{{ growths[0].growth_from | int | plural("rank") }} of the same configuration:
{% for row in growths[:8] %}
{{ row.label.rpartition(", ")[0] }} {{ row | estimate("growth_ratio", ".2f") }}
({{ row | word("growth_") }}){{ "" if loop.last else "; " }}
{% endfor %}
.
{% endif %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        found = points(tables.runs, tables.windows, tables.study)
        if tables.second is None:
            return found
        return beside(found, points(tables.second.runs, tables.second.windows, tables.study))

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return the ratio of each configuration to the baseline, that of every start a dot.

        The ratio of a second measurement is an open mark.
        """
        points = style.with_framework_strategy(points.fillna({"second_start": False}))
        title, caption = self.title(points), _caption(points)
        points = _in_panels(points.assign(control=controls(points)))
        looks = style.strategy_looks(points["framework_strategy"])
        named = handles(style.strategies_named(looks)) if len(looks) > 1 else []
        band = [Patch(color=style.BOUND_COLOUR, label=_BAND)] if len(points) else []
        named += handles({} if _measured_again(points.assign(row=0)).empty else _AGAIN)
        figure, panels = row_figure(
            title,
            points,
            [*named, *band],
            caption,
            [""],
            lambda one: _cells(one.iloc[0]),
            "throughput / throughput of the baseline",
        )
        drawn = [(ax, *_draw(ax, table, looks)) for ax, table in panels if _has_ratios(table)]
        ends = [end for *_, own in drawn for end in own]
        for ax, tables, _ in drawn:  # all panels have one scale
            ax.set_xlim(max(min(low for low, _ in ends), 0), max(high for _, high in ends))
            for table in tables:
                mark_cut(ax, table, looks)
            _tick_baseline(ax)
        return figure

    def enough(self, points: pd.DataFrame) -> bool:
        """Say whether there are several starts, of what one can still choose."""
        return several_starts(points) and not captions.discontinued(points)

    def instead(self, points: pd.DataFrame) -> str:
        """Return the scatter of a study that shards: without data to read, it asks for memory."""
        return "memory_against_throughput" if points["loader"].eq(SYNTHETIC).all() else ""

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return nearest(points)

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        points = points if "again_decision" in points else points.assign(again_decision=None)
        points = points.assign(outcome=outcomes(points))
        best = next(iter(records(_best(points))), {})
        return {
            "best": best and best | {"outcome": _OUTCOMES.get(best["outcome"], "")},
            "slower": next(iter(records(_slower(points, best))), None),
            "shifted": records(points[shifted(points)]),
            "because": SHIFTED,
            "groups": compared(points),
            "growths": growths(points),
        }
