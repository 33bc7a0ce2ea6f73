from pathlib import Path

import pytest

from ddl_tools.analysis.figures import advice
from ddl_tools.analysis.plot.canvas import title_of
from ddl_tools.records.paths import Tree
from ddl_tools.scaling import render
from ddl_tools.scaling.advise import Request, advise
from ddl_tools.scaling.options import Limits


def test_there_is_a_panel_of_accuracy_only_where_accuracy_is_known(tmp_path: Path) -> None:
    assert len(advice.draw(advice.points()).axes) == 2
    request = Request(advice.JUWELS, "resnet152", Limits(node_hours=50.0), epochs=30)
    figure = advice.draw(advice.points_of(advise(request, Tree(tmp_path))))
    assert len(figure.axes) == 1
    assert not any("accuracy" in text.get_text() for text in figure.texts)


def test_options_limits_and_the_advised_one_are_drawn() -> None:
    points = advice.points()
    figure = advice.draw(points)
    time, accuracy = figure.axes
    advised = points[points["advised"]].iloc[0]
    hours = [value for line in time.lines for value in line.get_ydata()]
    assert set(points["hours"]) <= set(hours)
    rings = [line for line in time.lines if line.get_markersize() == 13 and len(line.get_ydata())]
    assert [list(ring.get_ydata()) for ring in rings] == [[advised["hours"]]]
    assert any(set(line.get_ydata()) == {1.0} for line in time.lines)
    assert any(set(line.get_ydata()) == {75.0} for line in accuracy.lines)
    assert f"on {advised['world_size']} GPUs" in title_of(figure)


def test_numbers_are_those_of_the_command(tmp_path: Path) -> None:
    """One rounding, of the text: four digits before it made 7.04 of 7.0450."""
    found = advise(advice.EXAMPLE, Tree(tmp_path))
    points = advice.points_of(found)
    hours = [row["hours"] for row in render.rows(found)]
    assert list(points["hours"].map("{:.3g}".format)) == [f"{one:.3g}" for one in hours]


def test_without_limits_the_title_says_what_the_number_of_gpus_takes(tmp_path: Path) -> None:
    request = Request(advice.JUWELS, "resnet50", Limits(), gpus=64)
    figure = advice.draw(advice.points_of(advise(request, Tree(tmp_path))))
    assert "on 64 GPUs takes 0.881 h, 14.1 node-hours" in title_of(figure)
    assert "limit" not in [text.get_text() for one in figure.legends for text in one.get_texts()]


def test_the_least_cost_is_said_only_of_a_deadline(tmp_path: Path) -> None:
    """With a budget alone, the fastest option is advised."""
    request = Request(advice.JUWELS, "resnet50", Limits(node_hours=20.0))
    title = title_of(advice.draw(advice.points_of(advise(request, Tree(tmp_path)))))
    assert "meets the limits: " in title
    points = advice.points()
    assert "cost" in title_of(advice.draw(points))
    dearer = points["node_hours"].where(~points["advised"], 1.04 * points["node_hours"])
    assert "cost" not in title_of(advice.draw(points.assign(node_hours=dearer)))


def test_a_limit_of_node_hours_falls_with_the_number_of_nodes(tmp_path: Path) -> None:
    request = Request(advice.JUWELS, "resnet50", Limits(node_hours=20.0))
    points = advice.points_of(advise(request, Tree(tmp_path)))
    limit = advice.draw(points).axes[0].lines[-1]
    nodes = [size / 4 for size in limit.get_xdata()]
    assert [20.0 / one for one in nodes] == pytest.approx(list(limit.get_ydata()), rel=1e-3)
