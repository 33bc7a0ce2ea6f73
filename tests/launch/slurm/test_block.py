"""Blocks and small runs first: which runs share a job or wait for another, and what follows.

SLURM's programs are stand-ins; jobs of blocks on a real SLURM are in `test_real_slurm`.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from ddl_tools.launch.slurm.reconcile import settle, with_queue
from ddl_tools.launch.slurm.script import job_name
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.launch.slurm.slurm_cli import Queue, SlurmJob
from ddl_tools.launch.slurm.submit import blocks
from ddl_tools.records.ledger import Entry, entry, ledger, plan
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import Attempt, Failure, read_record
from ddl_tools.records.storage import now
from ddl_tools.study import Study
from tests.launch.running import change, ddl, study_file
from tests.launch.stand_ins import StandIns

GENERIC = find_site("generic")
STRATEGIES = ["ddp", "horovod", "deepspeed"]


def study_of(folder: Path, **fields: Any) -> tuple[Path, Study]:
    path = study_file(folder, **{"strategy": STRATEGIES, **fields})
    return path, Study.load(path)


def submitted(path: Path, *options: str, status: int = 0) -> Result:
    """Submit a study; the command has to end with `status`."""
    return ddl("study", "submit", path, "--site", "generic", *options, status=status)


def by_block(path: Path, *options: str, status: int = 0) -> Result:
    return submitted(path, "--by", "block", *options, status=status)


def queue_of(items: list[Entry], state: str) -> Queue:
    """Return a queue with job 17, that of some runs."""
    name = job_name("small", [item.spec for item in items])
    return {"17": SlurmJob(name, state)}


def in_a_job(folder: Path, *states: dict[str, Any]) -> list[Entry]:
    """Return the runs of job 17, a block, with records of these states."""
    _, study = study_of(folder)
    items = plan(study, results())
    for item, fields in zip(items, states, strict=True):
        change(item, job_id="17", **{"error": None, "attempts": [], **fields})
    return [entry(item.spec, item.directory) for item in items]


def running() -> dict[str, Any]:
    return {"status": "running", "attempts": [Attempt(started_utc=now())]}


WAITS: dict[str, Any] = {"status": "submitted"}
FAILED = {"status": "failed", "error": Failure.of("DataError", "its own")}


def test_a_block_is_what_one_repeat_runs_on_the_same_nodes(tmp_path: Path) -> None:
    axes = {"nodes": [1, 2], "work": ["train", "load"], "device": ["cpu", "auto"]}
    _, study = study_of(tmp_path, loader="native", repeats=2, **axes)
    found = blocks(ledger(study, results()), GENERIC)
    assert [len(block) for block in found] == [3] * 16
    for block in found:
        assert sorted(item.spec.strategy for item in block) == sorted(STRATEGIES)
        alike = {(one.spec.repeat, one.spec.nodes, one.spec.work, one.spec.device) for one in block}
        assert len(alike) == 1
    # Without GPUs, ranks on the CPU ask for the same nodes as any other.
    assert len(blocks(ledger(study, results()), find_site("localtest"))) == 8


def test_the_order_is_random_and_the_same_again(tmp_path: Path) -> None:
    _, study = study_of(tmp_path, repeats=60)
    items = ledger(study, results())
    found = blocks(items, GENERIC)
    assert blocks(items[::-1], GENERIC)[::-1] == found
    for place in range(3):
        first = [block[place].spec.strategy for block in found]
        assert all(10 <= first.count(one) <= 30 for one in STRATEGIES)  # 20 expected
    # What is left of a block keeps its order; another study has another one.
    left = [[block[0], block[2]] for block in found]
    assert blocks([item for block in left for item in block], GENERIC) == left
    other = [
        [item.spec.strategy for item in block]
        for block in blocks(ledger(study.model_copy(update={"name": "o"}), results()), GENERIC)
    ]
    assert other != [[item.spec.strategy for item in block] for block in found]


def test_one_job_gets_all_runs_and_the_sum_of_their_limits(tmp_path: Path, sbatch: Path) -> None:
    path, study = study_of(tmp_path, nodes=4, repeats=2)
    first, second = blocks(ledger(study, results()), GENERIC)
    shown = by_block(path, "--dry-run", "--all-scripts")
    assert shown.output.count("#!/bin/bash") == 2
    lines = shown.output.splitlines()
    at = lines.index("small-4x1-r0: 3 runs in 03:00:00, in this order:")
    assert lines[at + 1 : at + 4] == [f"  {item.spec.run_id}" for item in first]
    costs = [line.split() for line in lines if line.endswith(("24.0", "8.0"))]
    assert costs[-1] == ["total", "6", "0", "2", "24.0"]
    assert costs[-2][-3:] == ["0", "2", "8.0"]  # of each configuration a third
    assert not results().root.exists()
    assert not sbatch.exists()
    done = by_block(path)
    assert len(sbatch.read_text().splitlines()) == 2
    for number, block in (("1", first), ("2", second)):
        script = RunFiles(block[0].directory).script.read_text()
        assert f"#SBATCH --job-name=ddl-small-4x1-r{block[0].spec.repeat}\n" in script
        assert "#SBATCH --time=03:00:00\n" in script
        given = re.findall(r"^  ?(\S+/small/\S+)|slurm\.job (\S+) ", script, re.MULTILINE)
        assert [Path("".join(one)) for one in given] == [item.directory for item in block]
        log = RunFiles(block[0].directory).logs / f"slurm-{number}.log"
        log.write_text("said")
        for item in block:
            record = read_record(item.directory)
            assert (record.status, record.job_id) == ("submitted", number)
            assert RunFiles(item.directory).script.read_text() == script
            assert (RunFiles(item.directory).logs / log.name).read_text() == "said"
            assert f"{number}  {item.spec.run_id}\n" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], r"small-1x1-r0 asks for 03:00:00 \(3 runs of 01:00:00 each\), but .* 02:30:00"),
        (["--time", "02:45:00"], r"small-1x1-r0 asks for 02:45:00, but .* last 02:30:00"),
        (["--time", "02:30:00"], None),
        (["--partition", "other"], None),  # of which the site's file knows nothing
    ],
)
def test_a_block_longer_than_the_partition_grants_is_refused(
    tmp_path: Path, sbatch: Path, options: list[str], message: str | None
) -> None:
    path, study = study_of(tmp_path)
    site = tmp_path / "short.toml"
    site.write_text('description = "x"\npartition = "gpu"\ntime_max = "02:30:00"\n')
    done = by_block(path, "--site", str(site), *options, status=int(message is not None))
    if message:
        assert re.search(message, done.output)
        assert "--time 02:30:00: what is then left goes on" in done.output
        assert "--by run" in done.output
        assert not sbatch.exists()
        assert not ledger(study, results())[0].directory.exists()


def test_only_what_is_left_is_in_the_block_and_nothing_twice(
    tmp_path: Path, sbatch: Path, stand_ins: StandIns
) -> None:
    path, study = study_of(tmp_path)
    (block,) = blocks(plan(study, results()), GENERIC)
    change(block[1], status="completed")
    by_block(path)
    script = RunFiles(block[0].directory).script.read_text()
    assert "--time=02:00:00\n" in script
    assert str(block[1].directory) not in script
    stand_ins.add("squeue", "1|ddl-small-1x1-r0|PENDING|Priority\n")
    by_block(path)
    submitted(path)
    change(block[0], **FAILED)  # it has to wait for the end of its block
    by_block(path, "--retry-failed")
    assert len(sbatch.read_text().splitlines()) == 1


def test_the_queue_tells_the_run_at_work_from_those_that_wait(tmp_path: Path) -> None:
    items = in_a_job(tmp_path, running(), WAITS, FAILED)
    at_work, waits, failed = with_queue(items, queue_of(items, "RUNNING"))
    assert (at_work.state, at_work.reason) == ("running", "job 17 RUNNING")
    assert waits.state == "submitted"
    assert waits.reason == "job 17 RUNNING (its turn in the block comes later)"
    assert failed == replace(items[2], queued=True)
    assert {item.state for item in with_queue(items[:2], queue_of(items, "PENDING"))} == {
        "submitted"
    }


@pytest.mark.parametrize(
    ("state", "at_work", "waiting", "unbegun"),
    [
        ("CANCELLED", "cancelled", "cancelled", "cancelled"),
        ("TIMEOUT", "time_limit", "time_limit", "time_limit"),
        ("NODE_FAIL", "node_failure", "node_failure", "node_failure"),
        ("OUT_OF_MEMORY", "failed out_of_memory", "cancelled", "failed out_of_memory"),
        ("FAILED", "failed killed", "cancelled", "failed killed"),
    ],
)
def test_all_open_runs_of_a_job_that_died_are_settled(
    tmp_path: Path, stand_ins: StandIns, state: str, at_work: str, waiting: str, unbegun: str
) -> None:
    def settled(*states: dict[str, Any]) -> list[str]:
        found = settle(with_queue(in_a_job(tmp_path, *states), {}))
        assert f"job 17 ended as {state}" in found[-1].reason
        return [f"{item.state} {item.category}".removeprefix("interrupted ") for item in found]

    stand_ins.add("sacct", f"17|ddl-small-1x1-r0|{state}|0:9\n")
    begun = settled({"status": "completed"}, running(), WAITS)
    assert begun == ["completed None", at_work, waiting]
    assert [call.split()[-1] for call in stand_ins.calls("sacct")] == ["17"]
    assert settled(WAITS, WAITS, WAITS) == [unbegun] * 3  # the job began with none of them


def test_without_accounting_a_job_that_began_leaves_the_rest_of_its_block_open(
    tmp_path: Path, stand_ins: StandIns
) -> None:
    stand_ins.add("sacct", error="Slurm accounting storage is disabled\n", status=1)
    for first, found in (({"status": "completed"}, "interrupted"), (WAITS, "failed")):
        items = in_a_job(tmp_path, first, WAITS, WAITS)
        for item in items:
            logs = RunFiles(item.directory).logs
            logs.mkdir(exist_ok=True)
            (logs / "slurm-17.log").write_text("srun: not found\n")
        assert [item.state for item in settle(with_queue(items, {}))[1:]] == [found] * 2


def test_one_run_of_a_block_cannot_be_cancelled_alone(tmp_path: Path, stand_ins: StandIns) -> None:
    items = in_a_job(tmp_path, {"status": "completed"}, running(), WAITS)
    cancelling = ("study", "cancel", tmp_path / "small.yaml")
    stand_ins.add("squeue", "17|ddl-small-1x1-r0|RUNNING|None\n")
    stand_ins.add("scancel")
    names = [item.spec.run_id for item in items]
    refused = ddl(*cancelling, "--run", names[1], status=1)
    assert f"that of {names[1]} also has {names[2]}: name these with --run" in refused.output
    assert stand_ins.calls("scancel") == []
    both = ddl(*cancelling, "--run", names[1], "--run", names[2], status=0)
    assert stand_ins.calls("scancel") == ["17"]
    assert both.output.count("cancelled  ") == 2
