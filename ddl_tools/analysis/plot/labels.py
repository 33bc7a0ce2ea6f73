"""Names beside the curves and points of a panel, so that it needs no legend.

Scales must be final. What is placed next keeps clear of what is there.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ddl_tools.analysis.plot import style

_MOST, _WIDEST = 5, 2.2  # curves of a panel, and inches of a name: others have a legend
_FONT: Any = {"size": 6.5}
_APART = 1.15  # lines of text from one name to the next
_GAP = 0.07  # inches between a mark and its name
_MARK = 0.05  # inches from the middle of a mark to its edge
_ALONG = 40  # places of a curve that names keep clear of


class Name(NamedTuple):
    """A name and the place in a panel that it is for."""

    x: float
    y: float
    text: str = ""
    colour: str = ""

    @classmethod
    def of(cls, place: Iterable[float], text: str = "", colour: str = "") -> "Name":
        """Return a name for a pair of coordinates; without a text, a mark to be kept clear of."""
        x, y = map(float, place)
        return cls(x, y, text, colour)


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def over(self, other: "_Box") -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )


def have_room(names: Collection[str]) -> bool:
    """Say whether curves of these names need no legend."""
    widest = max((style.size_of(name, **_FONT)[0] for name in names), default=0)
    return len(names) <= _MOST and widest <= _WIDEST


def name_curves(ax: Axes, names: Iterable[Name], height: float) -> None:
    """Write names right of the ends of curves, one above the other where these are close.

    `height` are the inches of the axes.
    """
    line = _APART * style.size_of("a name", **_FONT)[1]
    inches = sorted((height * _share(ax.yaxis, one.y, ax.get_ylim()), one) for one in names)
    places = _spread([at for at, _ in inches], line)
    for (at, one), place in zip(inches, places, strict=True):
        _write(ax, one, _GAP, place - at, ha="left")


def _spread(places: Sequence[float], line: float) -> list[float]:
    """Return sorted places a line apart at least, in groups around their middles."""
    groups: list[list[float]] = []
    for number, place in enumerate(places):
        groups.append([place - number * line])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    middles = [float(np.mean(group)) for group in groups for _ in group]
    return [middle + number * line for number, middle in enumerate(middles)]


def name_line(ax: Axes, name: Name) -> None:
    """Write a name above a level line, its middle at the place of the name."""
    _write(ax, name, 0, _GAP, ha="center")


def along(x: pd.Series, y: pd.Series) -> list[Name]:
    """Return names without text along a curve over a logarithmic axis, which keep others off it."""
    ends = np.log(x.to_numpy(dtype=float))
    places = np.linspace(ends[0], ends[-1], _ALONG)
    heights = np.interp(places, ends, y.to_numpy(dtype=float))
    return [Name.of(at) for at in zip(np.exp(places), heights, strict=True)]


def name_points(
    ax: Axes, names: Iterable[Name], width: float, height: float, right: float = 0
) -> int:
    """Write a name beside each point of axes of this size in inches; return how many had no room.

    The first names choose first; too long ones are cut. Names without text are marks to be kept
    clear of. `right` are the inches beyond the axes that names may use.
    """
    every = list(names)
    at = [
        (
            width * _share(ax.xaxis, one.x, ax.get_xlim()),
            height * _share(ax.yaxis, one.y, ax.get_ylim()),
        )
        for one in every
    ]
    taken = [_Box(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in at]
    page, lost = _Box(0, 0, width + right, height), 0
    for one, (x, y) in zip(every, at, strict=True):
        if not one.text:
            continue
        begin, more, _ = style.wrapped(one.text, _WIDEST, **_FONT).partition("\n")
        one = one._replace(text=f"{begin} \N{HORIZONTAL ELLIPSIS}" if more else begin)
        size = style.size_of(one.text, **_FONT)
        places = [(dx, dy, ha, _around(x + dx, y + dy, ha, *size)) for dx, dy, ha in _places(size)]
        free = [place for place in places if _is_free(place[-1], taken, page)]
        if not free:
            lost += 1
            continue
        dx, dy, ha, box = free[0]
        taken.append(box)
        _write(ax, one, dx, dy, ha=ha)
    return lost


def _places(size: tuple[float, float]) -> Iterator[tuple[float, float, str]]:
    """Yield where a name may stand, from its point in inches, the best place first."""
    line = _APART * size[1]
    for away in (0, 0.6, 1.2, 2, 3):
        for up in (-1, 1) if away else (1,):
            for side, ha in ((1, "left"), (-1, "right")):
                yield side * _GAP, up * away * line, ha
    yield 0, line, "center"
    yield 0, -line, "center"


def _around(x: float, y: float, ha: str, width: float, height: float) -> _Box:
    left = {"left": x, "right": x - width, "center": x - width / 2}[ha]
    return _Box(left, y - height / 2, left + width, y + height / 2)


def _is_free(box: _Box, taken: list[_Box], page: _Box) -> bool:
    """Say whether a box is over no other one, and on the page."""
    inside = page.left <= box.left and box.right <= page.right
    inside &= page.bottom <= box.bottom and box.top <= page.top
    return inside and not any(box.over(one) for one in taken)


def _share(axis: Any, value: float, limits: tuple[float, float]) -> float:
    """Return how far along an axis a value lies, 0 to 1."""
    low, high, at = axis.get_transform().transform(np.array([*limits, value], dtype=float))
    return float((at - low) / (high - low))


def _write(ax: Axes, one: Name, dx: float, dy: float, ha: str) -> None:
    ax.annotate(
        one.text,
        (one.x, one.y),
        (72 * dx, 72 * dy),
        textcoords="offset points",
        ha=ha,
        va="center",
        color=one.colour,
        annotation_clip=False,
        **_FONT,
    )
