"""Large runs wait for a small one of their arm, with stand-ins for SLURM's programs."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ddl_tools.cli import main
from ddl_tools.records.ledger import Entry, plan
from ddl_tools.records.paths import results
from ddl_tools.records.run import Failure, read_record, write_record
from ddl_tools.study import Study
from tests.launch.running import study_file
from tests.launch.stand_ins import StandIns

NUMBERED = '#!/bin/sh\necho "$*" >>{calls}\nwc -l <{calls}\n'


@pytest.fixture
def sbatch(tmp_path: Path, stand_ins: StandIns) -> Path:
    """A stand-in that numbers its jobs from 1; what it was called with is in the file returned."""
    calls = tmp_path / "calls"
    stand_ins.script("sbatch", NUMBERED.format(calls=calls))
    for program in ("squeue", "scontrol", "scancel", "sacct"):
        stand_ins.add(program)
    return calls


def runs_of(folder: Path, **axes: Any) -> tuple[Path, list[Entry]]:
    path = study_file(folder, **{"strategy": "ddp", "nodes": [4, 1, 2], **axes})
    return path, plan(Study.load(path), results())


def mark(item: Entry, **fields: Any) -> None:
    write_record(item.directory, read_record(item.directory).model_copy(update=fields))


def submit(path: Path, *options: str) -> Result:
    line = ["study", "submit", str(path), "--site", "generic", "--small-first", *options]
    return CliRunner().invoke(main, line)


def called(calls: Path) -> list[tuple[str, str]]:
    """Return, per job, its run and the job that it waits for."""
    found = []
    for line in calls.read_text().splitlines() if calls.exists() else []:
        words = line.split()
        (job,) = [word.partition("afterok:")[2] for word in words if "--dep" in word] or [""]
        assert ("--kill-on-invalid-dep=yes" in words) == bool(job)
        found.append((Path(words[-1]).parent.name, job))
    return found


def test_the_smallest_goes_first_and_the_others_wait_for_it(tmp_path: Path, sbatch: Path) -> None:
    path, (four, one, two) = runs_of(tmp_path)
    done = submit(path)
    assert done.exit_code == 0, done.output
    names = [item.spec.run_id for item in (one, two, four)]
    assert called(sbatch) == [(names[0], ""), (names[1], "1"), (names[2], "1")]
    assert f"{names[2]} waits for {names[0]}" in done.output


def test_each_arm_and_only_the_first_repeat(tmp_path: Path, sbatch: Path) -> None:
    path, _ = runs_of(tmp_path, nodes=[2, 1], strategy=["ddp", "horovod"], repeats=2)
    assert submit(path).exit_code == 0
    found = called(sbatch)
    first = {name.split("-")[0]: str(i) for i, (name, _) in reversed([*enumerate(found, 1)])}
    assert [job for name, job in found if "-1x1-" in name] == [""] * 4
    larger = [(name.split("-")[0], job) for name, job in found if "-2x1-" in name]
    assert sorted(larger) == [("ddp", first["ddp"])] * 2 + [("horovod", first["horovod"])] * 2


def test_nothing_waits_once_a_small_run_is_complete(tmp_path: Path, sbatch: Path) -> None:
    path, (_, one, _) = runs_of(tmp_path)
    mark(one, status="completed")
    assert submit(path).exit_code == 0
    assert [job for _, job in called(sbatch)] == ["", ""]


def test_after_a_failed_small_run_no_larger_one_is_submitted(tmp_path: Path, sbatch: Path) -> None:
    path, (four, one, _) = runs_of(tmp_path)
    mark(one, status="failed", error=Failure.of("DataError", "x"))
    done = submit(path)
    assert done.exit_code == 0
    assert called(sbatch) == []
    assert f"not submitted: {four.spec.run_id}: the smallest runs of its arm" in done.output
    assert submit(path, "--retry-failed").exit_code == 0
    assert [job for _, job in called(sbatch)] == ["", "1", "1"]
