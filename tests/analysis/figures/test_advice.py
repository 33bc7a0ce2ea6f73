from pathlib import Path

from ddl_tools.analysis.figures import advice
from ddl_tools.records.paths import Tree
from ddl_tools.scaling.advise import Request, advise
from ddl_tools.scaling.options import Limits


def test_there_is_a_panel_of_accuracy_only_where_accuracy_is_known(tmp_path: Path) -> None:
    assert len(advice.draw(advice.points()).axes) == 2
    request = Request(advice.JUWELS, "resnet152", Limits(node_hours=50.0), epochs=30)
    figure = advice.draw(advice.points_of(advise(request, Tree(tmp_path))))
    assert len(figure.axes) == 1
    assert not any("accuracy" in text.get_text() for text in figure.texts)


def test_limits_the_pareto_front_and_the_advised_option_are_drawn() -> None:
    points = advice.points()
    cost, accuracy = advice.draw(points).axes
    advised = points[points["advised"]].iloc[0]
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in cost.lines]
    front = points[points["pareto"]].sort_values("hours")
    assert (front["node_hours"].tolist(), front["hours"].tolist()) in drawn
    place = ([advised["node_hours"]], [advised["hours"]])
    alike = (points["hours"] == advised["hours"]) & (points["node_hours"] == advised["node_hours"])
    assert drawn.count(place) == alike.sum() + 1, "and a ring around it"
    assert any(set(y) == {1.0} for _, y in drawn)
    assert any(set(line.get_ydata()) == {75.0} for line in accuracy.lines)
    written = {text.get_text() for text in cost.texts}
    assert {str(size) for size in front["world_size"]} <= written
