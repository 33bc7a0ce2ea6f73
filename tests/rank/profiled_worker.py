"""A worker with causes of lost time to plant, and an account of what they really took.

``python -m tests.rank.profiled_worker RUN_DIR`` is a rank like any other, and knows these names:

- strategy ``ddp_slow_rank``: rank 1 sleeps in the backward pass of the watched steps;
- strategy ``ddp_slow_network``: the mean of their gradients comes later, on all ranks;
- loader ``synthetic_slow``: their batches come later.

Each rank leaves ``account_<rank>.json``: a list per watched step. A run that is not profiled fails
if it makes a profiler or loads the code for one.
"""

import json
import logging
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from ddl_core import registry
from ddl_core.loaders.synthetic import Synthetic
from ddl_core.strategies.ddp import DDP
from ddl_tools.rank import worker
from ddl_tools.records.run import read_record

STEPS, WATCHED = 6, range(9, 12)  # the second half of the second epoch of six steps
SLEEP_S = 1.0  # long, so that 2 % of the window is more than a busy machine adds
account: dict[str, list[float]] = defaultdict(list)


class Timed(DDP):
    """Notes when this rank had its gradients, and when it had their mean."""

    done = 0

    @property
    def watched(self) -> bool:
        return self.done in WATCHED

    def setup(self, model, optimizer):
        first = next(model.parameters())
        first.register_post_accumulate_grad_hook(self._gradients_are_there)
        return super().setup(model, optimizer)

    def _gradients_are_there(self, _parameter):
        self.at = time.perf_counter()

    def backward(self, loss):
        super().backward(loss)
        if self.watched:
            account["exposed"].append(time.perf_counter() - self.at)
        self.done += 1


class SlowRank(Timed):
    def backward(self, loss):
        if self.watched and self.rank == 1:
            slept()
        super().backward(loss)


class SlowNetwork(Timed):
    """Lets an all-reduce take longer, in the background as a network does."""

    def setup(self, model, optimizer):
        wrapped, optimizer = super().setup(model, optimizer)
        wrapped.register_comm_hook(None, self._reduce)
        return wrapped, optimizer

    def _reduce(self, _state, bucket):
        mean: Any = torch.futures.Future()
        work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)

        def wait():
            work.wait()
            if self.watched:
                slept()
            mean.set_result(bucket.buffer().div_(self.world_size))

        threading.Thread(target=wait).start()
        return mean


class SlowLoader(Synthetic):
    fetched = 0

    def __iter__(self):
        for batch in super().__iter__():
            if self.fetched in WATCHED:
                slept()
            self.fetched += 1
            yield batch


def slept() -> None:
    before = time.perf_counter()
    time.sleep(SLEEP_S)
    account["slept"].append(time.perf_counter() - before)


def names() -> list[tuple[dict[str, registry.Entry], str, str]]:
    """Return the additional names: (registry, name, place)."""
    here = "tests.rank.profiled_worker"
    return [
        (registry.STRATEGIES, "ddp_slow_rank", f"{here}:SlowRank"),
        (registry.STRATEGIES, "ddp_slow_network", f"{here}:SlowNetwork"),
        (registry.LOADERS, "synthetic_slow", f"{here}:SlowLoader"),
        (registry.MODELS, "tiny", "tests.planted:tiny"),
    ]


def main(directory: Path) -> int:
    profiled = read_record(directory).spec.profile_steps > 0
    if not profiled:
        torch.profiler.profile = torch.profiler.schedule = None  # type: ignore[assignment, misc]
        torch.autograd.profiler.profile = None  # type: ignore[assignment, misc]
    status = worker.main([str(directory)])
    if not profiled and "ddl_tools.rank.profiler" in sys.modules:
        return 1
    (directory / f"account_{os.environ['RANK']}.json").write_text(json.dumps(account))
    return status


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    from tests.rank import profiled_worker  # one module, not a second one named __main__

    for table, name, place in profiled_worker.names():
        table[name] = registry.Entry(place)
    sys.exit(profiled_worker.main(Path(sys.argv[1])))
