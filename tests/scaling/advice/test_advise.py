import re
from typing import Any

import pytest

from ddl_core.errors import DataError, SpecError
from ddl_core.records.paths import SCALING, Tree
from ddl_core.scaling import published_case
from ddl_core.scaling.advice import paper, told
from ddl_core.scaling.advice.advise import Advice, Place, Question, advise
from ddl_core.scaling.advice.candidates import Limits
from ddl_core.scaling.advice.committed import (
    JUWELS,
    admitted,
    example,
    own_bands,
    stated_bands,
)
from ddl_core.scaling.advice.own_records import machine_name
from ddl_core.scaling.committed import Table
from ddl_core.scaling.paper_case import MODELS
from ddl_core.scaling.sources import Row, read_rows
from tests.analysis.conftest import MACHINE, MakeRun, make_run, tree  # noqa: F401
from tests.scaling.advice.planted import evidence
from tests.scaling.test_calibrate import planted

PUBLISHED = "DGX A100 80GB"
HERE = Place("", machine_name(MACHINE), 2)


def asked(tree: Tree, place: Place = JUWELS, **changes: Any) -> Advice:  # noqa: F811
    limits = {name: changes.pop(name) for name in Limits().__dict__ if name in changes}
    return advise(Question(place, "resnet50", Limits(**limits), **changes), tree)


def test_advised_is_the_cheapest_of_those_that_surely_keep_a_deadline(tree: Tree) -> None:  # noqa: F811
    found = asked(tree, deadline=1.0, accuracy=75.0)
    limits = found.question.limits
    assert found.sure
    assert found.advised.deadline.high <= 1.0
    safe = [one for one in found.candidates if one.worst(limits) == "kept"]
    assert found.advised.node_hours.value == min(one.node_hours.value for one in safe)
    assert {one.evidence.loader for one in found.candidates} == {"dali_cpu", "dali_gpu"}
    assert any(one.evidence.strategy == "horovod" for one in found.alike)


def test_without_a_deadline_the_fastest_is_advised(tree: Tree) -> None:  # noqa: F811
    found = asked(tree, accuracy=70.0)
    safe = [one for one in found.candidates if one.worst(found.question.limits) == "kept"]
    assert found.advised.deadline.value == min(one.deadline.value for one in safe)
    assert all(one.deadline.value < found.advised.deadline.value for one in found.open)
    assert all(one.accuracy and one.accuracy.low < 70 for one in found.open)


def test_without_a_limit_on_accuracy_none_is_given_up(tree: Tree) -> None:  # noqa: F811
    found = asked(tree, node_hours=20.0)
    best = max(one.accuracy.value for one in found.candidates if one.accuracy)
    assert found.advised.accuracy
    assert found.advised.accuracy.value >= best - 1
    assert found.advised.node_hours.high <= 20
    assert "warning" not in told.text(found)
    faster = [one for one in found.candidates if one.deadline.value < found.advised.deadline.value]
    assert any(one.worst(found.question.limits) == "kept" for one in faster)


def test_what_accuracy_a_limit_costs_is_a_warning(tree: Tree) -> None:  # noqa: F811
    found = asked(tree, deadline=0.06)
    assert found.advised.accuracy
    lost = max(one.accuracy.value for one in found.candidates if one.accuracy)
    lost -= found.advised.accuracy.value
    assert lost > 1
    assert f"{lost:.3g} percentage points below the best" in told.text(found)
    assert "--accuracy" in told.text(found)
    assert "warning" not in told.text(asked(tree, deadline=0.06, accuracy=50.0))


