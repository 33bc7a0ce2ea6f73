"""`Trainer`: training with another library than torch on one rank."""

import platform
from pathlib import Path
from typing import Any

from ddl_core.config import RunSpec
from ddl_core.data.sampling import Split
from ddl_core.fairness import check_agreement, state_sha256
from ddl_core.loop import BatchLoader, EpochLoop, EpochResult, OnStep
from ddl_core.registry import resolve
from ddl_core.timing import EnergyMeter
from ddl_tools.frameworks import weights as weights
from ddl_tools.frameworks.batches import Native, Synthetic
from ddl_tools.frameworks.loop import TrainState
from ddl_tools.frameworks.protocol import Library
from ddl_tools.frameworks.rendezvous import Meeting
from ddl_tools.records.paths import RunFiles

LOADERS: dict[str, type[Native] | type[Synthetic]] = {"native": Native, "synthetic": Synthetic}
# A GPU's energy is read by its UUID, which these libraries do not tell.
NO_ENERGY = "energy of a GPU is read for framework 'torch' alone"


class Trainer:
    """See `Trainer` of `ddl_tools/rank/worker.py`; the ranks meet through the file `rendezvous`."""

    profile = None

    def __init__(self, spec: RunSpec, data_dir: Path | None, rendezvous: Path) -> None:
        self.spec, self._data_dir = spec, data_dir
        self.group = Meeting(spec, rendezvous)
        self.meter: EnergyMeter | None = None
        self._library: Library | None = None
        self._loaders: dict[Split, BatchLoader] = {}

    @property
    def library(self) -> Library:
        """The library; first use joins the group of the run's strategy."""
        if self._library is None:
            self._library = resolve("framework", self.spec.framework)(self.spec, self.group)
        assert self._library is not None
        return self._library

    def energy(self) -> tuple[str | None, str | None]:
        """Return no GPU; and why no energy can be read where there is one."""
        return None, None if self.library.device == "cpu" else NO_ENERGY

    def loader(self, split: Split) -> BatchLoader:
        """Return this rank's share of a split; later calls return the same."""
        if split not in self._loaders:
            make, group = LOADERS[self.spec.loader], self.group
            self._loaders[split] = make(
                self.spec, self._data_dir, split, group.rank, group.world_size, self.library.layout
            )
        return self._loaders[split]

    def build(self, directory: Path) -> str:
        """Load the weights that torch has drawn; return their hash. A collective."""
        initial, _ = weights.load(RunFiles(directory).initial, self.spec.run_id)
        digest = state_sha256(initial.values)
        check_agreement(self.group, digest, "same initial weights")
        self.library.load(initial)
        self._state = TrainState(self.spec, self.library, self.group)
        return digest

    def resume(self, directory: Path) -> int:
        """Continue from the checkpoint in a folder if there is one; return the epochs done."""
        files = RunFiles(directory)
        if not files.state.exists():
            return 0
        kept, epochs_done = weights.load(files.state, self.spec.run_id)
        self.library.load(kept)
        self._state = TrainState(self.spec, self.library, self.group)
        return epochs_done

    def train_epoch(self, epoch: int, on_step: OnStep) -> EpochResult:
        """Train on every image of the training set once."""
        return EpochLoop(self._state, self.meter).train(self.loader("train"), epoch, on_step)

    def load_epoch(self, epoch: int, on_step: OnStep) -> EpochResult:
        """Refuse: a spec asks for it with torch only."""
        raise NotImplementedError(self.spec.framework)

    def evaluate(self, on_step: OnStep) -> EpochResult:
        """Evaluate on every image of the validation set once."""
        return EpochLoop(self._state, self.meter).evaluate(self.loader("eval"), on_step)

    def peak_memory(self) -> int | None:
        """Return None: these libraries do not tell."""
        return None

    def save(self, directory: Path, epochs_done: int) -> None:
        """Write a checkpoint into a folder."""
        if self.group.rank == 0:
            state = RunFiles(directory).state
            weights.save(state, self.spec.run_id, self._state.latest, epochs_done)

    def weights_sha256(self) -> str:
        """Return a hash over all parameters and statistics."""
        return state_sha256(self._state.latest.values)

    def describe(self) -> dict[str, Any]:
        """Return facts of device, settings and communication, for the record."""
        library, facts = self.library, self.library.describe()
        return {
            "device": library.device,
            "accelerator": facts.get("accelerator"),
            "architecture": platform.machine(),
            "threads": facts["threads"],
            "settings": {"layout": library.layout, **facts["settings"]},
            "communication": facts["communication"],
        }

    def close(self) -> None:
        """Leave the group."""
        if self._library:
            self._library.close()
        self.group.close()
