"""One rule for pictures that are not plain: how grey, 16-bit and transparent ones become RGB.

- Grey has three equal channels.
- Of 16 bits the upper 8 count, as in 16-bit colour, which Pillow opens so by itself.
- What is transparent lies on white.
- Palettes and CMYK become RGB as Pillow does it.
- Of 32 bits nobody knows what is white; but Pillow opens PGM files of 16 bits as if they had 32.
"""

import numpy as np
from PIL import Image

_WIDE = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_PGM = "PPM"  # what Pillow calls that family


def rgb(image: Image.Image) -> Image.Image:
    """Return a picture as RGB by the rule above, decoded: its file may then be closed.

    Raises
    ------
    ValueError
        If its numbers are no colours: fractions, or 32 bits.
    """
    if image.mode == "F":
        raise ValueError("mode F: fractions, of which nobody knows what is black and white")
    if image.mode == "I" and image.format != _PGM:
        raise ValueError("mode I: 32 bits, of which nobody knows what is white; use 8 or 16 bits")
    if image.mode in _WIDE:
        return _narrow(image).convert("RGB")
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(opaque, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _narrow(image: Image.Image) -> Image.Image:
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