@pytest.mark.slow
def test_no_extrapolation_wins_over_what_was_measured(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    planted(make_run, "single", 1)
    for workers in (1, 2, 4):
        planted(make_run, "ddp", workers)
    make_run(14.0, strategy="ddp", gpus_per_node=2)
    of = {"dataset": "sample", "images": 320, "epochs": 5}
    found = asked(tree, Place("", machine_name(MACHINE), 8), node_hours=100.0, **of)
    fastest = min(found.candidates, key=lambda one: one.deadline.value)
    assert (fastest.ranks, fastest.worst(found.question.limits)) == (8, "kept")
    assert found.advised.ranks == 4


def test_a_limit_within_all_bands_is_not_called_sure(tree: Tree) -> None:  # noqa: F811
    cheapest = min(one.node_hours.value for one in asked(tree, deadline=20.0).candidates)
    found = asked(tree, node_hours=cheapest)
    assert not found.sure
    assert "not sure, open is cost" in told.text(found)


@pytest.mark.slow
def test_what_would_do_does(tree: Tree) -> None:  # noqa: F811
    with pytest.raises(DataError) as refused:
        asked(tree, deadline=0.1, accuracy=75.0)
    assert "nothing keeps deadline=0.1, accuracy=75" in str(refused.value)
    (deadline,) = re.findall(r"deadline=([\d.]+) would do, the others surely", str(refused.value))
    assert asked(tree, deadline=float(deadline), accuracy=75.0).sure
    (accuracy,) = re.findall(r"accuracy=([\d.]+) would do, the others surely", str(refused.value))
    assert asked(tree, deadline=0.1, accuracy=float(accuracy)).sure


def test_evidence_of_one_machine_is_taken_for_another_only_if_asked(tree: Tree) -> None:  # noqa: F811
    other = Place("leonardo", "Leonardo Booster, CINECA: 4 A100", 4)
    with pytest.raises(DataError, match=r"no evidence of .* on leonardo; .*'JUWELS Booster'"):
        asked(tree, other, deadline=1.0)
    found = asked(tree, other, deadline=1.0, as_if="JUWELS Booster")
    assert "on leonardo, as if it were JUWELS Booster" in told.text(found)
    with pytest.raises(DataError, match="no evidence of resnet50 on imagenet on no such; "):
        asked(tree, other, deadline=1.0, as_if="no such")


def test_a_site_owns_what_its_own_jobs_measured() -> None:
    site = Place("mine", "A cluster", 4)
    assert not site.owns(evidence())
    assert site.owns(evidence(in_jobs=True))
    assert not Place("", "A processor, 2 cores", 2).owns(evidence(in_jobs=True))
    assert Place("", "Example Booster", 4).owns(evidence())


def test_sizes_are_whole_nodes_of_a_site_and_all_of_this_machine() -> None:
    assert Place("mine", "A cluster", 4).sizes(64) == [4, 8, 16, 32, 64]
    assert Place("mine", "A cluster", 4).sizes(None)[-1] == 1024
    assert Place("", "A processor", 6).sizes(None) == [1, 2, 4]


@pytest.mark.slow
def test_own_records_are_evidence_of_their_machine_alone(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    planted(make_run, "single", 1)
    for workers in (1, 2, 4):
        planted(make_run, "ddp", workers)
    make_run(14.0, strategy="ddp", gpus_per_node=2)
    make_run(rows=[], strategy="deepspeed", gpus_per_node=2)
    make_run(strategy="fsdp", gpus_per_node=2)  # how it communicates is not modelled
    of = {"dataset": "sample", "images": 320, "epochs": 5}
    found = asked(tree, HERE, deadline=10.0, **of)
    assert {one.evidence.machine for one in found.candidates} == {HERE.description}
    assert {one.ranks for one in found.candidates} == {1, 2}
    assert [one.ranks for one in found.front] == [2], "one node either way: the faster is cheaper"
    assert "records of results/runs/laptop: " in told.text(found)
    assert "96 px, batch 16, fp32" in told.text(found)
    assert "left out  records of laptop, deepspeed, native: " in told.text(found)
    assert "laptop, fsdp, native: strategy='fsdp'" in told.text(found)
    with pytest.raises(DataError, match=r"no evidence of resnet50 on sample on this machine \(B"):
        asked(tree, Place("", "B", 2), deadline=10.0, **of)


@pytest.mark.slow
def test_what_others_have_published_is_evidence_by_the_name_of_the_machine(tree: Tree) -> None:  # noqa: F811
    place = Place("mahti", "Mahti, 4 A100 a node", 4)
    found = asked(tree, place, deadline=40.0, as_if=PUBLISHED)
    assert {one.evidence.machine for one in found.candidates} == {PUBLISHED}
    assert {one.evidence.loader for one in found.candidates} >= {"dali, amp", "dali, tf32"}
    assert "data/published: " in told.text(found)
    by_source = {f"data/published: {one.name}": one for one in published_case.read_series()}
    for one in found.candidates:
        series = by_source[one.evidence.rests_on[0]]
        if one.ranks in series.ranks:
            rate = 90 * 1_281_167 / (3600 * one.deadline.value)
            stated = series.throughput[series.ranks == one.ranks][0]
            assert rate == pytest.approx(stated, rel=0.1)
    own = asked(tree, deadline=2.0).candidates
    assert PUBLISHED not in {one.evidence.machine for one in own}
    with pytest.raises(DataError, match=f"there is some of .*'{PUBLISHED}'"):
        asked(tree, Place("x", "another", 4), deadline=1.0)


def test_without_evidence_it_says_what_to_run(tree: Tree) -> None:  # noqa: F811
    with pytest.raises(DataError, match=r"nor elsewhere\. Measure some .*`ddl study run FILE`"):
        asked(tree, HERE, deadline=1.0, dataset="sample", images=10)
    with pytest.raises(DataError, match="ddl study submit FILE --site juwels_booster"):
        advise(Question(JUWELS, "resnet18", Limits(deadline=1.0)), tree)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "remedy"), [("energy", "energy is counted"), ("accuracy", "train")]
)
def test_a_limit_of_which_nothing_is_known_cannot_be_judged(
    tree: Tree,  # noqa: F811
    limit: str,
    remedy: str,
) -> None:
    with pytest.raises(DataError, match=f"no evidence of {limit}.*{remedy}"):
        asked(tree, epochs=30, **{limit: 5.0})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "no limit"),
        ({"deadline": 1.0, "images": 0}, "images=0 has to be above 0"),
        ({"deadline": 1.0, "epochs": 0}, "epochs=0 has to be above 0"),
        ({"deadline": 1.0, "most_gpus": -4}, "most_gpus=-4 has to be above 0"),
        ({"deadline": 1.0, "dataset": "mine"}, "dataset='mine': how many images"),
    ],
)
def test_absurd_questions_are_refused(
    tree: Tree,  # noqa: F811
    changes: dict[str, Any],
    words: str,
) -> None:
    with pytest.raises(SpecError, match=words):
        asked(tree, **changes)


