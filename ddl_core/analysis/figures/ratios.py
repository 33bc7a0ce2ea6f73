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
from ddl_core.analysis.estimates import MARGIN
from ddl_core.analysis.figures.over_workers import stack, with_model
from ddl_core.analysis.plot import captions, marks, style
from ddl_core.analysis.plot.canvas import styled
from ddl_core.analysis.plot.rows import arm_name, row_frame
from ddl_core.analysis.plot.scales import size_points
from ddl_core.analysis.plot.style import SEPARATOR
from ddl_core.analysis.tables import DISTURBED, FIRST
from ddl_core.analysis.turns import CPU, WALL, Turns, over_blocks, relative

RATIOS = {
    "panel": "string",
    **ARM_TYPES,
    "local_batch_size": "Int64",
    "world_size": "Int64",
    "second_start": "boolean",
    "reference": "string",
    "clock": "string",
    "n": "Int64",
    "pairs": "Int64",
    "failed": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "decision": "string",
    "left_out": "string",
    **ORIGIN_TYPES,
}
CLOCKS = {"wall": WALL, "cpu": CPU}
_NAMES = {"wall": "by wall clock", "cpu": "by CPU seconds"}
_OFFSETS = {"wall": -0.22, "cpu": 0.22}  # of a row
_FACES: dict[str, dict[str, Any]] = {"wall": {}, "cpu": {"markerfacecolor": "white"}}
_SIZE = 5.0
_BAND_COLOUR = style.BOUND_COLOUR
ONE_START = "one start"  # so no interval, and nothing is sure
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
    images per second (``wall``) and per CPU second (``cpu``), from ``pairs`` of windows of one
    block and round, with its 95 % interval: over the n starts (blocks), so that it contains what
    another start would change. decision is what this interval says, see `estimates.decision`;
    empty with one start, which has no interval. left_out counts the rounds that do not count, and
    names those that were disturbed. The reference itself has no rows, a ``second_start`` of it has;
    runs that only loaded have none. An arm that has no pairs with it has n = 0.
    """
    made = made_runs(runs, second_starts=True)
    kept = made.loc[~made["lost"], ["study", "run_id"]]
    counted = windows.merge(kept, on=["study", "run_id"])
    taken = {clock: Turns(counted, column) for clock, column in CLOCKS.items()}
    references, formats = _references(runs, windows), style.formats_differ(made)
    made["panel"] = with_model(made)
    left_out = _left_out(windows)
    rows = []
    for _, panel in made[made["study"].isin(references)].groupby(["panel", "hardware"]):
        for clock, turns in taken.items():
            rows += [
                _row(arm, turns, clock, references, formats)
                for _, arm in panel.groupby([*KEYS, "second_start"])
                if not set(arm["run_id"]) & set(references[arm["study"].iloc[0]]["run_id"])
            ]
    table = pd.DataFrame(rows, columns=list(RATIOS))
    return stack([table.assign(left_out=table["study"].map(left_out))], RATIOS)


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
) -> dict[str, Any]:
    first, known = arm.iloc[0], arm[~arm["lost"]]
    windows = turns.of(first["study"], known["run_id"])
    pairs = relative(windows, turns.references(windows))
    ratio = over_blocks(pairs)
    reference = references[first["study"]]
    row = first.to_dict() | {
        "reference": arm_name(reference.iloc[0], formats),
        "clock": clock,
        "n": ratio.n,
        "pairs": len(pairs),
        "failed": int(arm["lost"].sum()),
        "value": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
        "decision": estimates.decision(ratio) if ratio.n > 1 else None,
        "commit": ";".join(sorted(set(known["commit"]))),
    }
    return row | {"panel": f"{row['panel']}{SEPARATOR}against {row['reference']}"}


def _left_out(windows: pd.DataFrame) -> dict[str, str]:
    """Return of each study how many rounds do not count, and which of them were disturbed."""
    texts = {}
    rounds = windows[windows["round"].notna()].drop_duplicates(["study", "block", "round"])
    for study, own in rounds.groupby("study"):
        # A block's name begins with the time of its start.
        number = own["block"].rank(method="dense").astype(int)
        gone = own.assign(number=number)[own["left_out"].eq(DISTURBED).fillna(False)]
        named = [
            f"{int(place['round']) + 1} of block {place['number']}"
            for place in gone.sort_values(["number", "round"]).to_dict("records")
        ]
        first = int(own["left_out"].eq(FIRST).sum())
        texts[str(study)] = f"first of a start: {first}; disturbed: {len(named)}" + (
            f" (round {', '.join(named)})" if named else ""
        )
    return texts


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
        measured = panel[panel["n"] > 0]
        counted = _counted(measured) if len(measured) else "none"
        *setting, against = str(name).split(SEPARATOR)
        about = f"{', '.join(setting)}: " if several else ""
        lines.append(f"{about}images a second {against}, {counted}")
        formats = style.formats_differ(panel)
        for _, arm in panel.groupby([*ARM, "world_size", "second_start"], sort=False):
            told = dict(zip(arm["clock"], arm.to_dict("records"), strict=True))
            wall, cpu = _interval(told["wall"]), _interval(told["cpu"])
            lines.append(f"  {arm_name(arm.iloc[0], formats)}: {wall}; per CPU second {cpu}")
    return lines


def _interval(row: dict[str, Any]) -> str:
    if not row["n"]:
        return "no pairs"
    if row["n"] == 1:
        return f"{row['value']:.2f}, {ONE_START}"
    return f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}], {WORDS[row['decision']]}"


def _counted(measured: pd.DataFrame) -> str:
    """Return e.g. ``"starts: n = 4, pairs of windows: 8"``."""
    starts, pairs = captions.counted("n", measured["n"]), captions.counted("", measured["pairs"])
    return f"starts: {starts}, pairs of windows: {pairs}"


def _texts(arm: pd.DataFrame) -> list[str]:
    return [_text(row) for row in arm.to_dict("records")]


def _text(row: dict[str, Any]) -> str:
    name = {"wall": "wall", "cpu": "CPU"}[row["clock"]]
    if not row["n"]:
        lost = f", {row['failed']} lost" if row["failed"] else ""
        return f"{name}: no pairs{lost}"
    if row["n"] == 1:
        return f"{name} {row['value']:.2f}: {ONE_START}"
    interval = f"[{row['low']:.2f}, {row['high']:.2f}]"
    return f"{name} {row['value']:.2f} {interval} n = {row['n']}: {row['decision']}"


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


_WITH_INTERVALS = [
    "Bars: 95 % interval over starts (t on the mean log ratio of each): another start is in it.",
    "Words: what this interval says, each by itself; equivalent: all of it within "
    f"{100 * MARGIN:g} %; cannot say: neither that nor on one side of 1. A second start of the "
    "reference should be 1.",
]
_WITHOUT_INTERVALS = ["One start has no interval: nobody knows how much another would differ."]


def _told_left_out(points: pd.DataFrame) -> list[str]:
    """Return what each study leaves out, after its name where there are several."""
    studies = points[["study", "left_out"]].dropna().drop_duplicates()
    several = len(studies) > 1
    return [f"{study}: {text}" if several else text
            for study, text in studies.itertuples(index=False)]  # fmt: skip


def _caption(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return ["No study measured here has let its arms take turns, so no window has a partner."]
    measured = points[points["n"] > 0]
    return [
        "Ratios of throughputs in pairs of windows, one of the arm, one of the reference, in the "
        f"same round ({captions.counted('', points['pairs'])} pairs; starts: "
        f"{captions.counted('n', points['n'])}).",
        *(_WITH_INTERVALS if (points["n"] > 1).any() else []),
        *(_WITHOUT_INTERVALS if (points["n"] == 1).any() else []),
        *[f"Rounds left out: {text}." for text in _told_left_out(measured)],
        *captions.lost(points[points["clock"] == "wall"]),
        *captions.machines(measured),
        captions.commits(measured),
    ]
