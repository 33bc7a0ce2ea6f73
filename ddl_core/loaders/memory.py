"""Small sets that stay on the device, decoded; their crops are made there, a batch at once.

For studies of accuracy: at small images a process that loads costs more than it brings. A crop is
the product of an image with two matrices of weights, one for its rows and one for its columns.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddl_core.data.image import evaluation_corner, evaluation_size
from ddl_core.errors import SpecError
from ddl_core.loaders.base import Batch, Loader
from ddl_core.loaders.turbo import TurboSamples, normalisation

MOST_BYTES = 2_000_000_000  # of a split; Fashion-MNIST in RGB takes 140 MB


class Memory(Loader):
    """Decodes every image once, when it is made. Images of several sizes are kept as the largest.

    The same crops as `turbo` to within rounding: nothing is rounded to 8 bits here.
    """

    def _prepare(self) -> None:
        samples = TurboSamples(self._spec, self._files, self._split)
        self._size, self._crops = samples.size, samples.crops
        count = len(self._files) // self._files.passes
        found = []
        for number in range(count):
            image, label = samples.load(number)
            if image is not None:
                _check_size(image.nbytes, count)
            found.append((image, label))
        blank = samples.blank()[:, :1, :1].permute(1, 2, 0)  # one pixel
        images = [blank if image is None else image for image, _ in found]
        self._corrupt = np.array([image is None for image, _ in found])
        self._sides = np.array([image.shape[:2] for image in images])
        height, width = self._sides.max(axis=0).tolist()
        _check_size(3 * height * width, len(images))
        kept = torch.zeros(len(images), height, 3, width, dtype=torch.uint8)
        for place, image in zip(kept, images, strict=True):
            place[: image.shape[0], :, : image.shape[1]] = image.permute(0, 2, 1)
        self._images = kept.to(self._device)
        self._labels = torch.tensor([label for _, label in found], device=self._device)
        self._scale, self._shift = normalisation(self._device)

    def _batches(self) -> Iterator[Batch]:
        for places in self._plan:
            numbers = np.array([number for _, number in places])
            kept = numbers % len(self._labels)
            views = self._send(self._views(places[0][0], numbers, kept))
            chosen = self._send(kept)
            pixels = crops(self._images[chosen], views, self._size)
            images = pixels.mul_(self._scale).add_(self._shift)
            yield images, self._labels[chosen], numbers, int(self._corrupt[kept].sum())

    def _views(
        self, epoch: int, numbers: NDArray[np.int64], kept: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return which parts of images are seen, as `crops` takes them."""
        views = np.empty((len(kept), 9), np.float32)
        for view, number, (height, width) in zip(
            views, numbers.tolist(), self._sides[kept].tolist(), strict=True
        ):
            if self._crops:
                part = self._crops.draw(epoch, number, height, width)
                rows = part.top, part.height, self._size, 0
                view[:] = *rows, part.left, part.width, self._size, 0, part.flip
            else:
                tall, wide = evaluation_size(self._size, height, width)
                top, left = evaluation_corner(self._size, tall, wide)
                view[:] = 0, height, tall, top, 0, width, wide, left, 0
        return views

    def _send(self, values: NDArray[np.generic]) -> Tensor:
        """Return an array on the device; from pinned memory the host does not wait."""
        found = torch.from_numpy(values)
        if self._device.type == "cuda" and self._spec.pin_memory:
            found = found.pin_memory()
        return found.to(self._device, non_blocking=True)


def crops(images: Tensor, views: Tensor, size: int) -> Tensor:
    """Return parts of images, resized bilinearly with antialiasing.

    Parameters
    ----------
    images
        (n, height, 3, width) uint8.
    views
        (n, 9) float32: of the rows the first one of the part, its length, the length to which it is
        resized, and the first one that is kept of these; the same four of the columns; whether the
        result is mirrored.
    size
        Rows and columns that are kept.

    Returns
    -------
    (n, 3, size, size) float32, from 0 to 255.
    """
    count, height, _, width = images.shape
    rows = weights(views[:, :4], size, height)
    columns = weights(views[:, 4:8], size, width)
    columns = torch.where(views[:, 8, None, None] > 0, columns.flip(1), columns)
    lines = torch.bmm(rows, images.view(count, height, 3 * width).float())
    both = torch.bmm(lines.view(count, size * 3, width), columns.transpose(1, 2))
    return both.view(count, size, 3, size).permute(0, 2, 1, 3).contiguous()


def weights(views: Tensor, size: int, pixels: int) -> Tensor:
    """Return what each of `pixels` pixels of a line adds to those of a resized part of it.

    `views` are those of `crops`, (n, 4). The filter is a triangle, as wide as two pixels of the
    result, or of the line where that is enlarged: that of Pillow's ``BILINEAR`` and of torch with
    ``antialias``.

    Returns
    -------
    (n, size, pixels) float32; the weights of a pixel add up to 1.
    """
    start, length, resized, first = views[:, :, None, None].unbind(1)
    scale = length / resized
    kept = torch.arange(size, device=start.device)[:, None]
    centre = start + (first + kept + 0.5) * scale
    place = torch.arange(pixels, device=start.device) + 0.5
    found = (1 - (place - centre).abs() / scale.clamp(min=1.0)).clamp_(min=0.0)
    found = found * ((place > start) & (place < start + length))
    return found / found.sum(-1, keepdim=True)


def _check_size(image_bytes: int, images: int) -> None:
    if image_bytes * images > MOST_BYTES:
        raise SpecError(
            f"loader 'memory' would keep {image_bytes * images / 1e9:.1f} GB ({images:,} images "
            f"of {image_bytes:,} bytes), more than its limit of {MOST_BYTES / 1e9:.0f} GB; "
            "use 'native' or 'turbo', or a smaller train_images"
        )
