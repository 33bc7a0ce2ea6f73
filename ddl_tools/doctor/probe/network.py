"""Network of the ranks: how fast collectives are, what NCCL has chosen, and the rates of ports."""

import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from ddl_core.strategies.base import ProcessGroup
from ddl_tools.records.probe import Collective, Nccl, Port

SIZES = tuple(1024 * 4**power for power in range(10))  # of messages: 1 KiB to 256 MiB
FLOAT = 4  # bytes
WARM_UP = 2
BATCHES = 5
MAX_PER_BATCH = 20
BATCH_S = 0.05  # as many operations as fit, at least one

PORTS = Path("/sys/class/infiniband")
_RATE = re.compile(r"([\d.]+) Gb/sec")

_NETWORK = re.compile(r"Using network (.+)")
# Of a channel: "via P2P/CUMEM/read", "via SHM/direct/direct", "via NET/IB/0/GDRDMA"; the number
# is that of a device.
_VIA = re.compile(r"Channel \d+(?:/\d+)? : .* via (\S.*)")
_VERSION = re.compile(r"NCCL version (\S+)")
MOST_LOG = 64 * 2**20


def time_collective(
    name: str, group: ProcessGroup, limit_s: float, on_step: Callable[[str], None]
) -> tuple[list[Collective], list[int]]:
    """Time a collective of float32 tensors of `SIZES` bytes; return also the sizes left out.

    Itself a collective with equal results on all ranks. Warm-up, and operations back to back, as
    in NCCL-tests. No larger message is begun that would end later than `limit_s`.

    Parameters
    ----------
    name
        ``"all_reduce"``, or ``"all_gather"`` or ``"reduce_scatter"``, whose size is that of what
        all ranks have together, as in NCCL-tests.
    """
    begun = time.monotonic()
    found: list[Collective] = []
    for number, size in enumerate(SIZES):
        left = limit_s - _slowest(group, time.monotonic() - begun)
        # The least time of this size, if time grows no faster than the message.
        if found and (WARM_UP + BATCHES) * found[-1].seconds_max * size / found[-1].bytes > left:
            return found, list(SIZES[number:])
        on_step(f"{name.replace('_', '-')} of {size} bytes")
        length, operation = _operation(name, group, size)
        first = _batch(group, operation, WARM_UP)
        each = min(MAX_PER_BATCH, max(1, int(BATCH_S / max(first, 1e-9))))
        times = [_batch(group, operation, each) for _ in range(BATCHES)]
        found.append(
            Collective(
                bytes=length,
                operations=each * BATCHES,
                seconds=median(times),
                seconds_min=min(times),
                seconds_max=max(times),
            )
        )
    return found, []


def _operation(name: str, group: ProcessGroup, size: int) -> tuple[int, Callable[[], object]]:
    """Return a collective, and its size in bytes: about `size`, in equal parts for all ranks."""
    part = max(1, size // FLOAT // group.world_size)
    if name == "all_reduce":
        whole = torch.zeros(size // FLOAT, device=group.device)
        return size, lambda: group.all_reduce(whole)
    whole = torch.zeros(part * group.world_size, device=group.device)
    own = torch.zeros(part, device=group.device)
    operations: dict[str, Callable[[], object]] = {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, own),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(own, whole),
    }
    return len(whole) * FLOAT, operations[name]


def _batch(group: ProcessGroup, operation: Callable[[], object], number: int) -> float:
    """Return the seconds of one of so many operations back to back, on the slowest rank."""
    group.barrier()
    wait(group.device)
    begun = time.perf_counter()
    for _ in range(number):
        operation()
    wait(group.device)
    return _slowest(group, (time.perf_counter() - begun) / number)


def _slowest(group: ProcessGroup, seconds: float) -> float:
    found = torch.tensor(seconds, dtype=torch.float64, device=group.device)
    return float(group.all_reduce(found, "max").item())


def wait(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def let_nccl_log(file: Path) -> None:
    """Have NCCL write what it chooses into a file; it reads this when the group is made."""
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,NET,GRAPH,ENV,P2P,SHM"
    os.environ["NCCL_DEBUG_FILE"] = str(file)


def read_nccl_log(file: Path) -> Nccl | None:
    """Return what NCCL has chosen, by its log; None where it said nothing of it."""
    try:
        with file.open("rb") as log:
            text = log.read(MOST_LOG).decode("utf-8", errors="replace")
    except OSError:
        return None
    network, version = _NETWORK.search(text), _VERSION.search(text)
    ways = Counter(map(_way, _VIA.findall(text)))
    if not (network or ways):
        return None
    return Nccl(
        version=version[1] if version else None,
        network=network[1].strip() if network else None,
        channels=dict(ways),
    )


def _way(text: str) -> str:
    """Return how a channel goes without the number of its device: ``"NET/IB/GDRDMA"``."""
    words = text.partition(" comm ")[0].strip().split("/")
    return "/".join(word for word in words if not word.isdecimal())


def ports() -> list[Port]:
    """Return the active ports for InfiniBand, or for Ethernet with RDMA, of this host."""
    found = []
    for port in sorted(PORTS.glob("*/ports/*")):
        try:
            state, rate, layer = (
                (port / name).read_text(encoding="utf-8")
                for name in ("state", "rate", "link_layer")
            )
        except OSError:
            continue
        if "ACTIVE" in state and (number := _RATE.match(rate)):
            name = f"{port.parent.parent.name}:{port.name}"
            gbit = float(number[1])
            found.append(Port(name=name, layer=layer.strip(), gbit_per_s=gbit))
    return found
