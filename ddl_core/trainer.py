"""`Trainer`: training with PyTorch on one rank, from a `RunSpec` to results epoch by epoch."""

from pathlib import Path
from typing import Any

import torch

from ddl_core import checkpoint, combinations, device
from ddl_core.activations import checkpoint_activations
from ddl_core.batch_norm import average_batch_statistics, precise_statistics, split_statistics
from ddl_core.checkpoint import weights_sha256
from ddl_core.config import RunSpec
from ddl_core.data.sampling import Split
from ddl_core.device import check_compiled, compile_network, make_clock
from ddl_core.errors import SpecError
from ddl_core.fairness import check_agreement
from ddl_core.loaders.base import Loader, open_loader
from ddl_core.loop import EpochLoop, EpochResult, OnStep, ignore, load_epoch
from ddl_core.models import drawn, inspect_network
from ddl_core.monitor import check_setup
from ddl_core.optim import make_optimizer
from ddl_core.registry import resolve
from ddl_core.step import TrainState, next_pass
from ddl_core.strategies.base import Strategy
from ddl_core.timing import EnergyMeter

CHECKPOINT = "checkpoint.pt"


class Trainer:
    """Trains, evaluates and loads on this rank; one process alone needs nothing else.

    Loaders and network are made on first use. `data_dir` is the folder of the images, and `meter`
    measures the energy of each epoch.
    """

    def __init__(self, spec: RunSpec, data_dir: Path | str | None = None) -> None:
        device.configure(spec)
        self.spec, self._data_dir = spec, Path(data_dir) if data_dir else None
        self.strategy: Strategy = resolve("strategy", spec.strategy)(spec)
        self.group = self.strategy
        combinations.check(spec, self.strategy.device.type)
        self.meter: EnergyMeter | None = None
        self._loaders: dict[Split, Loader] = {}
        self._state: TrainState | None = None
        self.network_facts: dict[str, Any] | None = None  # see `inspect_network`

    def train_epoch(
        self, epoch: int, on_step: OnStep = ignore, annotate: bool = False
    ) -> EpochResult:
        """Train on every image of the training set once; `epoch` counts from 0.

        `annotate` shows the clock's marks to a profiler.
        """
        loop = EpochLoop(self.state, self.meter)
        result = loop.train(self.loader("train"), epoch, on_step, annotate)
        if self.spec.compile:
            check_compiled()
        return result

    def evaluate(self, on_step: OnStep = ignore) -> EpochResult:
        """Evaluate on every image of the validation set once."""
        loop = EpochLoop(self.state, self.meter)
        return loop.evaluate(self.loader("eval"), on_step)

    def evaluate_precisely(self, on_step: OnStep = ignore) -> EpochResult:
        """Evaluate with statistics of batch normalisation from one more epoch of training images.

        Weights, statistics and random numbers of the training stay as they are.
        """
        state, loader = self.state, self.loader("train")
        loader.set_epoch(self.spec.epochs)
        with torch.no_grad(), precise_statistics(state.network):
            batches, passes = iter(loader), len(loader) // self.spec.micro_batches_per_pass
            for step in range(passes):
                images, _ = next_pass(batches, self.spec.micro_batches_per_pass)
                state.predict(images)
                on_step(step + 1, passes)
            average_batch_statistics(self.strategy, state.network)
            return EpochLoop(state).evaluate(self.loader("eval"), on_step)

    def load_epoch(self, epoch: int, on_step: OnStep = ignore) -> EpochResult:
        """Fetch every image of the training set once, and train nothing."""
        clock = make_clock(self.strategy, meter=self.meter)
        return load_epoch(self.spec, self.loader("train"), epoch, clock, on_step)

    def loader(self, split: Split) -> Loader:
        """Return this rank's share of a split; later calls return the same."""
        if split not in self._loaders:
            group = self.strategy
            self._loaders[split] = open_loader(
                self.spec, self._data_dir, split, group.rank, group.world_size, group.device
            )
        return self._loaders[split]

    @property
    def state(self) -> TrainState:
        """Network, optimiser and loss; made on first use, as a collective."""
        if self._state is None:
            self._state = self._build()
        return self._state

    def _build(self) -> TrainState:
        """Make the network with the weights of the run's seed."""
        spec = self.spec
        steps = len(self.loader("train")) // spec.accumulation
        if spec.ddp_compression == "powersgd" and spec.ddp_powersgd_start >= spec.epochs * steps:
            raise SpecError(
                f"ddp_powersgd_start = {spec.ddp_powersgd_start}, but the run has "
                f"{spec.epochs * steps} steps: nothing would be compressed",
                remedy="use less, or ddp_compression = 'none'",
            )
        network = drawn(spec)
        self.network_facts = inspect_network(network, spec)
        if spec.micro_batches_per_pass > 1:
            split_statistics(network, spec.micro_batches_per_pass)
        if spec.compile:
            # Weights are gathered, and activations computed again, between compiled blocks.
            apart = self.strategy.is_sharded or spec.activation_checkpointing
            compile_network(network, by_block=apart)
        if spec.activation_checkpointing:
            checkpoint_activations(network)
        network = network.to(self.strategy.device)
        if spec.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = make_optimizer(spec, network)
        seeded = weights_sha256(network)
        state = TrainState(spec, self.strategy, network, optimizer)
        self._initial_sha256 = weights_sha256(network, self.strategy)
        check_setup(seeded, self._initial_sha256)
        return state

    def resume(self, directory: Path) -> int:
        """Continue from the checkpoint in a folder if there is one; return the epochs done."""
        epochs_done = checkpoint.load(directory / CHECKPOINT, self.state)
        digest = self.weights_sha256() if epochs_done else self._initial_sha256
        check_agreement(self.strategy, digest, "same initial weights")
        return epochs_done

    def save(self, directory: Path, epochs_done: int) -> None:
        """Write a checkpoint into a folder. A collective."""
        checkpoint.save(directory / CHECKPOINT, self.state, epochs_done)

    def weights_sha256(self) -> str:
        """Return a hash over all parameters and statistics. A collective."""
        return weights_sha256(self.state.network, self.strategy)

    def close(self) -> None:
        """Leave the group; the network goes first."""
        self._state = None
        self._loaders.clear()
        self.strategy.teardown()
