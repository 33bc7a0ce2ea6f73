"""Counters of energy: GPU boards by NVML, processors and their memory by RAPL in sysfs."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

SAMPLE_S = 0.1  # between readings of a board's power
POWERCAP = "/sys/class/powercap"
# A counter of 262 kJ wraps around within 20 min at 200 W: read it before it can do so twice.
REREAD_S = 60.0
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Unmeasured(Exception):
    """Energy cannot be read here; the text is the reason, for the record."""


class Counter(Protocol):
    """One thing whose energy can be read. The constructor raises `Unmeasured` if it cannot."""

    method: str
    """What is read, as the record names it."""
    place: str
    """Identity of the thing: two ranks with the same one share it."""

    def start(self) -> None:
        """Begin to count; raises `Unmeasured`."""
        ...

    def stop(self) -> float:
        """Return joules since `start`; raises `Unmeasured`."""
        ...

    def close(self) -> None:
        """End a count that nobody will stop."""
        ...


class Every:
    """Calls `work` every `seconds` in a thread of its own, until `stop`."""

    def __init__(self, seconds: float, work: Callable[[], None]) -> None:
        self._seconds, self._work = seconds, work
        self._error: Unmeasured | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(self._seconds):
            try:
                self._work()
            except Unmeasured as error:
                self._error = error
                return

    def stop(self) -> None:
        """End the thread.

        Raises
        ------
        Unmeasured
            If `work` did.
        """
        self._done.set()
        self._thread.join()
        if self._error:
            raise self._error


class GpuCounter:
    """The counter of a board, in millijoules since its driver was loaded; Volta and newer.

    Parameters
    ----------
    uuid : str
        UUID of the GPU, as torch tells it. Numbers would not do: ``CUDA_VISIBLE_DEVICES`` changes
        torch's and not NVML's.

    Raises
    ------
    Unmeasured
        If NVML, the GPU or its counter cannot be used.
    """

    method = "NVML counter, GPU boards"

    def __init__(self, uuid: str) -> None:
        self.place = uuid
        self._nvml, self._board = _find(uuid)
        self._before = self._read()

    def start(self) -> None:
        """Begin to count."""
        self._before = self._read()

    def stop(self) -> float:
        """Return joules since `start`."""
        return (self._read() - self._before) / 1000

    def close(self) -> None:
        """Do nothing."""

    def _read(self) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._board))
        except self._nvml.NVMLError as error:
            raise Unmeasured(f"GPU: no energy counter ({error})") from None


class GpuPower:
    """The power of a board without a counter, sampled every `every_s` seconds in a thread.

    Parameters and errors as of `GpuCounter`.
    """

    method = "NVML sampled power, GPU boards"

    def __init__(self, uuid: str, every_s: float = SAMPLE_S) -> None:
        self.place = uuid
        self._nvml, self._board = _find(uuid)
        self._every_s = every_s
        self._every: Every | None = None
        self._times: list[float] = []
        self._watts: list[float] = []
        self._sample()

    def start(self) -> None:
        """Begin to sample."""
        self._times, self._watts = [], []
        self._sample()
        self._every = Every(self._every_s, self._sample)

    def stop(self) -> float:
        """Return joules since `start`."""
        self.close()
        self._sample()
        return integral(self._times, self._watts)

    def close(self) -> None:
        """End the thread."""
        every, self._every = self._every, None
        if every:
            every.stop()

    def _sample(self) -> None:
        try:
            milliwatts = self._nvml.nvmlDeviceGetPowerUsage(self._board)
        except self._nvml.NVMLError as error:
            raise Unmeasured(f"GPU: no power reading ({error})") from None
        self._times.append(time.perf_counter())
        self._watts.append(milliwatts / 1000)


def integral(times: Sequence[float], watts: Sequence[float]) -> float:
    """Return joules: power over time by the trapezoidal rule; `times` in seconds."""
    return float(np.trapezoid(watts, times))


def _find(uuid: str) -> tuple[Any, Any]:
    """Return NVML and its handle of a GPU.

    Raises
    ------
    Unmeasured
        If either is not there, or the GPU is divided: a MIG slice has no counter of its own, and
        its board works for others as well.
    """
    try:
        import pynvml as nvml
    except ImportError:
        raise Unmeasured(
            "GPU: nvidia-ml-py is not installed; pip install -r requirements/train.txt"
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise Unmeasured(f"GPU: no NVIDIA driver ({error})") from None
    try:
        board = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except nvml.NVMLError as error:
        raise Unmeasured(f"GPU: NVML does not know {uuid} ({error}); is it a MIG slice?") from None
    with suppress(nvml.NVMLError):  # boards that cannot be divided have no such mode
        if nvml.nvmlDeviceGetMigMode(board)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            raise Unmeasured("GPU: divided by MIG; a slice has no counter of its own")
    return nvml, board


class Rapl:
    """The packages of this machine, and their memory where it has a counter.

    A package is a whole processor: its zones ``core`` and ``uncore`` are parts of it and are left
    out. ``dram`` lies outside the package and is added. ``psys`` is a whole laptop, packages
    included, and is left out. The files: Documentation/ABI/testing/sysfs-class-powercap of the
    Linux kernel.

    Parameters
    ----------
    root : Path or None
        Folder of the zones; None: ``DDL_POWERCAP``, else the kernel's. Containers often hide the
        kernel's, and may mount it elsewhere.
    every_s : float
        Seconds between readings within a window.

    Raises
    ------
    Unmeasured
        If there are no counters, or this user may not read them.
    """

    def __init__(self, root: Path | None = None, every_s: float = REREAD_S) -> None:
        root = root or Path(os.environ.get("DDL_POWERCAP") or POWERCAP)
        zones = _counted(root)
        self._counters = [zone / "energy_uj" for zone in zones]
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in zones]
        self._every_s = every_s
        self._every: Every | None = None
        self._last = self._readings()
        self._total_uj = 0
        memory = any(_name(zone) == "dram" for zone in zones)
        self.method = "RAPL, CPU packages and DRAM" if memory else "RAPL, CPU packages"
        # Not the name of the host: containers of one machine share its packages.
        self.place = _text(BOOT)

    def start(self) -> None:
        """Begin to count."""
        self._last, self._total_uj = self._readings(), 0
        self._every = Every(self._every_s, self.advance)

    def advance(self) -> None:
        """Count what was used since the last reading, through one wrap-around of a counter."""
        now = self._readings()
        for before, after, span in zip(self._last, now, self._ranges, strict=True):
            self._total_uj += after - before + (span if after < before else 0)
        self._last = now

    def stop(self) -> float:
        """Return joules since `start`."""
        self.close()
        self.advance()
        return self._total_uj / 1e6

    def close(self) -> None:
        """End the thread."""
        every, self._every = self._every, None
        if every:
            every.stop()

    def _readings(self) -> list[int]:
        return [_number(counter) for counter in self._counters]


def _counted(root: Path) -> list[Path]:
    """Return the zones that together are the machine, none within another."""
    zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _is_counted(_name(zone))]
    if not any(_name(zone) != "dram" for zone in zones):
        raise Unmeasured(f"CPU: no RAPL counters in {root} (none, or hidden by a container)")
    return zones


def _is_counted(name: str) -> bool:
    return name.startswith("package-") or name == "dram"


def _name(zone: Path) -> str:
    return _text(zone / "name")


def _number(path: Path) -> int:
    text = _text(path)
    if not text.isdigit():
        raise Unmeasured(f"CPU: {path} holds {text[:40]!r}, not a number")
    return int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except PermissionError:
        raise Unmeasured(
            f"CPU: this user may not read {path}; an administrator can allow it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Unmeasured(f"CPU: cannot read {path}: {error}") from None
