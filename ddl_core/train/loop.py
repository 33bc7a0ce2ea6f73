"""The training loop: the one place where images become updates, for every framework.

What must not differ between frameworks is here, so it cannot: the order of operations, the
learning rate, the batch statistics, the loss, the evaluation, the moments when the device is
waited for.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddl_core.rank.energy import Meter
from ddl_core.rank.fairness import (
    check_epoch,
    check_evaluation,
    count_corrupt,
    count_rescued,
    refuse_broken_data,
)
from ddl_core.rank.outcome import OnStep, Outcome
from ddl_core.spec.run import RunSpec
from ddl_core.spec.schedules import learning_rate
from ddl_core.spec.seeds import derive_seed
from ddl_core.train.batch_statistics import VirtualWorkers, average_batch_statistics
from ddl_core.train.fairness import Referee
from ddl_core.train.loaders.base import Loader
from ddl_core.train.optim import set_learning_rate
from ddl_core.train.strategies.base import Strategy
from ddl_core.train.timing import make_clock, marking_backward

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Trainee:
    """What is being trained, and everything needed to train it.

    `network` is the model itself, `wrapped` what the strategy made of it. `meter` reads the energy
    of its windows; None measures none.
    """

    spec: RunSpec
    strategy: Strategy
    network: nn.Module
    wrapped: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    criterion: nn.Module
    referee: Referee
    meter: Meter | None

    @classmethod
    def build(
        cls,
        spec: RunSpec,
        strategy: Strategy,
        network: nn.Module,
        optimizer: Optimizer,
        meter: Meter | None = None,
    ) -> "Trainee":
        """Set up model, optimiser and loss together; `network` is on the device already."""
        wrapped, optimizer = strategy.setup(network, optimizer)
        return cls(
            spec=spec,
            strategy=strategy,
            network=network,
            wrapped=wrapped,
            optimizer=optimizer,
            scaler=torch.amp.GradScaler(strategy.device.type, enabled=spec.precision == "fp16"),
            criterion=nn.CrossEntropyLoss(label_smoothing=spec.label_smoothing),
            referee=Referee(spec, strategy, network, optimizer),
            meter=meter,
        )

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of the forward pass at the run's precision."""
        if self.spec.precision not in AUTOCAST:
            return nullcontext()
        return torch.autocast(self.strategy.device.type, AUTOCAST[self.spec.precision])

    def ready(self, images: Tensor) -> Tensor:
        """Return `images` in the memory format of the run."""
        if self.spec.channels_last:
            return images.contiguous(memory_format=torch.channels_last)
        return images


def train_one_epoch(
    trainee: Trainee, loader: Loader, epoch: int, on_step: OnStep, annotate: bool = False
) -> Outcome:
    """Train on every batch of `loader` once; `annotate` shows the clock's marks to a profiler.

    Raises
    ------
    DataError
        If more than 1 % of the epoch's images are unreadable.
    FairnessError
        If the epoch was not done as every strategy must do it.
    """
    spec, strategy, referee = trainee.spec, trainee.strategy, trainee.referee
    steps = len(loader) // spec.accumulation
    images_per_epoch = steps * spec.global_batch_size
    loss_sum = torch.zeros((), dtype=torch.float64, device=strategy.device)
    rate = math.nan

    # Dropout restarts from a known point, so that a resumed run repeats an undisturbed one.
    torch.manual_seed(derive_seed("dropout", spec.seed, spec.repeat, epoch, strategy.rank))
    trainee.wrapped.train()
    workers = VirtualWorkers(trainee.network, spec.accumulation)
    loader.set_epoch(epoch)
    clock = make_clock(strategy, annotate, trainee.meter)
    clock.start()
    batches = clock.batches(iter(loader))
    watched = referee.watching(epoch, steps, loader.images)
    with watched, marking_backward(clock, strategy, trainee.network):
        for step in range(steps):
            seen = epoch * images_per_epoch + step * spec.global_batch_size
            rate = learning_rate(spec, seen, images_per_epoch)
            set_learning_rate(trainee.optimizer, rate)
            trainee.optimizer.zero_grad(set_to_none=True)
            for micro in range(spec.accumulation):
                images, labels = next(batches)
                loss_sum += _forward_backward(trainee, images, labels, micro)
                workers.micro_batch_done(micro)
                referee.gradients_added()
            clock.gradients_averaged()
            strategy.optimizer_step(trainee.scaler)
            referee.step_done(may_be_skipped=trainee.scaler.is_enabled())
            clock.step_done()
            on_step(step + 1, steps)
    window = clock.stop()

    average_batch_statistics(strategy, trainee.network)
    referee.check_training()
    group = strategy
    corrupt = count_corrupt(group, loader)
    refuse_broken_data(corrupt, images_per_epoch)
    ids = check_epoch(spec, group, loader, epoch)
    (loss_total,) = strategy.all_reduce(loss_sum[None]).tolist()
    micro_batches = steps * spec.virtual_workers
    return Outcome(
        window=window,
        steps=steps,
        samples=images_per_epoch,
        corrupt_images=corrupt,
        rescued_images=count_rescued(group, loader, images_per_epoch),
        loss=loss_total / micro_batches,
        lr=rate,
        ids_sha256=ids,
        device_waits=referee.device_waits,
    )


