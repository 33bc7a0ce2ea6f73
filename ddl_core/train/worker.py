"""One rank of a run: ``python -m ddl_core.train.worker RUN_DIR``, started once per rank.

Rank 0 writes the record; its last act is to mark the run completed.
"""

import faulthandler
import json
import logging
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from ddl_core.errors import DDLError
from ddl_core.private import caches
from ddl_core.processes import allow_open_files, die_with_parent
from ddl_core.records.environment import told
from ddl_core.records.paths import RunFiles, locate
from ddl_core.records.progress import WAITING, Progress, Publish
from ddl_core.records.provenance import host, provenance
from ddl_core.records.run import (
    DataInfo,
    EpochRecord,
    Turn,
    append_epoch,
    read_record,
    write_record,
)
from ddl_core.records.storage import free_room, keep_room, now
from ddl_core.spec.registry import resolve
from ddl_core.train import checkpoint, device
from ddl_core.train.checkpoint import weights_sha256
from ddl_core.train.compiler import check_compiled, compile_network
from ddl_core.train.energy.meter import Meter
from ddl_core.train.fairness import check_agreement, check_setup
from ddl_core.train.initial import drawn
from ddl_core.train.loop import Outcome, Trainee, evaluate, load_one_epoch, train_one_epoch
from ddl_core.train.optim import implementation, make_optimizer
from ddl_core.train.protocols import Loader, Split, Strategy
from ddl_core.train.turns import Turns

if TYPE_CHECKING:
    from ddl_core.train.profiler import Profiler

log = logging.getLogger(__name__)


def main(arguments: list[str], publish: Publish | None = None) -> int:
    """Run one rank; return the exit status. `publish` is told where the rank is; see `Progress`."""
    if len(arguments) != 1:
        log.error("usage: python -m ddl_core.train.worker RUN_DIR")
        return 2
    die_with_parent()
    allow_open_files()
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the launcher asks where a rank is
    directory = Path(arguments[0])
    try:
        caches()  # each node may have its own, from which libraries load code
        Run(directory, publish).execute()
    except Exception as error:
        report(directory, error)
        return 1
    return 0


