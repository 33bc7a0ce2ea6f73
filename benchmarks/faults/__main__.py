"""What becomes of a study whose processes, disk, files and clock are hit: faults in real runs.

Small runs of two ranks and two loader processes go through `ddl study resume`, as a user would
start it. Meanwhile, at a drawn phase of a run, one thing is done to them: a signal to one of the
processes, a full or read-only disk, a damaged file, a second writer, a clock that jumps. Then is
looked for what must not be: a traceback in what the user sees, a hang, a process or file left over,
a finished record that changed, a completed run that tables do not know and no command names.

    python -m benchmarks.faults [--faults N] [--seed N] [--minutes N] [--worlds N]

Most of a run's time is starting, so several studies are hit beside each other, each in folders, on
a disk and under a lock of its own.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.kinds import (
    ABSENT,
    DAMAGES,
    KINDS,
    PHASES,
    SHIFTS,
    SIGNALS,
    TARGETS,
    WRITERS,
    Fault,
)
from benchmarks.faults.world import Done, Missed, World
from benchmarks.interleaved import stored
from ddl_tools.processes import stoppable

# Of so many parts, how many are of each kind.
SHARES = {"signal": 65, "disk full": 7, "read-only": 7, "damaged file": 10, "writer": 6, "clock": 5}
COUNTS = ("tracebacks", "hangs", "orphans", "left in the temporary directory", "changed", "unnamed")
TRIES = 2  # a phase may be over before it is seen


class Played(NamedTuple):
    """What became of a world."""

    done: list[Done]
    found: list[str]
    missed: Counter[str]
    completed: int
    clear_errors: int


def measure() -> dict[str, Any]:
    """Inject the faults, check what is left, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=25, help="start no fault after that")
    parser.add_argument("--worlds", type=int, default=os.cpu_count() or 1, help="at once")
    asked = parser.parse_args()
    started = time.monotonic()
    drawn = deck(asked.faults, asked.seed)
    parts = [drawn[first :: asked.worlds] for first in range(asked.worlds)]
    with stoppable(), Pool(asked.worlds) as pool:
        work = partial(play_alone, deadline=started + 60 * asked.minutes)
        played = pool.map(work, parts, chunksize=1)
    content = {
        "seed": asked.seed,
        "faults_asked": asked.faults,
        "worlds": asked.worlds,
        **summary(played),
        "wall_s": round(time.monotonic() - started),
        "faults": [asdict(one) for world in played for one in world.done],
    }
    for key in ("faults_injected", "by_kind", "by_phase", "missed", "clear_errors", "found"):
        print(f"{key}: {content[key]}")
    return content


def deck(number: int, seed: int) -> list[Fault]:
    """Return faults of all kinds in their shares, in a drawn order."""
    chance, total = random.Random(seed), sum(SHARES.values())
    drawn: list[Fault] = []
    for kind, share in SHARES.items():
        every = list(_every(kind))
        chance.shuffle(every)
        wanted = round(number * share / total)
        drawn += [every[place % len(every)] for place in range(wanted)]
    chance.shuffle(drawn)
    return drawn


def _every(kind: str) -> Iterable[Fault]:
    """Yield each fault of a kind once."""
    targets, ways = {
        "signal": (TARGETS, SIGNALS),
        "disk full": (("results",), ("full",)),
        "read-only": (("results",), ("read-only",)),
        "damaged file": (("",), DAMAGES),
        "writer": (("",), WRITERS),
        "clock": (("all",), SHIFTS),
    }[kind]
    phases = ("between",) if kind == "damaged file" else PHASES
    for target in targets:
        for way in ways:
            for phase in phases:
                if phase not in ABSENT.get(target, ()):
                    yield Fault(kind, target, way, phase)


def play_alone(faults: list[Fault], deadline: float) -> Played:
    """Inject the faults in a world of their own."""
    folder = Path(tempfile.mkdtemp(prefix="ddl-f", dir="/tmp"))  # a socket's path is short
    try:
        with World(folder) as world:
            play(world, faults, deadline)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Played(world.done, world.found, world.missed, len(world.finished), world.clear_errors)


def play(world: World, faults: Iterable[Fault], deadline: float) -> None:
    """Inject one fault after the other; each starts a new study where the last one has ended."""
    told = 0
    for fault in faults:
        if time.monotonic() > deadline:
            break
        for _ in range(TRIES):
            try:
                KINDS[fault.kind](world, fault)
                break
            except Missed as reason:
                world.missed[str(reason)] += 1
        for one in world.done[told:]:
            told += 1
            print(one.line(), flush=True)
    world.finish()


def summary(played: list[Played]) -> dict[str, Any]:
    """Return the counts over all worlds."""
    done = [one for world in played for one in world.done]
    violations = [one for world in played for one in world.found]
    found = dict.fromkeys(COUNTS, 0) | Counter(one.partition(":")[0] for one in violations)
    return {
        "faults_injected": len(done),
        "by_kind": dict(Counter(one.kind for one in done)),
        "by_target": dict(Counter(one.target for one in done if one.kind == "signal")),
        "by_phase": dict(Counter(one.phase for one in done)),
        "missed": dict(sum((world.missed for world in played), Counter())),
        "runs_completed": sum(world.completed for world in played),
        "clear_errors": sum(world.clear_errors for world in played),
        "found": found,
        "violations": violations,
    }


if __name__ == "__main__":
    sys.exit(1 if stored("faults", measure)["violations"] else 0)
