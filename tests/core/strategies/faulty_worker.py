"""Stands in for the worker: rank 1 does what DDL_TEST_FAULT says when it reaches step FAULT_STEP.

``late`` trains nothing: it checks the reductions, with a rank 1 that is slow to ask where
Horovod's ranks meet.
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ddl_core import registry
from ddl_tools.rank import worker
from ddl_tools.records.run import read_record, write_record

FAULT_STEP = 13  # with epochs of ten steps in the second
PLANTED = "planted: this rank gives up"


def plant(strategy: Any, fault: str) -> None:
    plain = strategy.optimizer_step
    done = 0

    def step(self, scaler) -> None:
        nonlocal done
        done += 1
        if self.rank == 1 and done == FAULT_STEP:
            if fault == "raise":
                raise ValueError(PLANTED)
            if fault == "hang":
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGKILL)
        plain(self, scaler)

    strategy.optimizer_step = step


def check_collectives(directory: Path) -> None:
    from ddl_core.strategies.horovod import Horovod

    record = read_record(directory)
    group = Horovod(record.spec)
    assert (group.rank, group.world_size) == (int(os.environ["RANK"]), 2)
    for dtype in (torch.float64, torch.int64, torch.float32):
        for op, want in (("sum", [5, 7, 9]), ("min", [1, 2, 3]), ("max", [4, 5, 6])):
            for _ in range(2):  # the second time, Horovod finds the tensor in its cache
                own = torch.tensor([1, 2, 3], dtype=dtype) + 3 * group.rank
                assert group.all_reduce(own, op) is own
                assert own.dtype == dtype
                assert own.tolist() == want, (dtype, op, own)
    group.barrier()
    group.teardown()
    if group.rank == 0:
        record.status = record.attempts[-1].status = "completed"
        write_record(directory, record)


def let_rank_1_ask_late() -> None:
    """Let rank 1 wait between reaching the store and reading from it."""
    from ddl_core.strategies import horovod

    plain = horovod.rendezvous

    def late(*arguments):
        found = next(plain(*arguments))
        if os.environ["RANK"] == "1":
            time.sleep(3)
        yield found

    horovod.rendezvous = late


if __name__ == "__main__":
    logging.basicConfig()
    registry.MODELS["tiny"] = registry.Entry("tests.planted:tiny")
    fault = os.environ["DDL_TEST_FAULT"]
    if fault == "late":
        let_rank_1_ask_late()
        check_collectives(Path(sys.argv[1]))
        sys.exit()
    plant(registry.resolve("strategy", read_record(Path(sys.argv[1])).spec.strategy), fault)
    sys.exit(worker.main(sys.argv[1:]))
