"""From an image file to the crop that a network sees, the same for all loaders.

Every image becomes RGB:

- Grey has three equal channels.
- Of 16 bits the upper 8 count, as in 16-bit colour images, which Pillow reduces by itself.
- Transparent pixels lie on white.
- Palettes and CMYK become RGB as Pillow converts them.
- Values of 32 bits are refused: their range is unknown. Pillow opens 16-bit PGM as 32 bits.
"""

import io
import math
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.Image import Resampling, Transpose

from ddl_core.config import RunSpec

# Pillow's own limit, which a program may have switched off.
MAX_PIXELS = 89_478_485
MAX_SIDES = 100  # longer side / shorter side
# What Pillow raises for files that are damaged, empty or no images.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)

_WIDE = ("I;16", "I;16B", "I;16L", "I;16N", "I")


def open_rgb(content: bytes) -> Image.Image:
    """Return a decoded image file as RGB; raise one of `UNREADABLE` if it is damaged."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            check_pixels(image.height, image.width)
            return to_rgb(image)
    except UnidentifiedImageError as error:
        raise OSError(describe(error)) from None
    except (*UNREADABLE, MemoryError):
        raise
    except Exception as error:  # what a decoder of Pillow's raises: AVIF's a RuntimeError
        raise OSError(describe(error)) from None


def check_pixels(height: int, width: int) -> None:
    """Raise a `ValueError` for an image that would take gigabytes, decoded or resized.

    Evaluation makes the shorter side that of the crop, however long the other one becomes.
    """
    if height * width > MAX_PIXELS:
        raise ValueError(f"{width} x {height} pixels, more than the {MAX_PIXELS:,} of the limit")
    if max(height, width) > MAX_SIDES * min(height, width):
        raise ValueError(f"{width} x {height} pixels: one side is over {MAX_SIDES} times the other")


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a decoded image as RGB; `ValueError` for values that are fractions or of 32 bits."""
    if image.mode == "F":
        raise ValueError("mode F: fractions, whose black and white are unknown")
    if image.mode == "I" and image.format != "PPM":  # Pillow's name of PGM's family
        raise ValueError("mode I: 32 bits, whose white is unknown; use 8 or 16 bits")
    if image.mode in _WIDE:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(opaque, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def describe(error: Exception) -> str:
    """Return the text of an error of Pillow, without the Python object that it names."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    return f"{type(error).__name__}: {error}"


# Of the ImageNet training images, as used with torchvision's models; for values from 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

RATIO = (3 / 4, 4 / 3)  # width / height
LOG_RATIO = (math.log(RATIO[0]), math.log(RATIO[1]))
TRIES = 10
FLIP_PROBABILITY = 0.5
# In evaluation: 256 pixels for a crop of 224, in proportion for other sizes.
RESIZE, CROP = 256, 224


class CropParams(NamedTuple):
    """A part of an image in pixels, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    flip: bool


class CropSampler:
    """Draws the crops of a run: a pure function of (seed, repeat), epoch and image.

    The distribution is that of torchvision's RandomResizedCrop and RandomHorizontalFlip (Szegedy et
    al. 2015, section 6).
    """

    def __init__(self, spec: RunSpec) -> None:
        self._run = f"augment {spec.seed} {spec.repeat}"
        self._area = (spec.crop_min_area, 1.0)  # share of the image

    def draw(self, epoch: int, index: int, height: int, width: int) -> CropParams:
        """Return the crop of image `index`, which has `height` x `width` pixels, in `epoch`."""
        # A torch.Generator would take ten times as long.
        random = Random(f"{self._run} {epoch} {index}")
        box = self._box(random, height, width)
        return CropParams(*box, random.random() < FLIP_PROBABILITY)

    def _box(self, random: Random, height: int, width: int) -> tuple[int, int, int, int]:
        for _ in range(TRIES):
            area = height * width * random.uniform(*self._area)
            ratio = math.exp(random.uniform(*LOG_RATIO))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return random.randint(0, height - h), random.randint(0, width - w), h, w
        return _central(height, width)


def _central(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the largest part in the middle whose ratio is allowed."""
    w, h = width, height
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    return (height - h) // 2, (width - w) // 2, h, w


def evaluation_size(size: int, height: int, width: int) -> tuple[int, int]:
    """Return the height and width to which an image is resized before its middle is cut out."""
    short = size * RESIZE // CROP
    if width <= height:
        return int(short * height / width), short
    return short, int(short * width / height)


def evaluation_corner(size: int, height: int, width: int) -> tuple[int, int]:
    """Return top and left of the middle `size` x `size` of a resized image."""
    return round((height - size) / 2), round((width - size) / 2)


def crop_image(image: Image.Image, size: int, crop: CropParams | None) -> Image.Image:
    """Return a crop of a decoded image as `size` x `size` pixels; by default that of evaluation."""
    if crop:
        box = (crop.left, crop.top, crop.left + crop.width, crop.top + crop.height)
        part = image.crop(box).resize((size, size), Resampling.BILINEAR)
        return part.transpose(Transpose.FLIP_LEFT_RIGHT) if crop.flip else part
    height, width = evaluation_size(size, image.height, image.width)
    resized = image.resize((width, height), Resampling.BILINEAR)
    top, left = evaluation_corner(size, height, width)
    return resized.crop((left, top, left + size, top + size))