class Run:
    """One rank's part of one run."""

    def __init__(self, directory: Path, publish: Publish | None = None) -> None:
        self.environment = told(os.environ)  # before a framework adds to it
        self.files = RunFiles(directory)
        self.record = read_record(directory)
        self.spec = self.record.spec
        first = int(os.environ.get("RANK", 0)) == 0
        if first:
            keep_room(self.files.reserve)
        own = self.files.progress if first else None
        self.progress = Progress(own, self.spec.epochs, publish)
        device.configure(self.spec)
        self.update: dict[str, bool] = {}  # how the optimiser's is made; nothing without one
        self.strategy: Strategy = resolve("strategy", self.spec.strategy)(self.spec)
        self.turns = Turns(directory, self.strategy.rank)
        self.turn: Turn | None = None

    def execute(self) -> None:
        """Train, evaluate, record; leave the group whatever happens."""
        try:
            with Meter(self.strategy, device.identity(self.strategy.device)) as self.meter:
                if self.spec.work == "load":
                    self._load()
                else:
                    self._train()
        finally:
            self.strategy.teardown()

    def _train(self) -> None:
        """Train from where a stop has left; a function of its own, to hold nothing at teardown."""
        self.progress.set_up("listing the images")
        train_loader = self._loader("train")
        eval_loader = self._loader("eval") if self.spec.eval_every else None
        self.progress.set_up("building the network and sending its weights")
        trainee = self._trainee()
        profiler = self._profiler(len(train_loader) // self.spec.accumulation)
        first_epoch = checkpoint.load(self.files.checkpoint, trainee)
        start = weights_sha256(trainee.network)
        check_agreement(self.strategy, start, "same initial weights")
        eval_images = eval_loader.images if eval_loader else None
        self._describe(train_loader, eval_images, self.strategy.describe())
        warm_from = first_epoch + self._cold_epochs(train_loader)
        if self.spec.nsys:
            warm_from = self.spec.epochs  # none: a profiler takes time of its own
        for epoch in range(first_epoch, self.spec.epochs):
            self._take_turn(epoch, epoch < warm_from)
            self._train_one_epoch(trainee, train_loader, epoch, epoch < warm_from, profiler)
            self._end_turns(epoch)
            if self.spec.compile:
                check_compiled()
            self._evaluate_and_save(trainee, eval_loader, epoch, epoch < warm_from)
        self._complete(weights_sha256(trainee.network))

    def _load(self) -> None:
        """Only fetch the batches of each epoch, from the first one again after a stop."""
        self.progress.set_up("listing the images")
        loader = self._loader("train")
        self._describe(loader, None, None)
        cold = self._cold_epochs(loader)
        for epoch in range(self.spec.epochs):
            self._take_turn(epoch, epoch < cold)
            self.progress.begin("train", epoch, self.spec.global_batch_size)
            outcome = load_one_epoch(
                self.spec, self.strategy, loader, epoch, self.progress.step, self.meter
            )
            self._store(outcome, epoch, "train", epoch < cold)
        self._end_turns(self.spec.epochs - 1)
        self._complete(None)

    def _take_turn(self, epoch: int, cold: bool) -> None:
        """Wait until the other arms of the study stand still; cold epochs belong to the start."""
        if self.turns.taken and not cold:
            self.progress.begin(WAITING, epoch, 0)
            self.turn = self.turns.wait()

    def _end_turns(self, epoch: int) -> None:
        """After the last window, let the others measure before anything else is done."""
        if self.turns.taken and epoch + 1 == self.spec.epochs:
            self.progress.begin(WAITING, epoch + 1, 0)
            self.turn = self.turns.wait(last=True)

    def _loader(self, split: Split) -> Loader:
        data_dir = locate(self.record.data_dir) if self.record.data_dir else None
        make = resolve("loader", self.spec.loader)
        group = self.strategy
        loader: Loader = make(
            self.spec, data_dir, split, group.rank, group.world_size, group.device
        )
        return loader

    def _trainee(self) -> Trainee:
        spec = self.spec
        network: Any = drawn(spec).to(self.strategy.device)
        if spec.channels_last:
            network = network.to(memory_format=torch.channels_last)
        optimizer = make_optimizer(spec, network)
        self.update = implementation(optimizer)
        if spec.compile:
            compile_network(network)
        seeded = weights_sha256(network)
        trainee = Trainee.build(spec, self.strategy, network, optimizer, self.meter)
        check_setup(seeded, weights_sha256(trainee.network))
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
        device.reset_peak_memory(self.strategy.device)
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
            device.reset_peak_memory(group.device)
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
        cores = device.affinity(self.strategy, self.spec.gpus_per_node)
        if self.strategy.rank != 0:
            return
        self.record.data = DataInfo(
            train_images=train_loader.images,
            eval_images=eval_images,
            classes=train_loader.classes,
            fingerprint=train_loader.fingerprint,
        )
        self.record.provenance = provenance()
        self.record.system = {
            **host(),
            **device.describe(self.strategy.device),
            "threads": device.threads(),
            "affinity": cores,
            "environment": self.environment,
            "settings": device.settings(self.spec, self.strategy.device) | self.update,
            "communication": communication,
            "energy_method": self.meter.method,
            "energy_missing": self.meter.missing,
        }
        write_record(self.files.directory, self.record)

    def _store(
        self, outcome: Outcome, epoch: int, phase: Literal["train", "eval"], cold: bool
    ) -> None:
        memory = device.peak_memory_bytes(self.strategy)
        if self.strategy.rank != 0:
            return
        measured = vars(outcome) | vars(outcome.window)
        del measured["window"]
        row = EpochRecord(
            attempt=len(self.record.attempts) - 1,
            epoch=epoch,
            phase=phase,
            cold=cold,
            throughput_samples_per_s=outcome.samples / outcome.window.wall_s,
            max_memory_bytes=memory,
            turn=self.turn if phase == "train" else None,
            **measured,
        )
        append_epoch(self.files.directory, row)

    def _complete(self, digest: str | None) -> None:
        if digest:
            check_agreement(self.strategy, digest, "same final weights")
        self.progress.begin("done", self.spec.epochs, 0)
        if self.strategy.rank != 0:
            return
        self.record.weights_sha256 = digest
        self.record.status = "completed"
        self.record.error = None
        self.record.attempts[-1].status = "completed"
        self.record.attempts[-1].ended_utc = now()
        free_room(self.files.reserve)
        write_record(self.files.directory, self.record)


def report(directory: Path, error: Exception) -> None:
    """Leave what went wrong for the launcher; the first rank to fail knows best.

    Where the disk is full, this takes the room that was kept for it.
    """
    files = RunFiles(directory)
    free_room(files.reserve)
    if isinstance(error, torch.OutOfMemoryError):
        message = f"out of memory on the GPU: {error}; lower local_batch_size"
    else:
        message = str(error) or repr(error)
    content = {
        "rank": int(os.environ.get("RANK", 0)),
        "kind": type(error).__name__,
        "message": message if isinstance(error, DDLError) else f"{type(error).__name__}: {message}",
        "traceback": traceback.format_exc(),
    }
    try:
        with files.error.open("x", encoding="utf-8") as file:
            json.dump(content, file)
    except OSError as failure:
        log.error("could not leave error.json: %s", failure)
    if isinstance(error, DDLError):
        log.error("%s: %s", content["kind"], message)
    else:
        with suppress(OSError):
            traceback.print_exc()


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    sys.exit(main(sys.argv[1:]))
