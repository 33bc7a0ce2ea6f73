"""Values with intervals, drawn by seaborn: it computes none, the intervals are ours."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from ddl_core.analysis.plot import style

_WHOLE = ("pi", 100)  # all of a distribution


def _ends(table: pd.DataFrame) -> pd.DataFrame:
    """Return each row as three: its value and both ends of its interval.

    seaborn summarises raw values. The median of these three is ours, and so is their range.
    """
    parts = [table.assign(value=table[name]) for name in ("value", "low", "high")]
    return pd.concat(parts, ignore_index=True)


def lines(
    ax: Axes,
    table: pd.DataFrame,
    x: str,
    hue: tuple[str, Mapping[str, str]],
    marker: tuple[str, Mapping[str, str]],
    dashes: Any = False,
    **look: Any,
) -> None:
    """Draw value, low and high of a table over `x`: a line with bars for each hue and marker.

    Parameters
    ----------
    ax
        With its final scales: lines are drawn in them.
    table
        With the columns ``value``, ``low`` and ``high``.
    x
        Its column across.
    hue, marker
        The column that decides, and what each of its values looks like.
    dashes
        seaborn's dashes for each value of the column of markers.
    **look
        Of all lines, as matplotlib calls it.
    """
    if table.empty:
        return  # seaborn warns of colours without data
    sns.lineplot(
        _ends(table),
        x=x,
        y="value",
        hue=hue[0],
        palette=dict(hue[1]),
        style=marker[0],
        markers=dict(marker[1]),
        dashes=dashes,
        estimator="median",
        errorbar=_WHOLE,
        err_style="bars",
        err_kws={"capsize": 2.5, "elinewidth": 1.2},
        legend=False,
        ax=ax,
        **{"markeredgecolor": None, "markeredgewidth": 1.0, "zorder": 4, **look},
    )


def points(
    ax: Axes,
    table: pd.DataFrame,
    looks: style.Looks,
    bars: Any,
    marker: str | None = None,
    **look: Any,
) -> None:
    """Draw value, low and high of a table in its rows, `bars` being the look of the intervals.

    `marker` is that of all points; without it each strategy has its own.
    """
    sns.pointplot(
        _ends(table),
        x="value",
        y="row",
        orient="h",
        native_scale=True,
        hue="strategy",
        palette={name: one["color"] for name, one in looks.items()},
        hue_order=list(looks),
        markers=marker or [one["marker"] for one in looks.values()],
        linestyle="none",
        estimator="median",
        errorbar=_WHOLE,
        err_kws=bars,
        legend=False,
        ax=ax,
        **look,
    )
