"""What a SLURM job executes: ``python -m ddl_core.launch.slurm.job RUN_DIR``, on its first node."""

import signal
import sys
from pathlib import Path

from ddl_core.errors import STOPPED, DDLError
from ddl_core.launch.local import run_one
from ddl_core.processes import die_with_parent, stoppable
from ddl_core.records.ledger import INTERRUPTED, restate
from ddl_core.records.paths import RunFiles
from ddl_core.records.run import Failure, read_record

NOTICE = signal.SIGUSR1  # the script passes the notice of the time limit on
GOES_ON = "stopped at the notice of its time limit; it goes on from its last checkpoint"
NO_HEADWAY = (
    "stopped at the notice of its time limit, before the first checkpoint of this start: it would "
    "never get further; give it more with --time, or fewer images per epoch (and checkpoint_every "
    "= 1, if that is not so)"
)


def main(arguments: list[str]) -> int:
    """Execute one run through its notebook; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m ddl_core.launch.slurm.job RUN_DIR\n")
        return 2
    run_dir = Path(arguments[0])
    try:
        before = _headway(run_dir)
        with stoppable(NOTICE):
            record = run_one(run_dir)
    except DDLError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped\n")
        return _at_limit(run_dir, before) if str(stop) == NOTICE.name else STOPPED
    sys.stderr.write(f"{record.run_id}: {record.status}\n")
    return 0


def _headway(run_dir: Path) -> tuple[int, int]:
    """Return the starts of a run, and when its checkpoint was written."""
    checkpoint = RunFiles(run_dir).checkpoint
    written = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    return len(read_record(run_dir).attempts), written


def _at_limit(run_dir: Path, before: tuple[int, int]) -> int:
    """Let the record say that it was the time limit; return `STOPPED` if the run may go on."""
    record = read_record(run_dir)
    if record.status == "completed":
        return 0
    if record.error and record.error.kind != INTERRUPTED:
        return 1
    starts, written = _headway(run_dir)
    stuck = starts > before[0] and written == before[1]
    kind, text = ("TimeLimit", NO_HEADWAY) if stuck else (INTERRUPTED, GOES_ON)
    restate(run_dir, Failure(kind=kind, message=text, category="time_limit"))
    return 1 if stuck else STOPPED


if __name__ == "__main__":
    # SLURM may end a script and not what it started; the run would go on without its nodes.
    die_with_parent(number=signal.SIGTERM)
    sys.exit(main(sys.argv[1:]))
