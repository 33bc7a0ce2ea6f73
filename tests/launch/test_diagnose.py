"""Why the ranks of a run failed, told from logs, exit codes and the stacks of ranks that hang."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ddl_tools.launch import diagnose as module
from ddl_tools.launch.diagnose import Shortages, diagnose, launcher_log
from ddl_tools.processes import import_path
from ddl_tools.records.paths import RunFiles
from tests.launch.running import wait_for

# Recorded from srun 22.05, with more tasks than there were.
SRUN_KILLED = """\
srun: error: n2: task 3: Killed
srun: launch/slurm: _step_signal: Terminating StepId=17.0
slurmstepd-n1: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-21T14:30:30 ***
srun: error: n1: tasks 0-2: Terminated
srun: Force Terminated StepId=17.0
"""
# Written like it, not recorded.
SRUN_RAISED = """\
srun: error: n1: task 0: Exited with exit code 1
srun: Terminating StepId=17.0
srun: error: n2: tasks 1-3: Killed
"""
SRUN_STOPPED = """\
slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-21T14:30:30{} ***
srun: error: n1: tasks 0-1: Terminated
"""
ERROR = json.dumps({"rank": 0, "kind": "DataError", "message": "no data"})


def ended(first: int, second: int) -> str:
    """Return what the leader of the ranks says of two that ended at one time."""
    return f"rank 0 ended with {first}\nrank 3 ended with {second}\n"


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    launcher_log(tmp_path / "logs").parent.mkdir()
    return RunFiles(tmp_path)


@pytest.mark.parametrize(
    ("log", "error", "kind", "rank", "words"),
    [
        # The first rank to fail is believed, but a killed one makes the others fail.
        (ended(1, 1), ERROR, "DataError", 0, "no data"),
        (ended(1, -9), ERROR, "Killed", 3, "rank 3 was killed by SIGKILL"),
        (ended(1, -11), ERROR, "Killed", 3, "rank 3 was killed by SIGSEGV"),
        # An abort or a termination is a consequence.
        (ended(1, -6), ERROR, "DataError", 0, "no data"),
        (ended(1, -15), ERROR, "DataError", 0, "no data"),
        (ended(1, -9), ERROR[:20], "Killed", 3, "rank 3"),  # killed while it wrote the error
        ("rank 1 ended with 3\nrank 0 ended with 1\n", "", "Crashed", 1, "exit code 3"),
        ("No module named torch\n", "", "NotStarted", None, "No module named torch"),
        # srun ends all tasks after the first.
        (SRUN_KILLED, ERROR, "Killed", 3, "rank 3"),
        (SRUN_RAISED, ERROR, "DataError", 0, "no data"),
        *(
            (f"srun: error: n2: tasks 4,6-7: {ending}\n", "", kind, 4, f"rank 4 {words}")
            for ending, kind, words in (
                ("Exited with exit code 7", "Crashed", "ended with exit code 7"),
                ("Out Of Memory", "Killed", "was killed by SIGKILL"),
                ("Segmentation fault (core dumped)", "Killed", "was killed by SIGSEGV"),
                ("Something new", "Crashed", "ended with exit code 1"),
            )
        ),
    ],
)
def test_the_cause_is_told_from_logs_and_the_error_file(
    files: RunFiles, log: str, error: str, kind: str, rank: int | None, words: str
) -> None:
    launcher_log(files.logs).write_text(log)
    files.error.write_text(error)
    failure = diagnose(files, files.logs, 1)
    assert (failure.kind, failure.rank) == (kind, rank)
    assert words in failure.message


def test_without_its_own_words_the_exit_code_and_the_log_speak(files: RunFiles) -> None:
    launcher_log(files.logs).write_text(ended(7, 1))
    log = files.logs / "abc_x" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    failure = diagnose(files, files.logs, 1)
    assert (failure.kind, failure.rank) == ("Crashed", 0)
    assert "exit code 7" in failure.message
    assert failure.message.endswith("line 99")
    assert "line 84" not in failure.message
    assert "logs/abc_x/attempt_0/0/stderr.log" in failure.message
    assert str(files.directory) not in failure.message  # records travel, folders do not


def test_ending_well_without_a_result_is_a_failure(files: RunFiles) -> None:
    assert "without completing the record" in diagnose(files, files.logs, 0).message


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        ("", "cancelled"),
        (" DUE TO TIME LIMIT", "time_limit"),
        (" DUE TO NODE FAILURE", "node_failure"),
    ],
)
def test_ranks_that_were_only_told_to_end_have_not_failed(
    files: RunFiles, reason: str, category: str
) -> None:
    launcher_log(files.logs).write_text(SRUN_STOPPED.format(reason))
    failure = diagnose(files, files.logs, 1)
    assert (failure.kind, failure.category) == ("Interrupted", category)


@pytest.mark.parametrize(("code", "category"), [(-9, "out_of_memory"), (-11, "code")])
def test_the_memory_killer_ends_by_sigkill_only(files: RunFiles, code: int, category: str) -> None:
    launcher_log(files.logs).write_text(ended(1, code))
    assert diagnose(files, files.logs, 1, short=Shortages(oom_kills=1)).category == category
    assert diagnose(files, files.logs, 1).category != "out_of_memory"


@pytest.mark.parametrize("code", [-9, -6, 1])
def test_a_limit_of_processes_is_named_whatever_it_made_of_a_rank(
    files: RunFiles, code: int
) -> None:
    launcher_log(files.logs).write_text(ended(code, code))
    failure = diagnose(files, files.logs, 1, Shortages(refused_forks=3))
    assert failure.category == "processes"
    assert "pids.max" in failure.message


@pytest.mark.parametrize("code", [-9, 1])
def test_memory_is_blamed_only_where_it_was_short(files: RunFiles, code: int) -> None:
    launcher_log(files.logs).write_text(ended(code, 1))
    assert "memory" not in diagnose(files, files.logs, 1).message


CRASHING = """
import ctypes, sys
from ddl_tools.processes import answer_where
answer_where()
def reads_nowhere():
    ctypes.string_at(0)
