import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import IMAGENET_TRAIN_IMAGES, RunSpec
from ddl_core.errors import DataError, SpecError
from ddl_tools.records.ledger import write_study
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.scaling import render
from ddl_tools.scaling.advise import Advice, Request, advise
from ddl_tools.scaling.candidate import Machine
from ddl_tools.scaling.measured import candidates, machine_name, trained
from ddl_tools.scaling.options import Limits, Option
from ddl_tools.study import Study
from tests.analysis.conftest import CODE, MACHINE, MakeRun, turned
from tests.scaling.test_options import candidate

JUWELS = Machine("juwels_booster", "JUWELS Booster", 4)
HERE = Machine("", machine_name(MACHINE), 8)
SAMPLE = {"dataset": "sample", "images": 320, "epochs": 5}
Answer = Callable[..., Advice]


@pytest.fixture
def answer(tree: Tree) -> Answer:
    """Return a function that asks for advice on ResNet50: limits and fields of a request."""

    def ask(machine: Machine = JUWELS, **changes: Any) -> Advice:
        limits = {name: changes.pop(name) for name in vars(Limits()) if name in changes}
        return advise(Request(machine, "resnet50", Limits(**limits), **changes), tree)

    return ask


def test_an_answer_in_words(answer: Answer) -> None:
    found = render.text(answer(deadline=1.0, accuracy=75.0))
    assert found == Path(__file__).with_name("advice.txt").read_text()


def met(found: Advice) -> list[Option]:
    return [one for one in found.options if one.worst(found.request.limits) == "met"]


def measure(make: MakeRun, ranks: int, seconds: float, **fields: Any) -> None:
    """Write a DDP run of 320 images whose epochs take `seconds`."""
    make(seconds, **{"strategy": "ddp", "nodes": ranks} | fields)


def test_the_cheapest_of_those_that_meet_a_deadline_is_advised(answer: Answer) -> None:
    found = answer(deadline=1.0, accuracy=75.0)
    assert found.certain
    assert found.advised.deadline.high <= 1.0
    cheapest = min(one.node_hours.value for one in met(found))
    assert found.advised.node_hours.value == pytest.approx(cheapest)
    assert {one.candidate.spec.loader for one in found.options} == {"dali_cpu", "dali_gpu"}
    assert any(one.candidate.spec.strategy == "horovod" for one in found.equal)


def test_the_papers_accuracy_says_nothing_of_other_images(answer: Answer) -> None:
    assert not any(one.accuracy for one in answer(deadline=1.0, images=20_000).options)
    with pytest.raises(DataError, match="no measurement of accuracy for this network, these"):
        answer(deadline=1.0, accuracy=76.0, images=20_000)


@pytest.mark.parametrize("limits", [{"deadline": 1.0}, {"node_hours": 20.0}, {"deadline": 0.05}])
def test_an_image_more_does_not_change_the_advice(answer: Answer, limits: dict) -> None:
    """The accuracy is stated for the images of ImageNet, and unknown with one more."""
    known, unknown = answer(**limits), answer(**limits, images=IMAGENET_TRAIN_IMAGES + 1)
    assert known.advised.accuracy
    assert not unknown.advised.accuracy
    assert unknown.advised.ranks == known.advised.ranks


@pytest.mark.parametrize(
    ("changes", "batch"),
    [
        ({"images": 2_000_000}, 8192),
        ({"epochs": 10}, 512),
        ({"images": 1_300_000}, 8192),
        ({"accuracy": 50.0}, 4096),
    ],
)
def test_at_the_same_cost_the_smallest_batch_is_advised(
    answer: Answer, changes: dict, batch: int
) -> None:
    found = answer(deadline=1.0, **changes)
    assert found.advised.global_batch_size == batch
    same = [
        one for one in met(found) if one.node_hours.value < 1.01 * found.advised.node_hours.value
    ]
    assert {one.global_batch_size for one in same} > {batch}
    assert min(one.global_batch_size for one in same) == batch


def test_an_unknown_accuracy_is_named_with_the_batch_from_which_the_paper_lost_some(
    answer: Answer,
) -> None:
    def line(found: Advice, word: str) -> list[str]:
        lines = render.text(found).splitlines()
        return [one for one in lines if one.startswith(word) and "unknown" in one]

    large, small = answer(deadline=1.0, images=2_000_000), answer(deadline=1.0, epochs=10)
    for found, word, words in (
        (large, "warning", "90 epochs of 2,000,000 images"),
        (small, "accuracy", "10 epochs of 1,281,167 images"),
        (answer(gpus=1024, epochs=10), "warning", "batch 65,536"),
    ):
        (one,) = line(found, word)
        assert words in one
        assert "from batch 8,192 on" in one
    assert "unknown" not in render.text(answer(deadline=1.0))


