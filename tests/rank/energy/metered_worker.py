"""A worker on a machine whose first processor uses 5 J in each step of rank 0."""

import os
import sys
from pathlib import Path

from ddl_tools.rank import worker
from ddl_tools.records.progress import Progress
from tests.rank.energy import powercap

step = Progress.step


def use(self: Progress, done: int, steps: int) -> None:
    if os.environ["RANK"] == "0":
        powercap.advance(Path(os.environ["DDL_POWERCAP"]), "intel-rapl:0", 5)
    step(self, done, steps)


Progress.step = use  # type: ignore[method-assign]
sys.exit(worker.main(sys.argv[1:]))
