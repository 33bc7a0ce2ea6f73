import pytest

from ddl_tools.estimate import Estimate
from ddl_tools.records.paths import Tree
from ddl_tools.scaling.accuracy import MARGIN, of_paper, of_records, paper_loss
from ddl_tools.scaling.measured import trained
from tests.analysis.conftest import MakeRun, epoch_row


def test_the_paper_states_a_level_and_three_batches() -> None:
    found = of_paper("resnet50", "imagenet", 90)
    assert found.at(4096) == (("step", "cosine", "exponential"), Estimate(77, 76, 78))
    assert found.at(256) == found.at(4096)
    assert found.at(8192)[1] == Estimate(74, 73, 75)
    assert found.at(65536) == (("exponential",), Estimate(52, 51, 53))
    schedules, between = found.at(32768)
    assert schedules == ("exponential",)
    assert (between.low, between.high) == (51, 75)
    assert 52 < between.value < 74
    assert found.at(131072)[1] == Estimate(52, 0, 53)
    for other in (("resnet101", "imagenet", 90), ("resnet50", "sample", 90),
                  ("resnet50", "imagenet", 30)):  # fmt: skip
        assert of_paper(*other) is None


def test_the_paper_loses_accuracy_from_its_second_batch_on() -> None:
    assert paper_loss() == 8192


def test_records_give_the_accuracy_of_their_last_epoch(tree: Tree, make_run: MakeRun) -> None:
    for repeat, top1 in enumerate((0.5, 0.6)):
        for optimizer, shift in (("sgd", 0.0), ("lars", 0.3)):
            rows = [epoch_row(0), epoch_row(1), epoch_row(1, "eval", top1=top1 + shift)]
            make_run(rows=rows, repeat=repeat, study="one", optimizer=optimizer)
    runs = trained(tree, "resnet50", "sample")
    found = of_records(runs, 2)
    assert found.source == "records of one"
    schedules, span = found.at(16)
    assert schedules == ("step",)
    assert (span.value, span.low, span.high) == pytest.approx((55, 50 - MARGIN, 60 + MARGIN))
    assert found.at(8) == ((), None), "nothing is known below the smallest batch"
    assert of_records(runs, 3) is None
    assert of_records(trained(tree, "resnet50", "imagenet"), 2) is None
