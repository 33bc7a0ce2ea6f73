"""Convert an image folder to TFRecord shards that hold the files' bytes, and index shards."""

import hashlib
import io
import logging
import math
import os
import time
import warnings
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ddl_core.data import tfrecord
from ddl_core.data.contents import states_of
from ddl_core.data.folder import SETTLED_S, SPLITS, ImageList, list_images
from ddl_core.data.formats import open_format
from ddl_core.data.image import describe
from ddl_core.errors import DataError, SpecError
from ddl_core.files import replacing, require_file, some
from ddl_core.registry import load
from ddl_tools.datasets.output import filling, is_made, parallel, read_settings, write_settings
from ddl_tools.datasets.records import (
    FILENAME,
    SYNSET,
    Value,
    example,
    frame,
    read_lengths,
    write_index,
)

log = logging.getLogger(__name__)

COLOUR_SPACES = {"L": "Grayscale"}  # all other modes: their own names

# Splits that are larger than this have shards of 64 to 128 MB: large files suit a parallel file
# system, and ImageNet's 148 GB come close to the 1024 shards that are usual for it.
LARGEST_SHARD = 128e6  # bytes
BYTES_PER_RECORD = 330  # besides the image: names, sizes, checksums, index
SETTLED = int(SETTLED_S * 1e9)  # ns
SIZES_SAMPLED = 1000  # files of a split whose sizes stand for all, instead of 1.3 million look-ups


class ShardTask(NamedTuple):
    """One shard to write: the images by their names below `source`, each with its label from 0."""

    path: Path
    source: Path
    images: list[tuple[str, int]]


@dataclass(frozen=True)
class Conversion:
    """Images of a folder, and the shards that they become.

    Attributes
    ----------
    description
        Content of ``shards.json``: the seed, a hash of the source's names, the number of images and
        of shards by split, and the names of the classes, the first of which has label 1.
    bytes
        Estimated size of each split.
    """

    source: Path
    folder: Path
    description: dict[str, Any]
    images: dict[str, ImageList]
    bytes: dict[str, float]

    def text(self) -> str:
        """Return the number and size of the shards of each split."""
        lines = [f"{self.folder}, from {self.source}:"]
        for split, shards in self.description["shards"].items():
            lines.append(
                f"  {split}: {len(self.images[split]):,} images in {shards:,} shards, about "
                f"{self.bytes[split] / 1e9:,.3f} GB"
            )
        return "\n".join(lines)

    def run(self, *, processes: int | None = None) -> int:
        """Make the shards that are missing, damaged or of other images; return their number.

        The log names images that have changed since they were converted.
        """
        begun = is_made(self.folder, read_description(self.folder), self.description)
        tasks = [task for task in self._tasks() if not index_fits(task.path) or _newer(task)]
        if begun and not tasks:
            return 0
        records = sum(map(len, self.images.values()))
        missing = sum(len(task.images) for task in tasks if not index_fits(task.path))
        with filling(self.folder, sum(self.bytes.values()) * missing / records):
            self.folder.mkdir(exist_ok=True)
            write_settings(self.folder / tfrecord.DESCRIPTION, self.description)
            for part in self.folder.glob(".*.part"):  # of a process that was killed
                part.unlink()
            made = list(parallel(_make_unless_same, tasks, "convert", processes=processes))
        if changed := [name for names in made for name in names or ()]:
            log.warning("converted again, as they had changed: %s", some(changed))
        return len(made) - made.count(None)

    def _tasks(self) -> list[ShardTask]:
        tasks = []
        for split, count in self.description["shards"].items():
            images = self.images[split]
            order = shuffled(self.description["seed"], split, len(images))
            for number, part in enumerate(np.array_split(order, count)):
                chosen = [(images.name(index), images.label(index)) for index in part.tolist()]
                path = self.folder / tfrecord.shard_name(split, number, count)
                tasks.append(ShardTask(path, images.root, chosen))
        return tasks


def plan(source: Path, to: str, out: Path | None, **settings: Any) -> Conversion:
    """Plan the conversion of an image folder to a format, by that format's writer."""
    writer = open_format(to, source).writer
    if not writer:
        raise SpecError(
            f"`ddl data convert` cannot write data_format {to!r}: it has no writer; "
            "choose 'tfrecord'"
        )
    make = load(f"the writer of data_format {to!r}", writer)
    conversion: Conversion = make(source, out, **settings)
    return conversion


def plan_conversion(
    source: str | Path,
    out: str | Path | None = None,
    *,
    train_shards: int | None = None,
    val_shards: int | None = None,
    seed: int = 0,
) -> Conversion:
    """List the images of a folder and divide them into shards; writes nothing.

    Parameters
    ----------
    source
        Holds ``train/<class>/*`` and ``val/<class>/*``.
    out
        Receives ``train-*-of-*``, ``validation-*-of-*``, ``index/*.idx`` and ``shards.json``.
        Default: ``source/tfrecord``.
    train_shards, val_shards
        Default: as many as `out` has already, else so many that a shard is 64 to 128 MB.
    seed
        Of the order in which images go into shards.
    """
    root = Path(source).absolute()
    folder = Path(out).absolute() if out else root / tfrecord.TFRECORD
    train = list_images(root / "train")
    images = {"train": train, "val": list_images(root / "val", train.classes)}
    there = read_description(folder)
    sizes = {split: _estimated_bytes(images[split]) for split in images}
    shards = {}
    for split, wanted in (("train", train_shards), ("val", val_shards)):
        present = there["shards"].get(split) if there else None
        shards[split] = wanted or present or math.ceil(sizes[split] / LARGEST_SHARD)
        if shards[split] > len(images[split]):
            raise DataError(
                f"{split}: {shards[split]} shards for {len(images[split])} images; each needs one"
            )
    prints = "".join(images[split].fingerprint() for split in images)
    description = {
        "seed": seed,
        "source": hashlib.sha256(prints.encode()).hexdigest(),
        "images": {split: len(images[split]) for split in images},
        "shards": shards,
        "classes": list(train.classes),
    }
    return Conversion(root, folder, description, images, sizes)


