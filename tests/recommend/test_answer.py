"""What a search says of its limit and of its time, without any run."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import STOPPED, LaunchError, SpecError
from ddl_tools.analysis import estimates
from ddl_tools.recommend.answer import (
    COMMUNICATION,
    COMPUTE,
    LOADER,
    WAITING,
    Answer,
    write_study_file,
)
from ddl_tools.recommend.candidates import Request, difference, space
from ddl_tools.recommend.search import Search, study_of
from ddl_tools.records.paths import Tree, results
from ddl_tools.study import Study
from tests.launch.running import ddl
from tests.pictures import write_pictures


def limit_of(
    loading: float, training: float, shares: dict[str, float], device: str = "cpu"
) -> tuple[str, str]:
    """Return limit and advice of a leader, from the ratios of its halves to it."""
    ratios = {"loading": [loading] * 3, "training": [training] * 3}
    known = SimpleNamespace(
        search=SimpleNamespace(halves=lambda spec: ratios),
        leader=RunSpec(device=device),
        shares=lambda: shares or None,
        _ratio=lambda one, other: estimates.middle(ratios[one]),
    )
    return Answer._limit(known)


@pytest.mark.parametrize(
    ("loading", "training", "shares", "limit", "advice"),
    [
        (1.0, 2.0, {LOADER: 0.1, COMPUTE: 0.9}, "loader, without it up to 2.00", "smaller stored"),
        (9.0, 1.0, {LOADER: 0.1, COMMUNICATION: 0.5}, "communication, without it",
         "a larger --batch"),
        (9.0, 1.0, {WAITING: 0.3, COMMUNICATION: 0.1}, "waiting, without it", "ranks that are"),
        (9.0, 1.02, {LOADER: 0.01, WAITING: 0.05, COMPUTE: 0.94}, "compute; time: ", "a GPU: "),
        (9.0, 1.02, {}, "compute; time: this strategy hides its parts", "a GPU: "),
    ],
)  # fmt: skip
def test_the_limit_is_the_part_whose_removal_promises_most(
    loading: float, training: float, shares: dict[str, float], limit: str, advice: str
) -> None:
    found_limit, found_advice = limit_of(loading, training, shares)
    assert found_limit.startswith(limit)
    assert f"training alone {training:.3g} [" in found_limit
    assert found_advice.startswith(advice)


@pytest.mark.parametrize(("device", "both"), [("cpu", "share the cores"), ("cuda", "together")])
def test_a_loader_that_alone_is_fast_enough_is_no_limit_by_itself(device: str, both: str) -> None:
    limit, advice = limit_of(3.0, 1.5, {LOADER: 0.3, COMPUTE: 0.7}, device)
    assert limit.startswith(f"loader and training {both}, without the loader up to 1.50 times")
    assert advice.startswith("smaller stored")


def test_too_little_time_says_how_much_would_do(tmp_path: Path) -> None:
    search = Search(Request("resnet8", write_pictures(tmp_path, 64, 8), minutes=1), results())
    search._ends, search._epoch_s = time.monotonic() + 45, 10.0
    with pytest.raises(SpecError, match=r"--minutes 1 is too short to compare .*; \d would do"):
        search._next()


def test_a_long_name_of_a_network_leaves_the_name_of_its_study_valid(tmp_path: Path) -> None:
    names = [f"{'a' * 96}:{end}" for end in "bc"]
    asked = Request("resnet8", write_pictures(tmp_path, 64, 8))
    found = space(asked)
    first, second = (Search(replace(asked, model=name), results(), found) for name in names)
    study = study_of(first.name, names[0], found.single_changes(), 1)
    assert study.name == first.name != second.name


def test_a_study_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name in ("08", "1e5", "0x10", "no", "null"):
        base = {"dataset": name, "model": "a:b", "base_lr": 1e-05}
        study = Study(name="train", question=f"{name}: yes?", base=base)
        assert Study.load(write_study_file(study, Tree(tmp_path))) == study


def test_a_half_that_failed_is_named(tmp_path: Path) -> None:
    search = Search(Request("resnet8", write_pictures(tmp_path, 64, 8)), results())
    leader = search.space.baseline
    names = [difference(half, leader) for half in search.halves(leader)]
    assert names == ["loading alone", "loader synthetic"]


def test_the_start_names_the_folder_of_the_records_if_it_was_given(tmp_path: Path) -> None:
    for tree, end in ((results(), "--data D"), (Tree(tmp_path), f"--data D --results {tmp_path}")):
        search = SimpleNamespace(request=Request("resnet8", Path("D")), tree=tree)
        known = SimpleNamespace(_training_file="F", search=search)
        assert Answer._start(known, "run") == f"ddl study run F {end}"


def test_without_a_complete_start_the_failure_is_named(tmp_path: Path) -> None:
    """The time was over before another strategy could run."""
    search = Search(Request("resnet8", write_pictures(tmp_path, 64, 8), minutes=1), results())
    with pytest.raises(LaunchError, match=r"^no start was completed; allow more --minutes$"):
        Answer(search)
    search.failed[search.space.baseline] = "no attribute 'Lineer'"
    with pytest.raises(LaunchError, match=r"completed; .*DDP.*: no attribute 'Lineer'; allow more"):
        Answer(search)


def test_an_early_interrupt_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "run", lambda self: setattr(self, "stopped", True))
    data = write_pictures(tmp_path, 64, 8)
    said = ddl("recommend", "--model", "resnet8", "--data", data, "--results", results().root)
    assert said.exit_code == STOPPED
    assert "no start was completed; the same command goes on" in said.output
