"""The boundary to SLURM's programs, with stand-ins: arguments, answers, errors, time limits."""

from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.slurm.reconcile import with_queue
from ddl_tools.launch.slurm.slurm_cli import SlurmJob
from ddl_tools.records.ledger import Entry, State
from tests.launch.stand_ins import StandIns

SPEC = RunSpec()
NAME = f"ddl-{SPEC.run_id}"
SCRIPT = """#!/bin/bash
#SBATCH --account=theirs
#SBATCH --account=mine
#SBATCH --time=01:30:00
#SBATCH --nodes=2
"""
# Of a profile, and of the allocation of a JupyterLab session.
STEERING = {
    **{"SQUEUE_STATES": "RUNNING", "SQUEUE_FORMAT": "%i", "SQUEUE_USERS": "nobody"},
    **{"SACCT_FEDERATION": "1", "SINFO_FORMAT": "%N", "SCANCEL_STATE": "PENDING"},
    **{"SLURM_TIME_FORMAT": "relative", "SLURM_BITSTR_LEN": "3", "SLURM_MEM_PER_CPU": "100"},
    **{"SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_NTASKS": "7", "SLURM_JOB_ID": "3"},
    **{"SRUN_CPUS_PER_TASK": "5", "SBATCH_TIMELIMIT": "1", "SBATCH_ARRAY_INX": "0-99"},
}


def item(state: State, job_id: str | None = "17") -> Entry:
    return Entry(SPEC, Path("/run"), state, "why", job_id)


@pytest.mark.parametrize("answer", ["17\n", "17;cluster\n", "Welcome!\n17\n"])
def test_the_number_of_a_job_is_read(stand_ins: StandIns, answer: str) -> None:
    stand_ins.add("sbatch", answer)
    assert slurm_cli.submit(Path("/run/job.sh"), SCRIPT) == "17"
    assert stand_ins.calls("sbatch") == ["--parsable /run/job.sh"]


def test_a_program_that_refuses_hangs_or_is_not_there_is_an_error(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.add("sbatch", error="sbatch: error: Invalid account\n", status=1)
    with pytest.raises(LaunchError, match=r"sbatch .*: sbatch: error: Invalid account$"):
        slurm_cli.submit(Path("/run/job.sh"), SCRIPT)
    stand_ins.script("squeue", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(slurm_cli, "TIMEOUT_S", 0.2)
    with pytest.raises(LaunchError, match="squeue did not answer"):
        slurm_cli.queue()
    monkeypatch.setenv("PATH", str(stand_ins.folder / "nothing"))
    assert slurm_cli.queue() is None
    with pytest.raises(LaunchError, match="'sbatch' is not on PATH"):
        slurm_cli.submit(Path("/run/job.sh"), SCRIPT)


def test_the_queue_is_read(stand_ins: StandIns) -> None:
    stand_ins.add("squeue", "17|ddl-a|PENDING|Priority\n18|ddl-b|RUNNING|None\n")
    assert slurm_cli.queue() == {
        "17": SlurmJob("ddl-a", "PENDING", "Priority"),
        "18": SlurmJob("ddl-b", "RUNNING"),
    }
    assert stand_ins.calls("squeue") == ["--me --all --noheader --format=%A|%j|%T|%r"]


def hears(stand_ins: StandIns, program: str) -> dict[str, str]:
    """Have a program write down its environment; return what it wrote at its last call."""
    path = stand_ins.folder / f".{program}.environment"
    if path.exists():
        return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    stand_ins.script(program, f"#!/bin/sh\nenv >{path}\necho 17\n")
    return {}


@pytest.mark.parametrize("program", ["squeue", "sacct", "scancel", "sinfo", "scontrol", "sbatch"])
def test_the_programs_do_what_is_asked_whatever_the_environment_says(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    for name, value in {**STEERING, "SLURM_CONF": "/etc/slurm.conf", "MINE": "1"}.items():
        monkeypatch.setenv(name, value)
    hears(stand_ins, program)
    slurm_cli.call(program)
    heard = hears(stand_ins, program)
    assert not STEERING.keys() & heard.keys()
    assert (heard["SLURM_CONF"], heard["MINE"]) == ("/etc/slurm.conf", "1")


def test_a_variable_may_add_to_a_script_and_changes_none_of_its_lines(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ACCOUNT": "theirs", "RESERVATION": "course", "TIMELIMIT": "9"}.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    hears(stand_ins, "sbatch")
    slurm_cli.submit(Path("/run/job.sh"), SCRIPT)
    heard = {name for name in hears(stand_ins, "sbatch") if name.startswith("SBATCH_")}
    assert heard == {"SBATCH_RESERVATION"}
    said = "\n".join(slurm_cli.notes(SCRIPT))
    assert "SBATCH_RESERVATION=course" in said
    assert "ignored: SBATCH_ACCOUNT, SBATCH_TIMELIMIT" in said
    slurm_cli.submit(Path("/run/job.sh"), "#!/bin/sh\n#SBATCH --nodes=1\n")
    assert hears(stand_ins, "sbatch")["SBATCH_ACCOUNT"] == "theirs"


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("17|mine|1:30:00|2", ""),
        ("17|Mine|0-01:30:00|2", ""),
        ("17|theirs|1:30:00|2", "account theirs, but the script says mine"),
        ("17|mine|1-01:30:00|2", "time 1-01:30:00"),
        ("17|mine|UNLIMITED|2", "time UNLIMITED"),
        ("17|mine|1:30:00|4", "nodes 4"),
        ("18|theirs|1:30:00|2", ""),
        ("17|ddl-a|PENDING|Priority", ""),
    ],
)
def test_a_job_that_differs_from_its_script_is_named(
    stand_ins: StandIns, row: str, named: str
) -> None:
    stand_ins.add("squeue", f"{row}\n")
    found = slurm_cli.differences({"17": SCRIPT})
    assert len(found) == bool(named)
    assert named in "".join(found)


def test_jobs_that_cannot_be_compared_are_said_to_be(stand_ins: StandIns) -> None:
    stand_ins.add("squeue", error="no controller", status=1)
    assert "not compared" in slurm_cli.differences({"17": SCRIPT})[0]
    assert slurm_cli.differences({}) == []


@pytest.mark.parametrize(
    ("recorded", "queued", "state"),
    [
        ("submitted", "PENDING", "submitted"),
        ("submitted", "RUNNING", "running"),
        ("interrupted", "RUNNING", "running"),
        ("failed", "PENDING", "submitted"),
        ("completed", "COMPLETING", "completed"),
    ],
)
def test_the_queue_knows_better(recorded: State, queued: str, state: State) -> None:
    (found,) = with_queue([item(recorded)], {"17": SlurmJob(NAME, queued, "Priority")})
    assert found.state == state
    assert found.reason == ("why" if state == "completed" else f"job 17 {queued} (Priority)")


def test_the_number_alone_does_not_make_it_our_job() -> None:
    (found,) = with_queue([item("submitted")], {"17": SlurmJob("other", "RUNNING")})
    assert found.state == "interrupted"
