import io

import numpy as np
import pytest
from PIL import Image

from ddl_tools.datasets.photos import (
    CLASSES,
    load_photo,
    make_crop,
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
