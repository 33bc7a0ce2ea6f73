"""Make an ImageNet-shaped sample set out of photographs that installed packages ship.

Folders, file names, pixels and bytes are shaped as ImageNet's, so reading and training cost the
same. Training and validation images are crops of the same photographs: accuracy shows that
training works, and nothing about a model.
"""

import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddl_core.data.folder import SPLITS
from ddl_core.errors import DataError
from ddl_core.files import replacing
from ddl_tools.datasets import output
from ddl_tools.datasets.photos import CLASSES, class_name, class_photo, load_photo, make_crop

# 16 classes: 640 training and 160 validation images, 88 MB. Enough for several steps of a global
# batch of 64 and for an epoch that is not all start-up; made in about 15 s on two cores.
TRAIN_PER_CLASS = 40
VAL_PER_CLASS = 10
BYTES_PER_IMAGE = 115_000  # for the space needed: mean of the images, names and manifest

MANIFEST = "manifest.json"
FORMAT = "ddl-sample"


class Task(NamedTuple):
    """One image to make in the folder `root`."""

    root: Path
    seed: int
    split: str
    class_number: int
    number: int

    @property
    def path(self) -> str:
        """The file, relative to the set's folder."""
        name = class_name(self.class_number)
        return f"{self.split}/{name}/{name}_{self.number:05d}.JPEG"

    @property
    def key(self) -> np.random.SeedSequence:
        """All that the image depends on: not the counts, the processes or the order."""
        key = (SPLITS.index(self.split), self.class_number, self.number)
        return np.random.SeedSequence(self.seed, spawn_key=key)


def make_sample(
    out_dir: str | Path,
    *,
    classes: int = len(CLASSES),
    train_per_class: int = TRAIN_PER_CLASS,
    val_per_class: int = VAL_PER_CLASS,
    seed: int = 0,
    processes: int | None = None,
) -> int:
    """Make the set, whole or not at all; return its number of images, or 0 if it is there already.

    `out_dir` receives ``train/<class>/*.JPEG``, ``val/<class>/*.JPEG`` and ``manifest.json``.
    Beyond 16, further classes are other crops of the same photographs. After an interrupt, the
    next call with the same settings makes the images that are missing.
    """
    folder = Path(out_dir).absolute()
    settings = {
        "format": FORMAT,
        "seed": seed,
        "classes": classes,
        "train_per_class": train_per_class,
        "val_per_class": val_per_class,
    }
    if min(classes, train_per_class, val_per_class) < 1 or seed < 0:
        raise DataError(f"{settings}: counts must be at least 1, the seed at least 0")
    images = classes * (train_per_class + val_per_class)
    if output.is_made(folder, read_manifest(folder), settings):
        if missing := images - _count(folder):
            raise DataError(
                f"{folder} lacks {missing:,} of its {images:,} images; delete it, and make it again"
            )
        return 0
    begun = read_manifest(output.unfinished(folder)) == settings
    there = _count(output.unfinished(folder)) if begun else 0
    with output.new_folder(folder, (images - there) * BYTES_PER_IMAGE, keep=True) as part:
        for split in SPLITS if not begun else ():
            shutil.rmtree(part / split, ignore_errors=True)
        output.write_settings(part / MANIFEST, settings)
        tasks = [
            Task(part, seed, split, class_number, number)
            for split, count in zip(SPLITS, (train_per_class, val_per_class), strict=True)
            for class_number in range(classes)
            for number in range(count)
        ]
        for place in {(part / task.path).parent for task in tasks}:
            place.mkdir(parents=True, exist_ok=True)
        for left in part.glob("*/*/.*.part"):  # of a process that was killed
            left.unlink()
        made = output.parallel(_make_image, tasks, "sample images", processes=processes, chunk=8)
        entries = [{"path": path, "sha256": digest} for path, digest in sorted(made)]
        output.write_settings(part / MANIFEST, {**settings, "files": entries})
    return images


def _count(folder: Path) -> int:
    return sum(1 for split in SPLITS for _ in (folder / split).glob("*/*.JPEG"))


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the settings of a sample set and, if it is whole, its files; None if it is none."""
    found = output.read_settings(folder / MANIFEST, "ddl data sample")
    if not found or found.get("format") != FORMAT:
        return None
    return {"classes": len(CLASSES), **found}  # sets of 16 classes did not always say so


def _make_image(task: Task) -> tuple[str, str]:
    """Write an image unless it is there; return its path and SHA-256."""
    file = task.root / task.path
    if not file.is_file():
        with replacing(file, sync=False) as out:
            out.write(make_crop(load_photo(class_photo(task.class_number)), task.key))
    return task.path, sha256(file.read_bytes()).hexdigest()
