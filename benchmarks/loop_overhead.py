"""What the measuring loop costs: `EpochLoop`, and loops of others, against a bare torch loop.

    python -m benchmarks.loop_overhead

All train the same network (one object: a copy elsewhere in memory may run some percent faster or
slower) on the same synthetic batches, in one process, one torch thread, in short interleaved
windows. Lightning and Accelerate are no part of the project's environment; without them the loop is
measured alone. To have them beside it:

    python -m pip install --no-deps --target build/benchmarks -r requirements/benchmarks.txt
    PYTHONPATH=build/benchmarks python -m benchmarks.loop_overhead

Takes 32 minutes. Target: at least 0.98 of the bare loop.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks import frameworks
from benchmarks.interleaved import Windows, interleave, ratio, say, seconds, stored
from ddl_core import device
from ddl_core.config import RunSpec
from ddl_core.loaders.synthetic import Synthetic
from ddl_core.loop import EpochLoop
from ddl_core.optim import make_optimizer
from ddl_core.registry import resolve
from ddl_core.step import TrainState
from ddl_core.strategies.base import Single

BARE, LOOP = "bare loop", "train_one_epoch"
TARGET = 0.98
SHORT_STEPS = RunSpec(
    loader="synthetic",
    model="resnet44",
    image_size=32,
    local_batch_size=8,
    train_images=32,
    device="cpu",
)
LAPTOP_STEPS = RunSpec(
    loader="synthetic", image_size=64, local_batch_size=16, train_images=32, device="cpu"
)
MORE_STEPS = SHORT_STEPS.model_copy(update={"train_images": 320})
# (spec, minutes, the others beside it): on a quiet machine they resolve one percent. What a loop
# does besides training weighs most where steps are short, so others are asked there; 40 steps show
# what of it is a cost of each step, and what one of each epoch. Those windows take seconds, so one
# other is beside them: with more, the windows of a pair lie too far apart.
CASES = {
    "resnet44, 32 px, batch 8, 4 steps": (SHORT_STEPS, 5, frameworks.LOOPS),
    "resnet44, 32 px, batch 8, 40 steps": (MORE_STEPS, 24, ("Lightning Fabric",)),
    "resnet50, 64 px, batch 16, 2 steps": (LAPTOP_STEPS, 3, ()),
}


def windows(spec: RunSpec, minutes: float, others: Sequence[str] = ()) -> Windows:
    """Return what the bare loop, ours and those of `others` took."""
    group = Single(spec)
    network = resolve("model", spec.model)(spec.classes)
    trainee = TrainState(spec, group, network, make_optimizer(spec, network))
    loader = Synthetic(spec, None, "train", 0, 1, group.device)
    works = {
        BARE: frameworks.bare(network, trainee.optimizer, loader, accumulation=spec.accumulation),
        LOOP: lambda: EpochLoop(trainee).train(loader, 0),
    }
    works |= frameworks.beside(network, trainee.optimizer, loader, others)
    device.configure(spec)  # last: threads that others set stay without effect
    return interleave(works, minutes)


def measure() -> dict[str, Any]:
    """Measure and print all cases."""
    rows, kept = [], {}
    for case, (spec, minutes, others) in CASES.items():
        took = windows(spec, minutes, others)
        kept[case] = seconds(took)
        for name in took:
            if name != BARE:
                target = TARGET if name == LOOP else None
                rows.append({"case": case, **ratio(took, name, BARE, target)})
                print(f"{case}: {say(rows[-1])}", flush=True)
    return {"ratios": rows, "windows_s": kept, "packages": frameworks.versions()}


if __name__ == "__main__":
    stored("loop_overhead", measure)