@pytest.mark.parametrize("changes", [{"images": 200}, {"most_gpus": 3}])
def test_no_candidate_at_all_is_told(tree: Tree, changes: dict[str, Any]) -> None:  # noqa: F811
    with pytest.raises(DataError, match="nothing to choose from"):
        asked(tree, deadline=1.0, **changes)


def test_beyond_what_was_measured_it_says_how_far(tree: Tree) -> None:  # noqa: F811
    found = asked(tree, Place("juwels_booster", "JUWELS Booster", 4096), node_hours=1000.0,
                  most_gpus=4096)  # fmt: skip
    assert found.advised.ranks == 4096
    assert "4096 is extrapolated 4 times" in told.text(found)
    assert told.table(found).splitlines()[1].endswith("  4")


def test_the_answer_names_its_evidence_and_what_it_leaves_out(tree: Tree) -> None:  # noqa: F811
    text = told.text(asked(tree, deadline=1.0, accuracy=75.0))
    for words in ("Table 2", "E02", "R03 for the time", "A01", "the native loader", "next run"):
        assert words in text


def agree(table: Table, stored: list[Row]) -> None:
    assert len(table) == len(stored) > 30
    for row, line in zip(table, stored, strict=True):
        assert list(row) == list(line)
        for column, value in row.items():
            if isinstance(value, float):
                assert float(line[column]) == pytest.approx(value, rel=1e-3), line
            else:
                assert line[column] == str(value), line


