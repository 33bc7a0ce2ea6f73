"""What is lost when jobs of a study are hit at random: faults injected into a real SLURM.

Runs of all three frameworks go through a private SLURM of four emulated nodes on this machine.
Meanwhile, at random and seeded moments, a batch script, a rank or a node's daemon is killed, a node
is declared down, or a job gets the notice of its time limit. What stopped is submitted again, until
all faults are spent and all runs are complete. A record that was complete must never change again.

    python -m benchmarks.slurm_faults [--faults N] [--seed N] [--minutes N]
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

from benchmarks.interleaved import stored
from ddl_core.errors import LaunchError
from ddl_tools.cli import main as ddl
from ddl_tools.emulation.local_slurm import EmulatedSlurm, running
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.study import read_runs
from ddl_tools.processes import stoppable
from ddl_tools.records.ledger import Entry, ledger
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.progress import read_progress
from ddl_tools.records.run import read_epochs, read_record
from ddl_tools.records.storage import now
from ddl_tools.study import Study
from tests.launch.slurm import faults

REPEATS = 2  # of each framework: two runs at work on four nodes, four that wait
EPOCHS = 8
PAUSE_S = (3.0, 15.0)  # between faults
MENDED_AFTER_S = (1.0, 25.0)  # some nodes are back before SLURM gives them up (10 s), some not
POLL_S = 1.0
# Where a node fails in the moment of a job's start, SLURM holds the job until somebody releases it.
HELD = "launch failed requeued held"

Fault = Callable[[EmulatedSlurm, Entry, random.Random], str]


@dataclass
class Outcome:
    """What was done, and what became of it."""

    faults: list[dict[str, str]] = field(default_factory=list)
    missed: int = 0  # chosen, but its target had just ended
    violations: list[str] = field(default_factory=list)
    final: dict[str, str] = field(default_factory=dict)  # run.json of completed runs


def kill_script(cluster: EmulatedSlurm, item: Entry, chance: random.Random) -> str:
    """Kill the job's script."""
    faults.kill_script(cluster, str(item.job_id))
    return f"job {item.job_id}"


def kill_rank(cluster: EmulatedSlurm, item: Entry, chance: random.Random) -> str:
    """Kill one of the ranks."""
    rank = chance.randrange(item.spec.world_size)
    faults.kill_rank(cluster, item.directory, rank)
    return f"rank {rank}"


def kill_daemon(cluster: EmulatedSlurm, item: Entry, chance: random.Random) -> str:
    """Kill the daemon of one of the job's nodes."""
    node = chance.choice(_nodes(cluster, item))
    faults.kill_daemon(cluster, node)
    return node


def take_down(cluster: EmulatedSlurm, item: Entry, chance: random.Random) -> str:
    """Declare one of the job's nodes down."""
    node = chance.choice(_nodes(cluster, item))
    faults.take_down(cluster, node)
    return node


def notice_limit(cluster: EmulatedSlurm, item: Entry, chance: random.Random) -> str:
    """Send the notice of the time limit."""
    faults.notice_limit(cluster, str(item.job_id))
    return f"job {item.job_id}"


KINDS: tuple[Fault, ...] = (kill_script, kill_rank, kill_daemon, take_down, notice_limit)


def _nodes(cluster: EmulatedSlurm, item: Entry) -> list[str]:
    nodes = faults.nodes_of(cluster, str(item.job_id))
    if not nodes:
        raise LaunchError(f"job {item.job_id} has no node now")
    return nodes


