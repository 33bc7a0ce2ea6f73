"""How much faster than a stated reference arm each arm is, from windows that took turns."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ddl_core.analysis import estimates
from ddl_core.analysis.arms import ARM, ARM_TYPES, KEYS, ORIGIN_TYPES, made_runs
from ddl_core.analysis.estimates import ALPHA, MARGIN, Estimate
from ddl_core.analysis.figures.over_workers import stack, with_model
from ddl_core.analysis.plot import captions, marks, style
from ddl_core.analysis.plot.canvas import styled
from ddl_core.analysis.plot.rows import arm_name, row_frame
from ddl_core.analysis.plot.scales import size_points
from ddl_core.analysis.plot.style import SEPARATOR
from ddl_core.analysis.turns import CPU, WALL, Turns, paired

RATIOS = {
    "panel": "string",
    **ARM_TYPES,
    "local_batch_size": "Int64",
    "world_size": "Int64",
    "reference": "string",
    "clock": "string",
    "n": "Int64",
    "failed": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "decision": "string",
    **ORIGIN_TYPES,
}
CLOCKS = {"wall": WALL, "cpu": CPU}
_NAMES = {"wall": "by wall clock", "cpu": "by CPU seconds"}
_OFFSETS = {"wall": -0.22, "cpu": 0.22}  # of a row
_FACES: dict[str, dict[str, Any]] = {"wall": {}, "cpu": {"markerfacecolor": "white"}}
_SIZE = 5.0
_BAND_COLOUR = style.BOUND_COLOUR
# The first of these whose numbers have room.
_TICKS = (
    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10),
    (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10),
    (0.1, 0.2, 0.5, 1, 2, 5, 10),
)
_TICK_POINTS = 17.0  # what a number needs below the axis
_ROOM = 1.08  # the axis goes so much beyond the last interval


def points(runs: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Return two rows per arm of a study whose arms took turns: `RATIOS`.

    value, low and high are the ratio of the arm's throughput to that of its study's reference arm,
    images per second (``wall``) and per CPU second (``cpu``), from n pairs of windows of one block
    and round, with its 95 % interval. decision is what `estimates.decisions` makes of a family: the
    arms of a panel, by one clock. The reference itself has no rows; neither have runs that only
    loaded. An arm that has no pairs with it has n = 0.
    """
    made = made_runs(runs)
    kept = made.loc[~made["lost"], ["study", "run_id"]]
    counted = windows.merge(kept, on=["study", "run_id"])
    taken = {clock: Turns(counted, column) for clock, column in CLOCKS.items()}
    references, formats = _references(runs, windows), style.formats_differ(made)
    made["panel"] = with_model(made)
    families = []
    for _, panel in made[made["study"].isin(references)].groupby(["panel", "hardware"]):
        for clock, turns in taken.items():
            family = [
                _row(arm, turns, clock, references, formats)
                for _, arm in panel.groupby(KEYS)
                if not set(arm["run_id"]) & set(references[arm["study"].iloc[0]]["run_id"])
            ]
            families += _decided(family)
    return stack([pd.DataFrame(families, columns=list(RATIOS))], RATIOS)


