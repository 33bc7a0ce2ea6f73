"""What becomes of a user's mistakes: bad inputs for every parameter of every command of `ddl`.

The inputs are those of `tests/cli/bad_inputs.py`, which makes them from the tree of commands: wrong
values, places that are none, names that are not UTF-8, studies and machines whose files are wrong,
photos among which are fifos and links in a circle. Most are tried in this process, some as
processes of their own. An input counts once, however often it was drawn.

    python -m benchmarks.bad_inputs [--inputs N] [--processes N]
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from benchmarks.turns import stored
from tests.cli.bad_inputs import (
    CLEAR,
    OUTCOMES,
    BadInput,
    as_process,
    bad_inputs,
    commands,
    in_process,
)
from tests.cli.bad_world import World, inside

Try = Callable[[BadInput], tuple[str, str]]


def measure() -> dict[str, Any]:
    """Try them all, and print what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=2000, help="tried in this process")
    parser.add_argument("--processes", type=int, default=100, help="tried as processes")
    asked = parser.parse_args()
    started = time.monotonic()
    tried: dict[BadInput, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        with inside(world):
            for path in sorted(commands()):
                share = asked.inputs // len(commands())
                try_some(world, share, lambda bad: note(tried, bad, in_process), path)
            processes: dict[BadInput, str] = {}
            try_some(world, asked.processes, lambda bad: note(processes, bad, as_process))
    found = {"in_process": tried, "as_process": processes}
    content = {
        "commands": len(commands()),
        "inputs": sum(map(len, found.values())),
        "outcomes": {
            where: {name: Counter(some.values())[name] for name in OUTCOMES}
            for where, some in found.items()
        },
        "by_command": dict(sorted(Counter(" ".join(bad.command) for bad in tried).items())),
        "by_kind": dict(sorted(Counter(bad.kind for bad in tried).items())),
        "wall_s": round(time.monotonic() - started),
    }
    for name in ("commands", "inputs", "outcomes"):
        print(f"{name}: {content[name]}")
    return content


def try_some(
    world: World, count: int, attempt: Callable[[BadInput], None], path: Any = None
) -> None:
    """Draw `count` inputs, of one command or of any, and try each."""

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=count,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(bad_inputs(world, path))
    def each(bad: BadInput) -> None:
        attempt(bad)

    each()


def note(tried: dict[BadInput, str], bad: BadInput, attempt: Try) -> None:
    """Try an input that was not tried before; print what did not end as it should."""
    if bad in tried:
        return
    tried[bad], said = attempt(bad)
    if tried[bad] != CLEAR:
        print(f"{tried[bad]}: ddl {' '.join(bad.command)}  {bad.kind}  {bad.words!r}\n{said}")


if __name__ == "__main__":
    counts = stored("bad_inputs", measure)["outcomes"]
    sys.exit(any(some[name] for some in counts.values() for name in OUTCOMES if name != CLEAR))
