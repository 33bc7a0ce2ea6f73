"""A panel of the scaling model: its band over workers, and the points beside it."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddl_core.analysis.plot import scales

_BAND, _MODEL, _PEER = "#cfe3f1", "#0072B2", "#999999"
_PEER_LINE: Any = (0, (1, 1.5))
_BOUNDS = {"lower": "$\\uparrow$", "upper": "$\\downarrow$"}
_ARROW: dict[str, Any] = {"markersize": 8, "markeredgewidth": 0.3}
_RANGE = (1, 4096)

FILLED: dict[str, Any] = {
    "marker": "o", "color": "#000000", "linestyle": "none", "markersize": 4
}  # fmt: skip
OPEN = FILLED | {"markerfacecolor": "white", "markeredgewidth": 1.1}
# Of emulated nodes: never to be taken for what a machine did.
EMULATED = FILLED | {"marker": "s", "color": "#D55E00"}
EMULATED_OPEN = EMULATED | {"markerfacecolor": "white", "markeredgewidth": 1.1}


def draw_panel(ax: Axes, part: pd.DataFrame, looks: Mapping[str, dict[str, Any]]) -> None:
    """Draw the rows of a panel: ``model`` with its band, ``peer``, and the sources in `looks`.

    The columns are those of data/scaling/curves.csv; the axes keep their y scale.
    """
    scales.worker_axis(ax, _RANGE)
    by_source = {str(name): rows.sort_values("world_size") for name, rows in part.groupby("source")}
    model = by_source["model"]
    ax.fill_between(model["world_size"], model["low"], model["high"], color=_BAND, linewidth=0)
    ax.plot(model["world_size"], model["value"], color=_MODEL, zorder=3)
    if "peer" in by_source:
        peer = by_source["peer"]
        ax.plot(peer["world_size"], peer["value"], color=_PEER, linestyle=_PEER_LINE, zorder=2)
    for source, look in looks.items():
        for bound, rows in by_source.get(source, part.iloc[:0]).groupby("bound"):
            marker = {"marker": _BOUNDS[bound], **_ARROW} if bound in _BOUNDS else {}
            ax.plot(rows["world_size"], rows["value"], **look | marker, zorder=4)


def legend(looks: Mapping[str, dict[str, Any]], bound: str, peer: bool) -> list[Artist]:
    """Return handles: the model, its band, the power law if `peer`, points by name, a bound."""
    lines: Iterable[Artist] = (
        [Line2D([], [], label="power law", color=_PEER, linestyle=_PEER_LINE)] if peer else []
    )
    return [
        Line2D([], [], label="model", color=_MODEL),
        Patch(facecolor=_BAND, label="its 90 % band"),
        *lines,
        *(Line2D([], [], label=name, **look) for name, look in looks.items()),
        Line2D([], [], label=bound, **OPEN | {"marker": _BOUNDS["lower"], **_ARROW}),
    ]
