"""A group of threads with the protocols Strategy and Group: two ranks without two processes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch


class ThreadGroup:
    """State that the ranks of one group share."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size, timeout=20)
        self.slots: list[torch.Tensor] = [torch.empty(0)] * world_size

    def run(self, work) -> list:
        """Call ``work(rank)`` in one thread per rank; return the results in order of rank."""
        ranks = [ThreadRank(self, rank) for rank in range(self.world_size)]
        with ThreadPoolExecutor(self.world_size) as threads:
            return list(threads.map(work, ranks))


class ThreadRank:
    device = torch.device("cpu")
    is_sharded = False
    waits_in_backward = False

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group = group
        self.rank = self.local_rank = rank
        self.world_size = group.world_size

    def barrier(self) -> None:
        self._group.barrier.wait()

    def all_reduce(self, tensor, op="sum"):
        self._group.slots[self.rank] = tensor.clone()
        self.barrier()
        stacked = torch.stack(list(self._group.slots))
        self.barrier()
        reduced = {"sum": stacked.sum, "min": stacked.amin, "max": stacked.amax}[op](0)
        return tensor.copy_(reduced)

    def reduce(self, values, op="sum"):
        """Reduce numbers that are no tensor: what the product's `Group` asks."""
        return self.all_reduce(torch.tensor(np.asarray(values)), op).numpy()

    def setup(self, model, optimizer):
        return model, optimizer

    def no_sync(self):
        return nullcontext()

    def describe(self) -> dict:
        return {}

    def teardown(self) -> None:
        return None