def test_the_example_and_the_bands_are_committed() -> None:
    """`python -m ddl_core.scaling.advice.committed` writes them from admitted.csv."""
    agree(example(), read_rows(SCALING / "advice.csv"))
    bands = [row for row in read_rows(SCALING / "bands.csv") if row["series"].startswith("resnet")]
    agree([row for model in MODELS for row in stated_bands(model)], bands)


@pytest.mark.slow
def test_the_bands_of_the_laptop_are_committed() -> None:
    made, stored = own_bands(), read_rows(SCALING / "bands.csv")
    found = [row for row in stored if row["series"] == made[0]["series"]]
    for row, line in zip(made, found, strict=True):
        if row["source"] == "measured" or row["world_size"] in (1, 2):
            assert float(line["value"]) == pytest.approx(float(str(row["value"])), rel=0.05)


def test_every_fit_is_committed_with_its_best_set_first() -> None:
    rows = read_rows(SCALING / "admitted.csv")
    names = {f"{model}, {loader}" for model in MODELS for loader in paper.loaders(model)}
    assert {row["series"] for row in rows} == names
    assert paper.loaders("resnet50") == ["dali_cpu", "dali_gpu", "native"]
    assert paper.loaders("resnet101") == ["dali_cpu", "native"]


@pytest.mark.slow
def test_a_committed_fit_is_what_the_code_makes() -> None:
    """`python -m ddl_core.scaling.advice.committed` writes them."""
    rows = admitted("resnet50", "dali_gpu")
    stored = [
        row for row in read_rows(SCALING / "admitted.csv") if row["series"] == rows[0]["series"]
    ]
    assert len(rows) == len(stored)
    for name in ("jitter", "stall", "bandwidth", "epoch_s"):
        assert float(stored[0][name]) == pytest.approx(float(str(rows[0][name])), rel=0.05)


def of(model: str, loader: str) -> list[paper.Stated]:
    return paper.stated(paper.series_of(model, loader), loader)


def test_what_is_stated_is_taken_once_and_where_it_belongs() -> None:
    cpu = of("resnet50", "dali_cpu")
    assert [one.statement for one in cpu if one.ranks == 1024] == [
        "Table 2", "E01", "E02", "E10", "R04",
    ]  # fmt: skip
    runtime = next(one for one in cpu if one.statement == "R04")
    assert runtime.value == pytest.approx(0.914, abs=1e-3)  # D04 of data/paper/derived.csv
    gpu = {one.statement for one in of("resnet50", "dali_gpu")}
    assert gpu == {"Table 2", "E01", "E03"}
    native = of("resnet50", "native")
    assert {one.strategy for one in native} == {"ddp", "horovod", "deepspeed"}
    assert "E13" not in {one.statement for one in native}, "it names no network"
    copied = of("resnet101", "dali_cpu")
    assert max(one.ranks for one in copied if one.statement == "Table 2") == 512


def test_the_native_loader_has_efficiencies_and_no_time() -> None:
    assert {one.loader for one in paper.arms("resnet50")} == {"dali_cpu", "dali_gpu", "native"}
    assert {one.loader for one in paper.evidence("resnet50")} == {"dali_cpu", "dali_gpu"}
    assert paper.throughputs(paper.series_of("resnet50", "native"), "native") == []
    rates = paper.throughputs(paper.series_of("resnet152", "dali_cpu"), "dali_cpu")
    assert rates == [(4, pytest.approx(1884.07)), (1024, pytest.approx(384350))]  # D22, D23
