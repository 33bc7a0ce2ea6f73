"""Time of the calculator of exposed communication: a curve to a million ranks.

    python -m benchmarks.scaling

Target: under 1 s for each framework.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.interleaved import stored
from ddl_tools.scaling.communication import Exchange, Network, exposed_s, resnet

FRAMEWORKS = ("ddp", "horovod", "deepspeed")
CURVE = np.unique(np.geomspace(1, 1_000_000, 100).astype(int))
TARGETS_S = {"curve": 1.0}


def seconds(work: Callable[[], object]) -> dict[str, float]:
    """Return the wall and CPU seconds of one call; beside others the wall clock is worth little."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def measure() -> dict[str, Any]:
    """Measure and print."""
    network = Network(20e9, 5e-6, 200e9, 1e-6, 4, "fastest")
    found: dict[str, Any] = {"sizes": len(CURVE), "targets_s": TARGETS_S, "curve_s": {}}
    for name in FRAMEWORKS:
        exchange = Exchange(resnet("resnet50"), name)
        found["curve_s"][name] = seconds(
            lambda: exposed_s(exchange, 0.1, network, CURVE)  # noqa: B023
        )
        print(f"{name}: {len(CURVE)} sizes to a million {found['curve_s'][name]}")
    return found


if __name__ == "__main__":
    stored("scaling", measure)
