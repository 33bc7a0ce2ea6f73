"""The images of a sample set, one task each, and the work that a worker process does on them."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from ddl_core.datasets.crops import make_crop
from ddl_core.datasets.manifest import FileEntry, Plan, write_whole
from ddl_core.datasets.photos import class_name, class_photo, load_photo

SPLITS = ("train", "val")


@dataclass(frozen=True)
class Task:
    """One image to make."""

    split: str
    class_number: int
    number: int

    @property
    def class_name(self) -> str:
        """The class folder."""
        return class_name(self.class_number)

    @property
    def path(self) -> str:
        """The file, relative to the set's folder."""
        return f"{self.split}/{self.class_name}/{self.class_name}_{self.number:05d}.JPEG"

    def seed(self, seed: int) -> np.random.SeedSequence:
        """Return all that the image depends on: not the counts, the processes or the order."""
        key = (SPLITS.index(self.split), self.class_number, self.number)
        return np.random.SeedSequence(seed, spawn_key=key)


def tasks(plan: Plan) -> list[Task]:
    """Return every image of the set."""
    return [
        Task(split, class_number, number)
        for split, count in zip(SPLITS, (plan.train_per_class, plan.val_per_class), strict=True)
        for class_number in range(plan.classes)
        for number in range(count)
    ]


def make_images(batch: tuple[Path, int, list[Task]]) -> list[FileEntry]:
    """Write some images of the set in `folder`; `batch` is (folder, seed, tasks)."""
    folder, seed, todo = batch
    return [_make_image(folder, task, seed) for task in todo]


def _make_image(folder: Path, task: Task, seed: int) -> FileEntry:
    crop = make_crop(_photo(class_photo(task.class_number)), task.seed(seed))
    write_whole(folder / task.path, crop.jpeg)
    return FileEntry(
        path=task.path,
        class_name=task.class_name,
        bytes=len(crop.jpeg),
        width=crop.width,
        height=crop.height,
        sha256=hashlib.sha256(crop.jpeg).hexdigest(),
    )


@cache
def _photo(name: str) -> Image.Image:
    return load_photo(name)
