"""One rule for grey, 16-bit and transparent images, wherever they are read."""

import io

import numpy as np
import pytest
from PIL import Image

from ddl_core.data.image import open_rgb, to_rgb

RAMP = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)  # 0x0000, 0x0101 to 0xffff
LEVELS = np.arange(256, dtype=np.uint8).reshape(16, 16)


def png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def grey(levels: np.ndarray) -> np.ndarray:
    return np.repeat(levels[..., None], 3, axis=2)


@pytest.mark.parametrize("levels", [LEVELS, RAMP], ids=["8 bits", "16 bits"])
def test_grey_has_three_equal_channels_of_its_upper_8_bits(levels: np.ndarray) -> None:
    image = Image.fromarray(levels)
    assert np.array_equal(np.asarray(to_rgb(image)), grey(LEVELS))
    assert np.array_equal(np.asarray(open_rgb(png(image))), grey(LEVELS))


def test_a_pgm_of_16_bits_is_not_taken_for_32() -> None:
    content = b"P5 16 16 65535\n" + RAMP.astype(">u2").tobytes()
    assert Image.open(io.BytesIO(content)).mode == "I"
    assert np.array_equal(np.asarray(open_rgb(content)), grey(LEVELS))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_lie_on_white(mode: str) -> None:
    colours = np.zeros((1, 3, 4), np.uint8)
    colours[0, :, 3] = (0, 128, 255)
    image = Image.fromarray(colours).convert(mode)
    found = np.asarray(to_rgb(image))[0, :, 0].tolist()
    assert found == [255, 127, 0]


def test_a_colour_of_a_palette_may_be_transparent() -> None:
    image = Image.frombytes("P", (2, 1), bytes([0, 1]))
    image.putpalette([0, 0, 0, 200, 0, 0])
    content = io.BytesIO()
    image.save(content, "PNG", transparency=0)
    assert np.asarray(open_rgb(content.getvalue()))[0].tolist() == [[255] * 3, [200, 0, 0]]


def test_rgb_stays_as_it_is() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    assert np.array_equal(np.asarray(open_rgb(png(Image.fromarray(colours)))), colours)


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (Image.fromarray(np.ones((2, 2), np.float32)), "mode F: fractions"),
        (Image.fromarray(np.full((2, 2), 180, np.int32)), "mode I: 32 bits.*; use 8 or 16 bits"),
    ],
)
def test_other_numbers_are_refused(image: Image.Image, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        to_rgb(image)
