"""How long `make` takes on this machine, from a fresh clone on.

    python -m benchmarks.make_times [TARGET ...]

Clones the commit at hand into a temporary folder and calls `make` there for each target in turn:
`env`, `reproduce` and `test` unless others are named. What pip has in its cache is not downloaded
again. Once each: a duration of some minutes, not a comparison.
"""

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.interleaved import stored
from ddl_tools.records.paths import PROJECT

TARGETS = ("env", "reproduce", "test")


def measure() -> dict[str, Any]:
    """Measure and print."""
    targets = sys.argv[1:] or TARGETS
    # What leads to this environment would change what the other one does.
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("DDL_", "PYTHON", "VIRTUAL"))
    }
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", str(PROJECT), folder], check=True)
        for target in targets:
            started = time.perf_counter()
            subprocess.run(["make", target], cwd=folder, env=inherited, check=True)
            took[target] = round(time.perf_counter() - started, 1)
            print(f"make {target}: {took[target] / 60:.1f} min", flush=True)
    return {"seconds": took}


if __name__ == "__main__":
    stored("make_times", measure)