def read_description(folder: Path) -> dict[str, Any] | None:
    """Return the description of a TFRecord set; None of a published one, which has none."""
    fields = ("seed", "source", "images", "shards", "classes")
    return read_settings(folder / tfrecord.DESCRIPTION, "ddl data convert", *fields)


def shuffled(seed: int, split: str, count: int) -> NDArray[np.int64]:
    """Return the order in which images go into shards, the same with every release of NumPy.

    Readers shuffle within a window only, so that neighbours in a shard remain near each other.
    """
    key = np.random.SeedSequence(seed, spawn_key=(SPLITS.index(split),))
    # The raw numbers are fixed for ever; the algorithm of `Generator.permutation` is not.
    return np.argsort(np.random.PCG64(key).random_raw(count), kind="stable")


def _estimated_bytes(images: ImageList) -> float:
    chosen = np.linspace(0, len(images) - 1, min(len(images), SIZES_SAMPLED)).astype(int)
    try:
        sizes = [Path(images.path(index)).stat().st_size for index in chosen]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from None
    return len(images) * (float(np.mean(sizes)) + BYTES_PER_RECORD)


def _newer(task: ShardTask) -> list[str]:
    """Return the images that may have changed since their shard was made.

    Who sets the time of a file back still changes the time of its state.
    """
    states = states_of([f"{task.source}/{name}" for name, _ in task.images])
    newer = states[:, 1:].max(axis=1) >= task.path.stat().st_mtime_ns
    return [task.images[place][0] for place in np.flatnonzero(newer)]


def _make_unless_same(task: ShardTask) -> list[str] | None:
    """Make a shard and return its images that had changed; None if it was the same before."""
    changed = []
    if index_fits(task.path):
        changed = _changed(task, set(_newer(task)))
        if not changed:
            return None
    _make_shard(task)
    return changed


def _changed(task: ShardTask, newer: Container[str]) -> list[str]:
    """Return those of some images of a shard whose files differ from their records."""
    places, found = tfrecord.read_index(task.path).tolist(), []
    if len(places) != len(task.images):
        return [name for name, _ in task.images]
    with task.path.open("rb") as shard:
        for (name, _), (offset, size) in zip(task.images, places, strict=True):
            if name in newer:
                shard.seek(offset + tfrecord.HEADER)
                record = memoryview(shard.read(size - tfrecord.HEADER - tfrecord.FOOTER))
                try:
                    known = tfrecord.Example(record).first(tfrecord.ENCODED)
                except ValueError:
                    known = None
                if known != _content(task.source / name):
                    found.append(name)
    return found


def _make_shard(task: ShardTask) -> None:
    """Write a shard and its index; neither is seen before it is whole."""
    begun = time.time_ns() - SETTLED
    places, end = [], 0
    with replacing(task.path) as file:
        for name, label in task.images:
            record = frame(example(_features(task.source, name, label)))
            file.write(record)
            places.append((end, len(record)))
            end += len(record)
    os.utime(task.path, ns=(begun, begun))  # a file that changed meanwhile is newer
    write_index(task.path, places)


def _features(source: Path, name: str, label: int) -> dict[str, Value]:
    content, image = _open(source / name)
    synset, _, filename = name.partition("/")
    return {
        tfrecord.ENCODED: content,
        tfrecord.LABEL: label + 1,
        SYNSET: os.fsencode(synset),
        FILENAME: os.fsencode(filename),
        "image/format": (image.format or "").encode(),
        "image/height": image.height,
        "image/width": image.width,
        "image/colorspace": COLOUR_SPACES.get(image.mode, image.mode).encode(),
        "image/channels": len(image.getbands()),
    }


def _open(path: Path) -> tuple[bytes, Image.Image]:
    """Return the content, and the image of which only the header was read."""
    content = _content(path)
    try:
        # Ignored are warnings of damaged metadata, which is kept as it is.
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content)) as image:
            return content, image
    except Exception as error:  # damaged files make Pillow raise many types
        raise DataError(f"{path} is no image ({describe(error)}); {_advice(path)}") from None


def _content(path: Path) -> bytes:
    try:
        require_file(path)
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {_advice(path)}") from None


def _advice(path: Path) -> str:
    return f"find all such files: ddl data verify {path.parents[2]}"


def make_indices(folder: str | Path, *, processes: int | None = None) -> tuple[int, int]:
    """Write the indices that TFRecord files in `folder` lack; return how many made and kept."""
    root = Path(folder).absolute()
    shards = [root / name for split in SPLITS for name in tfrecord.shards_in(root, split)]
    if not shards:
        raise DataError(f"{root} has no files train-*-of-* or validation-*-of-*")
    todo = [shard for shard in shards if not index_fits(shard)]
    list(parallel(_make_index, todo, "index", processes=processes))
    return len(todo), len(shards) - len(todo)


def index_fits(shard: Path) -> bool:
    """Tell whether a shard has an index that fits it."""
    try:
        tfrecord.read_index(shard)
    except DataError:
        return False
    return True


def _make_index(shard: Path) -> None:
    try:
        write_index(shard, list(read_lengths(shard)))
    except OSError as error:
        raise DataError(
            f"cannot write {tfrecord.index_path(shard)} ({error.strerror}). If the set cannot be "
            "written, index a folder of symbolic links to its files"
        ) from None
