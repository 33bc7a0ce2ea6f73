"""How fast a rank reads training images at random, and how fast one core could decode them."""

import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ddl_core.data.augment import UNREADABLE, open_rgb
from ddl_core.data.dataset import EncodedDataset
from ddl_core.data.folder import class_folders, scan
from ddl_core.data.shards import list_records, shards_folder
from ddl_core.errors import DataError
from ddl_tools.datasets.bench import forget
from ddl_tools.records.paths import locate
from ddl_tools.records.probe import ProbeRecord, Reading

MOST_IMAGES = 512  # of each rank
MOST_CLASSES = 32  # folders listed: all of ImageNet's would take minutes on some file systems
MOST_DECODED = 64
DECODE_S = 5.0


class _Sample(NamedTuple):
    images: EncodedDataset
    numbers: list[int]
    files: set[Path]
    shards: int | None


def measure(record: ProbeRecord, rank: int) -> Reading:
    """Read a rank's sample twice, with as many threads as the run has loader processes.

    Raises
    ------
    DataError
        If the data are not there or not as they should be.
    """
    assert record.data_dir is not None
    sample = _sample(record, locate(record.data_dir), rank)
    _forget(sample.files)
    threads = max(1, record.spec.loader_workers)
    cold = _read(sample.images, sample.numbers, threads, record.reading_limit_s / 2)
    numbers = sample.numbers[: cold.images]
    warm = _read(sample.images, numbers, threads, None)
    decoded, decode_s = _decode([sample.images.read(one)[0] for one in numbers[:MOST_DECODED]])
    return Reading(
        images=cold.images,
        bytes=cold.bytes,
        threads=threads,
        cold_s=cold.seconds,
        warm_s=warm.seconds,
        decode_s=decode_s,
        decoded=decoded,
        shards=sample.shards,
    )


def _sample(record: ProbeRecord, data_dir: Path, rank: int) -> _Sample:
    """Choose images by chance: no two ranks the same, each probe others."""
    chance = random.Random(record.name)
    if record.spec.data_format == "tfrecord":
        folder = shards_folder(data_dir)
        records = list_records(folder, "train")
        numbers = _share(chance, len(records), rank, record.spec.world_size)
        files = {folder / records.name(number).split()[0] for number in numbers}
        return _Sample(records, numbers, files, len(records.shards))
    root = (data_dir / "train").absolute()
    classes = class_folders(root)
    images = scan(root, sorted(chance.sample(classes, min(MOST_CLASSES, len(classes)))))
    if not len(images):
        raise DataError(f"{root} has no images in {len(classes)} class folders")
    numbers = _share(chance, len(images), rank, record.spec.world_size)
    return _Sample(images, numbers, {Path(images.path(number)) for number in numbers}, None)


def _forget(files: set[Path]) -> None:
    for file in files:
        try:
            forget(file)
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}") from None


def _share(chance: random.Random, images: int, rank: int, world_size: int) -> list[int]:
    most = min(images, MOST_IMAGES * world_size)
    return chance.sample(range(images), most)[rank::world_size]


class _Read(NamedTuple):
    images: int
    bytes: int
    seconds: float


def _read(
    images: EncodedDataset, numbers: Iterable[int], threads: int, limit_s: float | None
) -> _Read:
    """Read images in threads until all are read or the time is up."""
    begun = time.perf_counter()

    def in_time(number: int) -> int | None:
        late = limit_s is not None and time.perf_counter() - begun > limit_s
        return None if late else len(images.read(number)[0])

    with ThreadPoolExecutor(threads) as pool:
        sizes = [size for size in pool.map(in_time, numbers) if size is not None]
    return _Read(len(sizes), sum(sizes), time.perf_counter() - begun)


def _decode(contents: list[bytes]) -> tuple[int, float]:
    """Return how many images one thread decoded, and its CPU seconds."""
    begun, decoded = time.process_time(), 0
    for content in contents:
        if time.process_time() - begun > DECODE_S:
            break
        try:
            open_rgb(content)
        except UNREADABLE:
            continue
        decoded += 1
    return decoded, time.process_time() - begun
