"""Small pictures from which a small network learns within a few steps.

Their classes differ in colour, and every picture has a texture of its own: where pictures hardly
vary, batch statistics divide by almost nothing, and every rounding grows.
"""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 4
SIZE = (24, 20)


def write_pictures(root: Path, train: int, evaluation: int) -> Path:
    """Write class folders of `train` and `evaluation` pictures; return `root`."""
    random = np.random.default_rng(0)
    for number in range(train + evaluation):
        label = number % CLASSES
        folder = root / ("train" if number < train else "val") / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        texture = random.normal(128, 60, (6, 6, 3))
        texture[..., :label] += 60  # no, one, two or three colours lighter
        picture = Image.fromarray(texture.clip(0, 255).astype(np.uint8))
        picture.resize(SIZE, Image.Resampling.BICUBIC).save(folder / f"{number}.JPEG")
    return root
