"""Counters of energy: GPU boards by NVML, processors and their memory by RAPL in sysfs."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

SAMPLE_S = 0.1  # between readings of a board's power, and between updates of its counter (H100)
LEAST_UPDATES = 20  # in a window: its ends are then uncertain by 5 %
POWERCAP = "/sys/class/powercap"
# A counter of 262 kJ wraps around within 20 min at 200 W: read it before it can do so twice.
REREAD_S = 60.0
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Unmeasured(Exception):
    """Energy cannot be read here; the text is the reason, for the record."""


class Counter:
    """Energy of one device. The constructor raises `Unmeasured` if it cannot be read.

    Attributes
    ----------
    method : str
        What is read, as the record names it.
    device : str
        Identity of the device: two ranks with the same one share it.
    every_s : float or None
        Seconds between readings within a window, in a thread; None: at its ends alone.
    updated_s : float
        Seconds between updates of what is read: each end of a window is uncertain by so much.
    """

    method: str
    device: str
    every_s: float | None = None
    updated_s: float = 0.0
    _thread: threading.Thread | None = None

    def read(self) -> float:
        """Return microjoules since some fixed time; raises `Unmeasured`."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to count; raises `Unmeasured`."""
        self._since = time.perf_counter()
        self._begin = self.read()
        self._error: Unmeasured | None = None
        if self.every_s is not None:
            self._done = threading.Event()
            self._thread = threading.Thread(target=self._repeat, args=[self.every_s], daemon=True)
            self._thread.start()

    def stop(self) -> float:
        """Return joules since `start`.

        `Unmeasured` if a reading failed, or the window is shorter than `LEAST_UPDATES` updates.
        """
        self.close()
        microjoules = self.read() - self._begin
        took = time.perf_counter() - self._since
        if took < LEAST_UPDATES * self.updated_s:
            raise Unmeasured(
                f"{self.method}: updated every {self.updated_s} s, too rarely for {took:.2f} s"
            )
        return microjoules / 1e6

    def close(self) -> None:
        """End the thread; raises `Unmeasured` if a reading of it failed."""
        thread, self._thread = self._thread, None
        if thread:
            self._done.set()
            thread.join()
            if self._error:
                raise self._error

    def _repeat(self, seconds: float) -> None:
        while not self._done.wait(seconds):
            try:
                self.read()
            except Unmeasured as error:
                self._error = error
                return


class GpuCounter(Counter):
    """The counter of a board, in millijoules since its driver was loaded; Volta and newer.

    `uuid` is the GPU's, as torch tells it. Numbers would not do: ``CUDA_VISIBLE_DEVICES`` changes
    torch's and not NVML's.
    """

    method = "NVML counter, GPU boards"
    updated_s = SAMPLE_S

    def __init__(self, uuid: str) -> None:
        self.device = uuid
        self._nvml, self._board = _find(uuid)
        self.read()

    def read(self) -> float:
        """Return microjoules."""
        try:
            return 1000 * int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._board))
        except self._nvml.NVMLError as error:
            raise Unmeasured(f"GPU: no energy counter ({error})") from None


class GpuPower(Counter):
    """The power of a board without a counter, integrated over time by the trapezoidal rule.

    Parameters as of `GpuCounter`.
    """

    method = "NVML sampled power, GPU boards"
    every_s = updated_s = SAMPLE_S

    def __init__(self, uuid: str) -> None:
        self.device = uuid
        self._nvml, self._board = _find(uuid)
        self._last, self._joules = self._sample(), 0.0

    def read(self) -> float:
        """Return microjoules; add those since the last reading."""
        (before, old), (now, new) = self._last, self._sample()
        self._joules += (now - before) * (old + new) / 2
        self._last = now, new
        return 1e6 * self._joules

    def _sample(self) -> tuple[float, float]:
        """Return the time in seconds, and the power in watts."""
        try:
            milliwatts = self._nvml.nvmlDeviceGetPowerUsage(self._board)
        except self._nvml.NVMLError as error:
            raise Unmeasured(f"GPU: no power reading ({error})") from None
        return time.perf_counter(), milliwatts / 1000


def _find(uuid: str) -> tuple[Any, Any]:
    """Return NVML and its handle of a GPU.

    `Unmeasured` if either is not there, or the GPU is divided: a MIG slice has no counter of its
    own, and its board works for others as well.
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


class Rapl(Counter):
    """The packages of this machine, and their memory where it has a counter.

    A package is a whole processor: its zones ``core`` and ``uncore`` are parts of it and are left
    out. ``dram`` lies outside the package and is added. ``psys`` is a whole laptop, packages
    included, and is left out. The files: Documentation/ABI/testing/sysfs-class-powercap of the
    Linux kernel.

    `root` is the folder of the zones; None: ``DDL_POWERCAP``, else the kernel's. Containers often
    hide the kernel's, and may mount it elsewhere. A window is read every `every_s` seconds.
    """

    def __init__(self, root: Path | None = None, every_s: float = REREAD_S) -> None:
        self.every_s = every_s
        zones = _counted(root or Path(os.environ.get("DDL_POWERCAP") or POWERCAP))
        self._counters = [zone / "energy_uj" for zone in zones]
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in zones]
        memory = any(_text(zone / "name") == "dram" for zone in zones)
        self.method = "RAPL, CPU packages and DRAM" if memory else "RAPL, CPU packages"
        # Not the name of the host: containers of one machine share its packages.
        self.device = _text(BOOT)
        self._last, self._total_uj = self._readings(), 0

    def read(self) -> float:
        """Return microjoules; count since the last reading, through one wrap-around."""
        now = self._readings()
        for before, after, span in zip(self._last, now, self._ranges, strict=True):
            self._total_uj += after - before + (span if after < before else 0)
        self._last = now
        return self._total_uj

    def _readings(self) -> list[int]:
        return [_number(counter) for counter in self._counters]


def _counted(root: Path) -> list[Path]:
    """Return the zones that together are the machine, none within another."""
    names = {zone: _text(zone / "name") for zone in sorted(root.glob("intel-rapl:*"))}
    if not any(name.startswith("package-") for name in names.values()):
        raise Unmeasured(f"CPU: no RAPL counters in {root} (none, or hidden by a container)")
    return [zone for zone, name in names.items() if name.startswith("package-") or name == "dram"]


def _number(path: Path) -> int:
    text = _text(path)
    if not text.isdigit():
        raise Unmeasured(f"CPU: {path} holds {text[:40]!r}, not a number")
    return int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except PermissionError:
        raise Unmeasured(
            f"CPU: this user may not read {path}; an administrator can allow it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Unmeasured(f"CPU: cannot read {path}: {error}") from None
