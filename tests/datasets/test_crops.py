import hashlib
import io
import platform
from importlib.metadata import version

import numpy as np
import pytest
from PIL import Image

from ddl_core.errors import NotInstalledError
from ddl_tools.datasets.photos import (
    CLASSES,
    LONGEST_SIDE,
    PHOTOS,
    load_photo,
    make_crop,
    photo_path,
)


@pytest.fixture(scope="module")
def crops():
    return {
        name: [
            make_crop(load_photo(name), np.random.SeedSequence(5, spawn_key=(n,))) for n in (0, 1)
        ]
        for name in CLASSES
    }


def test_every_crop_is_a_different_rgb_jpeg(crops):
    for crop in (crop for pair in crops.values() for crop in pair):
        with Image.open(io.BytesIO(crop)) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert min(np.asarray(image).std(axis=(0, 1))) > 2  # a picture, not a plain area
    # Both of a pair have the seeds of all other pairs: the photograph alone makes them differ.
    assert len({crop for pair in crops.values() for crop in pair}) == 2 * len(CLASSES)


def test_shapes_vary_like_imagenet():
    photo = load_photo("flower")
    crops = [make_crop(photo, np.random.SeedSequence(number)) for number in range(40)]
    sizes = [Image.open(io.BytesIO(crop)).size for crop in crops]
    assert 3 <= sum(height > width for width, height in sizes) <= 16
    width, height = np.median(sizes, axis=0)
    assert width == 500
    assert 363 <= height <= 387
    assert all(min(size) >= 320 and max(size) <= 512 for size in sizes)


@pytest.mark.skipif(
    (version("pillow"), version("numpy"), platform.machine()) != ("13.0.0", "2.4.6", "x86_64"),
    reason="bytes are stated for the pinned packages on x86-64",
)
def test_the_bytes_are_the_same_on_every_machine(crops):
    digest = hashlib.sha256(b"".join(crop for pair in crops.values() for crop in pair))
    assert digest.hexdigest() == (
        "ea872a780e0c93e8adaa11438f2225155b5803d399251f7e68f02ea5eea10ba2"
    )


@pytest.mark.parametrize("name", CLASSES)
def test_photographs_are_rgb_and_not_larger_than_needed(name):
    photo = load_photo(name)
    assert photo.mode == "RGB"
    assert 300 <= max(photo.size) <= LONGEST_SIDE


def test_missing_package_says_what_to_do(monkeypatch):
    monkeypatch.setitem(PHOTOS, "cat", ("no-such-dist", "no_such_module", "cat.png"))
    with pytest.raises(NotInstalledError, match=r"'cat'.*no-such-dist.*make env"):
        photo_path("cat")
