"""All arms of a study on one axis, best first, each beside its ratio to one of them.

Where the study is about one number (a bucket's size, a batch), its arms are curves over it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddl_core.analysis.arms import ARM_TYPES, ORIGIN_TYPES, made_runs
from ddl_core.analysis.estimates import MARGIN
from ddl_core.analysis.figures import against_base, study_arms
from ddl_core.analysis.figures.against_base import Arm
from ddl_core.analysis.figures.over_workers import stack
from ddl_core.analysis.figures.ratios import ONE_START, WORDS
from ddl_core.analysis.plot import captions, marks, scales, style
from ddl_core.analysis.plot.canvas import LeftOut, drawn_panels, frame, styled
from ddl_core.analysis.plot.rows import best_rows, ranked_rows
from ddl_core.analysis.plot.scales import three_digits
from ddl_core.analysis.tables import whole
from ddl_core.analysis.turns import Turns

COMPARISON = {
    "question": "string",
    "panel": "string",
    **ARM_TYPES,
    "world_size": "Int64",
    "label": "string",
    "axis": "string",
    "at": "float64",
    "line": "string",
    "n": "Int64",
    "windows": "Int64",
    "failed": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "base": "string",
    "base_rule": "string",
    "ratio": "float64",
    "ratio_low": "float64",
    "ratio_high": "float64",
    "decision": "string",
    "common": "string",
    "unsaid": "string",
    "left_out": "string",
    **ORIGIN_TYPES,
}

REFERENCE = "the study's reference arm"
FEWEST = "no arm is named as reference: the one that changes fewest defaults, the first of these"

_MOST_CURVES = 4
_LEAST_PLACES = 3  # on an axis
_MOST_NAMED = 6  # of the arms that found no room
_BEYOND = 2.0  # an axis goes no further than this from the values for the sake of an interval
_BAND = f"within {100 * MARGIN:g} % of the base"


def points(
    runs: pd.DataFrame, windows: pd.DataFrame | None = None, question: str = ""
) -> pd.DataFrame:
    """Return one row per arm of each study that trained two or more, best first: `COMPARISON`.

    An arm is all runs that agree in every field of `RunSpec` but seed and repeat, and in all that
    their records tell of machine, software and settings. label names the fields in which a study's
    arms differ. value (images/s) is the geometric mean over the n runs of the arm, over blocks of
    its ``windows`` where it took turns, low and high its 95 % interval; ratio is to the arm called
    base, of paired windows where these are known. base is the study's reference arm; without one,
    that which changes fewest defaults. decision is what the interval of the ratio says, see
    `estimates.decision`; empty without one. Arms that are curves over one field have its
    name as axis, and their place ``at`` it on a ``line``.

    A panel is a study and, where its runs come from several, a machine with its software.

    Parameters
    ----------
    runs
        See `runs_table`: those of one study, or of several.
    windows
        See `windows_table`; None where no arms took turns.
    question
        What the study asks, the title of its figure; empty: a title that fits any study.
    """
    made = made_runs(runs, second_starts=True)
    kept = made.loc[~made["lost"], ["study", "run_id"]]
    taken = Turns(None if windows is None else windows.merge(kept, on=["study", "run_id"]))
    named = set() if windows is None else set(windows["reference"].dropna())
    tables = [pd.DataFrame(columns=list(COMPARISON))]
    for study, own in made.groupby("study"):
        arms = own.groupby(study_arms.KEY, dropna=False, sort=False).ngroup()
        firsts = own[~arms.duplicated()]
        if len(firsts) > 1:
            about = own.assign(
                label=arms.map(dict(enumerate(study_arms.names(firsts)))),
                common=study_arms.common(firsts),
                unsaid=study_arms.unsaid(firsts),
                left_out=study_arms.left_out(whole(runs[runs["study"] == study]), own),
                question=question,
            )
            tables += _panels(about, taken, named)
    return stack(tables, COMPARISON)


def _panels(study: pd.DataFrame, taken: Turns, references: set[str]) -> list[pd.DataFrame]:
    """Return the rows of a study's arms, a table for each place that they were made in."""
    texts = study_arms.place_texts(study.drop_duplicates(study_arms.PLACE))
    places = study.groupby(study_arms.PLACE, dropna=False, sort=False)
    tables = []
    for text, (_, runs) in zip(texts, places, strict=True):
        table = _panel(runs, taken, references)
        name, common = table[["study", "common"]].iloc[0]
        tables.append(table.assign(panel=": ".join(filter(None, [name, text or common]))))
    return tables