reads_nowhere()
"""


def test_a_rank_that_crashes_says_where_it_was(files: RunFiles, tmp_path: Path) -> None:
    log = files.logs / "ranks" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    program = tmp_path / "rank.py"
    program.write_text(CRASHING)
    with log.open("w") as errors:
        done = subprocess.run(
            [sys.executable, program],
            env={**os.environ, "PYTHONPATH": import_path()},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            check=False,
        )
    launcher_log(files.logs).write_text(f"rank 0 ended with {done.returncode}\n")
    failure = diagnose(files, files.logs, 1)
    assert "SIGSEGV in string_at (" in failure.message
    assert f'{program}", line 6 in reads_nowhere' in failure.message
    assert "Extension modules" not in failure.message


RANK = """
import pathlib, sys, time
from ddl_tools.processes import answer_where
answer_where()
pathlib.Path(sys.argv[1]).touch()
def lost():
    time.sleep(300)
lost()
"""


@pytest.fixture
def lost_ranks(tmp_path: Path) -> Iterator[list[psutil.Process]]:
    """Start two ranks that are lost."""
    children = []
    for rank in range(2):
        logs = tmp_path / "launcher" / "attempt_0" / str(rank)
        logs.mkdir(parents=True)
        with (logs / "stdout.log").open("w") as output, (logs / "stderr.log").open("w") as errors:
            child = subprocess.Popen(
                [sys.executable, "-c", RANK, str(tmp_path / f"ready_{rank}")],
                stdout=output,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": import_path()},
            )
        children.append(child)
        wait_for((tmp_path / f"ready_{rank}").exists, f"rank {rank}")
    yield [psutil.Process(child.pid) for child in children]
    for child in children:
        child.kill()
        child.wait()


def test_ranks_that_hang_say_where_at_once_or_do_not_answer(monkeypatch, tmp_path, lost_ranks):
    ask = psutil.Process.send_signal

    def ask_slowly(process: psutil.Process, number: int) -> None:
        ask(process, number)
        time.sleep(0.5)  # an answer that comes meanwhile is not missed

    monkeypatch.setattr(psutil.Process, "send_signal", ask_slowly)
    failure = module.ask_ranks(tmp_path, 2, "no progress")
    assert failure is not None
    assert failure.rank is None  # both are lost
    assert failure.message.count("lost (<string>:7)") == 2
    monkeypatch.setattr(module, "ANSWER_S", 1.0)
    for process in lost_ranks:
        ask(process, signal.SIGSTOP)
    failure = module.ask_ranks(tmp_path, 2, "", module.Shortages(refused_forks=1))
    assert failure is not None
    assert "rank 1: does not answer" in failure.message
    assert failure.category == "processes"
