"""What a rank of `ranks.py` does under DeepSpeed alone."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch import Tensor

from ddl_core.loop import EpochLoop
from ddl_core.step import TrainState
from ddl_core.strategies.deepspeed import DeepSpeed, configuration
from tests.core.strategies.two_ranks import Batches, result, train

SLEPT_S = 0.01  # in each reduction of a bucket, where reductions are slowed down


def prepare(group: DeepSpeed) -> None:
    """Let the group do what its constructor does of a run."""
    group._configuration = configuration(group.spec)
    # What DeepSpeed's default is for a network of more than a billion weights: many sub-groups.
    group._configuration["zero_optimization"].setdefault("sub_group_size", 10)
    group.is_sharded = group.spec.deepspeed_zero_stage == 3


@contextmanager
def noting_waits() -> Iterator[list]:
    """Note each call that makes the host wait for the device."""
    from deepspeed.accelerator import get_accelerator

    found = []

    def noted(real):
        def call(*arguments):
            found.append(real)
            return real(*arguments)

        return call

    with (
        patch.object(type(get_accelerator()), "synchronize", noted(lambda *_: None)),
        patch.object(Tensor, "item", noted(Tensor.item)),
        patch.object(Tensor, "__bool__", noted(Tensor.__bool__)),
    ):
        yield found


def undisturbed(group: DeepSpeed, subject: TrainState, batches: Batches) -> dict:
    """Train, and note what the engine does."""
    engine = subject.wrapped
    reduced = patch.object(
        engine, "buffered_allreduce_fallback", wraps=engine.buffered_allreduce_fallback
    )
    with reduced as reduce:
        losses = train(subject, batches, [0])
    with noting_waits() as waits:
        losses += train(subject, batches, [1])
    done = {**result(subject, losses), "steps": engine.global_steps}
    return {
        **done,
        "spent": slept(subject, batches),
        "timer": engine.tput_timer.config.enabled,
        "synchronised": engine.wall_clock_breakdown(),
        "waits": len(waits),
        "communication": group.describe(),
        "reduced_by": reduce.call_args.kwargs["elements_per_buffer"] if reduce.called else None,
    }


def slept(subject: TrainState, batches: Batches) -> dict | None:
    """Train once more, with a sleep in each reduction of a bucket; return the time's breakdown."""
    zero = subject.wrapped.optimizer
    if not hasattr(zero, "average_tensor"):
        return None

    def slow(*arguments):
        time.sleep(SLEPT_S)
        return average(*arguments)

    average = zero.average_tensor
    with patch.object(zero, "average_tensor", slow):
        spent = EpochLoop(subject).train(batches, 1).timing.spent
    return spent.model_dump() if spent else None


def forget(group: DeepSpeed) -> None:
    """End the engine now: the garbage collector would do it while waits are being counted."""
    group._engine.destroy()
    group._engine = group.optimizer = None  # type: ignore[assignment]
    gc.collect()
