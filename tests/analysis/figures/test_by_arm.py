"""A row per arm, in the panel of its setting; what stands alone there compares nothing."""

from matplotlib.figure import Figure

from ddl_core.analysis.arms import arm_table
from ddl_core.analysis.figures import by_arm
from ddl_core.analysis.tables import runs_table
from ddl_core.records.paths import Tree
from tests.analysis.conftest import MakeRun


def drawn(tree: Tree) -> Figure:
    runs = runs_table(tree.runs)
    return by_arm.draw(by_arm.points(runs, arm_table(runs)))


def caption(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def test_a_setting_of_one_arm_is_left_to_comparison(tree: Tree, make_run: MakeRun) -> None:
    for strategy in ("ddp", "horovod"):
        make_run(strategy=strategy, gpus_per_node=2)
    for size in (1, 100):
        make_run(strategy="ddp", gpus_per_node=2, ddp_bucket_mb=size)
    figure = drawn(tree)
    assert len(figure.axes) == 1
    assert "Settings of one arm alone, in the CSV and in `comparison`: 2." in caption(figure)


def test_settings_of_one_arm_are_drawn_where_there_are_no_others(
    tree: Tree, make_run: MakeRun
) -> None:
    for size in (1, 100):
        make_run(strategy="ddp", gpus_per_node=2, ddp_bucket_mb=size)
    figure = drawn(tree)
    assert len(figure.axes) == 2
    assert "one arm alone" not in caption(figure)
