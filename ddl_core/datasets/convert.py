"""Convert an ImageNet-like folder to TFRecord shards, with the images' bytes as they are."""

import hashlib
import io
import math
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from ddl_core.datasets.bulk import alone, explained, require_space, stream
from ddl_core.datasets.folder import ImageList, list_images
from ddl_core.datasets.image_file import why
from ddl_core.datasets.indices import index_fits
from ddl_core.datasets.manifest import (
    ConvertPlan,
    ShardEntry,
    SplitPlan,
    read_shard_log,
    start_shard_log,
)
from ddl_core.datasets.sample import SPLITS
from ddl_core.datasets.shards import converted_folder, shard_name, write_index
from ddl_core.datasets.tfrecord import ENCODED, FILENAME, LABEL, SYNSET, Value, example, frame
from ddl_core.errors import DataError
from ddl_core.spec.gate import require_file

COLOUR_SPACES = {"L": "Grayscale"}  # all other modes: their own names

LOCK = ".converting.lock"

# Splits that are larger than this have shards of 64 to 128 MB: large files suit a parallel file
# system, and ImageNet's 148 GB come close to the 1024 shards that are usual for it.
LARGEST_SHARD = 128e6  # bytes
BYTES_PER_RECORD = 330  # besides the image: names, sizes, checksums, index
SIZES_SAMPLED = 1000  # files of a split whose sizes stand for all, instead of 1.3 million look-ups


class ShardTask(NamedTuple):
    """One shard to write: the images by their names below `source`, each with its label from 0."""

    path: Path
    split: str
    source: Path
    images: list[tuple[str, int]]


def make_shard(task: ShardTask) -> ShardEntry:
    """Write a shard and its index; neither is seen before it is whole.

    Raises
    ------
    DataError
        If an image cannot be read.
    OSError
        If the shard cannot be written.
    """
    part = task.path.with_name(f".{task.path.name}.{os.getpid()}.part")
    digest, places, end = hashlib.sha256(), [], 0
    try:
        with part.open("wb") as file:
            for name, label in task.images:
                record = frame(example(_features(task.source, name, label)))
                file.write(record)
                digest.update(record)
                places.append((end, len(record)))
                end += len(record)
            file.flush()
            os.fsync(file.fileno())
        write_index(task.path, places)
        part.replace(task.path)
    finally:
        part.unlink(missing_ok=True)
    return ShardEntry(
        file=task.path.name,
        split=task.split,
        records=len(places),
        bytes=end,
        sha256=digest.hexdigest(),
    )


