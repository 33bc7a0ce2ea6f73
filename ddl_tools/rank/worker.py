"""One rank of a run, with any framework: ``python -m ddl_tools.rank.worker RUN_DIR``.

Started once per rank, with the interpreter of the run's framework.
"""

import logging
import os
import sys
import traceback
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.fairness import check_agreement
from ddl_core.loaders.base import Loader
from ddl_core.registry import COMMAND
from ddl_core.strategies import Group
from ddl_core.system import die_with_parent
from ddl_tools.names import plural
from ddl_tools.processes import allow_open_files, answer_where, caches
from ddl_tools.rank.command import CommandRun
from ddl_tools.rank.energy import Meter
from ddl_tools.rank.recorder import RunRecorder, report
from ddl_tools.records.paths import locate
from ddl_tools.records.progress import Publish
from ddl_tools.records.run import read_record

if TYPE_CHECKING:  # only ranks of torch may import these
    from ddl_tools.rank.profiler import Profiler
    from ddl_tools.rank.pytorch import RecordedTrainer

log = logging.getLogger(__name__)

# Both have the same methods.
TORCH = "ddl_tools.rank.pytorch", "RecordedTrainer"
OTHERS = "ddl_tools.frameworks.trainer", "FrameworkTrainer"
PROFILER = "ddl_tools.rank.profiler"
NEW_STATISTICS = "with new statistics of the final weights"  # of batch normalisation
AT_START = os.sched_getaffinity(0)  # before a framework is imported, which may bind its threads
CORES = 1024  # of a node: the most that Linux tells of without being asked twice


def main(arguments: list[str], publish: Publish | None = None) -> int:
    """Do one rank's part of the run whose folder is named; return the exit status.

    `publish` is told where the rank is; see `Progress`. A rank that fails leaves its group once it
    has said why: the others would else be the first to complain, of it.
    """
    if len(arguments) != 1:
        log.error("usage: python -m ddl_tools.rank.worker RUN_DIR")
        return 2
    die_with_parent()
    allow_open_files()
    answer_where()
    directory = Path(arguments[0])
    leaving = ExitStack()
    try:
        caches()  # each node may have its own, from which libraries load code
        part(directory, publish).execute(leaving)
        leaving.close()
    except Exception as error:
        report(directory, error)
        let_go(error)
        leaving.close()  # while the error is handled, as those who leave can see
        return 1
    finally:
        leaving.close()  # nothing is left on it but where an engine is interrupted
    return 0


def let_go(error: BaseException) -> None:
    """Drop what the frames of an error hold, and of those that it follows from.

    A DDP wrapper that outlives its group waits, when it goes, for threads of Gloo that wait for it.
    """
    following, seen = [error], set[int]()
    while following:
        one = following.pop()
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        before = (one.__cause__, one.__context__)
        following += [other for other in before if other is not None and id(other) not in seen]


def make_trainer(spec: RunSpec, data_dir: Path | None, rendezvous: Path) -> "RecordedTrainer":
    """Return the trainer of a run's framework; its ranks meet through the folder `rendezvous`."""
    module, name = TORCH if spec.framework == "torch" else OTHERS
    trainer: RecordedTrainer = getattr(import_module(module), name)(spec, data_dir, rendezvous)
    return trainer


def part(directory: Path, publish: Publish | None = None) -> "Run | CommandRun":
    """Return one rank's part of a run."""
    is_command = read_record(directory).spec.framework == COMMAND
    return (CommandRun if is_command else Run)(directory, publish)


