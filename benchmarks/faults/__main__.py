"""What becomes of a study whose processes, disk, files and clock are hit: faults in real runs.

Small runs of two ranks and two loader processes go through `ddl study resume`, as a user would
start it. Meanwhile, at a drawn phase of a run, one thing is done to them: a signal to one of the
processes, a full or read-only disk, a damaged file, a second writer, a clock that jumps. Then is
looked for what must not be: a traceback in what the user sees, a hang, a process or file left over,
a finished record that changed, a completed run that tables do not know and no command names.

    python -m benchmarks.faults [--faults N] [--seed N] [--minutes N]
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from benchmarks.faults.world import Missed, World
from benchmarks.turns import stored
from ddl_core.processes import stoppable

# Of so many parts, how many are of each kind.
SHARES = {"signal": 65, "disk full": 7, "read-only": 7, "damaged file": 10, "writer": 6, "clock": 5}
COUNTS = ("tracebacks", "hangs", "orphans", "left in the temporary directory", "changed", "unnamed")
TRIES = 2  # a phase may be over before it is seen


def measure() -> dict[str, Any]:
    """Inject the faults, check what is left, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=25, help="start no fault after that")
    asked = parser.parse_args()
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="ddl-f", dir="/tmp"))  # a socket's path is short
    try:
        with stoppable(), World(folder) as world:
            play(world, deck(asked.faults, asked.seed), started + 60 * asked.minutes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    content = {
        "seed": asked.seed,
        "faults_asked": asked.faults,
        **summary(world),
        "wall_s": round(time.monotonic() - started),
        "faults": [asdict(one) for one in world.done],
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
            print(f"{told:>3}  {one.line()}", flush=True)
    world.finish()


def summary(world: World) -> dict[str, Any]:
    """Return the counts."""
    found = dict.fromkeys(COUNTS, 0) | Counter(one.partition(":")[0] for one in world.found)
    return {
        "faults_injected": len(world.done),
        "by_kind": dict(Counter(one.kind for one in world.done)),
        "by_target": dict(Counter(one.target for one in world.done if one.kind == "signal")),
        "by_phase": dict(Counter(one.phase for one in world.done)),
        "missed": dict(world.missed),
        "runs_completed": len(world.finished),
        "clear_errors": world.clear_errors,
        "found": found,
        "violations": world.found,
    }


if __name__ == "__main__":
    sys.exit(1 if stored("faults", measure)["violations"] else 0)
