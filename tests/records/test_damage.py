"""What is damaged is found and named, whatever was done to it; what is whole is left alone."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_tools.records import damage
from ddl_tools.records.damage import REMEDY, checked, examine, verify
from ddl_tools.records.ledger import entry
from ddl_tools.records.paths import RunFiles, committed, results
from ddl_tools.records.profiling import ProfileRecord, write_profile
from ddl_tools.records.run import (
    EMULATION,
    Attempt,
    RunRecord,
    append_epoch,
    parse_record,
    read_record,
    write_record,
)
from tests.analysis.emulated import facts
from tests.fields import EMULATED
from tests.launch.running import finish, line, planned

FACTS = facts(RunSpec(**EMULATED))

EPOCHS = 3


def put(content: Any, part: str, name: str, value: Any) -> None:
    """Set a fact of a record."""
    content[part] = {**(content[part] or {}), name: value}


@pytest.fixture
def run_dir() -> Path:
    directory = planned(epochs=EPOCHS)
    finish(directory)
    return directory


def empty_profile(run_dir: Path) -> ProfileRecord:
    return ProfileRecord(
        run_id=run_dir.name,
        device="cpu",
        epoch=1,
        first_step=1,
        steps=2,
        overlapped_missing=None,
        ranks=[],
    )


def lines(change: Callable[[list[str]], list[str]]) -> Callable[[RunFiles], None]:
    def apply(files: RunFiles) -> None:
        files.epochs.write_text("".join(change(files.epochs.read_text().splitlines(True))))

    return apply


def number(old: str, new: str) -> Callable[[RunFiles], None]:
    """Replace a number in the third line: the training of epoch 1."""
    return lines(lambda all_: [*all_[:2], all_[2].replace(old, new), *all_[3:]])


def record(change: Callable[[Any], Any]) -> Callable[[RunFiles], None]:
    def apply(files: RunFiles) -> None:
        content = json.loads(files.record.read_text())
        change(content)
        files.record.write_text(json.dumps(content))

    return apply


DAMAGES: dict[str, tuple[Callable[[RunFiles], Any], str]] = {
    "record gone": (lambda files: files.record.unlink(), "cannot read run.json: No such file"),
    "record cut": (
        lambda files: files.record.write_text(files.record.read_text()[:100]),
        "run.json is not valid JSON",
    ),
    "record no text": (lambda files: files.record.write_bytes(b"\xff\xfe"), "is not UTF-8 text"),
    "record nested": (lambda files: files.record.write_text("[" * 10**6), "is not valid JSON"),
    "record a list": (lambda files: files.record.write_text("[]"), "holds list, not an object"),
    "spec changed": (
        record(lambda content: content["spec"].update(base_lr=9.0)),
        "its spec is not that of its run_id, but of single-",
    ),
    "of another study": (
        record(lambda content: content.update(study="x")),
        "a copied run would count twice",
    ),
    "world size": (record(lambda content: content.update(world_size=64)), "world_size = 64"),
    "unknown field": (record(lambda content: content.update(colour=1)), "colour"),
    "other version": (
        record(lambda content: content.update(schema_version=99)),
        "schema version 99",
    ),
    "lines gone": (lambda files: files.epochs.unlink(), "epochs.jsonl: is missing"),
    "line gone": (lines(lambda all_: all_[:2] + all_[3:]), "lacks train of epoch 1"),
    "all lines gone": (lines(lambda _: []), "eval of epoch 1, train of epoch 2 and 1 more"),
    "last line gone": (lines(lambda all_: all_[:-1]), "lacks eval of epoch 2"),
    "line doubled": (lines(lambda all_: [*all_, all_[2]]), "holds more than once train of epoch 1"),
    "line cut": (
        lines(lambda all_: [*all_[:2], all_[2][:40] + "\n", *all_[3:]]),
        "epochs.jsonl, line 3",
    ),
    "last line cut": (lines(lambda all_: [*all_[:-1], all_[-1][:40]]), "its last line is cut"),
    "NaN": (number('"wall_s":2.0', '"wall_s":NaN'), "line 3: wall_s = nan: Input should be a fini"),
    "no time": (number('"wall_s":2.0', '"wall_s":0.0'), "line 3: wall_s = 0.0: Input should be gr"),
    "first more than five": (
        lines(lambda all_: [one.replace('"top1":0.25', '"top1":0.75') for one in all_]),
        "top1 = 0.75 is more than top5 = 0.5",
    ),
    "time changed": (number('"wall_s":2.0', '"wall_s":1.0'), "but samples / wall_s = 32"),
    "broken images": (number('"corrupt_images":0', '"corrupt_images":33'), "corrupt_images = 33"),
    "unknown attempt": (number('"attempt":0', '"attempt":7'), "attempt = 7, but the record has 1"),
    "epoch too many": (number('"epoch":1', '"epoch":9'), "epoch = 9, but the run has 3"),
    "profile": (lambda files: files.profile.write_text("{"), "profile.json is not valid JSON"),
    **{
        f"{part}.{fact} {kind}": (
            record(partial(put, part=part, name=fact, value=value)),
            f"{part}.{fact}",
        )
        for part, fact, kind, value in (
            ("system", "network", "network", [1]),
            ("system", "cpu_cores", "cores", "many"),
            ("system", "load_average_1min", "load", "high"),
            ("system", "memory_bytes", "memory", "x"),
            ("system", "affinity", "affinity", {}),
            ("system", "environment", "variables", [1]),
            ("system", "settings", "settings", 3),
            ("system", "cpu", "processor", {"a": 1}),
            ("system", "accelerator", "accelerator", ["x"]),
            ("system", "accelerator", "long", "x" * 100_000),
            ("provenance", "packages", "packages", [1]),
            ("provenance", "git_commit", "commit", 5),
        )
    },
    "surrogate": (record(lambda content: content.update(job_id="\ud800")), "is not valid JSON"),
    "samples": (number('"samples":32', '"samples":' + "1" * 31), "line 3: samples = 1111"),
    "no number": (number('"samples":32', '"samples":' + "1" * 400), "line 3: samples = 1111"),
    "epoch without end": (number('"epoch":1', '"epoch":1000000000000'), "line 3: epoch = 10000000"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_is_named_with_its_file(name: str, run_dir: Path) -> None:
    files = RunFiles(run_dir)
    whole = planned(repeat=1)
    finish(whole)
    damage, words = DAMAGES[name]
    damage(files)
    left = {path: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    found, other = sorted(verify(results(), "test"), key=lambda one: one.directory == whole)
    assert words in found.damages[0]
    assert found.rows == []
    for text in found.lines():
        assert text.startswith(f"{run_dir}/")
        assert text.endswith(f"; {REMEDY}")
        assert "\n" not in text
    assert other.damages == []
    assert {path: path.read_bytes() for path in left} == left


def test_an_error_that_nobody_expects_is_a_damage(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(path: Path, content: dict[str, Any]) -> RunRecord:
        if run_dir in path.parents:
            raise ZeroDivisionError("by nothing")
        return parse_record(path, content)

    whole = planned(repeat=1)
    finish(whole)
    (item,) = checked([entry(read_record(run_dir).spec, run_dir)])
    assert item.state == "completed"
    monkeypatch.setattr(damage, "parse_record", parse)
    found = {one.directory: one.damages for one in verify(results(), "test")}
    text = "run.json: cannot be used: ZeroDivisionError: by nothing"
    assert found == {run_dir: [text], whole: []}
    (item,) = checked([item])
    assert item.state == "damaged"


def test_a_run_of_a_million_epochs_is_examined_at_once() -> None:
    directory = planned(epochs=10**6)
    write_record(directory, read_record(directory).model_copy(update={"status": "completed"}))
    RunFiles(directory).epochs.touch()
    began = time.process_time()
    (text,) = examine(directory).damages
    assert "lacks train of epoch 0, eval of epoch 0" in text
    assert time.process_time() - began < 10


def test_a_whole_run_is_found_whole(run_dir: Path) -> None:
    found = examine(run_dir)
    assert found.damages == []
    assert len(found.rows) == 2 * EPOCHS
    assert found.record == read_record(run_dir)


def test_published_records_are_whole() -> None:
    for study in committed().studies():
        assert [text for run in verify(committed(), study) for text in run.lines()] == []


def test_a_diverged_loss_is_no_damage(run_dir: Path) -> None:
    number('"loss":1.5', '"loss":NaN')(RunFiles(run_dir))
    assert examine(run_dir).damages == []


def test_an_epoch_that_was_made_again_is_no_damage(run_dir: Path) -> None:
    first = read_record(run_dir)
    again = [*first.attempts, Attempt(started_utc=first.created_utc, status="completed")]
    write_record(run_dir, first.model_copy(update={"attempts": again}))
    append_epoch(run_dir, line(2, attempt=1, loss=1.25))
    found = examine(run_dir)
    assert found.damages == []
    assert found.rows[-2].loss == 1.25


@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_run_that_was_killed_in_a_line_is_no_damage(status: str, run_dir: Path) -> None:
    """What it wrote is there up to a point, and the next attempt cuts the line off."""
    write_record(run_dir, read_record(run_dir).model_copy(update={"status": status}))
    epochs = RunFiles(run_dir).epochs
    kept = epochs.read_text().splitlines(True)[:3]
    epochs.write_text("".join(kept) + kept[2][:40])
    assert examine(run_dir).damages == []
    epochs.write_text("".join(kept[1:]))
    assert examine(run_dir).damages == ["epochs.jsonl: lacks train of epoch 0"]


def test_a_profile_that_is_gone_or_of_another_run() -> None:
    directory = planned(epochs=2, profile_steps=2)
    finish(directory)
    missing = "profile.json: is missing, but the run is completed and was profiled"
    assert examine(directory).damages == [missing]
    profile = empty_profile(directory)
    write_profile(directory, profile.model_copy(update={"run_id": "another"}))
    assert examine(directory).damages == ["profile.json: it is of run another"]
    write_profile(directory, profile)
    assert examine(directory).damages == []


def test_a_ledger_does_not_take_a_damaged_run_for_complete(run_dir: Path) -> None:
    items = [entry(read_record(one).spec, one) for one in (run_dir, planned(repeat=1))]
    assert [item.state for item in checked(items)] == ["completed", "planned"]
    RunFiles(run_dir).epochs.unlink()
    damaged, other = checked(items)
    assert (damaged.state, other.state) == ("damaged", "planned")
    assert damaged.reason == f"epochs.jsonl: is missing, but the run is completed; {REMEDY}"


@pytest.mark.parametrize(
    ("emulated", "told", "said"),
    [
        (True, None, "run.json: has no system.emulation"),
        (True, {"unfaithful": []}, "system"),
        (False, FACTS, "run.json: has system.emulation, but the run was not emulated"),
        (True, FACTS, None),
    ],
)
def test_an_emulated_run_tells_of_its_emulation_and_no_other(
    emulated: bool, told: dict[str, Any] | None, said: str | None
) -> None:
    directory = planned(**(EMULATED if emulated else {}), repeat=9)
    finish(directory, system={EMULATION: told} if told else {})
    found = examine(directory).damages
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
