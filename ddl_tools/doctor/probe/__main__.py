"""One rank of a probe: ``python -m ddl_tools.doctor.probe PROBE_DIR``, started as a run's are.

Each step is written down before it begins, so that a rank that does not answer is known.
"""

import faulthandler
import logging
import signal
import sys
from pathlib import Path

from ddl_core import device as accelerator
from ddl_core.errors import DataError
from ddl_core.group import RankInfo
from ddl_core.strategies.base import ProcessGroup
from ddl_core.system import die_with_parent
from ddl_tools.doctor.probe import collective, place, reading
from ddl_tools.processes import allow_open_files
from ddl_tools.rank.recorder import RunRecorder, report
from ddl_tools.records.probe import Answer, read_probe, write_answer
from ddl_tools.records.provenance import host, provenance
from ddl_tools.records.run import write_record

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Run one rank; return the exit status."""
    if len(arguments) != 1:
        log.error("usage: python -m ddl_tools.doctor.probe PROBE_DIR")
        return 2
    die_with_parent()
    allow_open_files()  # as the ranks of a run do
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the launcher asks where a rank is
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
        self.entry = RunRecorder(directory)
        self.record = read_probe(directory)
        self.spec = self.record.spec
        self.answer: Answer = place.describe(RankInfo.from_environment(self.spec))
        if self.entry.first:
            self.entry.record.provenance, self.entry.record.system = provenance(), host()
            write_record(directory, self.entry.record)
        self.step("start")

    def step(self, name: str) -> None:
        """Write down what is known, and what begins now."""
        self.answer.step = name
        write_answer(self.directory, self.answer)
        self.entry.progress.set_up(name)

    def execute(self) -> None:
        """Measure everything; leave the group whatever happens."""
        accelerator.configure(self.spec)
        self.step("loader processes")
        local_rank = RankInfo.from_environment(self.spec).local_rank
        device = accelerator.choose_device(self.spec.device, local_rank)
        self.answer.device = accelerator.describe(device)
        self.answer.device_id = accelerator.identity(device)
        self.answer.loader_cores = place.loader_cores(self.spec, device)
        self.step("joining the group")
        group = ProcessGroup(self.spec)
        try:
            self._together(group)
            self.step("done")
            group.barrier()
        finally:
            group.teardown()
        self.entry.complete(None)

    def _together(self, group: ProcessGroup) -> None:
        self.step("first all-reduce")
        self.answer.sum_is_right = collective.sum_is_right(group)
        self.answer.used_interfaces = place.used_interfaces(self.answer.interfaces)
        self.step("reading data")
        self._read(group)
        if group.world_size > 1:
            rates, omitted = collective.measure(group, self.record.collective_limit_s, self.step)
            if group.rank == 0:
                self.answer.all_reduce, self.answer.omitted_bytes = rates, omitted

    def _read(self, group: ProcessGroup) -> None:
        """Read while all ranks do; one that cannot says so, and keeps the others' company."""
        group.barrier()
        if self.record.data_dir is not None:
            try:
                self.answer.reading = reading.measure(self.record, group.rank)
            except DataError as error:
                self.answer.reading_error = str(error)
        group.barrier()


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    sys.exit(main(sys.argv[1:]))
