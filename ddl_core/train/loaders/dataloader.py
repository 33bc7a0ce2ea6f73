"""Loaders that finish one image at a time in processes of torch's DataLoader."""

import multiprocessing
import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ddl_core.processes import die_with_parent
from ddl_core.rank.images import Images, NamedOnce
from ddl_core.rank.order import Indices, Split
from ddl_core.rank.views import UNREADABLE, Training
from ddl_core.spec.run import RunSpec
from ddl_core.train.loaders.ahead import copied_ahead
from ddl_core.train.loaders.files import FileLoader

Sample = tuple[Tensor, int, int, bool]
"""Image, label, number, and whether it was unreadable."""

Batch = tuple[Tensor, Tensor, Indices, int]
"""Images and labels on the device, the images' numbers, and how many were unreadable."""


class Samples(Dataset[Sample]):
    """Makes finished images in a loader process; subclasses say how.

    Attributes
    ----------
    files : Images
    size : int
        Side of the finished image.
    views : Training or None
        Draws the crops; None in evaluation.
    """

    def __init__(self, spec: RunSpec, files: Images, split: Split) -> None:
        self.size = spec.image_size
        self.views = Training(spec) if split == "train" else None
        self.files = files
        self._name = NamedOnce()

    def blank(self) -> Tensor:
        """Return what replaces an unreadable image."""
        raise NotImplementedError

    def decode(self, content: bytes) -> Any:
        """Return the pixels of a file; raise one of `UNREADABLE` if it is damaged."""
        raise NotImplementedError

    def view(self, image: Any, epoch: int, number: int) -> Tensor:
        """Return what `epoch` shows of image `number`, (3, size, size)."""
        raise NotImplementedError

    def __getitem__(self, place: tuple[int, int]) -> Sample:
        """Return the image at (epoch, number)."""
        epoch, number = place
        content, label = self.files.read(number)
        image = self.decoded(content, number)
        if image is None:
            return self.blank(), label, number, True
        return self.view(image, epoch, number), label, number, False

    def decoded(self, content: bytes, number: int) -> Any | None:
        """Return the pixels; None, with a line in the log, if the file is unreadable."""
        try:
            return self.decode(content)
        except UNREADABLE as error:
            self._name(self.files.name(number), error)
            return None


# Evaluation more seldom than this, in epochs, need not keep its processes in memory meanwhile.
SELDOM = 5
RANK = "ddl_core.train.worker"


class ProcessLoader(FileLoader):
    """A loader whose subclass names its `Samples`.

    On a GPU the loader's processes come from a fork server: a forked copy of a process that talks
    to InfiniBand may corrupt its memory. It imports torch once for all of them. On the CPU they are
    forked, which starts faster.
    """

    samples: ClassVar[type[Samples]]

    def __init__(
        self,
        spec: RunSpec,
        data_dir: Path | None,
        split: Split,
        rank: int,
        world_size: int,
        device: torch.device,
    ) -> None:
        super().__init__(spec, data_dir, split, rank, world_size, device)
        self._copying = torch.cuda.Stream(device) if device.type == "cuda" else None
        workers = spec.loader_workers
        method = start_method(spec, device)
        often = split == "train" or 0 < spec.eval_every < SELDOM
        self._loader = DataLoader(
            self.make_samples(),
            batch_sampler=self._plan,
            num_workers=workers,
            prefetch_factor=spec.loader_prefetch if workers else None,
            pin_memory=spec.pin_memory and device.type == "cuda",
            persistent_workers=spec.persistent_workers and often and workers > 0,
            multiprocessing_context=_context(method, type(self).__module__),
            # Of a fork server's children this process is not the parent.
            worker_init_fn=partial(_leave_with, os.getpid() if method == "fork" else None),
        )

    def make_samples(self) -> Samples:
        """Return the work on one image, as a loader process gets it."""
        return self.samples(self._spec, self._files, self._split)

    def to_device(self, images: Tensor) -> Tensor:
        """Return a batch on the device, as float; from pinned memory the host does not wait."""
        return images.to(self._device, non_blocking=True)

    def _batches(self) -> Iterator[Batch]:
        if self._copying is None:
            return map(self._send, self._loader)
        # No batch beyond the last is asked for: ending the loader's processes takes time.
        return copied_ahead(islice(self._loader, len(self)), self._send, self._copying)

    def _send(self, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Batch:
        images, labels, numbers, corrupt = batch
        return (
            self.to_device(images),
            labels.to(self._device, non_blocking=True),
            numbers.numpy().copy(),  # pinned memory is not for keeping
            int(corrupt.sum()),
        )


def start_method(spec: RunSpec, device: torch.device) -> str | None:
    """Return how a run starts its loader processes; None if it has none."""
    if spec.loader_workers == 0:
        return None
    return "forkserver" if device.type == "cuda" else "fork"


def _context(method: str | None, module: str) -> BaseContext | None:
    """Return what starts processes; a fork server has imported `module`, and torch with it."""
    if method is None:
        return None
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([module, RANK])  # each child runs the rank's module anew
    return context


def _leave_with(rank: int | None, _worker: int) -> None:
    # torch's own watch does not end a process that is writing into a full pipe.
    die_with_parent(rank)
