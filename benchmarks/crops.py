"""Crops of small images by the batch, against image by image, on one CPU thread.

    python -m benchmarks.crops

The loader `memory` makes a batch of crops by two batched products. Its version 1 cropped each image
by torch's resizer for 8 bits, as `turbo` still does. Both draw the same crops, and both normalise.
The images are random ones of 28 pixels, as many as `studies/accuracy_laptop.yaml` has, and an epoch
is measured at its 14 pixels and at 32. No target.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.interleaved import interleave, ratio, say, seconds, stored
from ddl_core.config import RunSpec
from ddl_core.loaders.base import Loader
from ddl_core.loaders.memory import Memory
from ddl_core.loaders.turbo import Turbo, TurboSamples
from ddl_tools.datasets.bench import exhaust

IMAGES, SIDE, CLASSES = 4096, 28, 10
SIZES = (14, 32)
MINUTES = 2.0
BATCH, SINGLE = "by the batch", "image by image"


class Kept(TurboSamples):
    """Images that were decoded before."""

    def load(self, number: int) -> tuple[Any, int]:
        """Return pixels and label."""
        if not hasattr(self, "_all"):
            self._all = [TurboSamples.load(self, one) for one in range(IMAGES)]
        return self._all[number]


class OneByOne(Turbo):
    """The loader `memory` as it was."""

    samples = Kept


def measure() -> dict[str, Any]:
    """Measure and print."""
    torch.set_num_threads(1)
    rows, took = [], {}
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder))
        for size in SIZES:
            works = {
                f"{name}, {size} px": partial(epoch, loader(kind, Path(folder), size))
                for name, kind in ((BATCH, Memory), (SINGLE, OneByOne))
            }
            windows = interleave(works, MINUTES / len(SIZES))
            rows.append(ratio(windows, *works))
            took |= windows
            print(say(rows[-1]), flush=True)
    return {"ratios": rows, "images": IMAGES, "windows_s": seconds(took)}


def write_images(root: Path) -> None:
    """Write images of noise, with as many pixels as those of Fashion-MNIST."""
    generator = np.random.default_rng(0)
    for number in range(IMAGES):
        folder = root / "train" / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def loader(kind: type[Loader], root: Path, size: int) -> Loader:
    """Return a loader of one rank in this process."""
    spec = RunSpec(
        loader="memory",
        model="resnet8",
        image_size=size,
        classes=CLASSES,
        crop_min_area=0.5,
        local_batch_size=32,
        loader_workers=0,
        device="cpu",
    )
    return kind(spec, root, "train", 0, 1, torch.device("cpu"))


def epoch(loader: Loader) -> None:
    """Make all batches of an epoch."""
    loader.set_epoch(0)
    exhaust(loader)


if __name__ == "__main__":
    stored("crops", measure)
