from pathlib import Path

from ddl_tools.analysis.figures import QUESTIONS, advice
from ddl_tools.analysis.plot.canvas import title_of
from ddl_tools.records.paths import Tree
from ddl_tools.scaling import render
from ddl_tools.scaling.advise import Request, advise
from ddl_tools.scaling.options import Limits


def test_there_is_a_figure_only_where_accuracy_is_known(tmp_path: Path) -> None:
    assert QUESTIONS["advice"].figure(advice.points())
    request = Request(advice.JUWELS, "resnet152", Limits(node_hours=50.0), epochs=30)
    assert not QUESTIONS["advice"].figure(advice.points_of(advise(request, Tree(tmp_path))))


def test_accuracies_the_limit_and_the_advised_option_are_drawn() -> None:
    points = advice.points()
    figure = QUESTIONS["advice"].draw(points)
    (ax,) = figure.axes
    advised = points[points["advised"]].iloc[0]
    drawn = [value for line in ax.lines for value in line.get_ydata()]
    assert set(points["accuracy"].dropna()) <= set(drawn)
    rings = [line for line in ax.lines if line.get_markersize() == 13]
    assert [list(ring.get_ydata()) for ring in rings] == [[advised["accuracy"]]]
    assert any(set(line.get_ydata()) == {75.0} for line in ax.lines)


def test_the_title_names_the_largest_batch_that_keeps_the_accuracy() -> None:
    points = advice.points()
    kept = points.loc[points["accuracy_low"] >= 75, "global_batch_size"].max()
    title = title_of(QUESTIONS["advice"].draw(points))
    assert title == f"An accuracy of 75 % allows batches up to {kept:,} images"
    lost = QUESTIONS["advice"].draw(points.assign(accuracy_low=50.0))
    assert title_of(lost) == "An accuracy of 75 % allows no batch for sure"


def test_numbers_are_those_of_the_command(tmp_path: Path) -> None:
    """One rounding, of the text: four digits before it made 7.04 of 7.0450."""
    found = advise(advice.EXAMPLE, Tree(tmp_path))
    points = advice.points_of(found)
    hours = [row["hours"] for row in render.rows(found)]
    assert list(points["hours"].map("{:.3g}".format)) == [f"{one:.3g}" for one in hours]


def test_without_limits_the_title_says_how_the_accuracy_falls(tmp_path: Path) -> None:
    request = Request(advice.JUWELS, "resnet50", Limits(), gpus=64)
    figure = QUESTIONS["advice"].draw(advice.points_of(advise(request, Tree(tmp_path))))
    assert title_of(figure).startswith("Accuracy goes from ")
    assert "limit" not in [text.get_text() for one in figure.legends for text in one.get_texts()]
