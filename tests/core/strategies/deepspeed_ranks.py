"""Two ranks train a small network under DeepSpeed, once for each case; started by torchrun."""

import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

from ddl_core.checkpoint import load, save
from ddl_core.config import RunSpec
from ddl_core.loaders.base import Loader
from ddl_core.loop import EpochLoop
from ddl_core.optim import make_optimizer
from ddl_core.step import TrainState
from ddl_core.strategies.deepspeed import DeepSpeed, configuration
from tests.planted import tiny

SLEPT_S = 0.01  # in each reduction of a bucket, where reductions are slowed down
STEPS = 10  # of each of two epochs
BATCH = 4
BASE_LR = 0.01  # at which it learns: what rounding does stays as small as it is


class Batches(Loader):
    """Micro-batches of one rank: number m of step s belongs to virtual worker rank * a + m."""

    classes = 3

    def __init__(self, rank: int, workers: int, accumulation: int) -> None:
        self.images = STEPS * workers * BATCH
        self._mine = [
            step * workers + rank * accumulation + micro
            for step in range(STEPS)
            for micro in range(accumulation)
        ]
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._mine)

    def __iter__(self):
        for number in self._mine:
            generator = torch.Generator().manual_seed(1000 * self._epoch + number)
            images = torch.randn(BATCH, 3, 16, 16, generator=generator)
            labels = torch.randint(3, (BATCH,), generator=generator)
            images[torch.arange(BATCH), labels] += 1  # a colour to learn
            yield images, labels


def network() -> nn.Module:
    """Make a network with batch statistics, and an odd number of parameters to share."""
    torch.manual_seed(0)
    return tiny(3)


def spec(strategy: str, **fields) -> RunSpec:
    common = {"classes": 3, "local_batch_size": BATCH, "epochs": 2, "warmup_epochs": 0.5}
    common |= {"base_lr": BASE_LR, "schedule": "constant"}
    return RunSpec(
        **{**common, "strategy": strategy, "weight_decay": 0.01, "device": "cpu", **fields}
    )


def build(run: RunSpec, group, model: nn.Module) -> TrainState:
    """Make the subject; with fp16 its scale is one that no step of this network overflows."""
    if run.channels_last:
        model.to(memory_format=torch.channels_last)
    subject = TrainState(run, group, model, make_optimizer(run, model))
    if subject.scaler.is_enabled():
        subject.scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    return subject


def train(subject: TrainState, batches: Batches, epochs=(0, 1)) -> list[float]:
    return [EpochLoop(subject).train(batches, epoch).loss for epoch in epochs]


def result(subject: TrainState, losses: list[float]) -> dict:
    full = subject.strategy.full_state(subject.network, subject.optimizer)
    weights = {name: value.clone() for name, value in full["model"].items()}
    return {"losses": losses, "weights": weights, "optimizer": full["optimizer"]}


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


def make(group: DeepSpeed, fields: dict) -> TrainState:
    run = spec("deepspeed", gpus_per_node=2, **fields)
    group.spec, group._configuration = run, configuration(run)
    # What DeepSpeed's default is for a network of more than a billion weights: many sub-groups.
    group._configuration["zero_optimization"].setdefault("sub_group_size", 10)
    group.is_sharded = run.deepspeed_zero_stage == 3
    model = network()
    if group.rank == 1:
        with torch.no_grad():
            model[0].weight.zero_()  # rank 0's weights must come
    return build(run, group, model)


def undisturbed(group: DeepSpeed, fields: dict) -> dict:
    subject = make(group, fields)
    batches = Batches(group.rank, subject.spec.virtual_workers, subject.spec.accumulation)
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


def resumed(group: DeepSpeed, fields: dict, path: Path) -> dict:
    subject = make(group, fields)
    batches = Batches(group.rank, subject.spec.virtual_workers, subject.spec.accumulation)
    losses = train(subject, batches, [0])
    save(path, subject, 1)
    group.barrier()
    del subject
    forget(group)
    subject = make(group, fields)
    assert load(path, subject) == 1
    return result(subject, losses + train(subject, batches, [1]))


def forget(group: DeepSpeed) -> None:
    """End the engine now: the garbage collector would do it while waits are being counted."""
    group._engine.destroy()
    group._engine = group.optimizer = None  # type: ignore[assignment]
    gc.collect()


def main(cases: list[dict], out: Path) -> None:
    group = DeepSpeed(spec("deepspeed", gpus_per_node=2))
    for number, fields in enumerate(cases):
        done = {"undisturbed": undisturbed(group, fields)}
        forget(group)
        done["resumed"] = resumed(group, fields, out / f"{number}.checkpoint")
        forget(group)
        torch.save(done, out / f"{number}.rank{group.rank}.pt")
    group.teardown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
