"""One rank of a run: ``python -m ddl_core.train.worker RUN_DIR``, started once per rank."""

import logging
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from ddl_core.errors import SpecError
from ddl_core.rank import entry
from ddl_core.rank.cores import affinity
from ddl_core.rank.energy import Meter
from ddl_core.rank.entry import Entry
from ddl_core.rank.fairness import check_agreement
from ddl_core.rank.order import Split
from ddl_core.rank.outcome import Outcome
from ddl_core.rank.state import state_sha256
from ddl_core.records.paths import locate
from ddl_core.records.progress import Publish
from ddl_core.spec import combinations
from ddl_core.spec.registry import resolve
from ddl_core.spec.run import RunSpec
from ddl_core.train import checkpoint, device
from ddl_core.train.checkpoint import weights_sha256
from ddl_core.train.device import PeakMemory, check_compiled, compile_network
from ddl_core.train.fairness import check_setup
from ddl_core.train.initial import drawn, values
from ddl_core.train.loaders.base import Loader
from ddl_core.train.loop import Trainee, evaluate, load_one_epoch, train_one_epoch
from ddl_core.train.models import inspect_network
from ddl_core.train.optim import implementation, make_optimizer
from ddl_core.train.strategies.base import Strategy

if TYPE_CHECKING:
    from ddl_core.train.profiler import Profiler


def main(arguments: list[str], publish: Publish | None = None) -> int:
    """Run one rank; return the exit status. `publish` is told where the rank is; see `Progress`."""
    return entry.main(
        arguments, lambda directory, leaving: Run(directory, publish).execute(leaving)
    )


def _check_compression(spec: RunSpec, steps: int) -> None:
    if spec.ddp_compression == "powersgd" and spec.ddp_powersgd_start >= steps:
        raise SpecError(
            f"ddp_powersgd_start = {spec.ddp_powersgd_start}, but the run has {steps} steps, so "
            "that nothing would be compressed; use less, or ddp_compression = 'none'"
        )


