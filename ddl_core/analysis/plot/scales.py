"""The axes that figures share: workers, rates, efficiency."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

_TICK_POINTS = 26.0  # what a number of workers needs below the axis
_FAR = 8  # from the least to the largest value of a setting, and its axis is logarithmic
_MOST_TICKS = 12
_APART = 0.008  # of the axis, from mark to mark


def worker_axis(ax: Axes, workers: Iterable[float]) -> None:
    """Scale x by powers of two from the fewest to the most workers."""
    counts = [float(count) for count in workers] or [1.0, 4.0]
    low, high = np.floor(np.log2(min(counts))), np.ceil(np.log2(max(counts)))
    ax.set_xscale("log", base=2)
    margin = 0.05 * (high - low) + 0.2
    ax.set_xlim(2 ** (low - margin), 2 ** (high + margin))
    step = int(np.ceil(_TICK_POINTS * octaves_per_point(ax)))
    ax.xaxis.set_major_locator(FixedLocator(list(2 ** np.arange(low, high + 1, step))))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("workers G")


def value_axis(ax: Axes, values: Iterable[float], label: str) -> None:
    """Scale x for a setting, a tick at each of its values: by powers of two where these go far."""
    places = sorted({float(value) for value in values})
    positive = [place for place in places if place > 0]
    if positive and positive[-1] >= _FAR * positive[0]:
        if places[0] > 0:
            ax.set_xscale("log", base=2)
        else:
            ax.set_xscale("symlog", base=2, linthresh=positive[0])
    ax.xaxis.set_major_locator(FixedLocator(places, nbins=_MOST_TICKS))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel(label)


def side_by_side(ax: Axes, places: pd.Series, of: pd.Series, names: Sequence[str]) -> pd.Series:
    """Return places on x moved a little, so that intervals at one place do not hide each other.

    Parameters
    ----------
    ax
        Its x axis must have its final scale.
    places, of
        Where marks are, and which of `names` each is of.
    names
        From left to right.
    """
    if places.empty:
        return places
    scale = ax.xaxis.get_transform()
    moved = scale.transform(places.to_numpy(dtype=float))
    turns = of.map({name: turn for turn, name in enumerate(names)}).to_numpy(dtype=float)
    step = _APART * np.ptp(moved)
    return pd.Series(
        scale.inverted().transform(moved + step * (turns - (len(names) - 1) / 2)), places.index
    )


def rate_axis(ax: Axes, values: pd.Series) -> None:
    """Scale y logarithmically with ticks at 1, 2 and 5, some room above and below `values`."""
    known = values[values > 0]
    low, high = (known.min(), known.max()) if len(known) else (1.0, 10.0)
    ax.set_yscale("log", base=10)
    ax.set_ylim(low / 1.5, high * 1.5)
    subs = (1, 2, 3, 5, 7) if high < 5 * low else (1, 2, 5) if high < 500 * low else (1,)
    ax.yaxis.set_major_locator(LogLocator(base=10, subs=subs))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(compact))
    ax.set_ylabel("throughput (images/s)")


def compact(value: float, _position: int | None = None) -> str:
    """Return two or three digits with a unit: ``"12.5"``, ``"2.5k"``, ``"580k"``, ``"1M"``."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{float(f'{value / limit:.2g}'):g}{unit}"
    return f"{value:.3g}"


def three_digits(value: float) -> str:
    """Return the value as a text has it: ``"7.00"``, ``"16.2"``, ``"126"``, ``"2.46k"``."""
    scaled, unit = (value / 1e3, "k") if value >= 1e3 else (value, "")
    return f"{scaled:#.3g}".rstrip(".") + unit


def octaves_per_point(ax: Axes) -> float:
    """Return how much of a base-2 x axis one point of paper covers."""
    left, right = ax.get_xlim()
    return float(np.log2(right / left) / size_points(ax)[0])


def size_points(ax: Axes) -> tuple[float, float]:
    """Return width and height of an axes in points."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    box = ax.get_position()
    return box.width * figure.get_figwidth() * 72, box.height * figure.get_figheight() * 72


def points_from_corner(ax: Axes, place: tuple[float, float]) -> tuple[float, float]:
    """Return where a place of the data is, right of and above the corner of the axes, in points."""
    x, y = (ax.transScale + ax.transLimits).transform(place)
    width, height = size_points(ax)
    return float(x) * width, float(y) * height
