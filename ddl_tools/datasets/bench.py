"""Rates of a loader alone (`ddl bench loader`): by stage, from disk and from memory.

Figures use records of runs with ``work: load``, in which all ranks load at the same time.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ddl_core.config import RunSpec
from ddl_core.data.formats import open_format
from ddl_core.files import drop_cached
from ddl_core.loaders.base import Loader, open_loader
from ddl_core.loaders.native import ProcessLoader
from ddl_core.registry import resolve
from ddl_core.timing import cpu_seconds

CPU = torch.device("cpu")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # of the clock of other processes


@dataclass(frozen=True)
class Rate:
    """Rate of all threads or processes of a loader together."""

    what: str
    images_per_s: float  # by the wall clock
    images_per_core_s: float  # per second of CPU time


def measure(
    what: str, images: int, work: Callable[[], object], cpu_clock: Callable[[], float] = cpu_seconds
) -> Rate:
    """Return the rate at which `work` handles its `images` images."""
    wall, cpu = time.perf_counter(), cpu_clock()
    work()
    cpu_s = cpu_clock() - cpu or TICK_S
    return Rate(what, images / (time.perf_counter() - wall), images / cpu_s)


def measure_epoch(loader: Loader, epoch: int, what: str) -> Rate:
    """Return the rate of one epoch, that of a first one with the start of the processes."""
    loader.set_epoch(epoch)
    images = len(loader) * loader.batch_size
    return measure(what, images, lambda: exhaust(loader))


def exhaust(items: Iterable[object]) -> None:
    """Take everything and keep nothing."""
    for _ in items:
        pass


def stages(spec: RunSpec, data_dir: Path) -> list[Rate]:
    """Return the rate of each stage by itself: read, decode, transform, copy; one thread.

    The list is empty for DALI, whose pipeline does not tell its stages apart, and if none of the
    images of a first batch is readable.
    """
    if not issubclass(resolve("loader", spec.loader), ProcessLoader):
        return []
    torch.set_num_threads(1)
    alone = spec.model_copy(update={"loader_workers": 0})
    loader = open_loader(alone, data_dir, "train", 0, 1, CPU)
    assert isinstance(loader, ProcessLoader)
    samples = loader.make_samples()
    first = range(min(spec.local_batch_size, loader.images))
    numbers = [number for number in first if samples.load(number)[0] is not None]
    if not numbers:
        return []
    contents: list[bytes] = []
    decoded: list[object] = []
    made: list[torch.Tensor] = []
    steps: dict[str, Callable[[], object]] = {
        "read": lambda: contents.extend(samples.files.read(n)[0] for n in numbers),
        "decode": lambda: decoded.extend(map(samples.decode, contents)),
        "transform": lambda: made.extend(
            samples.transform(im, 0, n) for n, im in enumerate(decoded)
        ),
        "copy": lambda: loader.to_device(torch.stack(made)),
    }
    for _ in ("warm-up", "measured"):
        for store in (contents, decoded, made):
            store.clear()
        # The clock of this process alone: that of all processes ticks in hundredths of a second.
        rates = [
            measure(what, len(numbers), work, time.process_time) for what, work in steps.items()
        ]
    return rates


def forget_files(data_dir: Path, data_format: str) -> int:
    """Have the system drop the training data from memory; return the number of files.

    The system may keep pages that others use. Caches of network file systems keep theirs.
    """
    images = open_format(data_format, data_dir).images("train")
    files = images.paths(np.arange(len(images)))
    drop_cached(files)
    return len(files)
