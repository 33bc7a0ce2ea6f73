"""Every text stands at the mark that it is about, or a line leads from it to there."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from ddl_core.analysis.arms import arm_table
from ddl_core.analysis.paper import read_paper
from ddl_core.analysis.plot import curves, scales
from ddl_core.analysis.plot.canvas import frame, styled
from ddl_core.analysis.questions import QUESTIONS
from ddl_core.analysis.tables import empty_table

AT_MARK = 10.0  # points of paper between a text and its mark
AT_END = 5.0  # between the end of a line and its mark: a mark's radius and a little
AT_TEXT = 3.0
CROWD = [0.75, 0.76, 0.797, 0.8, 0.8, 0.81, 0.844, 0.914]


def planted(values: dict[int, list[float]], bound: str = "value") -> pd.DataFrame:
    """Return a statement of its own for each value at a number of workers."""
    rows = [
        {"source": "stated", "statement": f"E{number:02}", "framework": "ddp", "loader": "native",
         "data_format": "folder", "model": "resnet50", "world_size_min": workers,
         "world_size": workers, "value": value, "bound": bound, "printed": f"{value:.3f}",
         "contradiction": None}
        for number, (workers, value) in enumerate(
            (workers, value) for workers, column in values.items() for value in column
        )
    ]  # fmt: skip
    return pd.DataFrame(rows)


@styled
def draw(table: pd.DataFrame, height: float = 1.8) -> Figure:
    figure, (ax,) = frame("planted", [""], [height], [], [], right=[1.5])
    ax.set_ylim(0, 1.1)
    scales.worker_axis(ax, [4, 1024])
    curves.draw_stated(ax, table, table, "framework")
    return figure


def points(figure: Figure) -> float:
    """Draw the figure; return the points of paper in a pixel."""
    FigureCanvasAgg(figure).draw()
    return 72 / figure.dpi


def texts(ax: Axes) -> list[Annotation]:
    return [text for text in ax.texts if isinstance(text, Annotation) and text.get_text()]


def box(text: Annotation) -> Bbox:
    """Return where the letters are, without the line that leads away."""
    return Text.get_window_extent(text)


def from_box(where: Bbox, place: np.ndarray) -> float:
    """Return the distance from a box to a place, 0 inside."""
    nearest = np.clip(place, where.min, where.max)
    return float(np.hypot(*(place - nearest)))


def marks(ax: Axes) -> np.ndarray:
    """Return the places of all marks and ends of lines, in pixels."""
    drawn = [line.get_xydata() for line in ax.lines if line.get_transform() == ax.transData]
    return ax.transData.transform(np.concatenate(drawn))


def ends(text: Annotation) -> np.ndarray | None:
    """Return both ends of the line that leads from a text, in pixels; None without a line."""
    if text.arrow_patch is None:
        return None
    return (
        text.arrow_patch.get_transform()
        .transform_path(text.arrow_patch.get_path())
        .vertices[[0, -1]]
    )


def check(text: Annotation, places: np.ndarray, scale: float) -> None:
    """Fail unless the text or the end of its line is at one of the places."""
    line = ends(text)
    if line is None:
        apart = min(from_box(box(text), place) for place in places) * scale
        assert apart <= AT_MARK, f"{text.get_text()} is {apart:.1f} points from its mark"
        return
    begin, end = line
    assert from_box(box(text), begin) * scale <= AT_TEXT, text.get_text()
    apart = min(np.hypot(*(place - end)) for place in places) * scale
    assert apart <= AT_END, f"the line of {text.get_text()} ends {apart:.1f} points from its mark"


@pytest.mark.parametrize("height", [1.0, 1.8, 3.0])
@pytest.mark.parametrize("bound", ["value", "lower", "upper"])
@pytest.mark.parametrize(
    "values",
    [{1024: CROWD}, {256: CROWD, 1024: [0.3]}, {4: [0.5, 0.51], 1024: [0.2, 0.9]}, {4: [0.98] * 4}],
)
def test_planted_crowds(values: dict[int, list[float]], bound: str, height: float) -> None:
    figure = draw(planted(values, bound), height)
    scale, (ax,) = points(figure), figure.axes
    found = texts(ax)
    assert len(found) == sum(map(len, values.values()))
    own = marks(ax)
    heights = {round(value, 3): ax.transData.transform((4, value))[1]
               for column in values.values() for value in column}  # fmt: skip
    for text in found:
        at = heights[float(text.get_text())]
        check(text, own[np.abs(own[:, 1] - at) < 0.01], scale)
    for one, other in itertools.combinations(found, 2):
        inner = box(one).shrunk(0.9, 0.7)  # of a line are also the gaps above and below letters
        assert not inner.overlaps(box(other).shrunk(0.9, 0.7)), (one.get_text(), other.get_text())


def test_no_mark_of_a_crowd_hides_another() -> None:
    figure = draw(planted({1024: CROWD}))
    scale, (ax,) = points(figure), figure.axes
    sizes = [line.get_markersize() for line in ax.lines]
    for (one, size), (other, around) in itertools.combinations(
        zip(marks(ax), sizes, strict=True), 2
    ):
        apart = np.hypot(*(one - other)) * scale >= 3
        assert apart or abs(size - around) >= 3  # one ring inside another


def test_a_mark_with_room_stands_at_its_number_of_workers() -> None:
    (ax,) = draw(planted({128: [0.3, 0.6], 1024: [0.5]})).axes
    assert sorted(line.get_xdata()[0] for line in ax.lines) == [128, 128, 1024]
    assert not any(text.arrow_patch for text in texts(ax))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in QUESTIONS
        if name.startswith(("efficiency_", "throughput_vs_workers"))
        and name != "efficiency_emulated"
    ],  # that one is of no paper
)
def test_every_label_of_the_paper(name: str) -> None:
    figure = QUESTIONS[name].draw(
        QUESTIONS[name].points(empty_table(), arm_table(empty_table()), read_paper())
    )
    scale = points(figure)
    for ax in figure.axes:
        assert texts(ax)
        for text in texts(ax):
            check(text, marks(ax), scale)
