"""How close each training comes to what its loader alone and training alone allow.

T(real) >= max(T(loader), T(training)), so no throughput exceeds the smaller of the two. Loader
alone is a run with ``work = "load"``, training alone one on synthetic data. Neither is ever
estimated. The smaller of two measurements of alike halves is too small: where it is not sure which
half is smaller, both are the bound.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddl_core.analysis import estimates, turns
from ddl_core.analysis.arms import ARM, ARM_TYPES, KEYS, LOADING, ORIGIN_TYPES, TRAINING, made_runs
from ddl_core.analysis.estimates import MARGIN, Estimate
from ddl_core.analysis.plot import captions, marks, style
from ddl_core.analysis.plot.canvas import styled
from ddl_core.analysis.plot.rows import BAR, interval, row_frame
from ddl_core.analysis.plot.scales import three_digits
from ddl_core.analysis.turns import Turns, Windows

CANNOT_SAY = "cannot say"
_MOST_SPAN = 8  # from the fewest to the most workers on one axis

BOUNDS = {
    "panel": "string",
    **ARM_TYPES,
    "local_batch_size": "Int64",
    "loader_workers": "Int64",
    "world_size": "Int64",
    "n": "Int64",
    "windows": "Int64",
    "failed": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "loading_n": "Int64",
    "loading": "float64",
    "loading_low": "float64",
    "loading_high": "float64",
    "training_n": "Int64",
    "training": "float64",
    "training_low": "float64",
    "training_high": "float64",
    "bound": "float64",
    "in_turns": "float64",
    "ratio": "float64",
    "ratio_low": "float64",
    "ratio_high": "float64",
    "limit": "string",
    **ORIGIN_TYPES,
}
_SHARED = [
    "study",
    *ARM,
    "local_batch_size",
    "loader_workers",
    "world_size",
    "hardware",
    "on_cpu",
]
_HALVES = ("loading", "training")
_MISSING = {"loading": "loader alone", "training": "synthetic"}

_BARS = {"bound": style.BOUND_COLOUR, "in_turns": style.IN_TURNS_COLOUR}  # the smaller on top
_BEYOND = 1.15  # the axis ends so much right of the last value or bound


def points(runs: pd.DataFrame, windows: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per measured arm that reads data, with its bound: `BOUNDS`.

    loading and training are the means (images/s) of the loader alone and of training on
    synthetic data, from runs that agree in everything these depend on; bound is the smaller one,
    or the geometric mean of both where the interval of their ratio holds 1; in_turns is what is
    left if both take turns on the same cores, 1 / (1/loading + 1/training).
    ratio is value / bound with its 95 % interval, from paired windows where these are known. limit
    says what limits, if the interval can tell: the smaller half, ``loader`` or ``training``
    (``either`` if they are alike or it is not sure which is smaller), where all of it lies within
    5 % of the bound; both of them, or neither alone, where all of it lies below that. Or it says
    what was not measured: then bound, in_turns and ratio are missing.

    A panel is a setting and model, and where numbers of workers lie far apart, one of these.
    """
    both = pd.concat([made_runs(runs), made_runs(runs, "load")], ignore_index=True)
    trained, free = (both["work"] == "train"), (both["loader"] == "synthetic")
    halves = {
        "loading": (both.groupby(LOADING, dropna=False, sort=False).ngroup(), ~trained),
        "training": (both.groupby(TRAINING, dropna=False, sort=False).ngroup(), trained & free),
    }
    found = {half: _members(numbers, which) for half, (numbers, which) in halves.items()}
    columns = {name: both[name].to_numpy() for name in _Made._fields if name in both}
    made = _Made(**columns, turns=Turns(windows))
    arms = both[trained & ~free]
    shared = arms[[*_SHARED, "setting"]].to_dict("records")
    rows: list[dict[str, Any]] = []
    for _, places in sorted(arms.groupby(KEYS).indices.items()):
        arm = arms.index[places].to_numpy()
        references = {
            half: found[half].get(numbers.iloc[arm[0]]) for half, (numbers, _) in halves.items()
        }
        rows.append(_row(shared[places[0]], made, arm, references))
    return _in_panels(pd.DataFrame(rows, columns=list(BOUNDS)).astype(BOUNDS))


def _in_panels(table: pd.DataFrame) -> pd.DataFrame:
    """Divide panels that no axis could hold; put first what has a bound: not all may be drawn."""
    workers = table["world_size"]
    sizes = workers.groupby(table["panel"])
    wide = sizes.transform("max") > _MOST_SPAN * sizes.transform("min")
    known = table["bound"].notna().groupby(table["panel"]).transform("any")
    order = pd.DataFrame({"known": ~known, "panel": table["panel"], "size": workers.where(wide, 0)})
    divided = table["panel"] + ", " + workers.astype("string") + " workers"
    table = table.assign(panel=table["panel"].mask(wide, divided))
    order = order.sort_values(["known", "panel", "size"], kind="stable")
    return table.loc[order.index].reset_index(drop=True)


