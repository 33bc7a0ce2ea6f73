"""What a SLURM job executes on its first node: one run, or the runs of a block in turn.

``python -m ddl_tools.launch.slurm.job RUN_DIR...``
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from ddl_core.errors import STOPPED, DDLError
from ddl_core.system import die_with_parent
from ddl_tools.launch.commands import BLOCK, PLACE
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.study import run_one
from ddl_tools.processes import stoppable, undisturbed
from ddl_tools.records.ledger import INTERRUPTED, finish_idle_run, finish_run
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Failure, read_record
from ddl_tools.visible import visible

NOTICE = signal.SIGUSR1  # the script passes the notice of the time limit on
STOPPED_AT_LIMIT = (
    "stopped at the notice of its time limit; the next start goes on from its last checkpoint, if "
    "it had written one"
)
NO_HEADWAY = (
    "stopped at the notice of its time limit, before the first checkpoint of this start: it would "
    "never get further; give it more with --time, or fewer images per epoch (and checkpoint_every "
    "= 1, if that is not so)"
)
NO_CHECKPOINTS = (
    "stopped at the notice of its time limit; it writes no checkpoints, and each start measures "
    "all epochs anew: give it more with --time, or ask for fewer epochs"
)
NO_TURN = "its job was stopped before its turn in the block"


def main(arguments: list[str]) -> int:
    """Execute runs through their notebooks, one after the other; return the exit status.

    It is 1 if a run failed, which stops no other, and `STOPPED` if the job was told to stop and
    something is left that may go on.
    """
    block = [Path(one) for one in arguments]
    try:
        todo = _left(block)
        before = _headway(todo[0]) if todo else None
    except DDLError as error:
        sys.stderr.write(visible(f"Error: {error}\n"))
        return 1
    turn, status = 0, 0
    try:
        with stoppable(NOTICE):
            for turn in range(len(todo)):
                if len(block) > 1:
                    _tell_place(block.index(todo[turn]))
                status = max(status, _execute(todo[turn]))
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped\n")
        with undisturbed():
            later, noticed = todo[turn + 1 :], str(stop) == NOTICE.name
            for run_dir in later:
                _say_no_turn(run_dir, noticed)
            if not noticed:
                return STOPPED
            ended = _at_limit(todo[turn], None if turn else before)
            return STOPPED if later else max(status, ended)
    return status


def _left(block: list[Path]) -> list[Path]:
    """Return the runs that a job has to execute, in their order.

    A failed run is tried again, as a node may have broken, but not after the notice of the time
    limit.
    """
    records = {run_dir: read_record(run_dir) for run_dir in block}
    errors = [record.error for record in records.values() if record.error]
    noticed = any((one.kind, one.category) == (INTERRUPTED, "time_limit") for one in errors)
    return [
        run_dir
        for run_dir, record in records.items()
        if record.status != "completed"
        and not (noticed and record.error and record.error.kind != INTERRUPTED)
    ]


def _tell_place(place: int) -> None:
    """Tell the next run its place and the name of its block, for its record."""
    job, number = os.environ.get("SLURM_JOB_NAME"), os.environ.get("SLURM_JOB_ID")
    # Started again, a job may have other nodes: that is another block.
    os.environ[BLOCK] = f"{job}-job{number}.{os.environ.get('SLURM_RESTART_COUNT', 0)}"
    os.environ[PLACE] = str(place)


def _execute(run_dir: Path) -> int:
    try:
        # A probe has nothing that a notebook could show.
        probe = read_record(run_dir).spec.work == "probe"
        record = run_ranks(run_dir) if probe else run_one(run_dir)
    except DDLError as error:
        sys.stderr.write(visible(f"Error: {error}\n"))
        return 1
    sys.stderr.write(f"{record.run_id}: {record.status}\n")
    return 0


def _headway(run_dir: Path) -> tuple[int, int]:
    """Return the starts of a run, and when its checkpoint was written."""
    files = RunFiles(run_dir)
    kept = [path.stat().st_mtime_ns for path in (files.checkpoint, files.state) if path.exists()]
    return len(read_record(run_dir).attempts), max(kept, default=0)


def _at_limit(run_dir: Path, before: tuple[int, int] | None) -> int:
    """Record that it was the time limit; return `STOPPED` if the run may go on.

    `before` is its headway at the start of the job, None if that began with another run.
    """
    record = read_record(run_dir)
    if record.status == "completed":
        return 0
    if record.error and record.error.kind != INTERRUPTED:
        return 1
    starts, written = _headway(run_dir)
    stuck = before is not None and starts > before[0] and written == before[1]
    kind, text = (INTERRUPTED, STOPPED_AT_LIMIT)
    if stuck:
        kind, text = "TimeLimit", NO_HEADWAY if record.spec.keeps_checkpoints else NO_CHECKPOINTS
    finish_run(run_dir, Failure(kind=kind, message=text, category="time_limit"), restate=True)
    return 1 if stuck else STOPPED


def _say_no_turn(run_dir: Path, noticed: bool) -> None:
    """Let the record of a run whose turn has not come say that its job was stopped."""
    category = "time_limit" if noticed else "cancelled"
    cause = Failure(kind=INTERRUPTED, message=NO_TURN, category=category)
    with suppress(DDLError):  # it is at work elsewhere
        finish_idle_run(
            run_dir,
            os.environ.get("SLURM_JOB_ID"),
            lambda record: cause if record.status == "submitted" else None,
        )


if __name__ == "__main__":
    # SLURM may end a script and not what it started; the run would go on without its nodes.
    die_with_parent(number=signal.SIGTERM)
    sys.exit(main(sys.argv[1:]))
