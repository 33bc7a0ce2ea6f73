"""Decode an image file to RGB, by one rule for grey, 16-bit and transparent images.

- Grey has three equal channels.
- Of 16 bits the upper 8 count, as in 16-bit colour images, which Pillow reduces by itself.
- Transparent pixels lie on white.
- Palettes and CMYK become RGB as Pillow converts them.
- Values of 32 bits are refused: their range is unknown. Pillow opens 16-bit PGM as 32 bits.
"""

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

# Pillow's own limit, which a program may have switched off.
MAX_PIXELS = 89_478_485
# What Pillow raises for files that are damaged, empty or no images.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)

_WIDE = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_PGM = "PPM"  # Pillow's name of that family of formats


def open_rgb(content: bytes) -> Image.Image:
    """Return a decoded image file as RGB; raise one of `UNREADABLE` if it is damaged."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            check_pixels(image.height, image.width)
            return to_rgb(image)
    except UnidentifiedImageError as error:
        raise OSError(describe(error)) from None


def check_pixels(height: int, width: int) -> None:
    """Raise a `ValueError` for an image of more than `MAX_PIXELS`, which would take gigabytes."""
    if height * width > MAX_PIXELS:
        raise ValueError(f"{width} x {height} pixels, more than the {MAX_PIXELS:,} of the limit")


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a decoded image as RGB; `ValueError` for values that are fractions or of 32 bits."""
    if image.mode == "F":
        raise ValueError("mode F: fractions, whose black and white are unknown")
    if image.mode == "I" and image.format != _PGM:
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
