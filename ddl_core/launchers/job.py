"""What a SLURM job executes: ``python -m ddl_core.launchers.job RUN_DIR``, on its first node."""

import signal
import sys
from pathlib import Path

from ddl_core.errors import DDLError
from ddl_core.launchers.study import run_one
from ddl_core.parent import die_with_parent

STOPPED = 130  # what a shell reports for a program that Ctrl-C ended


def main(arguments: list[str]) -> int:
    """Execute one run through its notebook; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m ddl_core.launchers.job RUN_DIR\n")
        return 2
    try:
        record = run_one(Path(arguments[0]))
    except DDLError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return STOPPED
    sys.stderr.write(f"{record.run_id}: {record.status}\n")
    return 0


if __name__ == "__main__":
    # SLURM may end a script and not what it started; the run would go on without its nodes.
    die_with_parent(number=signal.SIGTERM)
    sys.exit(main(sys.argv[1:]))
