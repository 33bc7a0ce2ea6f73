"""How long the scaling model takes: a curve to a million ranks, and a simulation of 4096.

    python -m benchmarks.scaling

Targets: the closed form under 1 s for each framework, 4096 ranks x 1000 steps under 10 s.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.turns import stored
from ddl_core.scaling.collectives import Network
from ddl_core.scaling.gradients import resnet
from ddl_core.scaling.loading import Loading
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, predict
from ddl_core.scaling.simulate import simulate

FRAMEWORKS = ("ddp", "horovod", "deepspeed")
RANKS, STEPS = 4096, 1000
CURVE = np.unique(np.geomspace(1, 1_000_000, 100).astype(int))
TARGETS_S = {"curve": 1.0, "simulation": 10.0}


def seconds(work: Callable[[], object]) -> dict[str, float]:
    """Return the wall and CPU seconds of one call; beside others the wall clock is worth little."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def measure() -> dict[str, Any]:
    """Measure and print."""
    network = Network(20e9, 5e-6, 200e9, 1e-6, 4, "fastest")
    loading = Loading(rank_rate=1000, spread=0.3)
    found: dict[str, Any] = {"ranks": RANKS, "steps": STEPS, "sizes": len(CURVE)}
    found |= {"targets_s": TARGETS_S, "curve_s": {}, "simulation_s": {}}
    for name in FRAMEWORKS:
        training = Training(resnet("resnet50"), name, images=1_281_167)
        closed = Machine(0.1, network, loading, stall_s=0.002)
        whole = Machine(0.1, network, loading, stall_s=0.002, jitter=0.03)
        found["curve_s"][name] = seconds(lambda: predict(closed, training, CURVE))  # noqa: B023
        found["simulation_s"][name] = seconds(
            lambda: simulate(whole, training, RANKS, STEPS)  # noqa: B023
        )
        print(
            f"{name}: {len(CURVE)} sizes to a million {found['curve_s'][name]}, "
            f"{RANKS} ranks x {STEPS} steps {found['simulation_s'][name]}"
        )
    return found


if __name__ == "__main__":
    stored("scaling", measure)
