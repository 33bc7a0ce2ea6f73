import hashlib
import io
import platform
from importlib.metadata import version

import numpy as np
import pytest
from PIL import Image

from ddl_core.datasets.photos import (
    CLASSES,
    LONGEST_SIDE,
    PHOTOS,
    load_photo,
    make_crop,
    photo_path,
    source,
)
from ddl_core.errors import NotInstalledError


@pytest.fixture(scope="module")
def crops():
    return {
        name: [
            make_crop(load_photo(name), np.random.SeedSequence(5, spawn_key=(n,))) for n in (0, 1)
        ]
        for name in CLASSES
    }


def test_every_crop_is_a_different_rgb_jpeg_of_the_stated_size(crops):
    for crop in (crop for pair in crops.values() for crop in pair):
        with Image.open(io.BytesIO(crop.jpeg)) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert image.size == (crop.width, crop.height)
            assert min(np.asarray(image).std(axis=(0, 1))) > 2  # a picture, not a plain area
    # Both of a pair have the seeds of all other pairs: the photograph alone makes them differ.
    assert len({crop.jpeg for pair in crops.values() for crop in pair}) == 2 * len(CLASSES)


def test_same_seed_same_bytes_other_seed_other_view():
    photo = load_photo("cat")
    first, again, other = (make_crop(photo, np.random.SeedSequence(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first.jpeg != other.jpeg


def test_shapes_vary_like_imagenet():
    photo = load_photo("flower")
    shapes = [make_crop(photo, np.random.SeedSequence(n)) for n in range(40)]
    upright = sum(crop.height > crop.width for crop in shapes)
    assert 3 <= upright <= 16
    assert np.median([crop.width for crop in shapes]) == 500
    assert 363 <= np.median([crop.height for crop in shapes]) <= 387
    assert all(min(c.width, c.height) >= 320 and max(c.width, c.height) <= 512 for c in shapes)


@pytest.mark.skipif(
    (version("pillow"), version("numpy"), platform.machine()) != ("13.0.0", "2.4.6", "x86_64"),
    reason="bytes are stated for the pinned packages on x86-64",
)
def test_the_bytes_are_the_same_on_every_machine(crops):
    digest = hashlib.sha256(b"".join(crop.jpeg for pair in crops.values() for crop in pair))
    assert digest.hexdigest() == (
        "ea872a780e0c93e8adaa11438f2225155b5803d399251f7e68f02ea5eea10ba2"
    )


@pytest.mark.parametrize("name", CLASSES)
def test_photographs_are_rgb_and_not_larger_than_needed(name):
    photo = load_photo(name)
    assert photo.mode == "RGB"
    assert 300 <= max(photo.size) <= LONGEST_SIDE


def test_source_states_package_and_checksum():
    found = source("temple")
    assert (found.package, found.version) == ("scikit-learn", version("scikit-learn"))
    assert found.sha256 == hashlib.sha256(photo_path("temple").read_bytes()).hexdigest()


def test_missing_package_says_what_to_do(monkeypatch):
    monkeypatch.setitem(PHOTOS, "cat", ("no-such-dist", "no_such_module", "cat.png"))
    with pytest.raises(NotInstalledError, match=r"'cat'.*no-such-dist.*make env"):
        photo_path("cat")
