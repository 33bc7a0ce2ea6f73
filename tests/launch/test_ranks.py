"""A run on this machine: whatever happens, its record says how it ended and no process is left."""

import itertools
import os
import re
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from ddl_core.errors import LaunchError, RecordError
from ddl_tools import limits
from ddl_tools.launch import local_ranks, preflight, ranks
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.records.ledger import exclusive
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.progress import WAITING
from ddl_tools.records.run import Attempt, read_epochs, read_record
from ddl_tools.records.storage import now, write_atomically
from tests.launch.fixtures import Mount, Start
from tests.launch.running import (
    CALLER,
    ENDLESS,
    change,
    error_of,
    is_training,
    planned,
    processes_of,
    rank_process,
    two_ranks,
    wait_for,
)


def test_a_folder_without_a_record_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"run\.json"):
        run_ranks(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("complete", [True, False])
def test_a_run_that_is_complete_or_at_work_is_refused_and_untouched(complete: bool) -> None:
    run_dir = planned()
    change(run_dir, status="completed" if complete else "planned")
    before = RunFiles(run_dir).record.read_bytes()
    at_work = nullcontext() if complete else exclusive(RunFiles(run_dir).lock, "test")
    words = "is complete and will not be run again|being run by another process"
    with at_work, pytest.raises(LaunchError, match=words):
        run_ranks(run_dir)
    assert RunFiles(run_dir).record.read_bytes() == before


@two_ranks
@pytest.mark.multiprocess
def test_two_ranks_complete_a_run() -> None:
    run_dir = planned(gpus_per_node=2, epochs=2)
    phases: list[str] = []
    record = run_ranks(run_dir, on_progress=lambda progress: phases.append(progress["phase"]))
    assert record.status == record.attempts[-1].status == "completed"
    assert record == read_record(run_dir)
    rows = [(row.epoch, row.phase) for row in read_epochs(run_dir)]
    assert rows == [(0, "train"), (0, "eval"), (1, "train"), (1, "eval")]
    # The launcher may look late and skip some, but sees them in order.
    life = iter(["setup", "train", "eval", "train", "eval", "done"])
    assert phases
    assert all(phase in life for phase, _ in itertools.groupby(phases))
    assert processes_of(run_dir) == []


@two_ranks
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "words", "kind", "category"),
    [
        (signal.SIGKILL, "rank 1 was killed by SIGKILL", "Killed", "killed"),
        (signal.SIGSTOP, "no progress for 10 s(.|\n)*wait for rank 1", "Timeout", "stalled"),
    ],
)
def test_a_rank_that_is_killed_or_hangs_fails_the_run(
    start: Start, number: signal.Signals, words: str, kind: str, category: str
) -> None:
    run_dir = planned(**ENDLESS, gpus_per_node=2)
    caller = start("-c", CALLER.replace("argv[1]", "argv[1], stall_timeout=10"), str(run_dir))
    wait_for(lambda: is_training(run_dir), "the first step")
    rank_process(run_dir, 1).send_signal(number)
    _, errors = caller.communicate(timeout=90)
    assert re.search(words, errors)
    error = error_of(run_dir)
    assert (error.kind, error.rank, error.category) == (kind, 1, category)
    attempt = read_record(run_dir).attempts[-1]
    assert (attempt.status, attempt.error) == ("failed", error)
    assert attempt.ended_utc is not None
    assert processes_of(run_dir) == []


@pytest.mark.multiprocess
def test_an_interrupted_caller_ends_its_ranks_and_says_so(start: Start) -> None:
    """So does one that is told to end, in other phases: `test_phases`."""
    run_dir = planned(**ENDLESS)
    caller = start("-c", CALLER, str(run_dir))
    wait_for(lambda: is_training(run_dir), "the first step")
    caller.send_signal(signal.SIGINT)
    _, errors = caller.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert processes_of(run_dir) == []
    error = error_of(run_dir)
    assert (error.kind, error.category) == ("Interrupted", "cancelled")


@pytest.mark.multiprocess
def test_a_disk_that_fills_up_fails_the_run_and_harms_no_other(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDL_RESULTS", str(mount("size=30m")))
    monkeypatch.setattr(preflight, "MIN_FREE_BYTES", 0)
    finished = planned(repeat=1)
    change(finished, status="completed")
    before = RunFiles(finished).record.read_bytes()
    run_dir = planned(model="resnet18", checkpoint_every=1)  # its checkpoint is 90 MB
    with pytest.raises(LaunchError, match="disk full"):
        run_ranks(run_dir)
    assert error_of(run_dir).category == "disk"
    assert RunFiles(finished).record.read_bytes() == before
    assert processes_of(run_dir) == []


@pytest.mark.multiprocess
def test_a_rank_that_hangs_at_its_exit_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "WORKER", "hanging_worker")
    monkeypatch.setattr(ranks, "EXIT_GRACE_S", 8.0)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    run_dir = planned()
    assert run_ranks(run_dir, stall_timeout=60).status == "completed"
    assert processes_of(run_dir) == []


