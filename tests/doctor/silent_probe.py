"""Stands in for the ranks of a probe of which the last never joins the others."""

import os
import sys
import time
from pathlib import Path

from ddl_tools.doctor.probe.__main__ import Probe, main
from ddl_tools.processes import answer_where
from ddl_tools.records.probe import read_answers


def wait_for_the_other(directory: Path, probe: Probe) -> None:
    """Be seen to be alive until rank 0 waits for this one, however slow the machine is."""
    for number in range(1000):
        if any(one.step == "joining the group" for one in read_answers(directory)):
            return
        probe.step(f"waiting {number}")
        time.sleep(0.5)


if os.environ["RANK"] == "1":
    answer_where()
    folder = Path(sys.argv[1])
    silent = Probe(folder)
    wait_for_the_other(folder, silent)
    silent.step("thinking")
    time.sleep(1000)
sys.exit(main(sys.argv[1:]))
