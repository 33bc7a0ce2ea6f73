"""Where an epoch's time goes: a bar per arm, cut by cause, the loss against its base beside it."""

from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from ddl_core.analysis import captions, labels, style
from ddl_core.analysis.canvas import frame, styled
from ddl_core.analysis.figures import drawn_panels
from ddl_core.analysis.rows import arm_name, in_order, label_inches, most_rows, row_axes

_ROW_INCHES = 0.42
_LABEL_INCHES = 1.5
_NUMBER_INCHES = 1.9
_LEAST_SHARE = 0.06  # of a bar that has room for its number
_MOST_LOSSES = 3  # told beside a bar
_LEAST_LOSS = 0.01
_ARM = ["strategy", "loader", "data_format", "world_size"]


@styled
def time_budget(points: pd.DataFrame) -> Figure:
    """Return the shares of each arm's epoch, and what they cost against fewer workers."""
    panels = drawn_panels(points) or ["nothing measured here yet"]
    tables = [in_order(points[points["panel"] == name]) for name in panels]
    arms = [[arm for _, arm in table.groupby(_ARM, sort=False)] for table in tables]
    most = most_rows([len(panel) for panel in arms])
    arms = [panel[:most] for panel in arms]
    formats = style.formats_differ(points)
    names = [[arm_name(arm.iloc[0].to_dict(), formats) for arm in panel] for panel in arms]
    texts = ["\n".join(_losses(arm)) for panel in arms for arm in panel]
    figure, axes = frame(
        "Where does an epoch's time go, and what does that cost at this size?",
        panels,
        [max(len(panel), 2) * _ROW_INCHES for panel in arms],
        _legend(points),
        _caption(points, sum(map(len, arms))),
        left=label_inches([name for panel in names for name in panel], _LABEL_INCHES),
        right=[label_inches(texts, _NUMBER_INCHES, labels.POINTS)] * len(panels),
    )
    for ax, panel, labelled in zip(axes, arms, names, strict=True):
        for position, arm in enumerate(panel):
            _bar(ax, position, arm)
        ax.set_xlim(0, 1)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        row_axes(ax, labelled, "share of an epoch with its evaluation, mean over workers")
    return figure


def _bar(ax: Axes, position: int, arm: pd.DataFrame) -> None:
    left = 0.0
    for row in arm.to_dict("records"):
        look = style.SPENT_LOOKS[row["cause"]]
        ax.barh(position, row["value"], left=left, height=0.66, linewidth=0, zorder=2, **look)
        if row["value"] >= _LEAST_SHARE:
            ax.text(left + row["value"] / 2, position, f"{row['value']:.0%}", ha="center",
                    va="center", size=labels.POINTS, color=_ink(look), zorder=3)  # fmt: skip
        left += row["value"]
    text = "\n".join(_losses(arm))
    labels.write(ax, text, (1, position), (8, 0), coords=ax.get_yaxis_transform())


def _ink(look: dict[str, Any]) -> str:
    """Return black or white, whichever can be read on a bar."""
    red, green, blue = (int(look["color"][at : at + 2], 16) for at in (1, 3, 5))
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else "white"


def _losses(arm: pd.DataFrame) -> list[str]:
    """Return what is told beside a bar: E, and the causes that take most, largest first."""
    first = arm.iloc[0]
    count = f"n = {first['n']}" + (f", {first['failed']} lost" if first["failed"] else "")
    if pd.isna(first["efficiency"]):
        return [f"base, {count}"]
    large = arm[arm["loss"].abs() >= _LEAST_LOSS].sort_values("loss", key=abs, ascending=False)
    told = [
        f"{style.SPENT_NAMES[row['cause']]} {_points(row['loss'])}"
        for row in large.head(_MOST_LOSSES).to_dict("records")
    ]
    return [f"E = {first['efficiency']:.2f}, {count}", ", ".join(told[:2]), ", ".join(told[2:])]


def _points(loss: float) -> str:
    return f"{-100 * loss:+.0f} %".replace("-", "\N{MINUS SIGN}")


def _legend(points: pd.DataFrame) -> list[Artist]:
    causes = list(points["cause"].unique())
    return [
        Patch(label=name, **style.SPENT_LOOKS[cause])
        for cause, name in style.SPENT_NAMES.items()
        if cause in causes
    ]


def _caption(points: pd.DataFrame, drawn: int) -> list[str]:
    measured = points.drop_duplicates(["panel", *_ARM])
    if measured.empty:
        return ["Nothing measured here yet."]
    rest = len(measured) - drawn
    return [
        "From marks in every step, without a profiler. Communication: what backward does not hide; "
        "transfer is that of the worker that came last, the rest waits for slower workers.",
        *_of_one_worker(measured),
        f"Mean of {captions.counted('n', measured['n'])} runs, warm epochs only.",
        "Beside the bars: parallel efficiency against the arm's base, from these means, and what "
        "each cause takes of the ideal throughput there (evaluation is in no throughput).",
        *captions.machines(measured),
        captions.commits(measured),
        *([f"Rows not drawn, see the CSV: {rest}."] if rest else []),
    ]


def _of_one_worker(measured: pd.DataFrame) -> list[str]:
    if not (measured["world_size"] == 1).any():
        return []
    return ["Transfer of one worker: its framework copies gradients all the same."]