def _panel(runs: pd.DataFrame, taken: Turns, references: set[str]) -> pd.DataFrame:
    """Return a row for each arm of runs that were made in one place, best first."""
    groups = [group for _, group in runs.groupby(study_arms.KEY, dropna=False)]
    arms = [against_base.arm(group, taken, references) for group in groups]
    firsts = pd.concat([group.head(1) for group in groups], ignore_index=True)
    names = study_arms.told_apart(firsts, firsts["label"])
    base = _base(arms, firsts)
    reached = pd.DataFrame([against_base.reached(arm) for arm in arms])
    about = {
        "label": names,
        "base": names[base],
        **_axis(firsts),
        **against_base.ratios(arms, base, taken),
    }
    about["base_rule"] = REFERENCE if arms[base].is_reference else FEWEST
    table = firsts.drop(columns=list(reached), errors="ignore").join(reached).assign(**about)
    return table.sort_values(["value", "label"], ascending=[False, True])


def _base(arms: Sequence[Arm], firsts: pd.DataFrame) -> int:
    """Return the place of the arm that all are compared with."""
    specs = study_arms.specs(firsts)
    named = style.with_framework(firsts)["framework"]
    strategies, loaders = style.strategies(named), style.loaders(firsts["loader"])

    def turn(place: int) -> tuple[Any, ...]:
        arm, spec = arms[place], specs[place]
        order = strategies.index(named.iloc[place]), loaders.index(spec["loader"])
        return (not arm.is_reference, not len(arm.runs), study_arms.changes(spec), *order, place)

    return min(range(len(arms)), key=turn)


