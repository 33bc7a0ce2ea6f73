"""What becomes of a user's mistakes: bad inputs for every parameter of every command of `ddl`.

The inputs are those of `tests/cli/bad_inputs.py`. Every twentieth is also tried as a process.

    python -m benchmarks.bad_inputs
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.interleaved import stored
from tests.cli.bad_inputs import (
    CLEAR,
    OUTCOMES,
    World,
    as_process,
    commands,
    in_process,
    mistakes,
)

EVERY = 20


def measure() -> dict[str, Any]:
    """Try them all, and print what came of them."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    started = time.monotonic()
    outcomes = {"in_process": Counter[str](), "as_process": Counter[str]()}
    by_command: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        with world.inside():
            tried = [bad for path in sorted(commands()) for bad in mistakes(path, world)]
            for number, bad in enumerate(tried):
                by_command[" ".join(bad.command)] += 1
                ways = {"in_process": in_process, "as_process": as_process}
                for where, attempt in list(ways.items())[: 2 if number % EVERY == 0 else 1]:
                    outcome, said = attempt(bad)
                    outcomes[where][outcome] += 1
                    if outcome != CLEAR:
                        print(f"{outcome}: {bad}  {bad.words!r}\n{said}")
    content = {
        "commands": len(commands()),
        "inputs": len(tried),
        "outcomes": {
            where: {name: counts[name] for name in OUTCOMES} for where, counts in outcomes.items()
        },
        "by_command": dict(by_command),
        "wall_s": round(time.monotonic() - started),
    }
    for name in ("commands", "inputs", "outcomes"):
        print(f"{name}: {content[name]}")
    return content


if __name__ == "__main__":
    counts = stored("bad_inputs", measure)["outcomes"]
    sys.exit(any(some[name] for some in counts.values() for name in OUTCOMES if name != CLEAR))