class _Made(NamedTuple):
    """What counts of all runs, by their place in the table."""

    value: np.ndarray
    lost: np.ndarray
    commit: np.ndarray
    study: np.ndarray
    run_id: np.ndarray
    turns: Turns

    def counted(self, places: np.ndarray | None) -> "_Counted":
        """Return the throughputs that count."""
        if places is None:
            return _Counted(np.empty(0), {})
        values = self.value[places].astype(float)
        known = places[~np.isnan(values)]
        windows = self.turns.of(self.study[places[0]], self.run_id[known])
        return _Counted(values[~np.isnan(values)], windows)

    def ratio(self, one: "_Counted", other: "_Counted") -> Estimate:
        """Return the ratio of two, from paired windows where they took turns."""
        paired = self.turns.ratio(one.windows, other.windows)
        return paired or estimates.unpaired_ratio(one.runs, other.runs)

    def commits(self, *groups: np.ndarray | None) -> str:
        """Return the commits of all runs that count."""
        known = [places[~self.lost[places]] for places in groups if places is not None]
        return ";".join(sorted({name for places in known for name in self.commit[places]}))


class _Counted(NamedTuple):
    """Throughputs of runs, and of their windows that took turns."""

    runs: np.ndarray
    windows: Windows


def _members(numbers: pd.Series, which: pd.Series) -> dict[int, np.ndarray]:
    """Return the places of the rows that are meant, by their number."""
    meant = numbers[which]
    return {number: places.to_numpy() for number, places in meant.groupby(meant).groups.items()}


def _row(
    shared: dict[str, Any],
    made: _Made,
    arm: np.ndarray,
    references: dict[str, np.ndarray | None],
) -> dict[str, Any]:
    row = {name: shared[name] for name in _SHARED} | {
        "panel": f"{shared['setting']}, {style.model_name(shared['model'])}",
        "failed": int(made.lost[arm].sum()),
        "commit": made.commits(arm, *references.values()),
    }
    own = made.counted(arm)
    windows = sum(number != turns.WHOLE for _, number in own.windows)
    row |= {"windows": windows, **_summary(own, "")}
    halves = {half: made.counted(places) for half, places in references.items()}
    for half, counted in halves.items():
        row |= _summary(counted, half)
    missing = [half for half in _HALVES if not row[f"{half}_n"]]
    if missing:
        return row | {"limit": _not_measured(missing, references)}
    apart = made.ratio(halves["loading"], halves["training"])
    bounds = sorted(_HALVES, key=lambda half: row[half])
    if not apart.low <= 1 <= apart.high:  # surely apart, or of one run each
        bounds = bounds[:1]
    row |= {
        "bound": float(np.prod([row[half] for half in bounds]) ** (1 / len(bounds))),
        "in_turns": 1 / (1 / row["loading"] + 1 / row["training"]),
    }
    if not row["n"]:
        return row | {"limit": "no value of its own"}
    ratios = [made.ratio(own, halves[half]) for half in bounds]
    row |= {
        "ratio": float(np.prod([one.ratio for one in ratios]) ** (1 / len(ratios))),
        "ratio_low": min(one.low for one in ratios),
        "ratio_high": max(one.high for one in ratios),
    }
    return row | {"limit": _limit(row, apart)}


def _summary(counted: _Counted, half: str) -> dict[str, Any]:
    """Return mean and interval, for the arm itself (``""``) or for one half of it."""
    mean = turns.middle(counted.windows, counted.runs)
    stem = f"{half}_" if half else ""
    return {
        f"{stem}n": len(counted.runs),
        half or "value": mean.ratio,
        f"{stem}low": mean.low,
        f"{stem}high": mean.high,
    }


def _not_measured(missing: list[str], references: dict[str, np.ndarray | None]) -> str:
    reasons = {
        "not measured": [_MISSING[half] for half in missing if references[half] is None],
        "failed": [_MISSING[half] for half in missing if references[half] is not None],
    }
    return "; ".join(f"{why}: {', '.join(names)}" for why, names in reasons.items() if names)


def _limit(row: dict[str, Any], halves: Estimate) -> str:
    """Return what limits an arm whose bound is known, as far as the intervals can tell.

    Without an interval they cannot. `halves` is the ratio of loading to training.
    """
    least, most = 1 / (1 + MARGIN), 1 + MARGIN
    low, high = row["ratio_low"], row["ratio_high"]
    if low > most:
        return "unclear (above it)"
    if high < least:
        return "both (same cores)" if row["on_cpu"] else "neither alone"
    if not (least <= low and high <= most):
        return CANNOT_SAY
    alike = least <= halves.low and halves.high <= most
    if not alike and (halves.high < 1 or halves.low > 1):
        return "loader" if halves.high < 1 else "training"
    return "either"


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return each arm's throughput inside its bound, a row per arm, what limits it beside it."""
    looks = style.strategy_looks(style.with_framework(points)["framework"])
    figure, panels = row_frame(
        "Is the loader the bottleneck, and by how much?",
        points,
        _legend(points, looks),
        _caption(points),
        lambda arm: _texts(arm.to_dict("records")[0]),
    )
    for ax, table in panels:
        end = _end(table)
        for column, hue in _BARS.items():
            _bars(ax, table, column, hue)
        for half in style.HALF_NAMES:
            _ticks(ax, table, half, end)
        marks.points(ax, table, looks, {"linewidth": 1.2}, markersize=5, zorder=5, capsize=0.2)
        ax.set_xlim(0, end)
    return figure