def test_a_smaller_batch_may_cost_five_percent_more(answer: Answer, make_run: MakeRun) -> None:
    for seconds, batch in ((10.0, 16), (10.3, 8), (12.0, 4)):
        measure(make_run, 2, seconds, local_batch_size=batch)
    found = answer(HERE, deadline=1.0, **SAMPLE)
    assert found.advised.global_batch_size == 16
    assert answer(HERE, gpus=2, **SAMPLE).advised.global_batch_size == 32, "the fastest"


def test_other_images_are_not_called_imagenet(answer: Answer) -> None:
    for images, named in ((None, True), (IMAGENET_TRAIN_IMAGES, True), (2_000_000, False)):
        asked = render.request(answer(deadline=1.0, images=images))
        assert ("on ImageNet" in asked) == named
        assert f"{images or IMAGENET_TRAIN_IMAGES:,} images" in asked


def test_without_measurements_of_a_data_set_the_rates_of_imagenet_are_named(answer: Answer) -> None:
    asked: dict[str, Any] = {"deadline": 1.0, "images": 2_000_000}
    with pytest.raises(DataError, match=r"no measurement of .* mine .*leave out --dataset"):
        answer(dataset="mine", **asked)
    assert answer(dataset="imagenet", **asked).certain
    with pytest.raises(DataError, match="no measurement") as refused:
        answer(Machine("", "B", 2), dataset="mine", **asked)
    assert "ImageNet" not in str(refused.value), "there, its rates are unknown as well"


def test_without_a_deadline_the_fastest_is_advised(answer: Answer) -> None:
    found = answer(accuracy=70.0)
    assert found.advised.deadline.value == min(one.deadline.value for one in met(found))


def test_without_a_limit_on_accuracy_none_is_given_up(answer: Answer) -> None:
    found = answer(node_hours=20.0)
    best = max(one.accuracy.value for one in found.options if one.accuracy)
    assert found.advised.accuracy.value >= best - 1
    assert found.advised.node_hours.high <= 20
    assert "warning" not in render.text(found)
    assert any(one.deadline.value < found.advised.deadline.value for one in met(found))


def test_a_loss_of_accuracy_is_a_warning(answer: Answer) -> None:
    found = answer(deadline=0.06)
    lost = max(one.accuracy.value for one in found.options if one.accuracy)
    lost -= found.advised.accuracy.value
    assert lost > 1
    assert f"{lost:.3g} percentage points below the best" in render.text(found)
    assert "warning" not in render.text(answer(deadline=0.06, accuracy=50.0))


def test_a_measured_size_comes_first(answer: Answer, make_run: MakeRun) -> None:
    for ranks in (1, 2, 4):
        measure(make_run, ranks, 20.0 / ranks)
    found = answer(HERE, node_hours=100.0, **SAMPLE)
    fastest = min(found.options, key=lambda one: one.deadline.value)
    assert (fastest.ranks, fastest.worst(found.request.limits)) == (8, "met")
    assert found.advised.ranks == 4
    row = next(line for line in render.table(found) if " 8 " in line)
    assert row.endswith("  2"), "extrapolated two times"
    assert answer(HERE, gpus=8, **SAMPLE).advised.extrapolation == 2


def test_short_times_of_a_machine_without_gpus_are_in_seconds_and_ranks(
    answer: Answer, make_run: MakeRun
) -> None:
    measure(make_run, 2, 10.0)
    found = answer(HERE, gpus=2, dataset="sample", images=320, epochs=1)
    seconds = 3600 * found.advised.deadline.value
    assert 1 < seconds < 60
    text = render.text(found)
    assert f": {seconds:#.3g}" in text
    assert "node-seconds" in text
    assert "hours" not in text
    assert "GPUs" not in text
    row = render.rows(found)[0]  # for programs
    assert row["hours"] == found.advised.deadline.value


def test_a_limit_within_all_ranges_is_uncertain(answer: Answer) -> None:
    cheapest = min(one.node_hours.value for one in answer(deadline=20.0).options)
    found = answer(node_hours=cheapest)
    assert not found.certain
    assert "uncertain: cost" in render.text(found)


