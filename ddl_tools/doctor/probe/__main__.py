"""One rank of a probe: ``python -m ddl_tools.doctor.probe PROBE_DIR``.

The rank writes down each step before it begins: the record then names a rank that hangs.
"""

import logging
import sys
from pathlib import Path

import torch

from ddl_core import device as accelerator
from ddl_core.errors import DataError
from ddl_core.strategies import RankInfo
from ddl_core.strategies.base import ProcessGroup
from ddl_core.system import die_with_parent
from ddl_tools.doctor.probe import gpu, host, network
from ddl_tools.processes import allow_open_files, answer_where
from ddl_tools.rank.meeting import open_store
from ddl_tools.rank.pytorch import check_driver, describe, identity
from ddl_tools.rank.recorder import RunRecorder, report
from ddl_tools.records import provenance
from ddl_tools.records.paths import ProbeFiles
from ddl_tools.records.probe import read_probe, write_answer
from ddl_tools.records.run import provenance_of, system_of, write_record


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
        self.answer.ports = network.ports()
        self.step("joining the group")
        log = ProbeFiles(self.directory).nccl_log(self.rank.rank)
        network.let_nccl_log(log)
        store = open_store(spec, self.recorder.rendezvous)
        group = ProcessGroup(spec)
        try:
            self._together(group)
            self.answer.nccl = network.read_nccl_log(log)
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
        if device_id := self.answer.device_id:
            self.step("state of the GPU")
            self.answer.gpu = gpu.state(group.device, device_id)
        if group.world_size > 1:
            self._collectives(group)

    def _collectives(self, group: ProcessGroup) -> None:
        limit_s = self.record.collective_limit_s
        for name in ("all_reduce", "all_gather", "reduce_scatter"):
            times, omitted = network.time_collective(name, group, limit_s, self.step)
            if group.rank == 0:
                setattr(self.answer, name, times)
                self.answer.omitted_bytes = self.answer.omitted_bytes or omitted


def sum_is_right(group: ProcessGroup) -> bool:
    """Say whether the sum over ranks of rank + 1 is what it should be, everywhere."""
    found = group.all_reduce(torch.full((1024,), group.rank + 1.0, device=group.device))
    wrong = (found != group.world_size * (group.world_size + 1) / 2).any()
    return not group.all_reduce(wrong.to(torch.float64), "max").item()


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    sys.exit(main(sys.argv[1:]))
