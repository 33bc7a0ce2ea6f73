"""One rank of a run of another library: ``python -m ddl_core.libraries.worker RUN_DIR``.

Started once per rank with the library's own interpreter. What it writes is what a rank of torch
writes, by the same code.
"""

import logging
import platform
import sys
from contextlib import ExitStack
from pathlib import Path

from ddl_core.libraries.batches import Native, Synthetic
from ddl_core.libraries.loop import Loop
from ddl_core.libraries.meeting import Meeting
from ddl_core.libraries.protocol import Batches, Library, State
from ddl_core.rank import entry, state
from ddl_core.rank.cores import affinity
from ddl_core.rank.energy import Meter
from ddl_core.rank.entry import Entry
from ddl_core.rank.fairness import check_agreement
from ddl_core.rank.order import Split
from ddl_core.rank.state import state_sha256
from ddl_core.records.paths import locate
from ddl_core.spec.registry import resolve

SOURCES: dict[str, type[Native] | type[Synthetic]] = {"native": Native, "synthetic": Synthetic}
# A GPU's energy is read by its UUID, which these libraries do not tell.
NO_ENERGY = "energy of a GPU is read for library 'torch' alone"


def main(arguments: list[str]) -> int:
    """Run one rank; return the exit status."""
    return entry.main(arguments, lambda directory, leaving: Run(directory).execute(leaving))


class Run:
    """One rank's part of one run."""

    def __init__(self, directory: Path) -> None:
        self.entry = Entry(directory)
        self.files, self.progress = self.entry.files, self.entry.progress
        self.spec = self.entry.spec
        attempt = f"attempt_{len(self.entry.record.attempts) - 1}"
        self.meeting = Meeting(self.spec, self.files.logs / attempt / "meeting")

    def execute(self, leaving: ExitStack) -> None:
        """Train, evaluate, record; put on `leaving` how to leave the group."""
        leaving.callback(self.meeting.close)
        library: Library = resolve("library", self.spec.library)(self.spec, self.meeting)
        leaving.callback(library.close)
        self._measured(library)

    def _measured(self, library: Library) -> None:
        if library.device != "cpu":
            self._train(library, None)
            return
        with Meter(self.meeting, None) as meter:
            self._train(library, meter)

    def _train(self, library: Library, meter: Meter | None) -> None:
        """Train from where a stop has left."""
        spec, group = self.spec, self.meeting
        self.progress.set_up("listing the images")
        train = self._source("train", library)
        evaluation = self._source("eval", library) if spec.eval_every else None
        self.progress.set_up("loading the weights")
        first_epoch = self._load(library)
        self.entry.describe(
            train, evaluation.images if evaluation else None, self._system(library, meter)
        )
        loop = Loop(spec, library, group, meter)
        warm_from = first_epoch + spec.cold_epochs(len(train))
        latest = library.state()
        for epoch in range(first_epoch, spec.epochs):
            cold = epoch < warm_from
            self.entry.take_turn(epoch, cold)
            self.progress.begin("train", epoch, spec.global_batch_size)
            outcome, latest = loop.train_one_epoch(train, epoch, self.progress.step, cold)
            self.entry.store(outcome, epoch, "train", cold, None)
            self.entry.end_turns(epoch)
            if evaluation and spec.due(spec.eval_every, epoch):
                self.progress.begin("eval", epoch, spec.local_batch_size * group.world_size)
                outcome = loop.evaluate(evaluation, self.progress.step)
                self.entry.store(outcome, epoch, "eval", cold, None)
            self._save(latest, epoch)
        digest = state_sha256(latest.values)
        check_agreement(group, digest, "same final weights")
        self.entry.complete(digest)
        if self.entry.first:  # 100 MB of ResNet50, drawn again at will
            self.files.initial.unlink(missing_ok=True)

    def _source(self, split: Split, library: Library) -> Batches:
        known = self.entry.record.data_dir
        data_dir = locate(known) if known else None
        group = self.meeting
        make = SOURCES[self.spec.loader]
        return make(self.spec, data_dir, split, group.rank, group.world_size, library.layout)

    def _load(self, library: Library) -> int:
        """Load the weights that torch has drawn, or a checkpoint; return the epochs done."""
        drawn, _ = state.load(self.files.initial, self.spec.run_id)
        digest = state_sha256(drawn.values)
        check_agreement(self.meeting, digest, "same initial weights")
        self.entry.record.initial_sha256 = digest
        if not self.files.state.exists():
            library.load(drawn)
            return 0
        kept, epochs_done = state.load(self.files.state, self.spec.run_id)
        library.load(kept)
        return epochs_done

    def _save(self, latest: State, epoch: int) -> None:
        if not self.spec.due(self.spec.checkpoint_every, epoch):
            return
        if self.entry.first:
            state.save(self.files.state, self.spec.run_id, latest, epoch + 1)
        self.meeting.barrier()

    def _system(self, library: Library, meter: Meter | None) -> dict[str, object]:
        told = library.describe()
        return {
            "device": library.device,
            "accelerator": told.get("accelerator"),
            "architecture": platform.machine(),
            "threads": told["threads"],
            "affinity": affinity(self.meeting, self.spec.gpus_per_node),
            "settings": {"layout": library.layout, **told["settings"]},
            "communication": told["communication"],
            "energy_method": meter.method if meter else None,
            "energy_missing": meter.missing if meter else NO_ENERGY,
        }


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    sys.exit(main(sys.argv[1:]))
