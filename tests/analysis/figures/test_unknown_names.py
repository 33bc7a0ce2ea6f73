"""What no look was given to is drawn all the same, under its own name."""

import itertools

import pandas as pd
import pytest

from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.plot import style
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import MakeRun, curve
from tests.analysis.drawn import OF_RUNS, points_of, words

UNKNOWN = {
    "strategy": {"horovod": "manual"},
    "loader": {"turbo": "myloader"},
    "model": {"resnet18": "othernet"},
    "data_format": {"tfrecord": "myformat"},
    "schedule": {"cosine": "myschedule"},
}
SHOWN = ["strategy", "loader", "model", "schedule"]


@pytest.fixture
def runs(tree: Tree, make_run: MakeRun) -> pd.DataFrame:
    """Runs of two strategies, few enough that each has rows in every figure of rows."""
    for strategy, size in itertools.product(("ddp", "horovod"), (1, 2)):
        shape = {"strategy": strategy, "gpus_per_node": size}
        for model in ("resnet18", "resnet101"):
            make_run(20 / size, **shape, model=model)
        for fields in ({"loader": "turbo"}, {"data_format": "tfrecord"}, {"work": "load"}):
            make_run(20 / size, **shape, **fields)
    accuracy = {"study": "accuracy_tiny", "dataset": "fashion_mnist", "loader": "memory"}
    for schedule, size in itertools.product(("step", "cosine"), (1, 20)):
        make_run(rows=curve([0.5]), schedule=schedule, accumulation=size, **accuracy)
    return runs_table(tree).replace(UNKNOWN)


@pytest.mark.parametrize("name", OF_RUNS)
def test_unknown_names_are_drawn_and_told(name: str, runs: pd.DataFrame) -> None:
    points = points_of(name, runs)
    said = words(QUESTIONS[name].draw(points))
    if "source" in points:
        points = points[points["source"] == "measured"]
    for column in set(SHOWN) & set(points):
        for unknown in set(UNKNOWN[column].values()) & set(points[column]):
            assert unknown in said


def test_looks_without_one_differ_and_do_not_depend_on_the_order() -> None:
    names = ["manual", "another", "ddp"]
    looks = style.strategy_looks(pd.Series(names))
    assert list(looks) == ["ddp", "another", "manual"]
    assert looks["ddp"]["color"] == style.STRATEGY_COLOURS["ddp"]
    for key in ("color", "marker"):
        assert len({look[key] for look in looks.values()}) == len(looks)
    assert style.strategy_looks(pd.Series(names[::-1])) == looks
    taken = {*style.STRATEGY_COLOURS.values(), *style.SCHEDULE_COLOURS.values()}
    assert not taken & set(style.SPARE_COLOURS)
    marks = {*style.STRATEGY_MARKERS.values(), style.UNNAMED_LOOK["marker"]}
    assert not marks & set(style.SPARE_MARKERS)
