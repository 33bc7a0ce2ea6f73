"""A worker that fails if something still holds the model when its group is left."""

import sys
import weakref

from ddl_core.strategies.ddp import DDP
from ddl_tools.rank import worker

setup, teardown = DDP.setup, DDP.teardown
wrapped: list[weakref.ref] = []


def remember(self, model, optimizer):
    network, optimizer = setup(self, model, optimizer)
    wrapped.append(weakref.ref(network))
    return network, optimizer


def look(self):
    teardown(self)
    if wrapped[0]() is not None:
        raise RuntimeError("the DDP wrapper outlives its group")


DDP.setup, DDP.teardown = remember, look  # type: ignore[method-assign]
sys.exit(worker.main(sys.argv[1:]))
