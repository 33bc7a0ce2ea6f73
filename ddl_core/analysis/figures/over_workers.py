"""The figures: each is drawn from its points table alone, and reads and saves nothing."""

import pandas as pd
from matplotlib.figure import Figure

from ddl_core.analysis.figures.points import SEPARATOR
from ddl_core.analysis.plot import captions, labels, marks, scales, statements, style
from ddl_core.analysis.plot.canvas import frame, styled

MOST_PANELS = 6
_PAPER_RANGE = (4, 1024)  # what it measured: the same axis wherever it stands


@styled
def throughput_vs_workers(points: pd.DataFrame) -> Figure:
    """Return images/s over workers, a panel per setting and one for the paper (its Fig. 3)."""
    panels = drawn_panels(points)
    ours, theirs = _split(points)
    figure, axes = frame(
        "How many images a second do more workers train?",
        panels,
        _heights(points, panels, columns=2),
        marks.legend(points, "ideal from its own base"),
        [
            "Question of the paper's Fig. 3.",
            *captions.runs(ours),
            captions.scaling(ours),
            *captions.statements(theirs),
            *captions.formats(ours, theirs),
            "The paper prints no throughput: shown is 90 epochs x 1,281,167 images / runtime.",
            *_left_out(points),
        ],
        right=_label_inches(points, panels),
    )
    ranges = _ranges(points[points["panel"].isin(panels)])
    for name, ax in zip(panels, axes, strict=True):
        part = points[points["panel"] == name]
        ours, theirs = _split(part)
        lines = marks.ideals(part)
        scales.rate_axis(ax, ranges[name.split(SEPARATOR)[-1]])
        scales.worker_axis(ax, part["world_size"])
        marks.draw_ideals(ax, lines)
        marks.draw(ax, ours)
        statements.draw(ax, theirs)
    return figure


@styled
def _efficiency(points: pd.DataFrame, title: str, question: str, columns: int = 1) -> Figure:
    panels = drawn_panels(points)
    ours, theirs = _split(points)
    figure, axes = frame(
        title,
        panels,
        _heights(points, panels, columns),
        marks.legend(points, "ideal"),
        [
            f"Question of the paper's {question}.",
            *captions.runs(ours, "the ratio of medians"),
            captions.base(ours),
            captions.scaling(ours),
            *captions.statements(theirs),
            *captions.formats(ours, theirs),
            *_left_out(points),
        ],
        right=_label_inches(points, panels),
    )
    top = max(1.1, 1.05 * points[["value", "high"]].max().max())
    for name, ax in zip(panels, axes, strict=True):
        ours, theirs = _split(points[points["panel"] == name])
        ax.set_ylim(0, top)
        ax.set_ylabel("parallel efficiency E")
        scales.worker_axis(ax, [*ours["world_size"], *(_PAPER_RANGE if len(theirs) else ())])
        ax.axhline(1, **style.IDEAL)
        marks.draw(ax, ours)
        statements.draw(ax, theirs)
    return figure


def efficiency_native(points: pd.DataFrame) -> Figure:
    """Return E over workers with the native loader (the paper's Fig. 5)."""
    return _efficiency(points, "Does the native loader keep more workers busy? ResNet50", "Fig. 5")


def efficiency_dali(points: pd.DataFrame) -> Figure:
    """Return E over workers with DALI on the CPU and on the GPU (Fig. 4)."""
    return _efficiency(points, "Does DALI keep more workers busy? ResNet50", "Fig. 4", columns=2)


def efficiency_by_model(points: pd.DataFrame) -> Figure:
    """Return E over workers of PyTorch-DDP for each network (Fig. 6)."""
    return _efficiency(points, "Do larger networks scale better? PyTorch-DDP", "Fig. 6")


def efficiency_by_loader(points: pd.DataFrame) -> Figure:
    """Return E over workers for each loader with ResNet101 (Fig. 7)."""
    return _efficiency(points, "Does the loader decide how ResNet101 scales?", "Fig. 7")


def _split(points: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    ours = points["source"] == "measured"
    return points[ours], points[~ours]


def drawn_panels(points: pd.DataFrame) -> list[str]:
    """Return the panels that a figure has room for: the first ones and the last."""
    names = list(points["panel"].unique())
    return names[: MOST_PANELS - 1] + names[-1:] if len(names) > MOST_PANELS else names


def _left_out(points: pd.DataFrame) -> list[str]:
    rest = points["panel"].nunique() - MOST_PANELS
    return [f"Panels not drawn, see the CSV: {rest}."] if rest > 0 else []


def _heights(points: pd.DataFrame, panels: list[str], columns: int) -> list[float]:
    """Return the height of each row of panels: the paper's many texts need more."""
    stated = set(points[points["source"] != "measured"]["panel"])
    heights = [2.4 if name in stated else 2.0 for name in panels]
    return [max(heights[first : first + columns]) for first in range(0, len(panels), columns)]


def _ranges(points: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the values that panels of one setting must all have room for, by setting."""
    ideal = pd.concat([marks.ideals(part) for _, part in points.groupby("panel")])
    columns = ["value", "low", "high"]
    values = pd.concat(
        [*(points.set_index("panel")[name] for name in columns), ideal.set_index("panel")["end"]]
    )
    settings = values.index.str.split(SEPARATOR).str[-1]
    return dict(iter(values.groupby(settings)))


def _label_inches(points: pd.DataFrame, panels: list[str]) -> list[float]:
    """Return the room that the texts right of each panel's last column need."""
    rooms = []
    for name in panels:
        part = points[(points["panel"] == name) & (points["source"] != "measured")]
        last = part["world_size"] == part["world_size"].max()
        widths = [
            style.text_points(text, labels.POINTS) for text in statements.describe(part)[last]
        ]
        rooms.append((max(widths) + statements.GAP_POINTS) / 72 - 0.1 if widths else 0.0)
    return rooms