def _features(source: Path, name: str, label: int) -> dict[str, Value]:
    path = source / name
    content, image = _open(path)
    synset, _, filename = name.partition("/")
    return {
        ENCODED: content,
        LABEL: label + 1,
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
    advice = f"find all such files: ddl data verify {path.parents[2]}"
    try:
        require_file(path)
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {advice}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, which is kept as it is
            with Image.open(io.BytesIO(content)) as image:
                return content, image
    except Exception as error:  # damaged files make Pillow raise many types
        raise DataError(f"{path} is no image ({why(error)}); {advice}") from None


@dataclass(frozen=True)
class Conversion:
    """Images of a folder, and the shards that they become; `bytes` estimates each split's size."""

    source: Path
    folder: Path
    plan: ConvertPlan
    images: dict[str, ImageList]
    bytes: dict[str, float]

    def text(self) -> str:
        """Return for people what is made, and where."""
        lines = [f"{self.folder}, from {self.source}:"]
        for split, plan in self.plan.splits.items():
            size = self.bytes[split]
            lines.append(
                f"  {split}: {plan.images:,} images, about {size / 1e9:,.3f} GB; "
                f"shards: {plan.shards:,} of {size / plan.shards / 1e6:,.0f} MB each"
            )
        disk = next(path for path in (self.folder, *self.folder.parents) if path.is_dir())
        lines.append(f"  {shutil.disk_usage(disk).free / 1e9:,.1f} GB are free there")
        return "\n".join(lines)

    def run(self, *, progress: bool = True, processes: int | None = None) -> list[ShardEntry]:
        """Make the shards, complete them, or do nothing when all are there.

        Parameters
        ----------
        progress
            Show a progress bar on stderr.
        processes
            Default: one per usable core. The bytes do not depend on it.

        Raises
        ------
        DataError
            If an image cannot be read, or if the folder is not writable, too full, or holds
            something else.
        """
        with explained(f"convert into {self.folder}", sum(self.bytes.values())):
            # Before the lock, so that a finished set may lie on a read-only disk.
            done = self._finished()
            if len(done) < sum(plan.shards for plan in self.plan.splits.values()):
                self.folder.mkdir(parents=True, exist_ok=True)
                with alone(self.folder / LOCK):
                    done = self._make(progress, processes)
            return list(done.values())

    def _finished(self) -> dict[str, ShardEntry]:
        """Return what need not be made again; refuse a folder that holds anything else."""
        plan, entries = read_shard_log(self.folder)
        if plan is not None:
            self._require_same(plan)
        elif self._is_foreign():
            raise DataError(
                f"{self.folder} is not empty and was not made by `ddl data convert`; choose "
                "another folder"
            )
        whole = [entry for entry in entries if _is_whole(self.folder, entry)]
        return {entry.file: entry for entry in whole}

    def _is_foreign(self) -> bool:
        ours = (self.folder / LOCK).exists()  # another process may have begun just now
        return not ours and self.folder.exists() and any(self.folder.iterdir())

    def _require_same(self, there: ConvertPlan) -> None:
        if there.source != self.plan.source:
            raise DataError(
                f"{self.folder} was made from other images than {self.source} holds now; choose "
                "another folder, or delete this one"
            )
        if there != self.plan:
            raise DataError(
                f"{self.folder} was made with other settings ({there.request}); asked for: "
                f"{self.plan.request}. Ask for the same settings, choose another folder, or "
                "delete this one"
            )

    def _make(self, progress: bool, processes: int | None) -> dict[str, ShardEntry]:
        for part in self.folder.glob(".*.part"):  # of a process that was killed
            part.unlink()
        done = self._finished()
        require_space(self.folder, sum(self.bytes.values()) - sum(e.bytes for e in done.values()))
        bar = tqdm(
            desc="convert",
            unit="img",
            total=sum(plan.images for plan in self.plan.splits.values()),
            initial=sum(entry.records for entry in done.values()),
            disable=not progress,
        )
        tasks = self._tasks(set(done))
        with bar, start_shard_log(self.folder, self.plan, done.values()) as log:
            for entry in stream(make_shard, tasks, processes):
                log.write(entry.model_dump_json() + "\n")
                done[entry.file] = entry
                bar.update(entry.records)
        return done

    def _tasks(self, done: set[str]) -> Iterator[ShardTask]:
        for split, plan in self.plan.splits.items():
            images, order = self.images[split], shuffled(self.plan.seed, split, plan.images)
            for number, part in enumerate(np.array_split(order, plan.shards)):
                name = shard_name(split, number, plan.shards)
                if name not in done:
                    chosen = [(images.name(index), images.label(index)) for index in part.tolist()]
                    yield ShardTask(self.folder / name, split, images.root, chosen)


def shuffled(seed: int, split: str, count: int) -> NDArray[np.int64]:
    """Return the order in which images go into shards, the same with every release of NumPy.

    Readers shuffle within a window only, so that neighbours in a shard remain near each other.
    """
    key = np.random.SeedSequence(seed, spawn_key=(SPLITS.index(split),))
    # The raw numbers are fixed for ever; the algorithm of `Generator.permutation` is not.
    return np.argsort(np.random.PCG64(key).random_raw(count), kind="stable")


def _is_whole(folder: Path, entry: ShardEntry) -> bool:
    path = folder / entry.file
    return path.is_file() and path.stat().st_size == entry.bytes and index_fits(path)


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
        Receives ``train-*-of-*``, ``validation-*-of-*``, ``index/*.idx`` and ``shards.jsonl``.
        Default: ``source/tfrecord``.
    train_shards, val_shards
        Default: as many as `out` has already, else so many that a shard is 64 to 128 MB.
    seed
        The same seed, shards and images give the same bytes.

    Raises
    ------
    DataError
        If the source is missing or no such folder, if there are fewer images than shards, or if
        what `out` says of itself is damaged.
    """
    root = Path(source).absolute()
    folder = Path(out).absolute() if out else converted_folder(root)
    train = list_images(root / "train")
    images = {"train": train, "val": list_images(root / "val", train.classes)}
    sizes = {split: _estimated_bytes(images[split]) for split in SPLITS}
    there, _ = read_shard_log(folder)
    splits = {}
    for split, asked in zip(SPLITS, (train_shards, val_shards), strict=True):
        present = there.splits[split].shards if there and split in there.splits else None
        shards = asked or present or math.ceil(sizes[split] / LARGEST_SHARD)
        splits[split] = SplitPlan(images=len(images[split]), shards=shards)
        if shards > len(images[split]):
            raise DataError(
                f"{split}: {shards} shards asked for {len(images[split])} images; each needs one"
            )
    plan = ConvertPlan(
        seed=seed, source=_fingerprint(images), splits=splits, classes=_utf8(train.classes)
    )
    return Conversion(root, folder, plan, images, sizes)


def _estimated_bytes(images: ImageList) -> float:
    chosen = np.linspace(0, len(images) - 1, min(len(images), SIZES_SAMPLED)).astype(int)
    try:
        sizes = [Path(images.path(index)).stat().st_size for index in chosen]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from None
    return len(images) * (float(np.mean(sizes)) + BYTES_PER_RECORD)


def _fingerprint(images: dict[str, ImageList]) -> str:
    prints = "".join(images[split].fingerprint() for split in SPLITS)
    return hashlib.sha256(prints.encode()).hexdigest()


def _utf8(classes: tuple[str, ...]) -> tuple[str, ...]:
    for name in classes:
        if not name.isprintable():
            raise DataError(f"class folder {name!r}: rename it, so that its name is plain text")
    return classes
