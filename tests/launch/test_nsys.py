"""Ranks under Nsight Systems: a stored command, and what is refused.

To store a new one after a wanted change:  DDL_WRITE_GOLDEN=1 python -m pytest THIS_FILE
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import NotInstalledError, SpecError
from ddl_tools.launch import commands, ranks
from ddl_tools.launch.commands import Allocation, words_of_step
from ddl_tools.launch.slurm import script
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.records.paths import PROJECT, RunFiles
from ddl_tools.records.run import read_epochs, read_record
from tests.launch.running import planned
from tests.launch.stand_ins import StandIns

STORED = Path(__file__).parent / "nsys" / "juwels_booster-2.sh"
RUN_DIR = Path("/shared/results/runs/nsys/a run")
RANK = ["/shared/venv/python", "-m", "ddl_tools.rank.worker", str(RUN_DIR)]


def test_the_command_is_the_stored_one() -> None:
    spec = RunSpec(strategy="ddp", nodes=2, gpus_per_node=4)
    logs, srun = RUN_DIR / "logs" / "attempt_0", script.srun_argv(spec, find_site("juwels_booster"))
    command = [*commands.nsys_prefix(logs), *RANK]
    text = shlex.join(words_of_step(spec, command, logs, Allocation(2, tuple(srun)))) + "\n"
    if os.environ.get("DDL_WRITE_GOLDEN"):
        STORED.write_text(text, encoding="utf-8")
    assert text == STORED.read_text(encoding="utf-8")


def test_every_flag_is_explained_on_the_page() -> None:
    page = (PROJECT / "docs" / "how-to" / "profile-a-run.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(--[^`]+)` \| (.+) \|$", page, re.MULTILINE))
    assert {flag: rows.get(flag) for flag in commands.NSYS_FLAGS} == commands.NSYS_FLAGS
    assert "--output=" in page


def test_what_cannot_be_profiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NotInstalledError, match="'nsys' is not on PATH; load the module"):
        commands.nsys(RunSpec(nsys=True), Path("/logs"))
    with pytest.raises(SpecError, match="profile_steps = 5 with nsys = true"):
        RunSpec.parse({"nsys": True, "profile_steps": 5, "epochs": 3})


# nsys itself is not free to be installed everywhere: this one ends its options and starts the rank.
STAND_IN = """#!/bin/sh
for word; do case "$word" in --output=*) out="${word#*=}";; esac; done
while case "$1" in profile|--*) true;; *) false;; esac; do shift; done
echo "$@" >"${out%.*}.$RANK.started"
exec "$@"
"""


@pytest.mark.multiprocess
@pytest.mark.extended
def test_a_run_starts_each_rank_through_it(stand_ins: StandIns) -> None:
    stand_ins.script("nsys", STAND_IN)
    directory = planned(gpus_per_node=2, epochs=2, nsys=True)
    ranks.run_ranks(directory)
    assert read_record(directory).status == "completed"
    # A profiler takes time of its own: no epoch counts.
    assert all(row.cold for row in read_epochs(directory))
    reports = commands.report_folder(RunFiles(directory).logs / "attempt_0")
    started = {path.name: path.read_text() for path in reports.iterdir()}
    assert set(started) == {"rank.0.started", "rank.1.started"}
    assert all(f"-m ddl_tools.rank.worker {directory}" in text for text in started.values())