def test_the_limit_that_would_do_does(answer: Answer) -> None:
    asked = {"deadline": 0.09, "accuracy": 75.0}
    with pytest.raises(DataError, match="no option meets deadline=") as refused:
        answer(**asked)
    for name in asked:
        would = rf"{name}=([\d.]+) would do, the other limits met"
        (value,) = re.findall(would, str(refused.value))
        assert answer(**asked | {name: float(value)}).certain


def test_a_number_of_gpus_is_advised_on_without_a_limit(answer: Answer) -> None:
    found = answer(gpus=64)
    assert {one.ranks for one in found.options} == {64}
    times = [one.deadline.value for one in found.options]
    assert found.advised.deadline.value == min(times)
    assert "meets all limits" not in render.text(found)
    assert {row["limits"] for row in render.rows(found)} == {""}
    assert answer(gpus=64, deadline=1.0, accuracy=75.0).certain
    with pytest.raises(DataError, match="no option meets deadline="):
        answer(gpus=64, deadline=0.1)


def test_a_number_of_gpus_is_at_most_four_times_beyond_the_largest_measured_one(
    answer: Answer, make_run: MakeRun
) -> None:
    for ranks in (1, 2):
        measure(make_run, ranks, 20.0 / ranks)
    found = answer(HERE, gpus=8, **SAMPLE)
    assert found.advised.extrapolation == 4
    assert answer(HERE, gpus=3, **SAMPLE).advised.ranks == 3
    with pytest.raises(DataError, match=r"no option on 16 ranks; options exist for 1 to 8"):
        answer(HERE, gpus=16, **SAMPLE)


def test_a_site_has_whole_nodes_and_owns_what_its_own_jobs_measured() -> None:
    site, here = Machine("mine", "A cluster", 4), Machine("", "A processor", 6)
    assert not site.owns(candidate())
    assert site.owns(candidate(in_jobs=True))
    assert not here.owns(candidate(in_jobs=True))
    assert Machine("", "Example Booster", 4).owns(candidate())
    assert site.sizes(64) == [4, 8, 16, 32, 64]
    assert site.sizes(None)[-1] == 1024
    assert here.sizes(None) == [1, 2, 4]


def test_own_records_are_of_their_machine_alone(answer: Answer, make_run: MakeRun) -> None:
    measure(make_run, 1, 20.0, strategy="single")
    for ranks, seconds in ((1, 20.0), (2, 11.0)):
        measure(make_run, ranks, seconds)
    measure(make_run, 2, 10.0, strategy="fsdp")
    measure(make_run, 2, 1.0, loader="synthetic")
    measure(make_run, 2, 1.0, second_start=True)
    found = answer(HERE, deadline=10.0, **SAMPLE)
    assert {one.candidate.machine for one in found.options} == {HERE.description}
    options = {(one.candidate.spec.strategy, one.ranks): one for one in found.options}
    assert options.keys() == {("ddp", 1), ("ddp", 2), ("ddp", 4), ("ddp", 8), ("fsdp", 2)}
    two = options["ddp", 2]
    assert two.deadline.low < 5 * 11.0 / 3600 < two.deadline.high
    assert two.candidate.sources[0] == "2 runs in results/runs/laptop"
    assert "1 run in results" in render.text(found), "FSDP's, which is the fastest"
    with pytest.raises(DataError, match=r"resnet50 on sample on this machine \(B\); .*Example"):
        answer(Machine("", "B", 2), deadline=10.0, **SAMPLE)


def test_runs_that_differ_in_speed_are_never_pooled(tree: Tree, make_run: MakeRun) -> None:
    other = {"system": MACHINE | {"cpu": "Another CPU"}, "study": "other"}
    own = ({}, {"image_size": 64}, {"ddp_compression": "fp16"}, {"loader_workers": 2})
    for fields, ranks in itertools.product((*own, other), (1, 2)):
        measure(make_run, ranks, 20.0 / ranks, **fields)
    found = candidates(trained(tree, "resnet50", "sample"), tree)
    assert [one.sizes for one in found] == [(1, 2)] * 5
    mine = [one.details for one in found if one.machine == HERE.description]
    assert len(set(mine)) == len(mine) == 4, "each has a name of its own"


