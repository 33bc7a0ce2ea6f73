"""Photographs that installed packages ship, and random ImageNet-shaped JPEGs out of each.

One photograph per class, all from packages that are pinned on PyPI. Arithmetic that reaches a pixel
is in integers or rounded, so that the sample set has the same bytes on every machine.
"""

import io
import math
from bisect import bisect_left
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from ddl_core.errors import NotInstalledError
from ddl_core.origin import INSTALL

# class name -> (distribution, import name, file inside the package)
PHOTOS = {
    "astronaut": ("scikit-image", "skimage", "data/astronaut.png"),
    "brick": ("scikit-image", "skimage", "data/brick.png"),
    "cat": ("scikit-image", "skimage", "data/chelsea.png"),
    "coffee": ("scikit-image", "skimage", "data/coffee.png"),
    "coins": ("scikit-image", "skimage", "data/coins.png"),
    "flower": ("scikit-learn", "sklearn", "datasets/images/flower.jpg"),
    "galaxies": ("scikit-image", "skimage", "data/hubble_deep_field.jpg"),
    "grass": ("scikit-image", "skimage", "data/grass.png"),
    "gravel": ("scikit-image", "skimage", "data/gravel.png"),
    "moon": ("scikit-image", "skimage", "data/moon.png"),
    "motorcycle": ("scikit-image", "skimage", "data/motorcycle_left.png"),
    "photographer": ("scikit-image", "skimage", "data/camera.png"),
    "retina": ("scikit-image", "skimage", "data/retina.jpg"),
    "rocket": ("scikit-image", "skimage", "data/rocket.jpg"),
    "temple": ("scikit-learn", "sklearn", "datasets/images/china.jpg"),
    "tissue": ("scikit-image", "skimage", "data/ihc.png"),
}
CLASSES = tuple(sorted(PHOTOS))  # of the set that is made unless another number is asked for

# Pixels. Larger photographs are reduced once: then a crop needs no filter against aliasing.
LONGEST_SIDE = 800

# Width, height (pixels) and share. ImageNet's commonest shape is 500 x 375, and most others keep a
# long side of 500; the shares are chosen here, not measured there.
SHAPES = (
    (500, 375, 0.58),
    (500, 333, 0.14),
    (500, 400, 0.06),
    (500, 500, 0.03),
    (375, 500, 0.14),
    (333, 500, 0.05),
)
SHORT_SIDE_JITTER = 12  # pixels, either way

# Bytes. What comes out is 8 % less than what is wanted, since the smoothest images cannot reach it:
# 119,000 gives the 110,000 of ImageNet.
WANTED_BYTES = 119_000
SIZE_SPREAD = 0.35  # standard deviation of the logarithm of the wanted size
SIZE_LIMITS = (45_000, 280_000)  # bytes wanted; grain and quality cannot reach much further
QUALITIES = (70, 80, 87, 92, 95, 97, 99)  # seven, so that bisection needs three encodings

SMALLEST_ZOOM = 0.5  # side of the view / side of the largest view that fits
LARGEST_ANGLE = 12.0  # degrees
GRAIN = (5, 14)  # half width of the grain's triangular distribution, of 255


def class_photo(number: int) -> str:
    """Return the photograph of a class; classes beyond `CLASSES` begin with the first again."""
    return CLASSES[number % len(CLASSES)]


def class_name(number: int) -> str:
    """Return the name of a class: its photograph's, and a number beyond `CLASSES`."""
    again = number // len(CLASSES)
    return f"{class_photo(number)}_{again:03d}" if again else class_photo(number)


def photo_path(class_name: str) -> Path:
    """Return the photograph's file, without importing the package that ships it."""
    distribution, module, file = PHOTOS[class_name]
    spec = find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / file
        if path.is_file():
            return path
    raise NotInstalledError(
        f"the sample images of class {class_name!r} are made from {file} of {distribution}, which "
        f"is not installed here; run `{INSTALL}`, or install the versions pinned in requirements/"
    )


@cache
def load_photo(class_name: str) -> Image.Image:
    """Return the photograph as RGB; grey ones become RGB with three equal channels."""
    with Image.open(photo_path(class_name)) as image:
        photo = image.convert("RGB")
    photo.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BICUBIC)
    return photo


