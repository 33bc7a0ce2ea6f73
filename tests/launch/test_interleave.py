"""Interleaved runs: real ranks, frozen and let go."""

import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import Interrupted
from ddl_tools.launch import interleave
from ddl_tools.launch.interleave import MemoryNeed
from ddl_tools.launch.study import run_study
from ddl_tools.rank.interleave import SlotClient
from ddl_tools.records.ledger import INTERRUPTED, ledger
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import Slot, read_epochs
from ddl_tools.records.storage import write_atomically
from ddl_tools.study import Study
from tests.launch.running import TINY, processes_of, rank_of, wait_for

EPOCHS = 4  # the first one is cold


def study(repeats: int = 1, **base: Any) -> Study:
    fields = {**TINY, "epochs": EPOCHS, "eval_every": EPOCHS, **base}
    for name in ("classes", "strategy"):
        fields.pop(name, None)
    return Study(
        name="turns",
        question="?",
        base=fields,
        axes=[{"classes": [3, 4, 5]}],
        repeats=repeats,
        interleave={"reference": {"classes": 4}},
    )


def windows(small: Study) -> dict[int, list[Slot | None]]:
    """Return the turns of each run's training epochs, by classes and repeat."""
    return {
        item.spec.classes + 100 * item.spec.repeat: [
            row.interleave for row in read_epochs(item.directory) if row.phase == "train"
        ]
        for item in ledger(small, results())
    }


