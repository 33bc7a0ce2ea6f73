"""Loaders in processes of torch's DataLoader; `native` decodes with Pillow, as the paper does."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TypeVar

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ddl_core.config import RunSpec
from ddl_core.data.dataset import Dataset, NamedOnce
from ddl_core.data.image import MEAN, STD, UNREADABLE, CropSampler, crop_image, open_rgb
from ddl_core.data.sampling import Split
from ddl_core.loaders.base import Batch, Loader
from ddl_core.models import torchvision
from ddl_core.system import die_with_parent

functional = torchvision.transforms.functional

Sent = TypeVar("Sent")

Sample = tuple[Tensor, int, int, bool]
"""Image, label, number, and whether it was unreadable."""


class Samples(TorchDataset[Sample]):
    """Makes finished images in a loader process; subclasses say how."""

    def __init__(self, spec: RunSpec, files: Dataset, split: Split) -> None:
        self.size = spec.image_size  # side of a finished image
        self.crops = CropSampler(spec) if split == "train" else None
        self.files = files
        self._name = NamedOnce()

    def blank(self) -> Tensor:
        """Return the replacement of an unreadable image."""
        raise NotImplementedError

    def decode(self, content: bytes) -> Any:
        """Return the pixels of a file; raise one of `UNREADABLE` if it is damaged."""
        raise NotImplementedError

    def transform(self, image: Any, epoch: int, number: int) -> Tensor:
        """Return the crop of image `number` in `epoch`, (3, size, size)."""
        raise NotImplementedError

    def __getitem__(self, place: tuple[int, int]) -> Sample:
        epoch, number = place
        image, label = self.load(number)
        if image is None:
            return self.blank(), label, number, True
        return self.transform(image, epoch, number), label, number, False

    def load(self, number: int) -> tuple[Any | None, int]:
        """Return pixels and label; no pixels, and a line in the log, if the file is unreadable."""
        content, label = self.files.read(number)
        try:
            return self.decode(content), label
        except UNREADABLE as error:
            self._name(self.files.name(number), error)
            return None, label


SELDOM = 5  # epochs between evaluations from which on their processes do not live on


class ProcessLoader(Loader):
    """A loader in processes, whose subclass names its `Samples`.

    On a GPU the processes come from a fork server, since a fork of a process that uses InfiniBand
    may corrupt its memory. On the CPU they are forks, which start faster.
    """

    samples: ClassVar[type[Samples]]

    def _prepare(self) -> None:
        spec, split, device = self._spec, self._split, self._device
        self._copying = torch.cuda.Stream(device) if device.type == "cuda" else None
        workers = spec.loader_workers
        method = start_method(spec, device)
        context = multiprocessing.get_context(method) if method else None
        if context and method == "forkserver":  # which imports torch once, and what children run
            context.set_forkserver_preload([type(self).__module__, "ddl_core.trainer"])
        often = split == "train" or 0 < spec.eval_every < SELDOM
        self._loader = DataLoader(
            self.make_samples(),
            batch_sampler=self._plan,
            num_workers=workers,
            prefetch_factor=spec.loader_prefetch if workers else None,
            pin_memory=spec.pin_memory and device.type == "cuda",
            persistent_workers=spec.persistent_workers and often and workers > 0,
            multiprocessing_context=context,
            # This process is not the parent of a fork server's children.
            worker_init_fn=partial(_leave_with, os.getpid() if method == "fork" else None),
        )

    def make_samples(self) -> Samples:
        """Return what makes images in a loader process."""
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


def _leave_with(rank: int | None, _worker: int) -> None:
    # torch's own watch does not end a process that is writing into a full pipe.
    die_with_parent(rank)


def copied_ahead(
    batches: Iterator[Any], send: Callable[[Any], Sent], copying: torch.cuda.Stream
) -> Iterator[Sent]:
    """Yield the result of `send` for each batch, begun while the batch before it is computed.

    `send` copies a batch to the device on the stream `copying`, always the same one; copies overlap
    with computing from pinned memory. The host never waits for the device.
    """

    def begin() -> Sent | None:
        batch = next(batches, None)
        if batch is None:
            return None
        # The memory of older batches is taken again, once all computing with them is done. With
        # `record_stream`, a host that runs ahead would take more.
        copying.wait_stream(torch.cuda.current_stream(copying.device))
        with torch.cuda.stream(copying):
            return send(batch)

    coming = begin()
    while coming is not None:
        # For this batch only: the copy of the next one is not begun yet.
        torch.cuda.current_stream(copying.device).wait_stream(copying)
        ready, coming = coming, begin()
        yield ready


class PillowSamples(Samples):
    """Decodes and resizes with Pillow, normalises in floating point on the CPU."""

    def blank(self) -> Tensor:
        """Return the mean colour, which is zero after normalising."""
        return torch.zeros(3, self.size, self.size)

    def decode(self, content: bytes) -> Image.Image:
        """Return the image in RGB."""
        return open_rgb(content)

    def transform(self, image: Image.Image, epoch: int, number: int) -> Tensor:
        """Return the normalised view, float32."""
        size = image.height, image.width
        crop = self.crops.draw(epoch, number, *size) if self.crops else None
        pixels = functional.to_tensor(crop_image(image, self.size, crop))
        return functional.normalize(pixels, MEAN, STD, inplace=True)


class Native(ProcessLoader):
    """What torchvision's own ImageNet example does, on class folders or on TFRecord."""

    samples = PillowSamples