def _axis(firsts: pd.DataFrame) -> dict[str, Any]:
    """Return the columns axis, at and line: empty where the arms are no curves over one number.

    It is the number with most values, where the other fields make few lines of two or more.
    """
    numbers = filter(study_arms.is_number, study_arms.varied(firsts))
    for field in sorted(numbers, key=lambda name: -firsts[name].nunique()):
        line = study_arms.names(firsts, without=[field])
        alone = firsts.assign(line=line).drop_duplicates(["line", field])
        lengths = alone["line"].value_counts()
        enough = lengths.min() > 1 and lengths.max() >= _LEAST_PLACES
        if enough and len(alone) == len(firsts) and len(lengths) <= _MOST_CURVES:
            return {"axis": field, "at": firsts[field].to_list(), "line": line}
    return {"axis": None, "at": None, "line": None}


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the arms as curves over one number, or else as rows, best first."""
    points = style.with_framework(points)
    axes = points["axis"]
    curves = len(points) > 0 and axes.notna().all() and axes.nunique() == 1
    curves = curves and points["line"].nunique() <= _MOST_CURVES
    return _curves(points) if curves else _rows(points)


def _rows(points: pd.DataFrame) -> Figure:
    drawn = best_rows(points, points["label"] == points["base"])
    looks = style.strategy_looks(drawn["framework"])
    figure, panels = ranked_rows(
        _title(points),
        drawn,
        [*(marks.handles(style.strategies_named(looks)) if len(looks) > 1 else []), *_band(points)],
        _caption(points, drawn, _columns_told(points)),
        {"n": _count, "images/s": _value, "ratio to the base": _ratio_text, "": _decision},
        "throughput (images/s)",
    )
    for ax, table in panels:
        ax.set_xlim(*_ends(table))
        _draw_base(ax.axvspan, ax.axvline, _base_value(table))
        marks.points(ax, table, looks, {"linewidth": 1.2}, markersize=5, zorder=5, capsize=0.3)
    return figure


def _curves(points: pd.DataFrame) -> Figure:
    panels, looks = drawn_panels(points), _line_looks(points)
    drawn = points[points["panel"].isin(panels)]
    figure, axes = frame(
        _title(points),
        panels,
        [2.6] * len(panels),
        [*(marks.handles(looks, linestyle="solid") if len(looks) > 1 else []), *_band(points)],
        _caption(points, drawn, _fastest(points)),
        right=[0.6] * len(panels),
    )
    for ax, (_, table) in zip(axes, drawn.groupby("panel", sort=False), strict=True):
        scales.value_axis(ax, table["at"], study_arms.axis_label(table["axis"].iloc[0]))
        ax.set_ylim(*_ends(table))
        ax.set_ylabel("throughput (images/s)")
        beside = scales.side_by_side(ax, table["at"], table["line"], list(looks))
        marks.lines(ax, table.assign(at=beside), "at", "line", looks, markersize=5)
        _draw_base(ax.axhspan, ax.axhline, _base_value(table))
        _ratio_axis(ax, _base_value(table))
    return figure


def _line_looks(points: pd.DataFrame) -> style.Looks:
    """Return how each line looks: as its framework, where it has one of its own."""
    lines = points.groupby("line", sort=False)["framework"].agg(["first", "nunique"])
    lines = lines.sort_index()
    if lines["nunique"].max() == 1 and lines["first"].is_unique:
        known = style.strategy_looks(lines["first"])
        return {str(line): known[strategy] for line, strategy in lines["first"].items()}
    spare = style.strategy_looks(pd.Series(list(style.STRATEGY_COLOURS)))
    return dict(zip(map(str, lines.index), spare.values(), strict=False))


def _ratio_axis(ax: Axes, base: float) -> None:
    """Draw the scale of ratios to the base beside the axes."""
    if not np.isnan(base):
        scale = (lambda value: value / base, lambda ratio: ratio * base)
        ax.secondary_yaxis("right", functions=scale).set_ylabel("ratio to the base")


def _draw_base(span: Callable[..., Any], line: Callable[..., Any], base: float) -> None:
    """Draw the base and what is alike within the margin, across the axes."""
    if not np.isnan(base):
        ends = base / (1 + MARGIN), base * (1 + MARGIN)
        span(*ends, color=style.BOUND_COLOUR, linewidth=0, zorder=0)
        line(base, **style.IDEAL)


def _band(points: pd.DataFrame) -> list[Artist]:
    return [Patch(color=style.BOUND_COLOUR, label=_BAND)] if len(points) else []


def _base_value(table: pd.DataFrame) -> float:
    """Return the throughput of a panel's base; NaN if it has none."""
    return float(table.loc[table["label"] == table["base"], "value"].iloc[0])


