import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddl_core.errors import LaunchError, RecordError
from ddl_tools.launch import local_ranks, preflight, ranks
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.records.ledger import entry, exclusive
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.provenance import available_cores
from ddl_tools.records.run import Attempt, RunRecord, read_epochs, read_record, write_record
from ddl_tools.records.storage import now, write_atomically
from tests.launch.fixtures import Mount, Start
from tests.launch.running import ENDLESS, is_training, planned, processes_of, rank_process, wait_for

CALLER = "import sys; from ddl_tools.launch.ranks import run_ranks; run_ranks(sys.argv[1])"

two_ranks = pytest.mark.skipif(available_cores() < 2, reason="two ranks need two cores")


def test_a_folder_without_a_record_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"run\.json"):
        run_ranks(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_complete_run_is_refused_and_untouched() -> None:
    run_dir = planned()
    write_record(run_dir, read_record(run_dir).model_copy(update={"status": "completed"}))
    before = RunFiles(run_dir).record.read_bytes()
    with pytest.raises(LaunchError, match="is complete and will not be run again"):
        run_ranks(run_dir)
    assert RunFiles(run_dir).record.read_bytes() == before


def test_a_run_at_work_elsewhere_is_refused_and_untouched() -> None:
    run_dir = planned()
    before = RunFiles(run_dir).record.read_bytes()
    with (
        exclusive(RunFiles(run_dir).lock, "test"),
        pytest.raises(LaunchError, match="being run by another process"),
    ):
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
    assert [(row.epoch, row.phase) for row in read_epochs(run_dir)] == [
        (0, "train"),
        (0, "eval"),
        (1, "train"),
        (1, "eval"),
    ]
    assert phases[0] == "setup"
    assert processes_of(run_dir) == []


@two_ranks
@pytest.mark.multiprocess
def test_a_killed_rank_fails_the_run(start: Start) -> None:
    run_dir = planned(**ENDLESS, gpus_per_node=2)
    caller = start("-c", CALLER, str(run_dir))
    wait_for(lambda: is_training(run_dir), "the first step")
    rank_process(run_dir, 1).kill()
    _, errors = caller.communicate(timeout=60)
    assert "rank 1 was killed by SIGKILL" in errors
    record = read_record(run_dir)
    assert record.status == record.attempts[-1].status == "failed"
    assert record.error is not None
    assert (record.error.kind, record.error.rank) == ("Killed", 1)
    assert record.error.category == "killed"
    assert record.attempts[-1].error == record.error
    assert record.attempts[-1].ended_utc is not None
    assert processes_of(run_dir) == []


@pytest.mark.multiprocess
def test_a_raising_rank_leaves_its_own_error(tmp_path: Path) -> None:
    pixels = np.zeros((40, 40, 3), dtype=np.uint8)
    for name in ("train/a", "train/b", "val/a", "val/b"):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for number in range(8):
            Image.fromarray(pixels).save(folder / f"{number}.jpg")
    run_dir = planned(loader="native", classes=1, train_images=None, eval_images=None)
    record = read_record(run_dir).model_copy(update={"data_dir": str(tmp_path / "data")})
    write_record(run_dir, record)
    with pytest.raises(LaunchError, match="2 class folders"):
        run_ranks(run_dir)
    error = read_record(run_dir).error
    assert error is not None
    assert (error.kind, error.rank, error.category) == ("SpecError", 0, "settings")


@two_ranks
@pytest.mark.multiprocess
def test_a_hanging_rank_fails_the_run(start: Start) -> None:
    run_dir = planned(**ENDLESS, gpus_per_node=2)
    caller = start("-c", CALLER.replace("argv[1]", "argv[1], stall_timeout=20"), str(run_dir))
    wait_for(lambda: is_training(run_dir), "the first step")
    rank_process(run_dir, 1).send_signal(signal.SIGSTOP)
    _, errors = caller.communicate(timeout=90)
    assert "no progress for 20 s" in errors
    error = read_record(run_dir).error
    assert error is not None
    assert (error.kind, error.category) == ("Timeout", "stalled")
    assert processes_of(run_dir) == []


def is_starting(run_dir: Path) -> bool:
    return bool(processes_of(run_dir))


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, is_starting), (signal.SIGHUP, is_starting), (signal.SIGTERM, is_training)],
)
def test_an_interrupted_caller_ends_its_ranks_and_says_so(
    number: signal.Signals, moment: Callable[[Path], bool], start: Start
) -> None:
    run_dir = planned(**ENDLESS)
    caller = start("-c", CALLER, str(run_dir))
    wait_for(lambda: moment(run_dir), moment.__name__)
    caller.send_signal(number)
    _, errors = caller.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert processes_of(run_dir) == []
    record = read_record(run_dir)
    assert record.status == "failed"
    assert record.error is not None
    assert (record.error.kind, record.error.category) == ("Interrupted", "cancelled")


