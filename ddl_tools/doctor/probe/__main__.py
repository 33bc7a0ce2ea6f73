"""One rank of a probe: ``python -m ddl_tools.doctor.probe PROBE_DIR``.

The rank writes down each step before it begins: the record then names a rank that hangs.
"""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from ddl_core import device as accelerator
from ddl_core.errors import DataError
from ddl_core.strategies import RankInfo
from ddl_core.strategies.base import ProcessGroup
from ddl_core.system import die_with_parent
from ddl_tools.doctor.probe import host
from ddl_tools.processes import allow_open_files, answer_where
from ddl_tools.rank.meeting import open_store
from ddl_tools.rank.pytorch import check_driver, describe, identity
from ddl_tools.rank.recorder import RunRecorder, report
from ddl_tools.records import provenance
from ddl_tools.records.probe import AllReduce, read_probe, write_answer
from ddl_tools.records.run import provenance_of, system_of, write_record

SIZES = tuple(1024 * 4**power for power in range(10))  # of messages: 1 KiB to 256 MiB
WARM_UP = 2
BATCHES = 5
MAX_PER_BATCH = 20
BATCH_S = 0.05  # as many operations as fit, at least one


def main(arguments: list[str]) -> int:
    """Run one rank; return the exit status."""
    die_with_parent()
    allow_open_files()  # as the ranks of a run do
    answer_where()
    directory = Path(arguments[0])
    try:
        Probe(directory).execute()
    except Exception as error:
        report(directory, error)
        return 1
    return 0


class Probe:
    """One rank's part of a probe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recorder = RunRecorder(directory)
        self.record = read_probe(directory)
        self.rank = RankInfo.from_environment(self.record.spec)
        self.answer = host.describe(self.rank)
        if self.recorder.first:
            run = self.recorder.record
            run.provenance = provenance_of(provenance.provenance())
            run.system = system_of(provenance.host())
            write_record(directory, run)
        self.step("start")

    def step(self, name: str) -> None:
        """Write down what is known, and what begins now."""
        self.answer.step = name
        write_answer(self.directory, self.answer)
        self.recorder.progress.set_up(name)

    def execute(self) -> None:
        """Measure everything; leave the group whatever happens."""
        spec = self.record.spec
        accelerator.configure(spec)
        self.step("loader processes")
        check_driver(spec)
        device = accelerator.choose_device(spec.device, self.rank.local_rank)
        self.answer.device = system_of(describe(device))
        self.answer.device_id = identity(device)
        self.answer.loader_cores = host.loader_cores(spec, device)
        self.step("joining the group")
        store = open_store(spec, self.recorder.rendezvous)
        group = ProcessGroup(spec)
        try:
            self._together(group)
            self.step("done")
            group.barrier()
        finally:
            group.teardown()
            del store
        self.recorder.complete(None)

    def _together(self, group: ProcessGroup) -> None:
        self.step("first all-reduce")
        self.answer.sum_is_right = sum_is_right(group)
        self.answer.used_interfaces = host.used_interfaces(self.answer.interfaces)
        self.step("reading data")
        group.barrier()  # all ranks read at the same time; one that cannot waits for the others
        if self.record.data_dir is not None:
            try:
                self.answer.reading = host.read_sample(
                    self.record, self.record.data_dir, group.rank
                )
            except DataError as error:
                self.answer.reading_error = str(error)
        group.barrier()
        if group.world_size > 1:
            times, omitted = time_all_reduce(group, self.record.collective_limit_s, self.step)
            if group.rank == 0:
                self.answer.all_reduce, self.answer.omitted_bytes = times, omitted


def sum_is_right(group: ProcessGroup) -> bool:
    """Say whether the sum over ranks of rank + 1 is what it should be, everywhere."""
    found = group.all_reduce(torch.full((1024,), group.rank + 1.0, device=group.device))
    wrong = (found != group.world_size * (group.world_size + 1) / 2).any()
    return not group.all_reduce(wrong.to(torch.float64), "max").item()


def time_all_reduce(
    group: ProcessGroup, limit_s: float, on_step: Callable[[str], None]
) -> tuple[list[AllReduce], list[int]]:
    """Time the all-reduce of float32 tensors of `SIZES` bytes; return also the sizes left out.

    A collective with equal results on all ranks. Warm-up, and operations back to back, as in
    NCCL-tests. No larger message is begun that would end later than `limit_s`.
    """
    begun = time.monotonic()
    found: list[AllReduce] = []
    for number, size in enumerate(SIZES):
        left = limit_s - _slowest(group, time.monotonic() - begun)
        # The least time of this size, if time grows no faster than the message.
        if found and (WARM_UP + BATCHES) * found[-1].seconds_max * size / found[-1].bytes > left:
            return found, list(SIZES[number:])
        on_step(f"all-reduce of {size} bytes")
        tensor = torch.zeros(size // 4, dtype=torch.float32, device=group.device)
        first = _batch(group, tensor, WARM_UP)
        each = min(MAX_PER_BATCH, max(1, int(BATCH_S / max(first, 1e-9))))
        times = [_batch(group, tensor, each) for _ in range(BATCHES)]
        found.append(
            AllReduce(
                bytes=size,
                operations=each * BATCHES,
                seconds=median(times),
                seconds_min=min(times),
                seconds_max=max(times),
            )
        )
    return found, []


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


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    sys.exit(main(sys.argv[1:]))
