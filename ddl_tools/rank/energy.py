"""Energy of a run: counters of GPU boards by NVML and of processors by RAPL, and their meter.

All ranks agree on what is read, and each thing is read by one of them.
"""

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from ddl_core.strategies import Group

log = logging.getLogger(__name__)

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


Makers = Sequence[Callable[[], Counter]]
"""Of one kind of counter, the best first."""


class Meter:
    """Joules of a window over all ranks, every GPU and every machine once.

    A source counts only if all ranks have it. On GPUs, theirs has to be one of them: processors
    alone would be a small part of the energy that looks like all of it. The constructor is a
    collective, and so is `stop`; leaving the context ends a window that an error cut short.

    `gpu` is the UUID of this rank's GPU, None on the CPU. `method` says what `stop` counts, None if
    it counts nothing; `missing` says what is not counted, and why.
    """

    def __init__(self, group: Group, gpu: str | None) -> None:
        self._group = group
        self._mine: list[Counter] = []
        self._failed = False
        self.missing: str | None = None
        kinds: list[Makers] = [[Rapl]]
        if gpu is not None:
            kinds.insert(0, [partial(GpuCounter, gpu), partial(GpuPower, gpu)])
        methods: list[str] = []
        for makers in kinds:
            method, self.missing = self._add(makers)
            if method is None:
                break
            methods.append(method)
        self.method = " + ".join(methods) or None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._mine:
            try:
                source.close()
            except Unmeasured as error:
                log.warning("energy: %s", error)

    def start(self) -> None:
        """Open a window."""
        self._failed = False
        for source in self._mine:
            try:
                source.start()
            except Unmeasured as error:
                self._fail(error)

    def stop(self) -> float | None:
        """Close the window; return joules of all ranks, None if any could not be read."""
        if self.method is None:
            return None
        joules = 0.0
        for source in self._mine:
            try:
                joules += source.stop()
            except Unmeasured as error:
                self._fail(error)
        # Not a number on one rank is not a number in the sum.
        total = float(self._group.reduce(float("nan") if self._failed else joules))
        return None if total != total else total

    def _fail(self, error: Unmeasured) -> None:
        self._failed = True
        log.warning("energy of this window is lost: %s", error)

    def _add(self, makers: Makers) -> tuple[str | None, str | None]:
        """Use the first source that all ranks can make; return its method, or why there is none."""
        reason = None
        for make in makers:
            try:
                source = make()
                reason = f"{source.method}: not readable on every rank"
            except Unmeasured as error:
                source, reason = None, str(error)
            if self._group.reduce(float(source is not None), "min"):
                assert source is not None
                if self._first_with(source.device):
                    self._mine.append(source)
                return source.method, None
        return None, reason

    def _first_with(self, device: str) -> bool:
        """Say whether no lower rank has the same `device`."""
        group = self._group
        devices = np.zeros(group.world_size)
        # 48 bits: float64 holds them exactly, and so does a sum with zeros.
        devices[group.rank] = int(hashlib.sha256(device.encode()).hexdigest()[:12], 16)
        own, *lower = group.reduce(devices)[group.rank :: -1].tolist()
        return own not in lower