@pytest.mark.multiprocess
def test_a_killed_caller_takes_its_ranks_along(start: Start) -> None:
    run_dir = planned(**ENDLESS)
    caller = start("-c", CALLER, str(run_dir))
    wait_for(lambda: is_training(run_dir), "the first step")
    caller.kill()
    caller.communicate(timeout=60)
    wait_for(lambda: not processes_of(run_dir), "the ranks to end", seconds=40)
    assert entry(read_record(run_dir).spec, run_dir).state == "interrupted"


@pytest.mark.multiprocess
def test_a_disk_that_fills_up_fails_the_run_and_harms_no_other(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDL_RESULTS", str(mount("size=30m")))
    monkeypatch.setattr(preflight, "MIN_FREE_BYTES", 0)
    finished = planned(repeat=1)
    write_record(finished, read_record(finished).model_copy(update={"status": "completed"}))
    before = RunFiles(finished).record.read_bytes()
    run_dir = planned(checkpoint_every=1)  # a checkpoint of ResNet18 is 90 MB
    with pytest.raises(LaunchError, match="disk full"):
        run_ranks(run_dir)
    record = read_record(run_dir)
    assert record.error is not None
    assert (record.status, record.error.category) == ("failed", "disk")
    assert RunFiles(finished).record.read_bytes() == before
    assert processes_of(run_dir) == []


@pytest.mark.multiprocess
def test_a_rank_that_hangs_after_completion_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "WORKER", "hanging_worker")
    monkeypatch.setattr(ranks, "EXIT_GRACE_S", 8.0)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    run_dir = planned()
    assert run_ranks(run_dir, stall_timeout=60).status == "completed"
    assert processes_of(run_dir) == []


def test_ranks_that_cannot_be_started_say_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_ranks, "PROGRAM", "no_such_program")
    monkeypatch.delenv(local_ranks.SERVER, raising=False)
    run_dir = planned()
    with pytest.raises(LaunchError, match=r"NotStarted.*\n.*\n.*No module named no_such_program"):
        run_ranks(run_dir)
    assert read_record(run_dir).status == "failed"


def test_a_new_attempt_closes_the_one_that_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ranks, "PROGRAM", "no_such_program")
    monkeypatch.delenv(local_ranks.SERVER, raising=False)
    run_dir = planned()
    files = RunFiles(run_dir)
    left: RunRecord = read_record(run_dir)
    left.status = "running"
    left.attempts.append(Attempt(started_utc=now()))
    write_record(run_dir, left)
    files.error.write_text('{"kind": "Old", "message": "of the last attempt"}')
    with pytest.raises(LaunchError, match="NotStarted"):
        run_ranks(run_dir)
    first, second = read_record(run_dir).attempts
    assert first.error is not None
    assert first.error.kind == "Interrupted"
    assert second.error is not None
    assert second.error.kind == "NotStarted"


class Watched:
    """Lets `ranks.watch` look at a run whose clock is the test's, ten seconds a look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: dict[int, str]) -> None:
        self.looks, self.told = 0, told
        self.files = RunFiles(planned())
        self.spec = read_record(self.files.directory).spec
        monkeypatch.delenv("DDL_SETUP_TIMEOUT", raising=False)
        monkeypatch.setattr(ranks.time, "monotonic", lambda: 10.0 * self.looks)
        monkeypatch.setattr(ranks.time, "sleep", lambda seconds: None)

    def ended(self) -> bool:
        if state := self.told.get(self.looks):
            write_atomically(self.files.progress, state)
            os.utime(self.files.progress, ns=(self.looks, self.looks))  # not the same for two
        self.looks += 1
        return self.looks > 500

    def watch(self) -> str | None:
        return ranks.watch(self.spec, self.ended, self.files, None, stall_timeout=60)


SETTING_UP = '{"phase": "setup", "epoch": 0, "stage": "listing the images"}'
COMPILING = '{"phase": "train", "epoch": 0, "stage": "first step"}'
STEPPING = '{"phase": "train", "epoch": 0, "stage": null}'


def test_a_set_up_longer_than_the_stall_limit_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 looks are 1000 s: of imports, of listing, and of the first batch.
    steps = {look: STEPPING.replace("0", str(look)) for look in range(300, 501, 5)}
    run = Watched(monkeypatch, {100: SETTING_UP, 200: COMPILING, **steps})
    assert run.watch() is None
    assert run.looks > 500


@pytest.mark.parametrize(
    ("told", "seconds", "words"),
    [
        ({}, 1200, r"at start\).*set DDL_SETUP_TIMEOUT"),
        ({2: SETTING_UP}, 1200, "phase setup, epoch 0, listing the images.*DDL_SETUP_TIMEOUT"),
        ({2: COMPILING}, 1200, "phase train, epoch 0, first step.*set DDL_SETUP_TIMEOUT"),
        ({2: COMPILING, 9: STEPPING}, 60, "phase train, epoch 0\\).*set DDL_STALL_TIMEOUT"),
    ],
)
def test_a_hang_ends_in_set_up_and_between_steps(
    monkeypatch: pytest.MonkeyPatch, told: dict[int, str], seconds: int, words: str
) -> None:
    run = Watched(monkeypatch, told)
    text = run.watch()
    assert text is not None
    assert re.search(words, text)
    last = max(told, default=0)
    assert seconds / 10 <= run.looks - last <= seconds / 10 + 4