def test_ranks_that_cannot_be_started_say_why_and_an_attempt_that_was_cut_off_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_ranks, "PROGRAM", "no_such_program")
    monkeypatch.delenv(local_ranks.SERVER, raising=False)
    run_dir = planned()
    change(run_dir, status="running", attempts=[Attempt(started_utc=now())])
    RunFiles(run_dir).error.write_text('{"kind": "Old", "message": "of the last attempt"}')
    with pytest.raises(LaunchError, match=r"NotStarted.*\n.*\n.*No module named no_such_program"):
        run_ranks(run_dir)
    kinds = [one.error and one.error.kind for one in read_record(run_dir).attempts]
    assert kinds == ["Interrupted", "NotStarted"]
    assert read_record(run_dir).status == "failed"


class Watched:
    """Lets `ranks.watch` look at a run whose clock is the test's, ten seconds a look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, states: dict[int, str]) -> None:
        self.looks, self.states = 0, states
        self.files = RunFiles(planned())
        self.spec = read_record(self.files.directory).spec
        monkeypatch.delenv("DDL_SETUP_TIMEOUT", raising=False)
        monkeypatch.setattr(ranks.time, "monotonic", lambda: 10.0 * self.looks)

    def ended(self, seconds: float) -> bool:
        if state := self.states.get(self.looks):
            write_atomically(self.files.progress, state)
            os.utime(self.files.progress, ns=(self.looks, self.looks))  # not the same for two
        self.looks += 1
        return self.looks > 500

    def watch(self) -> str | None:
        return ranks.watch(self.spec, self.files, None, 60, self.ended)


_STEPS = '"epochs": 1000, "step": 0, "steps": 4'
SETTING_UP = f'{{"phase": "setup", "epoch": 0, {_STEPS}, "stage": "listing the images"}}'
COMPILING = f'{{"phase": "train", "epoch": 0, {_STEPS}, "stage": "first step"}}'
STEPPING = f'{{"phase": "train", "epoch": 0, {_STEPS}, "stage": null}}'
PAUSED = f'{{"phase": "{WAITING}", "epoch": 1, {_STEPS}}}'


def test_a_set_up_longer_than_the_stall_limit_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 looks are 1000 s: of imports, of listing, and of the first batch.
    steps = {
        look: STEPPING.replace('"epoch": 0', f'"epoch": {look}') for look in range(300, 501, 5)
    }
    run = Watched(monkeypatch, {100: SETTING_UP, 200: COMPILING, **steps})
    assert run.watch() is None
    assert run.looks > 500


def test_ranks_that_have_failed_may_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, {2: SETTING_UP})
    run.files.error.write_text("{}")
    assert run.watch() is None
    assert run.looks <= ranks.EXIT_GRACE_S / 10 + 2


@pytest.mark.parametrize(
    ("states", "seconds", "words"),
    [
        ({}, 1200, r"at start\).*set DDL_SETUP_TIMEOUT"),
        ({2: SETTING_UP}, 1200, "phase setup, epoch 0, listing the images.*DDL_SETUP_TIMEOUT"),
        ({2: COMPILING}, 1200, "phase train, epoch 0, first step.*set DDL_SETUP_TIMEOUT"),
        ({2: COMPILING, 9: STEPPING}, 60, "phase train, epoch 0\\).*set DDL_STALL_TIMEOUT"),
        # A rank may be paused, while another run of its study measures, for as long as it takes.
        ({2: PAUSED, 300: STEPPING}, 60, "in phase train"),
    ],
)
def test_a_hang_ends_in_set_up_and_between_steps(
    monkeypatch: pytest.MonkeyPatch, states: dict[int, str], seconds: int, words: str
) -> None:
    run = Watched(monkeypatch, states)
    text = run.watch()
    assert text is not None
    assert re.search(words, text)
    last = max(states, default=0)
    assert seconds / 10 <= run.looks - last <= seconds / 10 + 4


def test_set_up_may_not_wait_for_a_process_that_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gloo waits for ever in its constructor if the system refuses its second thread."""
    run = Watched(monkeypatch, {2: SETTING_UP})
    monkeypatch.setattr(limits, "refused_forks", lambda: int(run.looks > 1))
    text = str(run.watch())
    assert "listing the images" in text
    assert "TIMEOUT" not in text  # a longer limit would not help
    assert run.looks < 15
