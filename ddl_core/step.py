"""Training with PyTorch: the step, in which images become an update."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddl_core.batch_norm import VirtualWorkers, average_batch_statistics
from ddl_core.config import RunSpec
from ddl_core.device import timestamps
from ddl_core.monitor import FairnessMonitor
from ddl_core.optim import set_learning_rate
from ddl_core.schedules import derive_seed
from ddl_core.strategies.base import Strategy
from ddl_core.timing import Clock, EpochTiming

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TrainState:
    """Model, optimiser and loss of a rank; a `Trainable` of `ddl_core/loop.py`.

    `network` is on the device already; `wrapped` is what the strategy makes of it.
    """

    def __init__(
        self, spec: RunSpec, strategy: Strategy, network: nn.Module, optimizer: Optimizer
    ) -> None:
        self.spec, self.strategy, self.network = spec, strategy, network
        self.group, self.timestamps = strategy, timestamps(strategy.device)
        self.wrapped, self.optimizer = strategy.setup(network, optimizer)
        self.scaler = torch.amp.GradScaler(strategy.device.type, enabled=spec.precision == "fp16")
        self.criterion = nn.CrossEntropyLoss(label_smoothing=spec.label_smoothing)
        self.monitor = FairnessMonitor(spec, strategy, network, self.optimizer)

    def step(self, batches: Iterator[tuple[Tensor, Tensor]], rate: float, clock: Clock) -> None:
        """Do one update: gradients of all micro-batches, their mean over ranks, the optimiser."""
        spec, strategy = self.spec, self.strategy
        set_learning_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=True)
        for number in range(spec.backward_passes):
            images, labels = next_pass(batches, spec.micro_batches_per_pass)
            last = number == spec.backward_passes - 1
            with nullcontext() if last else strategy.no_sync():
                with self.autocast():
                    loss = self.criterion(self.wrapped(self.ready(images)), labels)
                strategy.backward(self.scaler.scale(loss / spec.backward_passes))
            # On the device: reading it would wait for it.
            self._loss_sum += loss.detach().double() * spec.micro_batches_per_pass
            self._workers.pass_done(number)
            self.monitor.gradients_added()
        strategy.average_gradients()
        clock.gradients_averaged()
        strategy.clip_gradients(self.scaler)
        strategy.optimizer_step(self.scaler)
        self.monitor.step_done(may_be_skipped=self.scaler.is_enabled())

    def evaluate(self, images: Tensor, labels: Tensor) -> None:
        """Add one batch to the scores."""
        logits = self.predict(images)
        loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
        self._totals += torch.stack([loss.double(), *_correct(logits, labels)])

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of a batch, at the run's precision."""
        with self.autocast():
            logits: Tensor = self.network(self.ready(images))
        return logits

    def begin_epoch(self, epoch: int) -> None:
        """Prepare to train; dropout depends on the epoch, not on earlier ones."""
        spec, device = self.spec, self.strategy.device
        torch.manual_seed(derive_seed("dropout", spec.seed, spec.repeat, epoch, self.strategy.rank))
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._workers = VirtualWorkers(self.network, spec.backward_passes)
        self.wrapped.train()

    @contextmanager
    def training(self, epoch: int, steps: int, images: int, clock: Clock) -> Iterator[None]:
        """Watch the steps of an epoch."""
        watched = self.monitor.watching(epoch, steps, images)
        with watched, marking_backward(clock, self.strategy, self.network):
            yield

    def end_epoch(self, timing: EpochTiming) -> None:
        """Average the running statistics over ranks, and check them. A collective."""
        average_batch_statistics(self.strategy, self.network)
        self.monitor.check_training()

    @property
    def device_waits(self) -> int | None:
        """The strategy's device synchronisations in the last epoch."""
        return self.monitor.device_waits

    def loss(self) -> float:
        """Return the sum of this rank's mean losses of all micro-batches of the epoch."""
        return float(self._loss_sum.cpu().numpy())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Turn gradients off, and begin with no scores."""
        self.network.eval()
        self._totals = torch.zeros(3, dtype=torch.float64, device=self.strategy.device)
        # Not inference_mode: weights that ZeRO gathers in it could not be trained afterwards.
        with torch.no_grad():
            yield

    def evaluate_nothing(self, steps: int) -> None:
        """Take part in gathering sharded weights for ranks that have so many batches more."""
        if self.strategy.is_sharded:
            side = self.spec.image_size
            for _ in range(steps):
                with self.autocast():  # FSDP gathers weights in that type
                    self.network(torch.zeros(1, 3, side, side, device=self.strategy.device))

    def scores(self) -> npt.NDArray[np.float64]:
        """Return sums over this rank's images: loss, first labels, labels among the first five."""
        return self._totals.cpu().numpy()

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


def next_pass(batches: Iterator[tuple[Tensor, Tensor]], count: int) -> tuple[Tensor, Tensor]:
    """Return the next `count` micro-batches as one, in the order that `GhostBatchNorm2d` expects.

    First come the first images of all micro-batches, then the second ones, and so on.
    """
    if count == 1:
        return next(batches)
    parts = []
    for _ in range(count):
        images, labels = next(batches)
        parts.append((images.clone(), labels.clone()))  # a batch is valid until the next
    images, labels = (torch.stack(part, dim=1).flatten(0, 1) for part in zip(*parts, strict=True))
    return images, labels


@contextmanager
def marking_backward(clock: Clock, strategy: Strategy, network: nn.Module) -> Iterator[None]:
    """Mark the last gradient of each backward pass in the block: that of the first parameter.

    Without a mark where backward waits for communication: no moment divides the two.
    """
    if strategy.waits_in_backward:
        yield
        return
    first = next(one for one in network.parameters() if one.requires_grad)
    hook = first.register_post_accumulate_grad_hook(lambda _: clock.backward_done())
    try:
        yield
    finally:
        hook.remove()


def _correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many labels come first, and how many among the first five."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = best == labels[:, None]
    return hits[:, 0].sum().double(), hits.sum().double()
