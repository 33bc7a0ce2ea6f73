import pytest

from ddl_tools.records.paths import Tree
from ddl_tools.scaling.accuracy import MARGIN, of_paper, of_records
from ddl_tools.scaling.configuration import Span
from tests.analysis.conftest import MakeRun, epoch_row, make_run, tree  # noqa: F401


def test_the_paper_tells_a_level_and_three_batches() -> None:
    found = of_paper("resnet50", "imagenet", 90)
    assert found is not None
    assert found.at(4096) == (("step", "cosine", "exponential"), Span(77, 76, 78))
    assert found.at(256) == found.at(4096)
    assert found.at(8192)[1] == Span(74, 73, 75)
    assert found.at(65536) == (("exponential",), Span(52, 51, 53))
    schedules, between = found.at(32768)
    assert schedules == ("exponential",)
    assert between is not None
    assert (between.low, between.high) == (51, 75)
    assert 52 < between.value < 74
    assert found.at(131072)[1] == Span(52, 0, 53)


@pytest.mark.parametrize(
    ("model", "dataset", "epochs"),
    [("resnet101", "imagenet", 90), ("resnet50", "sample", 90), ("resnet50", "imagenet", 30)],
)
def test_the_paper_tells_nothing_of_another_training(model: str, dataset: str, epochs: int) -> None:
    assert of_paper(model, dataset, epochs) is None


def test_records_tell_what_their_last_epoch_reached(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    for repeat, top1 in enumerate((0.5, 0.6)):
        rows = [epoch_row(0), epoch_row(1), epoch_row(1, "eval", top1=top1, top5=0.9)]
        make_run(rows=rows, repeat=repeat, study="one")
        better = [*rows[:2], epoch_row(1, "eval", top1=0.9, top5=0.9)]
        make_run(rows=better, repeat=repeat, study="one", optimizer="lars")
    found = of_records(tree, "resnet50", "sample", 2)
    assert found is not None
    assert found.source == "records of one"
    schedules, span = found.at(16)
    assert schedules == ("step",)
    assert span == pytest.approx((55, 50 - MARGIN, 60 + MARGIN))
    assert found.at(8) == ((), None), "nothing is known below the smallest batch"
    assert of_records(tree, "resnet50", "sample", 3) is None
    assert of_records(tree, "resnet50", "imagenet", 2) is None
