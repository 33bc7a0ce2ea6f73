"""The photographs of the sample set: one per class, all from packages that are pinned on PyPI.

Debian's picture packages (wallpapers, themes) were considered and left out: they are other
pictures on Ubuntu and in another release, and the sample set is to be the same bytes everywhere.
"""

import hashlib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from PIL import Image
from pydantic import BaseModel, ConfigDict

from ddl_core.errors import NotInstalledError

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

# Longest side, pixels. Larger photographs are reduced once, so that a crop is about one photograph
# pixel per image pixel, and the bicubic sampling of `crops` needs no filter against aliasing.
LONGEST_SIDE = 800


class Source(BaseModel):
    """Where the photograph of a class came from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    package: str
    version: str
    file: str
    sha256: str


def class_photo(number: int) -> str:
    """Return the photograph of a class: beyond `CLASSES` they take turns."""
    return CLASSES[number % len(CLASSES)]


def class_name(number: int) -> str:
    """Return the name of a class: its photograph's, and from the second turn on a number."""
    turn = number // len(CLASSES)
    return f"{class_photo(number)}_{turn:03d}" if turn else class_photo(number)


def photo_path(class_name: str) -> Path:
    """Return the photograph's file, without importing the package that ships it.

    Raises
    ------
    NotInstalledError
        If the package is not installed, or no longer ships the file.
    """
    distribution, module, file = PHOTOS[class_name]
    spec = find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / file
        if path.is_file():
            return path
    raise NotInstalledError(
        f"the sample images of class {class_name!r} are made from {file} of {distribution}, which "
        "is not installed here; run `make env`, or install the versions pinned in requirements/"
    )


def source(class_name: str) -> Source:
    """Return the origin of a class's photograph, with its checksum."""
    distribution, _, file = PHOTOS[class_name]
    digest = hashlib.sha256(photo_path(class_name).read_bytes()).hexdigest()
    return Source(package=distribution, version=version(distribution), file=file, sha256=digest)


def load_photo(class_name: str) -> Image.Image:
    """Return the photograph as RGB; grey ones become RGB with three equal channels."""
    with Image.open(photo_path(class_name)) as image:
        photo = image.convert("RGB")
    photo.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BICUBIC)
    return photo