@pytest.mark.multiprocess
def test_each_round_has_a_window_of_each_run_while_the_others_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states: dict[bool, list[str]] = {True: [], False: []}  # of the run that measures, and others
    release = interleave.InterleavedJob.release

    def look(job: interleave.InterleavedJob, slot: Slot | None) -> None:
        release(job, slot)
        for item in entries if slot else ():
            own = item.directory == job.local.run_dir
            states[own] += [one.status() for one in processes_of(item.directory) if _is_rank(one)]

    monkeypatch.setattr(interleave.InterleavedJob, "release", look)
    small = study()
    entries = ledger(small, results())
    entries = run_study(small, results(), progress=False)
    assert [item.state for item in entries] == ["completed"] * 3
    assert len(states[False]) >= 2 * 3 * (EPOCHS - 1)
    assert set(states[False]) == {psutil.STATUS_STOPPED}
    assert psutil.STATUS_STOPPED not in states[True]

    found = windows(small)
    order: dict[int, dict[int, int]] = defaultdict(dict)
    for classes, (cold, *warm) in found.items():
        assert cold is None
        assert len(warm) == EPOCHS - 1
        for slot in warm:
            assert slot is not None
            order[slot.round][slot.place] = classes
    assert sorted(order) == [*range(EPOCHS - 1)]
    assert all(sorted(places) == [0, 1, 2] for places in order.values())
    assert all(set(places.values()) == {3, 4, 5} for places in order.values())
    given = [slot for warm in found.values() for slot in warm if slot]
    assert len({slot.block for slot in given}) == 1
    assert {slot.reference for slot in given} == {entries[1].spec.run_id}
    evaluated = [row for item in entries for row in read_epochs(item.directory)]
    assert {row.interleave for row in evaluated if row.phase == "eval"} == {None}


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all runs of a block but the first get ready at the same time."""
    monkeypatch.setattr(interleave.limits, "cores", lambda: 64.0)


def test_runs_get_ready_together_as_far_as_the_cores_reach() -> None:
    one, two = RunSpec(), RunSpec(strategy="ddp", gpus_per_node=2)
    assert interleave.group_sizes([one] * 3, cores=2) == [1, 1, 1]
    assert interleave.group_sizes([two] * 6, cores=8) == [1, 2, 2, 1]
    assert interleave.group_sizes([two, one, one, two, two], cores=8) == [1, 3, 1]
    assert interleave.group_sizes([two] * 3, cores=1) == [1, 1, 1]
    assert interleave.group_sizes([], cores=8) == []


Look = Callable[[interleave.InterleavedJob, Slot | None], None]


@pytest.fixture
def on_release(monkeypatch: pytest.MonkeyPatch) -> Callable[[Look], None]:
    """Return how to call a function each time before a run may go on."""
    release = interleave.InterleavedJob.release

    def install(look: Look) -> None:
        def both(job: interleave.InterleavedJob, slot: Slot | None) -> None:
            look(job, slot)
            release(job, slot)

        monkeypatch.setattr(interleave.InterleavedJob, "release", both)

    return install


@pytest.mark.multiprocess
@pytest.mark.usefixtures("many_cores")
def test_runs_get_ready_together_and_train_their_cold_epochs_in_turn(
    on_release: Callable[[Look], None],
) -> None:
    small = study()
    entries = ledger(small, results())
    ready: list[tuple[int, dict[int, int]]] = []  # with each cold epoch: the epochs of all

    def look(job: interleave.InterleavedJob, slot: Slot | None) -> None:
        own = processes_of(job.local.run_dir)
        alive = [item for item in entries if processes_of(item.directory)]
        ranks = [one for item in alive for one in processes_of(item.directory) if _is_rank(one)]
        assert own
        assert {one.status() for one in ranks} == {psutil.STATUS_STOPPED}
        if not slot and not read_epochs(job.local.run_dir):
            epochs = {item.spec.classes: len(read_epochs(item.directory)) for item in alive}
            ready.append((job.entry.spec.classes, epochs))

    on_release(look)
    entries = run_study(small, results(), progress=False)
    assert [item.state for item in entries] == ["completed"] * 3
    assert ready == [(4, {4: 0}), (3, {3: 0, 4: 1, 5: 0}), (5, {3: 1, 4: 1, 5: 0})]
    assert all(slots[0] is None and None not in slots[1:] for slots in windows(small).values())


@pytest.mark.multiprocess
@pytest.mark.extended
@pytest.mark.usefixtures("many_cores")
def test_a_run_that_is_killed_as_it_gets_ready_fails_alone(
    on_release: Callable[[Look], None],
) -> None:
    small = study()
    doomed = ledger(small, results())[0].directory

    def kill(job: interleave.InterleavedJob, slot: Slot | None) -> None:
        for process in processes_of(doomed) if job.local.run_dir == doomed else ():
            if _is_rank(process):
                with suppress(psutil.NoSuchProcess):  # it went with another one
                    process.kill()

    on_release(kill)
    entries = run_study(small, results(), progress=False)
    assert [item.state for item in entries] == ["failed", "completed", "completed"]
    assert entries[0].category == "killed"


def assert_two_blocks_with_the_reference(small: Study) -> None:
    """Check that the last run has a block of its own, with a further start of the reference."""
    found = windows(small)
    blocks = {key: {slot.block for slot in found[key] if slot} for key in found}
    assert blocks[3] == blocks[4]
    assert blocks[5] == blocks[104]
    assert blocks[3] != blocks[5]


@pytest.mark.multiprocess
@pytest.mark.extended
@pytest.mark.usefixtures("many_cores")
def test_a_run_that_is_ready_and_finds_no_memory_starts_in_a_later_block(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Together they seem to fit; what the first of them takes says that they do not.
    monkeypatch.setattr(MemoryNeed, "fits", lambda memory, specs, held=0: not held)
    small = study()
    entries = run_study(small, results())
    assert "no memory for more than 2 runs at once" in capsys.readouterr().err
    assert [item.state for item in entries] == ["completed"] * 4
    assert_two_blocks_with_the_reference(small)


@pytest.mark.multiprocess
@pytest.mark.extended
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("many_cores")
def test_an_interrupt_while_runs_get_ready_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    small = study()
    folders = [item.directory for item in ledger(small, results())]
    receive = interleave.SlotServer.receive

    def interrupted(
        server: interleave.SlotServer, jobs: dict[str, interleave.InterleavedJob]
    ) -> None:
        if len(jobs) == len(folders) and all(map(processes_of, folders)):
            raise KeyboardInterrupt
        receive(server, jobs)

    monkeypatch.setattr(interleave.SlotServer, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study(small, results(), progress=False)
    wait_for(lambda: not any(map(processes_of, folders)), "all ranks to end")
    assert {item.state for item in ledger(small, results())} == {"interrupted"}


@pytest.mark.multiprocess
@pytest.mark.extended
def test_a_killed_run_fails_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    release, killed = interleave.InterleavedJob.release, []

    def kill(job: interleave.InterleavedJob, slot: Slot | None) -> None:
        if slot and slot.round == 1 and job.entry.spec.classes == 3:
            killed.extend(one for one in processes_of(job.local.run_dir) if _is_rank(one))
            for process in killed:
                with suppress(psutil.NoSuchProcess):  # it went with another one
                    process.kill()
        release(job, slot)

    monkeypatch.setattr(interleave.InterleavedJob, "release", kill)
    entries = run_study(study(), results(), progress=False)
    assert [item.state for item in entries] == ["failed", "completed", "completed"]
    assert killed
    assert entries[0].category == "killed"
    monkeypatch.setattr(interleave.InterleavedJob, "release", release)
    again = run_study(study(), results(), progress=False, retry_failed=True)
    # It is compared with a run of the reference beside it, and not with one long ago.
    assert [item.state for item in again] == ["completed"] * 4
    assert again[3].spec == again[1].spec.model_copy(update={"repeat": 1})
    found = windows(study())
    assert [slot.block for slot in found[3][1:]] == [slot.block for slot in found[104][1:]]  # type: ignore[union-attr]


def _is_rank(process: psutil.Process) -> bool:
    return rank_of(process) is not None


@pytest.mark.multiprocess
@pytest.mark.extended
def test_runs_that_find_no_memory_form_blocks_each_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MemoryNeed, "fits", lambda memory, specs, held=0: False)
    small = study()
    entries = run_study(small, results())
    assert "no memory for more than 2 runs at once: this machine: " in capsys.readouterr().err
    assert [item.state for item in entries] == ["completed"] * 4
    assert_two_blocks_with_the_reference(small)
    before = [RunFiles(item.directory).record.read_bytes() for item in entries]
    again = run_study(small, results(), progress=False)
    assert [RunFiles(item.directory).record.read_bytes() for item in again] == before


@pytest.mark.multiprocess
@pytest.mark.timeout(600)  # a start for each run, on a machine that other tests keep busy
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.extended)]
)
def test_a_study_that_is_ended_leaves_nothing_and_goes_on(number: signal.Signals) -> None:
    small = study(train_images=64, epochs=40)
    path = results().root / "turns.yaml"
    write_atomically(path, small.model_dump_json())
    command = [sys.executable, "-m", "ddl_tools.cli", "study", "run", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        folders = [item.directory for item in ledger(small, results())]
        try:
            wait_for(lambda: all(map(_has_window, folders)), "a window of each run", 240)
        finally:
            process.send_signal(number)
        said = process.stderr.read() if process.stderr else ""
    wait_for(lambda: not any(map(processes_of, folders)), "all ranks to end")
    # A kernel that has lost its study holds its run a moment longer.
    wait_for(
        lambda: {item.state for item in ledger(small, results())} == {"interrupted"},
        f"all runs to be free:\n{said}",
    )
    if number == signal.SIGINT:
        assert "go on with: ddl study run" in said
        assert process.returncode != 0


def _has_window(directory: Path) -> bool:
    return any(row.interleave for row in read_epochs(directory))


GIB = 1024**3
RUN = [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]  # stands in for its processes


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine of made-up memory: free here and on GPUs, and held by a run; in GiB."""
    state: dict[str, Any] = {"free": 20, "held": 4, "gpus": [], "held_on_gpus": None}

    def scaled(name: str) -> Any:
        return state[name] and [one * GIB for one in state[name]]

    monkeypatch.setattr(interleave.limits, "free_memory_bytes", lambda: state["free"] * GIB)
    monkeypatch.setattr(interleave.processes, "memory_bytes", lambda of: state["held"] * GIB)
    monkeypatch.setattr(interleave.gpus, "free_bytes", lambda: scaled("gpus"))
    monkeypatch.setattr(interleave.gpus, "bytes_of", lambda pids: scaled("held_on_gpus"))
    return state