def _references(runs: pd.DataFrame, windows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the runs of the reference arm of each study that took turns."""
    named = windows[["study", "reference"]].dropna().drop_duplicates()
    known = style.with_framework(runs[runs["strategy"].notna()])  # of a damaged one nothing may be
    found = known.merge(named, left_on=["study", "run_id"], right_on=["study", "reference"])
    return {str(study): table for study, table in found.groupby("study")}


def _row(
    arm: pd.DataFrame,
    turns: Turns,
    clock: str,
    references: dict[str, pd.DataFrame],
    formats: bool,
) -> tuple[dict[str, Any], Estimate]:
    first, known = arm.iloc[0], arm[~arm["lost"]]
    windows = turns.of(first["study"], known["run_id"])
    ratio = paired(windows, turns.references(windows))
    reference = references[first["study"]]
    row = first.to_dict() | {
        "reference": arm_name(reference.iloc[0], formats),
        "clock": clock,
        "n": ratio.n,
        "failed": int(arm["lost"].sum()),
        "value": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
        "commit": ";".join(sorted(set(known["commit"]))),
    }
    return row | {"panel": f"{row['panel']}{SEPARATOR}against {row['reference']}"}, ratio


def _decided(family: list[tuple[dict[str, Any], Estimate]]) -> list[dict[str, Any]]:
    words = estimates.decisions([ratio for _, ratio in family])
    return [row | {"decision": word} for (row, _), word in zip(family, words, strict=True)]


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the ratios of each arm with their intervals, a row per arm, both clocks in it."""
    looks = style.strategy_looks(style.with_framework(points)["framework"])
    figure, panels = row_frame(
        "How much faster than the reference, and is that sure?",
        points,
        _legend(looks) if len(points) else [],
        _caption(points),
        _texts,
        "throughput / throughput of the reference",
    )
    ends = _ends(points)
    for ax, table in panels:
        _ratio_axis(ax, *ends)
        for clock, face in _FACES.items():
            part = table[table["clock"] == clock]
            part = part.assign(row=part["row"] + _OFFSETS[clock])
            bars = {"linewidth": 1.2}
            marks.points(ax, part, looks, bars, markersize=_SIZE, zorder=5, capsize=0.12, **face)
        ax.set_ylim(table["row"].nunique() - 0.5, -0.5)
    return figure


def _ends(points: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of the axes, all alike: the last intervals, the margin at least."""
    reach = points[["value", "low", "high"]].replace(np.inf, np.nan)
    least, most = 1 / (1 + MARGIN), 1 + MARGIN
    low, high = np.nanmin([reach.min().min(), least]), np.nanmax([reach.max().max(), most])
    return float(low / _ROOM), float(high * _ROOM)


def _ratio_axis(ax: Axes, low: float, high: float) -> None:
    """Scale x logarithmically: a ratio and its reciprocal lie equally far from 1."""
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.xaxis.set_major_locator(FixedLocator(_ticks(low, high, size_points(ax)[0])))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.axvspan(1 / (1 + MARGIN), 1 + MARGIN, color=_BAND_COLOUR, linewidth=0, zorder=0)
    ax.axvline(1, **style.IDEAL)


def _ticks(low: float, high: float, width: float) -> list[float]:
    """Return ticks of a logarithmic axis, `width` points wide, whose numbers do not touch."""
    shown: list[float] = []
    for ticks in _TICKS:
        shown = [tick for tick in ticks if low <= tick <= high]
        apart = np.diff(np.log(shown)) * width / np.log(high / low)
        if (apart >= _TICK_POINTS).all():
            break
    return shown


WORDS = {
    estimates.GREATER: "faster",
    estimates.LESS: "slower",
    estimates.EQUIVALENT: f"alike within {MARGIN:.0%}",
    estimates.CANNOT_SAY: "cannot say",
}


def sentences(points: pd.DataFrame, settings: bool = False) -> list[str]:
    """Return what `points` say of each arm, a line each, below a line on what it is compared with.

    That line also tells the setting, where there are several panels or `settings` says so.

    E.g. ``Horovod, native, 2 workers: 0.80 [0.76, 0.84], slower; per CPU second 0.97 [...], ...``.
    """
    points = style.with_framework(points)
    lines, several = [], settings or points["panel"].nunique() > 1
    for name, panel in points.groupby("panel", sort=False):
        pairs = panel.loc[panel["n"] > 0, "n"]
        counted = captions.counted("n", pairs) if len(pairs) else "none"
        *setting, against = str(name).split(SEPARATOR)
        about = f"{', '.join(setting)}: " if several else ""
        lines.append(f"{about}images a second {against}, pairs of windows: {counted}")
        formats = style.formats_differ(panel)
        for _, arm in panel.groupby([*ARM, "world_size"], sort=False):
            told = dict(zip(arm["clock"], arm.to_dict("records"), strict=True))
            wall, cpu = _interval(told["wall"]), _interval(told["cpu"])
            lines.append(f"  {arm_name(arm.iloc[0], formats)}: {wall}; per CPU second {cpu}")
    return lines


def _interval(row: dict[str, Any]) -> str:
    if row["n"] < 2:
        return "no pairs"
    return f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}], {WORDS[row['decision']]}"


def _texts(arm: pd.DataFrame) -> list[str]:
    return [_text(row) for row in arm.to_dict("records")]


def _text(row: dict[str, Any]) -> str:
    name = {"wall": "wall", "cpu": "CPU"}[row["clock"]]
    if not row["n"]:
        lost = f", {row['failed']} lost" if row["failed"] else ""
        return f"{name}: no pairs{lost}"
    interval = "" if np.isnan(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{name} {row['value']:.2f}{interval} n = {row['n']}: {row['decision']}"


def _legend(looks: style.Looks) -> list[Artist]:
    clocks = {
        _NAMES[clock]: {"marker": "o", "color": style.UNNAMED_COLOUR, **face}
        for clock, face in _FACES.items()
    }
    band = Patch(color=_BAND_COLOUR, label=f"alike within {MARGIN:.0%}".replace("%", " %"))
    return [
        *marks.handles(style.strategies_named(looks), markersize=_SIZE),
        *marks.handles(clocks, markersize=_SIZE),
        band,
    ]


def _caption(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return ["No study measured here has let its arms take turns, so no window has a partner."]
    measured = points[points["n"] > 0]
    margin = f"{100 * MARGIN:g} %"
    return [
        "Ratios of throughputs in pairs of windows, one of the arm, one of the reference, in the "
        f"same round ({captions.counted('n', points['n'])} pairs). Bars: 95 % "
        "interval of their geometric mean (t on log ratios): how the windows vary; what another "
        "start of the same runs would change is not in it.",
        f"Words: of all arms of a panel and clock as one family (Holm), at {ALPHA:g}; equivalent: "
        f"surely within {margin} (two one-sided tests); cannot say: neither that nor different.",
        *captions.lost(points[points["clock"] == "wall"]),
        *captions.machines(measured),
        captions.commits(measured),
    ]
