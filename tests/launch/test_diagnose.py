import json
from pathlib import Path

import pytest

from ddl_tools.launch.diagnose import diagnose, launcher_log
from ddl_tools.records.paths import RunFiles

# What the leader of the ranks says of two that ended at one time.
SUMMARY = "rank 0 ended with {first}\nrank 3 ended with {second}\n"


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    launcher_log(tmp_path / "logs").parent.mkdir()
    return RunFiles(tmp_path)


def write_error(files: RunFiles) -> None:
    files.error.write_text(json.dumps({"rank": 0, "kind": "DataError", "message": "no data"}))


def test_the_first_rank_to_fail_is_believed(files: RunFiles) -> None:
    launcher_log(files.logs).write_text(SUMMARY.format(first=1, second=1))
    write_error(files)
    failure = diagnose(files, files.logs, 1)
    assert (failure.kind, failure.message, failure.rank) == ("DataError", "no data", 0)


@pytest.mark.parametrize(("first", "second"), [(1, -9), (1, -11)])
def test_a_killed_rank_comes_before_what_the_others_made_of_it(
    files: RunFiles, first: int, second: int
) -> None:
    launcher_log(files.logs).write_text(SUMMARY.format(first=first, second=second))
    write_error(files)
    failure = diagnose(files, files.logs, 1)
    assert (failure.kind, failure.rank) == ("Killed", 3)


@pytest.mark.parametrize("second", [-6, -15])
def test_an_abort_or_a_termination_is_a_consequence(files: RunFiles, second: int) -> None:
    launcher_log(files.logs).write_text(SUMMARY.format(first=1, second=second))
    write_error(files)
    assert diagnose(files, files.logs, 1).kind == "DataError"


def test_without_its_own_words_the_exit_code_and_the_log_speak(files: RunFiles) -> None:
    launcher_log(files.logs).write_text(SUMMARY.format(first=7, second=1))
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


def test_a_half_written_error_file_is_no_error_file(files: RunFiles) -> None:
    launcher_log(files.logs).write_text(SUMMARY.format(first=1, second=-9))
    files.error.write_text('{"rank": 0, "kind": "Data')
    assert diagnose(files, files.logs, 1).kind == "Killed"


def test_what_starts_the_ranks_can_fail(files: RunFiles) -> None:
    launcher_log(files.logs).write_text("No module named torch\n")
    failure = diagnose(files, files.logs, 1)
    assert (failure.kind, failure.rank) == ("NotStarted", None)
    assert "No module named torch" in failure.message


@pytest.mark.parametrize(("code", "kind"), [(-9, "Killed"), (3, "Crashed")])
def test_of_ranks_here_the_first_to_end_badly_is_named(
    code: int, kind: str, files: RunFiles
) -> None:
    launcher_log(files.logs).write_text(f"rank 1 ended with {code}\nrank 0 ended with 1\n")
    failure = diagnose(files, files.logs, 1)
    assert (failure.kind, failure.rank) == (kind, 1)


def test_ending_well_without_a_result_is_a_failure(files: RunFiles) -> None:
    assert "without completing the record" in diagnose(files, files.logs, 0).message


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


def test_a_task_that_was_killed_first_is_blamed(files: RunFiles) -> None:
    launcher_log(files.logs).write_text(SRUN_KILLED)
    write_error(files)
    failure = diagnose(files, files.logs, 1)
    assert (failure.kind, failure.rank) == ("Killed", 3)


def test_tasks_that_srun_ended_for_another_are_not_blamed(files: RunFiles) -> None:
    launcher_log(files.logs).write_text(SRUN_RAISED)
    write_error(files)
    assert diagnose(files, files.logs, 1).kind == "DataError"


@pytest.mark.parametrize(
    ("ending", "kind", "text"),
    [
        ("Exited with exit code 7", "Crashed", "rank 4 ended with exit code 7"),
        ("Out Of Memory", "Killed", "rank 4 was killed by SIGKILL"),
        ("Segmentation fault (core dumped)", "Killed", "rank 4 was killed by SIGSEGV"),
        ("Something new", "Crashed", "rank 4 ended with exit code 1"),
    ],
)
def test_the_first_of_several_tasks_is_named(
    files: RunFiles, ending: str, kind: str, text: str
) -> None:
    launcher_log(files.logs).write_text(f"srun: error: n2: tasks 4,6-7: {ending}\n")
    failure = diagnose(files, files.logs, 1)
    assert failure.kind == kind
    assert failure.message.startswith(text)


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
    said = f"slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-21T14:30:30{reason} ***\n"
    launcher_log(files.logs).write_text(f"{said}srun: error: n1: tasks 0-1: Terminated\n")
    failure = diagnose(files, files.logs, 1)
    assert (failure.kind, failure.category) == ("Interrupted", category)


@pytest.mark.parametrize(("code", "category"), [(-9, "out_of_memory"), (-11, "code")])
def test_the_systems_memory_killer_ends_by_sigkill_only(
    files: RunFiles, code: int, category: str
) -> None:
    launcher_log(files.logs).write_text(SUMMARY.format(first=1, second=code))
    assert diagnose(files, files.logs, 1, oom_kills=1).category == category
    assert diagnose(files, files.logs, 1).category != "out_of_memory"
