"""PyTorch in a recorded run: memory, profiles, facts for the record."""

import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from ddl_core.config import RunSpec
from ddl_core.loop import EpochResult, OnStep, ignore
from ddl_core.optim import OF_TORCH
from ddl_core.strategies.base import Strategy
from ddl_core.trainer import Trainer
from ddl_tools import gpus
from ddl_tools.processes import compiled
from ddl_tools.rank.meeting import open_store
from ddl_tools.rank.weights import state_sha256, values

if TYPE_CHECKING:  # a run that is not profiled imports nothing of it
    from ddl_tools.rank.profiler import Profiler

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class RecordedTrainer(Trainer):
    """A `Trainer` that gives a record its facts; `profile` watches the last epoch."""

    def __init__(
        self, spec: RunSpec, data_dir: Path | None = None, rendezvous: Path | None = None
    ) -> None:
        check_driver(spec)
        meets = spec.strategy != "single"
        self._store = open_store(spec, rendezvous) if rendezvous and meets else None
        super().__init__(spec, data_dir)
        self.profile: Profiler | None = None
        self._memory = PeakMemory(self.strategy)

    def build(self, _directory: Path) -> str:
        """Make the network, from which memory counts; return the hash of its initial weights."""
        if self.spec.compile:
            os.environ.update(compiled())
        self.loader("train")
        self._memory = PeakMemory(self.strategy)
        network = self.state.network
        return state_sha256(values(self.strategy.full_weights(network)))

    def train_epoch(
        self, epoch: int, on_step: OnStep = ignore, annotate: bool = False
    ) -> EpochResult:
        """Train on every image of the training set once; profile the last epoch if wanted."""
        last, profile = epoch + 1 == self.spec.epochs, self.profile
        self._memory.begin()
        if profile and last:

            def step(done: int, steps: int) -> None:
                on_step(done, steps)
                profile.step()

            with profile:
                return super().train_epoch(epoch, step, annotate=True)
        return super().train_epoch(epoch, on_step, annotate=annotate)

    def evaluate(self, on_step: OnStep = ignore) -> EpochResult:
        """Evaluate on every image of the validation set once."""
        self._memory.begin()
        return super().evaluate(on_step)

    def load_epoch(self, epoch: int, on_step: OnStep = ignore) -> EpochResult:
        """Fetch every image of the training set once, and train nothing."""
        self._memory.begin()
        return super().load_epoch(epoch, on_step)

    def peak_memory(self) -> int | None:
        """Return the most memory of any rank in the last epoch, bytes. A collective."""
        return self._memory.peak()

    def energy(self) -> tuple[str | None, str | None]:
        """Return the UUID of this rank's GPU or None, and why no energy can be read: None."""
        return identity(self.strategy.device), None

    def describe(self) -> dict[str, Any]:
        """Return facts of device, settings, network and communication, for the record."""
        where, built = self.strategy.device, self.network_facts is not None
        update = implementation(self.spec, where) if built else {}
        return {
            **describe(where),
            "threads": threads(),
            "settings": settings(self.spec, where) | update,
            "network": self.network_facts,
            "communication": self.strategy.describe() if built else None,
        }

    def close(self) -> None:
        """Leave the group."""
        self.profile = None
        super().close()
        self._store = None


def check_driver(spec: RunSpec) -> None:
    """Refuse to train on the CPU if torch sees no GPU of those that are here."""
    if spec.device != "cpu" and not torch.cuda.is_available():
        gpus.check(gpus.built_for(torch.version))


def describe(device: torch.device) -> dict[str, Any]:
    """Return ``device``, and on a GPU its name, memory and the CUDA, cuDNN and NCCL versions."""
    if device.type != "cuda":
        return {"device": "cpu", "accelerator": None, "architecture": platform.machine()}
    properties = torch.cuda.get_device_properties(device)
    nccl = torch.cuda.nccl.version()
    return {
        "device": "cuda",
        "accelerator": properties.name,
        "accelerator_memory_bytes": properties.total_memory,
        "accelerators_visible": torch.cuda.device_count(),
        "architecture": platform.machine(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl),
    }


def threads() -> dict[str, int]:
    """Return the threads that torch computes with within and between operators."""
    return {"compute": torch.get_num_threads(), "interop": torch.get_num_interop_threads()}


def settings(spec: RunSpec, device: torch.device) -> dict[str, Any]:
    """Return the switches of torch that are in effect in this process, by their names."""
    return {
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "pin_memory": spec.pin_memory and device.type == "cuda",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "mkl": torch.backends.mkl.is_available(),
    }


def implementation(spec: RunSpec, device: torch.device) -> dict[str, bool]:
    """Return which of torch's implementations makes the update.

    By default torch's own use ``foreach`` on a GPU; timm's loop over the parameters.
    """
    return {"foreach": spec.optimizer in OF_TORCH and device.type == "cuda", "fused": False}


def identity(device: torch.device) -> str | None:
    """Return the UUID of a GPU, which two ranks must not share; None on the CPU."""
    if device.type != "cuda":
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


class PeakMemory:
    """The most memory that a rank uses, above what it had when this was made.

    On a GPU it is that of torch's tensors; on the CPU resident memory, without mapped files.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        memory = psutil.Process().memory_info()
        self._before = memory.rss - getattr(memory, "shared", 0)
        self._resets = False

    def begin(self) -> None:
        """Begin a measurement."""
        self._resets = False
        if self._strategy.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._strategy.device)
            return
        with suppress(OSError):  # not Linux, or one that does not allow it
            CLEAR.write_text("5")  # the peak alone, see proc(5)
            self._resets = True

    def peak(self) -> int | None:
        """Return bytes, the most of any rank since `begin`; None if not known. A collective."""
        own = torch.tensor(float(self._own()), dtype=torch.float64, device=self._strategy.device)
        return int(self._strategy.all_reduce(own, "max").item()) or None

    def _own(self) -> int:
        if self._strategy.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._strategy.device)
        if not self._resets:
            return 0
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
        return max(0, 1024 * int(kilobytes) - psutil.Process().memory_info().shared - self._before)
