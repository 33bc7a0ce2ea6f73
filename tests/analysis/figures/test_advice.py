from pathlib import Path

import pytest

from ddl_core.analysis.figures import advice
from ddl_core.errors import DataError
from ddl_core.records.paths import Tree
from ddl_core.scaling.advice.advise import Question, advise
from ddl_core.scaling.advice.candidates import Limits
from ddl_core.scaling.advice.committed import EXAMPLE, JUWELS


def test_the_committed_example_is_what_an_answer_gives(tmp_path: Path) -> None:
    stored, made = advice.points(), advice.points_of(advise(EXAMPLE, Tree(tmp_path)))
    assert list(stored) == list(made)
    assert stored["advised"].sum() == made["advised"].sum() == 1
    assert stored["front"].tolist() == made["front"].tolist()


def test_there_is_a_panel_of_accuracy_only_where_something_is_known_of_it(tmp_path: Path) -> None:
    assert len(advice.draw(advice.points()).axes) == 2
    asked = Question(JUWELS, "resnet152", Limits(node_hours=50.0), epochs=30)
    figure = advice.draw(advice.points_of(advise(asked, Tree(tmp_path))))
    assert len(figure.axes) == 1
    assert not any("accuracy" in text.get_text() for text in figure.texts)


def test_limits_the_front_and_the_advised_are_drawn() -> None:
    points = advice.points()
    cost, accuracy = advice.draw(points).axes
    advised = points[points["advised"]].iloc[0]
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in cost.lines]
    front = points[points["front"]].sort_values("hours")
    assert (front["node_hours"].tolist(), front["hours"].tolist()) in drawn
    assert drawn.count(([advised["node_hours"]], [advised["hours"]])) == 2, "and a ring around it"
    assert any(set(y) == {1.0} for _, y in drawn)
    assert any(set(line.get_ydata()) == {75.0} for line in accuracy.lines)
    written = {text.get_text() for text in cost.texts}
    assert {str(size) for size in front["world_size"]} <= written


def test_without_its_table_it_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"python -m ddl_core\.scaling\.advice\.committed"):
        advice.points(tmp_path)
