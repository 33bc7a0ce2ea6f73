"""A rank of a framework's run that meets what `DDL_TEST_FAULT` says in its second epoch."""

import os
import signal
import sys
import time
from typing import Any

from ddl_core import loop
from ddl_tools.rank import worker

train = loop.EpochLoop.train


def faulty(self: loop.EpochLoop, source: Any, epoch: int, *rest: Any) -> Any:
    fault = os.environ.get("DDL_TEST_FAULT", "") if epoch == 1 else ""
    kind, _, rank = fault.partition(" ")
    if kind and self.group.rank == int(rank):
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)
    return train(self, source, epoch, *rest)


if __name__ == "__main__":
    loop.EpochLoop.train = faulty  # type: ignore[method-assign]
    sys.exit(worker.main(sys.argv[1:]))
