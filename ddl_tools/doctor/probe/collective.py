"""All-reduce over message sizes: how long one takes, on the path that runs use.

Warm-up and operations back to back as in NCCL-tests, whose "algbw" and "busbw" are derived from
these times in `ddl_tools.records.probe.AllReduce`.
"""

import math
import time
from collections.abc import Callable
from statistics import median

import torch

from ddl_core.strategies.base import ProcessGroup
from ddl_tools.records.probe import AllReduce

SIZES = tuple(1024 * 4**power for power in range(10))  # 1 KiB to 256 MiB
WARM_UP = 2
BATCHES = 5
MOST_PER_BATCH = 20
BATCH_S = 0.05  # as many operations as fit, at least one


def sum_is_right(group: ProcessGroup) -> bool:
    """Say whether the sum over ranks of rank + 1 is what it should be, everywhere."""
    found = group.all_reduce(torch.full((1024,), group.rank + 1.0, device=group.device))
    wrong = (found != group.world_size * (group.world_size + 1) / 2).any()
    return not group.all_reduce(wrong.to(torch.float64), "max").item()


def measure(
    group: ProcessGroup, limit_s: float, on_step: Callable[[str], None] = lambda _: None
) -> tuple[list[AllReduce], list[int]]:
    """Time the all-reduce of float32 tensors of `SIZES` bytes. A collective.

    Parameters
    ----------
    group
        The ranks.
    limit_s
        Seconds after which no larger message is begun; nor is one that would not end in time.
    on_step
        Called with a text before each size.

    Returns
    -------
    list of AllReduce
        The same on all ranks.
    list of int
        Sizes that were left out, bytes.
    """
    begun = time.monotonic()
    found: list[AllReduce] = []
    for number, size in enumerate(SIZES):
        left = limit_s - _slowest(group, time.monotonic() - begun)
        if found and _forecast(found[-1], size) > left:
            return found, list(SIZES[number:])
        on_step(f"all-reduce of {size} bytes")
        found.append(_one_size(group, size))
    return found, []


def _forecast(last: AllReduce, size: int) -> float:
    """Return the least seconds a size takes, if time grows no faster than the message."""
    return last.seconds_max * size / last.bytes * (WARM_UP + BATCHES)


def _one_size(group: ProcessGroup, size: int) -> AllReduce:
    tensor = torch.zeros(size // 4, dtype=torch.float32, device=group.device)
    one = _batch(group, tensor, WARM_UP)
    each = min(MOST_PER_BATCH, max(1, math.floor(BATCH_S / max(one, 1e-9))))
    times = [_batch(group, tensor, each) for _ in range(BATCHES)]
    return AllReduce(
        bytes=size,
        operations=each * BATCHES,
        seconds=median(times),
        seconds_min=min(times),
        seconds_max=max(times),
    )


def _batch(group: ProcessGroup, tensor: torch.Tensor, operations: int) -> float:
    """Return the seconds of one of `operations` back to back, on the slowest rank."""
    group.barrier()
    _wait(group.device)
    begun = time.perf_counter()
    for _ in range(operations):
        group.all_reduce(tensor)
    _wait(group.device)
    return _slowest(group, (time.perf_counter() - begun) / operations)


def _slowest(group: ProcessGroup, seconds: float) -> float:
    found = torch.tensor(seconds, dtype=torch.float64, device=group.device)
    return float(group.all_reduce(found, "max").item())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