TWO, SIX = (RunSpec(strategy="ddp", gpus_per_node=count) for count in (2, 6))


def test_memory_is_what_the_largest_run_holds(machine: dict[str, Any]) -> None:
    memory = MemoryNeed()
    assert memory.fits([SIX])  # nothing is known yet
    memory.learn(TWO, RUN)  # 2 GiB a rank
    machine |= {"held": 3, "free": 15}
    memory.learn(TWO, RUN)
    assert memory.fits([TWO])
    assert memory.fits([TWO, TWO])
    assert not memory.fits([SIX])
    assert not memory.fits([TWO] * 3)
    assert memory.fits([SIX], held=GIB)
    assert str(memory) == "this machine: 15.0 GiB free, 2.0 GiB for each rank"


def test_memory_that_others_take_meanwhile_is_no_need_of_a_run(machine: dict[str, Any]) -> None:
    memory = MemoryNeed()
    machine["free"] = 8  # another program has started, and will end again
    memory.learn(TWO, RUN)
    assert not memory.fits([SIX])
    machine["free"] = 20
    assert memory.fits([SIX])
    assert str(memory) == "this machine: 20.0 GiB free, 2.0 GiB for each rank"


def test_a_run_that_has_ended_teaches_nothing(machine: dict[str, Any]) -> None:
    memory = MemoryNeed()
    machine["free"] = 3
    memory.learn(TWO, [])
    assert memory.fits([SIX])
    assert str(memory) == ""


@pytest.mark.parametrize(
    ("told", "need"),
    [([6, 0], "GPU 0: 60.0 GiB free, 3.0 GiB"), (None, "GPU 0: 60.0 GiB free, 10.0 GiB")],
    ids=["told by the driver", "not told"],
)
def test_memory_of_gpus_is_the_driver_s_word_or_what_is_missing(
    machine: dict[str, Any], told: list[int] | None, need: str
) -> None:
    machine |= {"gpus": [80, 80], "held_on_gpus": told}
    memory = MemoryNeed()
    machine["gpus"] = [60, 80]
    memory.learn(TWO, RUN)
    here = "this machine: 20.0 GiB free, 2.0 GiB for each rank"
    assert str(memory) == f"{here}; {need} for each rank"
    machine["gpus"] = [6, 80]
    assert not memory.fits([TWO])


def test_a_rank_whose_study_is_gone_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
        server.listen()
        monkeypatch.setenv("DDL_INTERLEAVED", str(tmp_path / "server"))
        asking = SlotClient(tmp_path, 0)
        server.accept()[0].close()
        with pytest.raises(Interrupted, match="has ended") as caught:
            asking.wait()
    assert type(caught.value).__name__ == INTERRUPTED  # what the record will tell as its kind
