"""Values with intervals, drawn by seaborn: it computes none, the intervals are ours."""

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ddl_core.analysis.plot.style import Looks

_OPTIONS = {"palette": "color", "markers": "marker", "dashes": "linestyle"}
_OURS = {"estimator": "median", "errorbar": ("pi", 100)}  # the middle and the ends of `_ends`


def told_apart(column: str, looks: Looks) -> dict[str, Any]:
    """Return seaborn's options that make the values of a column look as they should."""
    options: dict[str, Any] = {"hue": column, "style": column, "legend": False}
    for option, key in _OPTIONS.items():
        if all(key in look for look in looks.values()):
            options[option] = {name: look[key] for name, look in looks.items()}
    if "dashes" in options:
        lines = options["dashes"].items()
        options["dashes"] = {name: "" if line == "solid" else line[1] for name, line in lines}
    return options


def _ends(table: pd.DataFrame) -> pd.DataFrame:
    """Return each row as three: its value and both ends of its interval.

    seaborn summarises raw values. The median of these three is ours, and so is their range.
    """
    parts = [table.assign(value=table[name]) for name in ("value", "low", "high")]
    return pd.concat(parts, ignore_index=True)


def lines(ax: Axes, table: pd.DataFrame, x: str, by: str, looks: Looks, **look: Any) -> None:
    """Draw value, low and high of a table over `x`: a line with bars for each value of `by`.

    The axes must have its final scales. `look` is that of all lines.
    """
    if table.empty:
        return  # seaborn warns of colours without data
    bars = {"err_style": "bars", "err_kws": {"capsize": 2.5, "elinewidth": 1.2}}
    edges = {"markeredgecolor": None, "markeredgewidth": 1.0, "zorder": 4}
    options = {"dashes": False, **told_apart(by, looks), **_OURS, **bars, **edges, **look}
    sns.lineplot(_ends(table), x=x, y="value", ax=ax, **options)


def points(ax: Axes, table: pd.DataFrame, looks: Looks, bars: Any, **look: Any) -> None:
    """Draw value, low and high of a table in its rows, `bars` being the look of the intervals."""
    options = told_apart("framework", looks)
    markers = list(options.pop("markers").values())
    del options["style"]
    options = {"markers": markers, **options, **_OURS, **look}
    sns.pointplot(_ends(table), x="value", y="row", orient="h", native_scale=True, ax=ax,
                  hue_order=list(looks), linestyle="none", err_kws=bars, **options)  # fmt: skip


def handles(looks: Looks, end: str = "", **look: Any) -> list[Line2D]:
    """Return a mark for the legend for each name, with `end` after it."""
    return [
        Line2D([], [], label=name + end, **{"linestyle": "none", **one, **look})
        for name, one in looks.items()
    ]
