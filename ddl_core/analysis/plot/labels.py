"""Text beside marks, moved apart where it would touch, then with a line that leads to its mark."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from ddl_core.analysis.plot.scales import points_from_corner, size_points

POINTS = 7.0
LED_POINTS = 20.0  # from the last mark to texts that lines lead to
_BESIDE = 8.0  # from the last mark to texts that stand beside theirs
_LINE = 9.0
_NEAR = 3.0  # higher or lower than its mark, and a text is still beside it
_MARK = 3.5  # radius of a mark, where a line to it ends


def write(
    ax: Axes,
    text: str,
    place: tuple[float, float],
    offset: tuple[float, float],
    ha: str = "left",
    va: str = "center",
    colour: str = "#444444",
    coords: Any = "data",
    led_by: str | None = None,
) -> None:
    """Write `text` at `place`, moved by `offset` (points).

    `led_by` is the colour of a line back to the place; without it there is none.
    """
    line = {"arrowstyle": "-", "color": led_by, "linewidth": 0.6, "relpos": (0, 0.5)}
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
        arrowprops=line | {"shrinkA": 1, "shrinkB": _MARK} if led_by else None,
    )


def beside(
    ax: Axes,
    texts: Sequence[str],
    places: Sequence[tuple[float, float]],
    colours: Sequence[str],
) -> None:
    """Write `texts` right of all their marks, a line apart, none above the axes.

    `places` are the marks, `colours` theirs. From a text that could not stay beside its mark a line
    leads there. The axes must have its final limits.
    """
    marks = [points_from_corner(ax, place) for place in places]
    order = sorted(range(len(texts)), key=lambda index: marks[index][1])
    moved = apart([marks[index][1] for index in order], size_points(ax)[1])
    far = any(abs(y - marks[index][1]) > _NEAR for index, y in zip(order, moved, strict=True))
    start = max(x for x, _ in marks) + (LED_POINTS if far else _BESIDE)
    for index, y in zip(order, moved, strict=True):
        offset = (start - marks[index][0], y - marks[index][1])
        hue = colours[index] if far or offset[0] > _BESIDE else None
        write(ax, texts[index], places[index], offset, led_by=hue)


def apart(heights: Sequence[float], top: float) -> list[float]:
    """Return the same ascending heights a line apart, around the same middle, below `top`."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + _LINE) if moved else height)
    shift = (sum(heights) - sum(moved)) / max(len(moved), 1)
    over = max(moved[-1] + shift - top, 0.0) if moved else 0.0
    return [height + shift - over for height in moved]
