"""A program before the command of each rank: where it stands, what it is told, what it costs."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddl_core.config import RunSpec
from ddl_core.errors import NotInstalledError, SpecError
from ddl_tools.cli import main
from ddl_tools.launch import commands, ranks
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import read_epochs, read_record
from tests.launch.running import planned
from tests.launch.stand_ins import SRUN, StandIns

LOGS = Path("/a folder/logs/attempt_0")
RANK = (sys.executable, "-m", "worker", "/run")


def test_it_stands_before_the_rank_on_this_machine(stand_ins: StandIns) -> None:
    stand_ins.add("profiler")
    spec = RunSpec(prefix="profiler '--to={logs}/rank.%q{RANK}' -v")
    command = commands.command(spec, "worker", Path("/run"), LOGS)
    assert command.rank == ("profiler", f"--to={LOGS}/rank.%q{{RANK}}", "-v", *RANK)


def test_it_stands_before_each_task_of_a_job(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.add("profiler")
    stand_ins.script("srun", f"#!{sys.executable}\n{SRUN}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("DDL_SRUN", "srun")
    spec = RunSpec(strategy="ddp", nodes=2, prefix="profiler -v")
    step = commands.command(spec, "worker", Path("/run"), LOGS).step
    assert step[-7:] == (f"{LOGS}/srun/attempt_0", "profiler", "-v", *RANK)


def test_a_missing_program_is_named_before_anything_starts() -> None:
    with pytest.raises(NotInstalledError, match="'no-such-program' is not on PATH"):
        commands.prefix(RunSpec(prefix="no-such-program -v"), LOGS)


@pytest.mark.parametrize("text", ["", "  ", "'open", "a\nb", "a\x1b[2J"])
def test_what_is_no_list_of_words_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="prefix"):
        RunSpec.parse({"prefix": text})


def test_no_epoch_counts_whatever_a_run_does() -> None:
    for work in ("train", "load"):
        assert RunSpec(work=work, prefix="env", epochs=7).cold_epochs(10**6) == 7


def test_the_program_of_a_study_is_shown_before_it_runs(tmp_path: Path) -> None:
    study = tmp_path / "strange.yaml"
    base = "{loader: synthetic, train_images: 64, eval_every: 0, prefix: env HIDDEN=1}"
    study.write_text(f"name: strange\nquestion: '?'\nbase: {base}\nrepeats: 1\n")
    where = ["--results", str(tmp_path / "results"), "--dry-run"]
    for command in ("plan", "run"):
        shown = CliRunner().invoke(main, ["study", command, str(study), *where])
        assert shown.exit_code == 0, shown.output
        assert "in 1 of 1 run, with your rights" in shown.output
        assert "  env HIDDEN=1\n" in shown.output
    assert f"env HIDDEN=1 {sys.executable} -m" in shown.output


STAND_IN = """#!/bin/sh
echo "$@" >"$1.$RANK.started"
shift
exec "$@"
"""


@pytest.mark.multiprocess
@pytest.mark.extended
def test_a_run_starts_each_rank_through_it(stand_ins: StandIns) -> None:
    stand_ins.script("profiler", STAND_IN)
    directory = planned(gpus_per_node=2, epochs=2, prefix="profiler {logs}/rank")
    ranks.run_ranks(directory)
    record = read_record(directory)
    assert (record.status, record.spec.prefix) == ("completed", "profiler {logs}/rank")
    assert all(row.cold for row in read_epochs(directory))
    logs = RunFiles(directory).logs / "attempt_0"
    started = {path.name: path.read_text() for path in logs.glob("rank.*")}
    assert set(started) == {"rank.0.started", "rank.1.started"}
    assert all(f"-m ddl_tools.rank.worker {directory}" in text for text in started.values())