def load_one_epoch(
    spec: RunSpec,
    strategy: Strategy,
    loader: Loader,
    epoch: int,
    on_step: OnStep,
    meter: Meter | None = None,
) -> Outcome:
    """Fetch every batch of `loader` once and do nothing with it: how fast data could come.

    Raises
    ------
    DataError, FairnessError
        As in training.
    """
    steps = len(loader) // spec.accumulation
    loader.set_epoch(epoch)
    clock = make_clock(strategy, meter=meter)
    clock.start()
    batches = clock.batches(iter(loader))
    for step in range(steps):
        for _ in range(spec.accumulation):
            next(batches)
        clock.step_done()
        on_step(step + 1, steps)
    window = clock.stop()

    group = strategy
    samples = steps * spec.global_batch_size
    corrupt = count_corrupt(group, loader)
    refuse_broken_data(corrupt, samples)
    return Outcome(
        window=window,
        steps=steps,
        samples=samples,
        corrupt_images=corrupt,
        rescued_images=count_rescued(group, loader, samples),
        ids_sha256=check_epoch(spec, group, loader, epoch),
    )


def _forward_backward(trainee: Trainee, images: Tensor, labels: Tensor, micro: int) -> Tensor:
    """Return the loss of one micro-batch, left on the device: reading it would wait for it."""
    accumulation = trainee.spec.accumulation
    last = micro == accumulation - 1
    with nullcontext() if last else trainee.strategy.no_sync():
        with trainee.autocast():
            logits = trainee.wrapped(trainee.ready(images))
            loss = trainee.criterion(logits, labels)
        trainee.strategy.backward(trainee.scaler.scale(loss / accumulation))
    return loss.detach().double()


def evaluate(trainee: Trainee, loader: Loader, on_step: OnStep) -> Outcome:
    """Evaluate on every image of `loader` exactly once, whatever the number of ranks.

    Ranks may have different numbers of batches, since no collective runs between them; where ranks
    share the weights, each forward pass is one, and those with fewer batches take part without.
    """
    strategy = trainee.strategy
    criterion = nn.CrossEntropyLoss(reduction="sum")
    totals = torch.zeros(3, dtype=torch.float64, device=strategy.device)
    own = 0  # counted on the host: a number made on a GPU waits for all that it has to do
    group = strategy
    busiest = int(group.reduce(len(loader), "max"))

    trainee.network.eval()
    loader.set_epoch(0)
    clock = make_clock(strategy, meter=trainee.meter)
    clock.start()
    # Not inference_mode: weights that ZeRO gathers in it could not be trained with afterwards.
    with torch.no_grad():
        for step, (images, labels) in enumerate(clock.batches(iter(loader)), start=1):
            with trainee.autocast():
                logits = trainee.network(trainee.ready(images))
            loss = criterion(logits.float(), labels)
            totals += torch.stack([loss.double(), *_correct(logits, labels)])
            own += len(labels)
            clock.step_done()
            on_step(step, len(loader))
        if strategy.is_sharded:
            side = trainee.spec.image_size
            for _ in range(busiest - len(loader)):
                trainee.network(torch.zeros(1, 3, side, side, device=strategy.device))
    window = clock.stop()

    corrupt = count_corrupt(group, loader)
    sums = nn.functional.pad(totals, (0, 1), value=own)  # one collective for all of them
    loss_sum, top1, top5, samples = strategy.all_reduce(sums).tolist()
    return Outcome(
        window=window,
        steps=busiest,
        samples=int(samples),
        corrupt_images=corrupt,
        rescued_images=count_rescued(group, loader, int(samples)),
        loss=loss_sum / samples,
        top1=top1 / samples,
        top5=top5 / samples,
        ids_sha256=check_evaluation(group, loader),
    )


def _correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many labels are first, and how many among the first five."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = best == labels[:, None]
    return hits[:, 0].sum().double(), hits.sum().double()