@pytest.mark.parametrize(
    "change",
    [
        {"method_version": 1},
        {"system": MACHINE | {"memory_bytes": 2**34}},
        {"provenance": CODE | {"packages": {"torch": "1.0"}}},
    ],
    ids=["method", "memory", "software"],
)
def test_runs_of_another_method_machine_or_software_are_not_pooled(
    tree: Tree, make_run: MakeRun, change: dict[str, Any]
) -> None:
    make_run(10.0, strategy="ddp", nodes=2)
    path = RunFiles(make_run(20.0, strategy="ddp", nodes=2, repeat=1)).record
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | change))
    found = candidates(trained(tree, "resnet50", "sample"), tree)
    assert [one.sources[0].split(" in ")[0] for one in found] == ["1 run", "1 run"]
    assert len({one.details for one in found}) == 2, "each has a name of its own"


def test_runs_that_a_study_plans_no_more_give_no_advice(tree: Tree, make_run: MakeRun) -> None:
    make_run(10.0, strategy="ddp", nodes=2)
    kept = RunFiles(make_run(20.0, strategy="ddp", nodes=2, repeat=1)).record
    spec = RunSpec.model_validate(json.loads(kept.read_text())["spec"])
    base = spec.model_dump(exclude_defaults=True, exclude={"seed", "repeat"})
    write_study(Study(name="laptop", question="?", base=base, axes=[{"repeat": [1]}]), tree)
    (one,) = candidates(trained(tree, "resnet50", "sample"), tree)
    assert one.throughput(2).value == pytest.approx(320 / 20.0)


def test_repeats_and_learning_rates_are_pooled(tree: Tree, make_run: MakeRun) -> None:
    measure(make_run, 2, 10.0)
    measure(make_run, 2, 12.0, repeat=1)
    measure(make_run, 2, 11.0, base_lr=0.1, seed=3)
    (one,) = candidates(trained(tree, "resnet50", "sample"), tree)
    assert "3 runs" in one.sources[0]
    rate = one.throughput(2)
    assert rate.low < 320 / 12.0 < 320 / 10.0 < rate.high


def test_rounds_that_do_not_count_are_left_out(tree: Tree, make_run: MakeRun) -> None:
    """The first round of a start, and one in which another network's run was disturbed."""
    turned(make_run, {"strategy": "ddp"}, [10.0, 90.0, 10.0])
    disturbed = [20.0, 10.0, 20.0]
    turned(make_run, {"strategy": "ddp", "model": "resnet18"}, [10.0] * 3, cpu_s=disturbed)
    ((_, rate, _),) = trained(tree, "resnet50", "sample")
    assert rate == pytest.approx(32.0)


def test_damaged_records_are_named_once_if_two_data_sets_are_looked_for(
    answer: Answer, make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    RunFiles(make_run(0.1, strategy="ddp")).record.write_text("{")
    with pytest.raises(DataError, match="leave out --dataset"):
        answer(dataset="mine", deadline=1.0, images=10)
    assert len(caplog.messages) == 1


def test_damaged_records_are_named_once_and_left_out(
    answer: Answer, make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    for ranks in (1, 2):
        measure(make_run, ranks, 20.0 / ranks)
    folders = [make_run(0.1, strategy="ddp", nodes=2, repeat=one) for one in (1, 2, 3)]
    files = [RunFiles(folder) for folder in folders]
    files[0].record.write_text("{")
    files[1].record.write_text(files[1].record.read_text().replace('"ddp"', '"plugged"', 1))
    files[2].epochs.write_text("no line\n")
    found = answer(HERE, deadline=10.0, **SAMPLE)
    assert [one.candidate.sizes for one in found.options] == [(1, 2)] * 4
    causes = ("not valid", "'plugged' is not known", "line 1")
    assert len(caplog.messages) == len(causes)
    for folder, cause in zip(folders, causes, strict=True):
        (line,) = (one for one in caplog.messages if str(folder) in one)
        assert line.startswith("left out: ")
        assert cause in line


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"deadline": None}, SpecError, "no limit"),
        ({"images": 0}, SpecError, "images=0"),
        ({"epochs": 0}, SpecError, "epochs=0"),
        ({"max_gpus": -4}, SpecError, "max_gpus=-4"),
        ({"gpus": 0}, SpecError, "gpus=0"),
        ({"gpus": 4, "max_gpus": 8}, SpecError, "gpus=4 and max_gpus=8"),
        ({"gpus": 6}, DataError, "gpus=6: a node of juwels_booster has 4 GPUs"),
        ({"dataset": "mine"}, SpecError, "dataset='mine'"),
        ({"images": 200}, DataError, "no option on"),
        ({"max_gpus": 3}, DataError, "max_gpus=3: a node of juwels_booster has 4 GPUs"),
    ],
)
def test_a_wrong_request_is_refused(answer: Answer, changes: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        answer(**{"deadline": 1.0} | changes)
