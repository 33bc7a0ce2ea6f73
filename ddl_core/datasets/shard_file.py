"""Write one shard: the work that a worker process of a conversion does."""

import hashlib
import io
import os
import warnings
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from ddl_core.datasets.record_index import write_index
from ddl_core.datasets.shard_log import ShardEntry
from ddl_core.datasets.tfrecord import ENCODED, FILENAME, LABEL, SYNSET, Value, example, frame
from ddl_core.errors import DataError

COLOUR_SPACES = {"L": "Grayscale"}  # all other modes: their own names


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
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {advice}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, which is kept as it is
            with Image.open(io.BytesIO(content)) as image:
                return content, image
    except Exception as error:  # damaged files make Pillow raise many types
        raise DataError(f"{path} is no image ({error}); {advice}") from None