def _end(table: pd.DataFrame) -> float:
    """Return where the axis ends: a loader that is many times faster would squeeze all others."""
    values = table[["value", "high", "bound"]].max(axis=1)
    half = table[["loading", "training"]].min(axis=1)  # where the other one was not measured
    near = half.where(table["bound"].isna() & (half < 2 * values))
    most = pd.concat([values, near]).max()
    return float(most) * _BEYOND if most > 0 else 1.0


def _bars(ax: Axes, table: pd.DataFrame, column: str, hue: str) -> None:
    sns.barplot(
        table.fillna({column: 0.0}),  # a row without a bar is high as the others
        x=column,
        y="row",
        orient="h",
        native_scale=True,
        width=BAR,
        color=hue,
        saturation=1,
        linewidth=0,
        errorbar=None,
        zorder=1,
        ax=ax,
    )


def _ticks(ax: Axes, table: pd.DataFrame, half: str, end: float) -> None:
    """Draw one half's own throughput in each row; an arrow where it is right of the axis."""
    look: dict[str, Any] = {"color": style.HALF_COLOUR, "linestyle": style.HALF_LINES[half]}
    near = table[table[half] <= end]
    bottom = near["row"] + BAR / 2
    ax.vlines(near[half], near["row"] - BAR / 2, bottom, linewidth=1.8, zorder=3, **look)
    ends = near[f"{half}_low"], near[f"{half}_high"]
    ax.hlines(bottom, *ends, color=style.HALF_COLOUR, linewidth=0.9, zorder=3)
    arrow = {"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0, **look}
    for row in table.loc[table[half] > end, "row"]:
        place = (end, row + (0.2 if half == "training" else -0.2))
        ax.annotate("", place, xytext=(-16, 0), textcoords="offset points", arrowprops=arrow)


def _texts(row: dict[str, Any]) -> list[str]:
    """Return three lines: what was measured, both halves, what limits."""
    own = f"{three_digits(row['value'])}{interval(row)}  " if row["n"] else ""
    lost = f", {row['failed']} lost" if row["failed"] else ""
    names = {"loading": "loader alone", "training": "synthetic"}
    known = [f"{name} {three_digits(row[half])}" for half, name in names.items() if row[half] > 0]
    limit = row["limit"]
    if row["ratio"] > 0:
        limit = f"{row['ratio']:.2f}{_ratio_interval(row)} of the bound; limit: {limit}"
    return [f"{own}n = {row['n']}{lost}", *([", ".join(known)] if known else []), limit]


def _ratio_interval(row: dict[str, Any]) -> str:
    known = row["ratio_high"] > 0
    return f" [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]" if known else ""


def _legend(points: pd.DataFrame, looks: style.Looks) -> list[Artist]:
    made: list[Artist] = [*marks.handles(style.strategies_named(looks), markersize=5)]
    halves = {
        name: {"linestyle": style.HALF_LINES[half]} for half, name in style.HALF_NAMES.items()
    }
    made += marks.handles(halves, color=style.HALF_COLOUR, linewidth=1.8)
    if points["bound"].isna().all():
        return made
    return [
        *made,
        Patch(color=style.BOUND_COLOUR, label="up to the bound"),
        Patch(color=style.IN_TURNS_COLOUR, label="both in turns"),
    ]


def _caption(points: pd.DataFrame) -> list[str]:
    sentences = [
        "Bound: the smaller of loader alone (L) and training on synthetic data (S), the mean of "
        "both where it is not sure which is smaller. Darker: what is left if both take turns on "
        "the same cores, 1 / (1/L + 1/S).",
    ]
    if points["on_cpu"].any():
        sentences.append(
            "On a CPU, loader and training share the cores: what is measured lies below both."
        )
    sentences.append(
        f"A limit is named where the 95 % interval of value / bound lies within {100 * MARGIN:g} % "
        "of 1 as a whole (the smaller one limits) or below as a whole; else it cannot be said."
    )
    sentences += captions.runs(points)
    halves = [f"{name} ({captions.counted('n', n[n > 0])})"
              for name, n in (("L", points["loading_n"]), ("S", points["training_n"]))
              if (n > 0).any()]  # fmt: skip
    sentences += [f"Means as well: {', '.join(halves)}."] if halves else []
    panels = [panel for _, panel in points.groupby("panel")]
    if any((panel[list(style.HALF_NAMES)] > _end(panel)).any(axis=None) for panel in panels):
        sentences.append("Arrows: right of the axis, see the number.")
    return sentences
