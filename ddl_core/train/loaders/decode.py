"""Image files to pixels by Pillow, with the limits that all loaders keep."""

import io

from PIL import Image

from ddl_core.datasets.image_file import MAX_PIXELS

# What Pillow raises for files that are damaged, empty or no images.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def check_pixels(height: int, width: int) -> None:
    """Refuse an image that would take gigabytes.

    Raises
    ------
    ValueError
        If it has more than `MAX_PIXELS`.
    """
    if height * width > MAX_PIXELS:
        raise ValueError(f"{width} x {height} pixels, more than the {MAX_PIXELS:,} of the limit")


def open_rgb(content: bytes) -> Image.Image:
    """Return a decoded image; grey, CMYK, palette and misnamed ones become RGB.

    Raises
    ------
    OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError
        If it is unreadable (`UNREADABLE`).
    """
    with Image.open(io.BytesIO(content)) as image:
        check_pixels(image.height, image.width)
        return image.convert("RGB")