class Run:
    """One rank's part of one run."""

    def __init__(self, directory: Path, publish: Publish | None = None) -> None:
        self.entry = Entry(directory, publish)
        self.files, self.progress = self.entry.files, self.entry.progress
        self.spec = self.entry.spec
        device.configure(self.spec)
        self.update: dict[str, bool] = {}  # how the optimiser's is made; nothing without one
        self.network: dict[str, Any] | None = None  # what it is, where one is trained
        self.strategy: Strategy = resolve("strategy", self.spec.strategy)(self.spec)
        combinations.check(self.spec, self.strategy.device.type)
        self.group = self.strategy

    def execute(self, leaving: ExitStack) -> None:
        """Train, evaluate, record; put on `leaving` how to leave the group."""
        leaving.callback(self.strategy.teardown)
        with Meter(self.group, device.identity(self.strategy.device)) as self.meter:
            if self.spec.work == "load":
                self._load()
            else:
                self._train()

    def _train(self) -> None:
        """Train from where a stop has left; a function of its own, to hold nothing at teardown."""
        self.progress.set_up("listing the images")
        train_loader = self._loader("train")
        eval_loader = self._loader("eval") if self.spec.eval_every else None
        self.progress.set_up("building the network and sending its weights")
        self.memory = PeakMemory(self.strategy)
        trainee = self._trainee()
        steps = len(train_loader) // self.spec.accumulation
        _check_compression(self.spec, self.spec.epochs * steps)
        profiler = self._profiler(steps)
        self.entry.record.initial_sha256 = state_sha256(values(trainee.network))
        first_epoch = checkpoint.load(self.files.checkpoint, trainee)
        start = weights_sha256(trainee.network, trainee.strategy)
        check_agreement(self.group, start, "same initial weights")
        check_agreement(self.group, f"{first_epoch:x}", "same first epoch")
        eval_images = eval_loader.images if eval_loader else None
        self._describe(train_loader, eval_images, self.strategy.describe())
        warm_from = first_epoch + self._cold_epochs(train_loader)
        if self.spec.nsys:
            warm_from = self.spec.epochs  # none: a profiler takes time of its own
        for epoch in range(first_epoch, self.spec.epochs):
            self.entry.take_turn(epoch, epoch < warm_from)
            self._train_one_epoch(trainee, train_loader, epoch, epoch < warm_from, profiler)
            self.entry.end_turns(epoch)
            if self.spec.compile:
                check_compiled()
            self._evaluate_and_save(trainee, eval_loader, epoch, epoch < warm_from)
        self._complete(weights_sha256(trainee.network, trainee.strategy))

    def _load(self) -> None:
        """Only fetch the batches of each epoch, from the first one again after a stop."""
        self.progress.set_up("listing the images")
        loader = self._loader("train")
        self._describe(loader, None, None)
        self.memory = PeakMemory(self.strategy)
        cold = self._cold_epochs(loader)
        for epoch in range(self.spec.epochs):
            self.entry.take_turn(epoch, epoch < cold)
            self.memory.begin()
            self.progress.begin("train", epoch, self.spec.global_batch_size)
            outcome = load_one_epoch(
                self.spec, self.strategy, loader, epoch, self.progress.step, self.meter
            )
            self._store(outcome, epoch, "train", epoch < cold)
        self.entry.end_turns(self.spec.epochs - 1)
        self._complete(None)

    def _loader(self, split: Split) -> Loader:
        known = self.entry.record.data_dir
        data_dir = locate(known) if known else None
        make = resolve("loader", self.spec.loader)
        group = self.strategy
        loader: Loader = make(
            self.spec, data_dir, split, group.rank, group.world_size, group.device
        )
        return loader

    def _trainee(self) -> Trainee:
        spec = self.spec
        network: Any = drawn(spec)
        self.network = inspect_network(network, spec)
        network = network.to(self.strategy.device)
        if spec.channels_last:
            network = network.to(memory_format=torch.channels_last)
        optimizer = make_optimizer(spec, network)
        self.update = implementation(optimizer)
        if spec.compile:
            compile_network(network)
        seeded = weights_sha256(network)
        trainee = Trainee.build(spec, self.strategy, network, optimizer, self.meter)
        check_setup(seeded, weights_sha256(trainee.network, trainee.strategy))
        return trainee

    def _cold_epochs(self, loader: Loader) -> int:
        """Return how many epochs after a start may not count: at least the first."""
        return self.spec.cold_epochs(len(loader) // self.spec.accumulation)

    def _profiler(self, steps: int) -> "Profiler | None":
        """Return what watches the last epoch of `steps` steps; without one, nothing is imported."""
        if not self.spec.profile_steps:
            return None
        from ddl_core.train.profiler import Profiler

        return Profiler(self.spec, self.strategy, steps)

    def _train_one_epoch(
        self,
        trainee: Trainee,
        loader: Loader,
        epoch: int,
        cold: bool,
        profiler: "Profiler | None",
    ) -> None:
        self.memory.begin()
        self.progress.begin("train", epoch, self.spec.global_batch_size)
        last = epoch + 1 == self.spec.epochs
        if profiler is None or not last:
            with device.shown_to_nsys(self.strategy.device, self.spec.nsys and last) as shown:
                outcome = train_one_epoch(trainee, loader, epoch, self.progress.step, shown)
            self._store(outcome, epoch, "train", cold)
            return

        def on_step(done: int, steps: int) -> None:
            self.progress.step(done, steps)
            profiler.step()

        with profiler:
            outcome = train_one_epoch(trainee, loader, epoch, on_step, annotate=True)
        self._store(outcome, epoch, "train", cold=True)  # a profiler takes time of its own
        profiler.write(self.files, epoch)

    def _evaluate_and_save(
        self, trainee: Trainee, eval_loader: Loader | None, epoch: int, cold: bool
    ) -> None:
        spec, group = self.spec, self.strategy
        if eval_loader and spec.due(spec.eval_every, epoch):
            self.memory.begin()
            self.progress.begin("eval", epoch, spec.local_batch_size * group.world_size)
            outcome = evaluate(trainee, eval_loader, self.progress.step)
            self._store(outcome, epoch, "eval", cold)
        if spec.due(spec.checkpoint_every, epoch):
            checkpoint.save(self.files.checkpoint, trainee, epoch + 1)
            group.barrier()

    def _describe(
        self,
        train_loader: Loader,
        eval_images: int | None,
        communication: dict[str, Any] | None,
    ) -> None:
        system = {
            **device.describe(self.strategy.device),
            "threads": device.threads(),
            "affinity": affinity(self.group, self.spec.gpus_per_node),
            "settings": device.settings(self.spec, self.strategy.device) | self.update,
            "network": self.network,
            "communication": communication,
            "energy_method": self.meter.method,
            "energy_missing": self.meter.missing,
        }
        self.entry.describe(train_loader, eval_images, system)

    def _store(
        self, outcome: Outcome, epoch: int, phase: Literal["train", "eval"], cold: bool
    ) -> None:
        self.entry.store(outcome, epoch, phase, cold, self.memory.peak())

    def _complete(self, digest: str | None) -> None:
        if digest:
            check_agreement(self.group, digest, "same final weights")
        self.entry.complete(digest)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    sys.exit(main(sys.argv[1:]))