def make_crop(photo: Image.Image, seed: np.random.SeedSequence) -> bytes:
    """Return a JPEG of a random view of `photo`: the same bytes for the same seed."""
    rng = np.random.default_rng(seed)
    shape, wanted = _shape(rng), _wanted_bytes(rng)
    data = _view(rng, photo.size, shape)
    view = photo.transform(shape, Image.Transform.AFFINE, data, Image.Resampling.BICUBIC)
    return _encode(_grain(rng, _colours(rng, view)), wanted)


def _shape(rng: np.random.Generator) -> tuple[int, int]:
    width, height, _ = SHAPES[rng.choice(len(SHAPES), p=[share for *_, share in SHAPES])]
    jitter = int(rng.integers(-SHORT_SIDE_JITTER, SHORT_SIDE_JITTER + 1))
    return (width, height + jitter) if width > height else (width + jitter, height)


def _wanted_bytes(rng: np.random.Generator) -> int:
    # A lognormal variable of logarithmic mean mu has mean exp(mu + spread^2 / 2).
    mu = math.log(WANTED_BYTES) - SIZE_SPREAD**2 / 2
    wanted = round(math.exp(mu + SIZE_SPREAD * rng.standard_normal()), -2)
    return int(min(max(wanted, SIZE_LIMITS[0]), SIZE_LIMITS[1]))


def _view(
    rng: np.random.Generator, photo: tuple[int, int], image: tuple[int, int]
) -> tuple[float, ...]:
    """Return the affine map from image pixels to photograph pixels: zoom, turn, shift, mirror."""
    angle = math.radians(LARGEST_ANGLE * rng.uniform(-1, 1))
    cos, sin = round(math.cos(angle), 9), round(math.sin(angle), 9)
    width, height = image
    # The turned image needs this much room per photograph pixel at zoom 1.
    room = (width * cos + height * abs(sin), width * abs(sin) + height * cos)
    scale = min(photo[0] / room[0], photo[1] / room[1]) * rng.uniform(SMALLEST_ZOOM, 1)
    centre = [
        rng.uniform(scale * need / 2, side - scale * need / 2)
        for side, need in zip(photo, room, strict=True)
    ]
    mirror = -1 if rng.integers(2) else 1
    a, b = scale * cos * mirror, -scale * sin
    d, e = scale * sin * mirror, scale * cos
    c = centre[0] - a * width / 2 - b * height / 2
    f = centre[1] - d * width / 2 - e * height / 2
    return tuple(round(value, 6) for value in (a, b, c, d, e, f))


def _colours(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """Vary exposure, contrast and white balance."""
    contrast, exposure = rng.uniform(0.8, 1.2), rng.uniform(-20, 20)
    levels = np.arange(256)
    table: list[int] = []
    for balance in rng.uniform(0.93, 1.07, size=3):
        values = ((levels - 128) * contrast + 128 + exposure) * balance
        table += np.clip(np.rint(np.round(values, 6)), 0, 255).astype(int).tolist()
    return image.point(table)


def _grain(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """Add a camera's noise: an enlarged photograph is smoother than a real one of its size."""
    half = int(rng.integers(GRAIN[0], GRAIN[1] + 1))
    pixels = np.asarray(image).astype(np.int16)
    noise = rng.integers(256, size=(2, *pixels.shape[:2], 1), dtype=np.uint8).astype(np.int16)
    grainy = pixels + ((noise[0] - noise[1]) * half + 128 >> 8)
    return Image.fromarray(grainy.clip(0, 255).astype(np.uint8))


def _encode(image: Image.Image, wanted: int) -> bytes:
    """Return the JPEG whose size is nearest to `wanted` bytes (bisection over the quality)."""
    tried: list[bytes] = []

    def is_large(quality: int) -> bool:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        tried.append(buffer.getvalue())
        return len(tried[-1]) >= wanted

    bisect_left(QUALITIES, True, key=is_large)
    return min(tried, key=lambda jpeg: abs(len(jpeg) - wanted))
