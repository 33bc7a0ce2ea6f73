"""Energy of one NVIDIA GPU board, from NVML: its own counter, else its power sampled."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ddl_core.rank.energy.source import Every, Unmeasured

EVERY_S = 0.1


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

    def __init__(self, uuid: str, every_s: float = EVERY_S) -> None:
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