class Run:
    """One rank's part of one run."""

    def __init__(self, directory: Path, publish: Publish | None = None) -> None:
        self.recorder = RunRecorder(directory, publish)
        self.files, self.progress = self.recorder.files, self.recorder.progress
        self.spec = self.recorder.spec
        record = self.recorder.record
        data_dir = locate(record.data_dir) if record.data_dir else None
        self.trainer = make_trainer(self.spec, data_dir, self.recorder.rendezvous)
        self.profiler: Profiler | None = None

    def execute(self, leaving: ExitStack) -> None:
        """Train, evaluate, record; put on `leaving` how to leave the group."""
        leaving.callback(self.trainer.close)
        gpu, self.no_energy = self.trainer.energy()
        meter = None if self.no_energy else Meter(self.trainer.group, gpu)
        self.trainer.meter = self.meter = meter
        with meter or nullcontext():
            if self.spec.work == "load":
                self._load()
            else:
                self._train()

    def _train(self) -> None:
        """Train from where a stop has left."""
        spec, trainer, group = self.spec, self.trainer, self.trainer.group
        self.progress.set_up("listing the images")
        train = trainer.loader("train")
        evaluation = trainer.loader("eval") if spec.eval_every else None
        self.recorder.look_into(train=train, eval=evaluation)
        self.progress.set_up("building the network and sending its weights")
        self.recorder.record.initial_sha256 = trainer.build(self.files.directory)
        first_epoch = trainer.resume(self.files.directory)
        check_agreement(group, f"{first_epoch:x}", "same first epoch")
        if spec.profile_steps:  # without, nothing of it is imported
            make = import_module(PROFILER).Profiler
            self.profiler = make(spec, group, len(train) // spec.accumulation)
            trainer.profile = self.profiler
        self._describe(train, evaluation.images if evaluation else None, first_epoch > 0)
        warm_from = first_epoch + self._cold_epochs(train)
        for epoch in range(first_epoch, spec.epochs):
            self._epoch(epoch, epoch < warm_from)
            if evaluation and spec.due(spec.eval_every, epoch):
                self.progress.begin("eval", epoch, spec.local_batch_size * group.world_size)
                result = trainer.evaluate(self.progress.step)
                if spec.precise_bn and epoch + 1 == spec.epochs:
                    # Of two kinds of steps, so without a rate.
                    self.progress.begin("eval", epoch, 0, NEW_STATISTICS)
                    again = trainer.evaluate_precisely(self.progress.step)
                    result = replace(result, precise_bn_loss=again.loss, precise_bn_top1=again.top1)
                self.recorder.store(result, epoch, "eval", epoch < warm_from, trainer.peak_memory())
            if spec.due(spec.checkpoint_every, epoch):
                trainer.save(self.files.directory, epoch + 1)
                group.barrier()
        digest = trainer.weights_sha256()
        check_agreement(group, digest, "same final weights")
        self.recorder.complete(digest)

    def _epoch(self, epoch: int, cold: bool) -> None:
        """Train on every image once, or only load it."""
        trainer = self.trainer
        profiler = self.profiler if epoch + 1 == self.spec.epochs else None
        self.recorder.wait_for_slot(epoch, cold)
        self.progress.begin("train", epoch, self.spec.global_batch_size)
        work = trainer.load_epoch if self.spec.work == "load" else trainer.train_epoch
        result = work(epoch, self.progress.step)
        # A profiler takes time of its own.
        self.recorder.store(result, epoch, "train", cold or bool(profiler), trainer.peak_memory())
        if profiler:
            profiler.write(self.files, epoch)
        self.recorder.end_slots(epoch)

    def _load(self) -> None:
        """Only fetch the batches of each epoch, from the first one again after a stop."""
        self.progress.set_up("listing the images")
        loader = self.trainer.loader("train")
        self.recorder.look_into(train=loader)
        self._describe(loader, None)
        cold = self._cold_epochs(loader)
        for epoch in range(self.spec.epochs):
            self._epoch(epoch, epoch < cold)
        self.recorder.complete(None)

    def _cold_epochs(self, loader: Loader) -> int:
        """Return how many epochs after a start may not count: at least the first."""
        return self.spec.cold_epochs(len(loader) // self.spec.accumulation)

    def _describe(self, train: Loader, eval_images: int | None, resumed: bool = False) -> None:
        meter = self.meter
        cores = affinity(self.trainer.group, self.spec.gpus_per_node)
        if not self.spec.simulated:  # whose ranks compute nothing
            check_cores(self.trainer.group, self.spec.gpus_per_node, cores["cores_of_node"])
        system = {
            **self.trainer.describe(),
            "affinity": cores,
            "energy_method": meter.method if meter else None,
            "energy_missing": meter.missing if meter else self.no_energy,
        }
        self.recorder.describe(train, eval_images, system, resumed)


def affinity(group: Group, ranks_per_node: int) -> dict[str, Any]:
    """Return how many cores each rank may use, and whether two of one node share any. A collective.

    ``cores_least`` and ``cores_most`` over all ranks; ``cores_of_node`` are those that the ranks of
    a node have together, the fewest; ``shared`` is None where a node has one rank.
    """
    own = sorted(os.sched_getaffinity(0))
    users = np.zeros(group.world_size // ranks_per_node * CORES)
    users[[group.rank // ranks_per_node * CORES + core % CORES for core in own]] = 1
    users = group.reduce(users)
    most, minus_least = group.reduce(np.array([len(own), -len(own)]), "max").tolist()
    return {
        "cores_least": -minus_least,
        "cores_most": most,
        "cores_of_node": int(np.count_nonzero(users.reshape(-1, CORES), axis=1).min()),
        "shared": bool(users.max() > 1) if ranks_per_node > 1 else None,
    }


def check_cores(group: Group, ranks: int, cores: int) -> None:
    """Raise `LaunchError` if a library has bound the ranks of a node to fewer cores than they are.

    A collective if there are fewer `cores`. Whether a machine or a job has enough of them, its
    launcher has decided.
    """
    if cores >= ranks:
        return
    fewer = len(os.sched_getaffinity(0)) < len(AT_START)
    if group.reduce(np.array([float(fewer)]), "max")[0]:
        raise LaunchError(
            f"a library has bound {ranks} ranks of a node to {plural(cores, 'core')}, where they "
            "would measure nothing",
            remedy="unset variables that bind threads (OMP_PROC_BIND, OMP_PLACES, KMP_AFFINITY), "
            "or bind ranks in the site's file (`--cpu-bind`)",
            category="environment",
        )


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    sys.exit(main(sys.argv[1:]))
