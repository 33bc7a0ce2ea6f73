"""Make an ImageNet-shaped sample set out of photographs that installed packages ship.

The shape is ImageNet's (folders, file names, pixels, bytes), so that it costs what ImageNet costs
to read and to train on. The task is easy, since training and validation images are views of the
same photographs: accuracy on it shows that training works, and nothing about a model.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from ddl_core.datasets.bulk import alone, explained, require_space, stream
from ddl_core.datasets.manifest import (
    JOURNAL,
    FileEntry,
    Manifest,
    SamplePlan,
    read_journal,
    start_journal,
    write_whole,
)
from ddl_core.datasets.photos import CLASSES, class_name, class_photo, load_photo, make_crop, source
from ddl_core.errors import DataError

# 16 classes: 640 training and 160 validation images, 88 MB. Enough for several steps of a global
# batch of 64 and for an epoch that is not all start-up; made in about 15 s on two cores.
TRAIN_PER_CLASS = 40
VAL_PER_CLASS = 10
BYTES_PER_IMAGE = 115_000  # for the space needed: mean of the images, names and manifest
IMAGES_PER_BATCH = 8  # of one worker process: small, for a lively progress bar
LOCK = ".making.lock"

SPLITS = ("train", "val")


def make_sample(
    out_dir: str | Path,
    *,
    classes: int = len(CLASSES),
    train_per_class: int = TRAIN_PER_CLASS,
    val_per_class: int = VAL_PER_CLASS,
    seed: int = 0,
    progress: bool = True,
    check: bool = False,
    processes: int | None = None,
) -> Manifest:
    """Make the set in `out_dir`, complete it, or do nothing when it is complete.

    Parameters
    ----------
    out_dir
        Receives ``train/<class>/*.JPEG``, ``val/<class>/*.JPEG`` and, last, ``manifest.json``.
    classes
        Beyond 16, further classes are other views of the same photographs.
    train_per_class, val_per_class
        Images of each class.
    seed
        The same seed, counts and package versions give the same bytes, whatever `processes` is.
    progress
        Show a progress bar on stderr.
    check
        Compare the contents of present files with their checksums, not only their sizes.
    processes
        Default: one per usable core.

    Raises
    ------
    DataError
        If the folder is not writable, too full, or holds something else; if a count is wrong.
    NotInstalledError
        If a package that ships a photograph is missing.
    """
    folder = Path(out_dir).absolute()
    plan = _plan(seed, classes, train_per_class, val_per_class)
    with explained(f"make the sample set in {folder}", plan.images * BYTES_PER_IMAGE):
        # Before the lock, so that a finished set may lie on a read-only disk.
        manifest = _finished(folder, plan, check)
        if manifest:
            return manifest
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / LOCK):
            return _finished(folder, plan, check) or _make(folder, plan, check, progress, processes)


def _plan(seed: int, classes: int, train_per_class: int, val_per_class: int) -> SamplePlan:
    for name, value, least in (
        ("classes", classes, 1),
        ("train_per_class", train_per_class, 1),
        ("val_per_class", val_per_class, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise DataError(f"{name} = {value}: must be at least {least}")
    return SamplePlan(
        seed=seed,
        train_per_class=train_per_class,
        val_per_class=val_per_class,
        classes=classes,
        packages={package: version(package) for package in ("numpy", "pillow")},
        sources={class_name: source(class_name) for class_name in CLASSES[:classes]},
    )


def _finished(folder: Path, plan: SamplePlan, check: bool) -> Manifest | None:
    """Return the manifest of a set that is whole; refuse a folder that holds anything else."""
    manifest = Manifest.read(folder)
    found = manifest or read_journal(folder)[0]
    if found and found.request != plan.request:
        raise DataError(
            f"{folder} holds a sample set with other settings ({found.request}); asked for: "
            f"{plan.request}. Ask for the same settings, choose another folder, or delete this one"
        )
    ours = found or any((folder / name).exists() for name in (JOURNAL, LOCK))
    if not ours and folder.exists() and any(folder.iterdir()):
        raise DataError(
            f"{folder} is not empty and was not made by `ddl data sample`; choose another folder"
        )
    if manifest and all(_is_intact(folder, entry, check) for entry in manifest.files):
        return manifest
    return None


def _make(
    folder: Path, plan: SamplePlan, check: bool, progress: bool, processes: int | None
) -> Manifest:
    """Make what is missing; the manifest comes last."""
    for part in folder.glob("*/*/.*.part"):  # of a process that was killed
        part.unlink()
    entries = _usable(folder, plan, check)
    require_space(folder, (plan.images - len(entries)) * BYTES_PER_IMAGE)  # before they are listed
    todo = [task for task in tasks(plan) if task.path not in entries]
    for parent in {(folder / task.path).parent for task in todo}:
        parent.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(todo), IMAGES_PER_BATCH)
    batches = ((folder, plan.seed, todo[start : start + IMAGES_PER_BATCH]) for start in starts)
    bar = tqdm(total=len(todo), desc="sample images", unit="img", disable=not progress)
    with bar, start_journal(folder, plan, entries.values()) as journal:
        for made in stream(make_images, batches, processes):
            for entry in made:
                journal.write(entry.model_dump_json() + "\n")
                entries[entry.path] = entry
            bar.update(len(made))
    manifest = Manifest(**dict(plan), files=tuple(entries[path] for path in sorted(entries)))
    manifest.write(folder)
    (folder / JOURNAL).unlink()
    return manifest


def _usable(folder: Path, plan: SamplePlan, check: bool) -> dict[str, FileEntry]:
    """Return the files that need not be made again: whole, and of the same package versions."""
    manifest = Manifest.read(folder)
    started, entries = (manifest, manifest.files) if manifest else read_journal(folder)
    same = started and (started.packages, started.sources) == (plan.packages, plan.sources)
    usable = entries if same else ()
    return {entry.path: entry for entry in usable if _is_intact(folder, entry, check)}


def _is_intact(folder: Path, entry: FileEntry, check: bool) -> bool:
    path = folder / entry.path
    if not path.is_file() or path.stat().st_size != entry.bytes:
        return False
    return not check or hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256


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


def tasks(plan: SamplePlan) -> list[Task]:
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
