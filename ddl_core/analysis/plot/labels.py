"""Text beside marks, moved apart where it would touch."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from ddl_core.analysis.plot.scales import size_points

POINTS = 7.0
_LINE = 9.0


def write(
    ax: Axes,
    text: str,
    place: tuple[float, float],
    offset: tuple[float, float],
    ha: str = "left",
    va: str = "center",
    colour: str = "#444444",
    coords: Any = "data",
) -> None:
    """Write `text` at `place`, moved by `offset` (points)."""
    ax.annotate(
        text,
        place,
        xycoords=coords,
        xytext=offset,
        textcoords="offset points",
        ha=ha,
        va=va,
        fontsize=POINTS,
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6},
    )


def beside(
    ax: Axes,
    texts: Sequence[str],
    places: Sequence[tuple[float, float]],
    gap: float,
    colours: Sequence[str] | None = None,
) -> None:
    """Write `texts` `gap` points right of their `places`, a line apart, none above the axes.

    The axes must have its final limits.
    """
    scale = ax.transScale + ax.transLimits
    heights = [float(scale.transform(place)[1]) * size_points(ax)[1] for place in places]
    order = sorted(range(len(texts)), key=lambda index: heights[index])
    moved = apart([heights[index] for index in order], size_points(ax)[1])
    for index, height in zip(order, moved, strict=True):
        hue = {"colour": colours[index]} if colours else {}
        write(ax, texts[index], places[index], (gap, height - heights[index]), **hue)


def apart(heights: Sequence[float], top: float) -> list[float]:
    """Return the same ascending heights a line apart, around the same middle, below `top`."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + _LINE) if moved else height)
    shift = (sum(heights) - sum(moved)) / max(len(moved), 1)
    over = max(moved[-1] + shift - top, 0.0) if moved else 0.0
    return [height + shift - over for height in moved]