def measure() -> dict[str, Any]:
    """Inject the faults, check the records, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="start no fault after that")
    asked = parser.parse_args()
    started = time.monotonic()
    deadline = started + 60 * asked.minutes
    with tempfile.TemporaryDirectory() as folder, stoppable(), running(nodes=4) as cluster:
        environment = cluster.environment()
        os.environ.clear()
        os.environ.update(environment)
        tree, outcome, rounds = Tree(Path(folder)), Outcome(), []
        chance = random.Random(asked.seed)
        while len(outcome.faults) < asked.faults and time.monotonic() < deadline:
            rounds.append(study(len(rounds)))
            play(cluster, rounds[-1], tree, outcome, chance, asked.faults, deadline)
        for each in rounds:
            check(each, tree, outcome)
        attempts = [
            one.error.kind if one.error else one.status
            for each in rounds
            for item in ledger(each, tree)
            for one in read_record(item.directory).attempts
        ]
    content = {
        "seed": asked.seed,
        "faults_asked": asked.faults,
        "faults_injected": len(outcome.faults),
        "by_kind": dict(Counter(one["kind"] for one in outcome.faults)),
        "runs": sum(len(each.expand()) for each in rounds),
        "runs_completed": len(outcome.final),
        "attempts": dict(Counter(attempts)),
        "wall_s": round(time.monotonic() - started),
        **{key: value for key, value in asdict(outcome).items() if key != "final"},
    }
    for key in ("faults_injected", "by_kind", "runs", "runs_completed", "attempts", "violations"):
        print(f"{key}: {content[key]}")
    return content


def study(number: int) -> Study:
    """Return one round: runs of each framework on two nodes."""
    base: dict[str, Any] = {
        "model": "resnet18",
        "loader": "synthetic",
        "device": "cpu",
        "image_size": 32,
        "classes": 10,
        "train_images": 160,
        "eval_images": 16,
        "local_batch_size": 8,
        "epochs": EPOCHS,
        "discard_steps": 0,
        "loader_workers": 0,
        "checkpoint_every": 1,
        "nodes": 2,
        "seed": number,
    }
    axes: Any = [{"strategy": ["ddp", "horovod", "deepspeed"]}]
    return Study(name=f"round_{number}", question="?", base=base, axes=axes, repeats=REPEATS)


def play(
    cluster: EmulatedSlurm,
    asked: Study,
    tree: Tree,
    outcome: Outcome,
    chance: random.Random,
    limit: int,
    deadline: float,
) -> None:
    """Submit a study again and again until all its runs are complete, with faults meanwhile."""
    path = tree.root / f"{asked.name}.yaml"
    path.write_text(yaml.safe_dump(asked.model_dump()))
    next_fault = time.monotonic() + chance.uniform(*PAUSE_S)
    mend_at = 0.0
    while True:
        entries = read_runs(asked, tree, slurm_cli.queue)
        watch_completed(entries, outcome)
        if all(item.state == "completed" for item in entries):
            faults.mend(cluster)
            return
        spent = len(outcome.faults) >= limit or time.monotonic() > deadline
        targets = [item for item in entries if item.state == "running" and at_work(item)]
        if targets and not spent and time.monotonic() > next_fault:
            inject(cluster, chance.choice(targets), chance, outcome)
            next_fault = time.monotonic() + chance.uniform(*PAUSE_S)
            mend_at = mend_at or time.monotonic() + chance.uniform(*MENDED_AFTER_S)
        if (mend_at and time.monotonic() > mend_at) or spent:
            faults.mend(cluster)
            mend_at = 0.0
        for item in entries:
            if HELD in item.reason:
                cluster.call("scontrol", "release", str(item.job_id))
        if any(item.state not in ("completed", "running", "submitted") for item in entries):
            _submit(path, tree)
        time.sleep(POLL_S)


def _submit(path: Path, tree: Tree) -> None:
    words = ["study", "submit", str(path), "--site", "localtest", "--retry-failed"]
    try:
        ddl.main([*words, "--results", str(tree.root)], standalone_mode=False)
    except click.ClickException as error:
        print(f"not submitted now: {error.message}", flush=True)


def at_work(item: Entry) -> bool:
    """Say whether the ranks of a run have begun to train."""
    progress = read_progress(item.directory)
    return progress is not None and progress["phase"] in ("train", "eval")


def inject(cluster: EmulatedSlurm, item: Entry, chance: random.Random, outcome: Outcome) -> None:
    """Do one thing to a run at work, and note it."""
    kind = chance.choice(KINDS)
    try:
        target = kind(cluster, item, chance)
    except LaunchError:
        outcome.missed += 1
        return
    outcome.faults.append(
        {"utc": now(), "kind": kind.__name__, "target": target, "run": item.spec.run_id}
    )
    print(
        f"{len(outcome.faults):>3}  {kind.__name__:<12}  {target}  {item.spec.run_id}", flush=True
    )


def watch_completed(entries: list[Entry], outcome: Outcome) -> None:
    """Keep the record of a run when it completes; report one that changed, or went, after that."""
    for item in entries:
        name, path = str(item.directory), RunFiles(item.directory).record
        text = path.read_text() if item.state == "completed" else ""
        before = outcome.final.get(name)
        if before is None and text:
            outcome.final[name] = text
        elif before is not None and text != before:
            outcome.violations.append(f"{item.spec.run_id}: a finished record changed")
            outcome.final[name] = text


def check(asked: Study, tree: Tree, outcome: Outcome) -> None:
    """Check the end of a round: completed once or failed with a reason, epochs whole, one weight.

    Two gradients sum to the same in every order, so after the same updates the three frameworks
    hold the same weights, however often their runs were stopped.
    """
    entries = ledger(asked, tree)
    watch_completed(entries, outcome)
    for item in entries:
        record = read_record(item.directory)
        completions = [one.status for one in record.attempts].count("completed")
        if item.state == "failed" and not item.reason:
            outcome.violations.append(f"{item.spec.run_id}: failed without a reason")
        elif item.state not in ("completed", "failed"):
            outcome.violations.append(f"{item.spec.run_id}: ended as {item.state}")
        if completions != (item.state == "completed"):
            outcome.violations.append(f"{item.spec.run_id}: completed {completions} times")
        epochs = [row.epoch for row in read_epochs(item.directory) if row.phase == "train"]
        if item.state == "completed" and epochs != list(range(EPOCHS)):
            outcome.violations.append(f"{item.spec.run_id}: has the epochs {epochs}")
    weights = {(one.spec.repeat, read_record(one.directory).weights_sha256) for one in entries}
    if len(weights) != REPEATS:
        outcome.violations.append(f"{asked.name}: {weights} instead of one per repeat")


if __name__ == "__main__":
    sys.exit(1 if stored("slurm_faults", measure)["violations"] else 0)