def _ends(table: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of an axis: values, intervals and margin, but no endless interval."""
    values, base = table["value"].dropna(), _base_value(table)
    if values.empty:
        return 0.0, 1.0
    reach = [base / (1 + MARGIN), base * (1 + MARGIN), *values]
    low = max(np.nanmin([*reach, *table["low"]]), values.min() / _BEYOND)
    high = min(np.nanmax([*reach, *table["high"]]), values.max() * _BEYOND)
    room = 0.04 * (high - low)
    return float(low - room), float(high + room)


def _title(points: pd.DataFrame) -> str:
    asked = points["question"].dropna().unique()
    return asked[0] if len(asked) and asked[0] else "How do the arms of a study compare?"


def _count(row: pd.Series) -> str:
    lost = f", {row['failed']} lost" if row["failed"] else ""
    return f"{row['n']}{lost}"


def _value(row: pd.Series) -> str:
    return three_digits(row["value"]) if row["n"] else "none"


def _ratio_text(row: pd.Series) -> str:
    if row["label"] == row["base"]:
        return "base"
    if np.isnan(row["ratio"]):
        return ""
    known = not np.isnan(row["ratio_low"])
    return f"{row['ratio']:.2f}" + (
        f" [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]" if known else ""
    )


def _decision(row: pd.Series) -> str:
    if not pd.isna(row["decision"]):
        return WORDS[row["decision"]]
    known = row["windows"] and row["label"] != row["base"] and not np.isnan(row["ratio"])
    return ONE_START if known else ""


def _caption(points: pd.DataFrame, drawn: pd.DataFrame, more: Sequence[str]) -> list[str]:
    if points.empty:
        return ["No study measured here has trained two arms that differ."]
    return [
        *_bases(points),
        *_commons(points),
        *[f"Not named where it has its default: {text}." for text in _told(points, "unsaid")],
        *captions.runs(points),
        *more,
        "The axis does not begin at 0" + (
            ", and intervals that reach its end go on." if _cut(drawn) else "."
        ),
        *[f"Not drawn: {text}." for text in _told(points, "left_out")],
        *_no_room(points.drop(drawn.index)),
    ]  # fmt: skip


def _columns_told(points: pd.DataFrame) -> list[str]:
    """Return the sentences on the columns of numbers beside the rows."""
    known, decided = points["ratio_low"].notna().any(), points["decision"].notna().any()
    return [
        *(["In brackets: that of the ratio."] if known else []),
        *(["Words: what the interval of the ratio says, each row by itself; alike: all of it is "
           "within the margin; cannot say: neither that nor on one side of 1."] if decided else []),
    ]  # fmt: skip


def _fastest(points: pd.DataFrame) -> list[str]:
    """Return the sentence on the fastest arm of each panel of curves, and how sure that is."""
    sentences = []
    for _, table in points[points["n"] > 0].groupby("panel", sort=False):
        best = table.iloc[0]
        if best["label"] != best["base"] and _ratio_text(best):
            decided = f": {_decision(best)}" if _decision(best) else ""
            sentences.append(f"Fastest: {best['label']}, {_ratio_text(best)} of the base{decided}.")
    return sentences


def _told(points: pd.DataFrame, column: str) -> list[str]:
    """Return the texts of a column, each after its study where there are several studies."""
    several = points["study"].nunique() > 1
    texts = points[["study", column]].drop_duplicates().dropna().itertuples(index=False)
    return [f"{study}: {text}" if several else str(text) for study, text in texts if text]


def _bases(points: pd.DataFrame) -> list[str]:
    """Return the sentence on the base of each panel, and why it is that arm."""
    panels = points.drop_duplicates("panel")
    several, where = len(panels) > 1, "study" if panels["study"].is_unique else "panel"
    sentences = []
    for rule, part in panels.groupby("base_rule", sort=False):
        named = [
            f"{row[where]}: {row['base']}" if several else row["base"]
            for row in part.to_dict("records")
        ]
        sentences.append(f"Base: {'; '.join(dict.fromkeys(named))} ({rule}).")
    return sentences


def _commons(points: pd.DataFrame) -> list[str]:
    """Return what the arms have in common, of studies whose panels are called by their places."""
    panels = points.drop_duplicates("panel")
    hidden = panels[[common not in panel for panel, common in
                     zip(panels["panel"], panels["common"], strict=True)]]  # fmt: skip
    return [f"All arms: {text}." for text in _told(hidden, "common")]


def _cut(drawn: pd.DataFrame) -> bool:
    """Say whether an interval goes beyond the end of its axis."""
    for _, table in drawn.groupby("panel"):
        low, high = _ends(table)
        if (table["low"] < low).any() or (table["high"] > high).any():
            return True
    return False


def _no_room(rest: pd.DataFrame) -> list[LeftOut]:
    """Return the sentence that names the arms that found no room."""
    if rest.empty:
        return []
    named = [f"{row['label']} ({_value(row)})" for _, row in rest.head(_MOST_NAMED).iterrows()]
    more = len(rest) - len(named)
    and_more = [f"{more} more"] if more else []
    told = ", ".join([*named, *and_more])
    return [LeftOut(f"No room for {len(rest)} arms, see the CSV (images/s): {told}.")]
