"""The fast native path: libjpeg-turbo, torch's 8-bit resize, normalisation on the device.

The same images as `native` to within rounding.
"""

from contextlib import suppress

import numpy as np
import simplejpeg
import torch
from torch import Tensor

from ddl_core.data.image import (
    MEAN,
    STD,
    check_pixels,
    evaluation_corner,
    evaluation_size,
    open_rgb,
)
from ddl_core.loaders.native import ProcessLoader, Samples

DIRECT = ("YCbCr", "Gray", "RGB")  # colours that libjpeg-turbo converts to RGB


class TurboSamples(Samples):
    """Decodes with libjpeg-turbo, or else with Pillow, which decides what is damaged."""

    def blank(self) -> Tensor:
        """Return the mean colour, uint8."""
        mean = torch.tensor([255 * value for value in MEAN]).round().to(torch.uint8)
        return mean[:, None, None].expand(3, self.size, self.size).contiguous()

    def decode(self, content: bytes) -> Tensor:
        """Return the pixels, (height, width, 3) uint8."""
        # No JPEG by its content, damaged, too large, or stray bytes, of which others only warn.
        with suppress(ValueError):
            height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
            if colours in DIRECT:
                check_pixels(height, width)
                return torch.from_numpy(simplejpeg.decode_jpeg(content, "RGB"))
        return torch.from_numpy(np.array(open_rgb(content)))

    def transform(self, image: Tensor, epoch: int, number: int) -> Tensor:
        """Return the view, uint8."""
        image = image.permute(2, 0, 1)[None]
        height, width = image.shape[2:]
        if self.crops:
            view = self.crops.draw(epoch, number, height, width)
            part = image.narrow(2, view.top, view.height).narrow(3, view.left, view.width)
            cut = _resize(part, (self.size, self.size))
            cut = cut.flip(3) if view.flip else cut
        else:
            resized = _resize(image, evaluation_size(self.size, height, width))
            top, left = evaluation_corner(self.size, *resized.shape[2:])
            cut = resized.narrow(2, top, self.size).narrow(3, left, self.size)
        return cut[0].contiguous()


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize bilinearly; `antialias` is what Pillow always does."""
    return torch.nn.functional.interpolate(
        image, size=size, mode="bilinear", antialias=True, align_corners=False
    )


def normalisation(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return factor and summand, (3, 1, 1) each, that normalise pixels from 0 to 255."""
    scale = [1 / (255 * value) for value in STD]
    shift = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]
    both = torch.tensor([scale, shift], device=device)[:, :, None, None]
    return both[0], both[1]


class Turbo(ProcessLoader):
    """The fast native path."""

    samples = TurboSamples

    def _prepare(self) -> None:
        super()._prepare()
        # Made once: making a tensor on a GPU waits for the device.
        self._scale, self._shift = normalisation(self._device)
        self._pixels = torch.empty(0)

    def to_device(self, images: Tensor) -> Tensor:
        """Copy 8-bit pixels, and normalise them there."""
        if self._device.type == "cuda":
            pixels = images.to(self._device, non_blocking=True).float()
            return pixels.mul_(self._scale).add_(self._shift)
        # The same memory again, since new pages cost time; image by image, to stay in the cache.
        if self._pixels.shape != images.shape:
            self._pixels = torch.empty(images.shape)
        for image, pixels in zip(images, self._pixels, strict=True):
            pixels.copy_(image).mul_(self._scale).add_(self._shift)
        return self._pixels
