"""Table 2 as points and as a figure: whole, summing to 1, its doubtful cells marked."""

import pytest

from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.figures.shares import KERNELS, kernel_points
from tests.analysis.drawn import PAPER

POINTS = kernel_points(PAPER)


def test_every_cell_is_there_and_each_row_sums_to_one() -> None:
    assert len(POINTS) == 51 * len(KERNELS)
    rows = POINTS.groupby(["model", "loader", "world_size"])["value"]
    assert (rows.size() == len(KERNELS)).all()
    assert rows.sum().to_list() == pytest.approx([1] * 51)
    assert POINTS["value"].between(0, 1).all()


def test_values_are_those_printed() -> None:
    cell = POINTS.set_index(["model", "loader", "world_size", "kind"])["value"]
    assert cell["resnet50", "native", 512, "allreduce"] == pytest.approx(0.8261)
    assert cell["resnet152", "dali", 1024, "cudnn"] == pytest.approx(0.2699)
    derived = POINTS[POINTS["source"] == "derived"]
    assert set(derived["kind"]) == {"rest"}


def test_the_values_that_two_rows_share_are_marked_in_both() -> None:
    suspects = POINTS[POINTS["suspect"]]
    rows = suspects[["model", "loader", "world_size"]].drop_duplicates()
    assert rows.to_numpy().tolist() == [["resnet101", "dali", 1024], ["resnet101", "native", 512]]
    assert suspects["value"].nunique() == 2


def test_every_line_and_mark_is_drawn() -> None:
    figure = QUESTIONS["kernel_shares"].draw(POINTS)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert len(set(titles)) == 6
    assert all(len(ax.lines) == len(KERNELS) + 1 for ax in figure.axes)
    crosses = [line for ax in figure.axes for line in ax.lines if line.get_marker() == "x"]
    assert sorted(len(line.get_xdata()) for line in crosses) == [0, 0, 0, 0, 2, 2]
    drawn = {(x, y) for ax in figure.axes for line in ax.lines
             for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}  # fmt: skip
    names = [text.get_text() for text in figure.axes[2].texts]
    assert '"I/O"' in names  # in the paper's word alone: the column is no loading of data (C7)
    assert drawn == set(zip(POINTS["world_size"], POINTS["value"], strict=True))
