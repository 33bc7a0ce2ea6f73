"""The names of a TFRecord set's files: those of the published ImageNet, 1024 and 128 of them."""

import re
from pathlib import Path

from ddl_core.errors import DataError

# Split -> how the names of its files begin.
PREFIXES = {"train": "train", "val": "validation"}
SHARD = re.compile(r"(train|validation)-(\d{5,})-of-(\d{5,})")


def shard_name(split: str, number: int, count: int) -> str:
    """Return the name of a file of records, such as ``train-00000-of-01024``."""
    return f"{PREFIXES[split]}-{number:05d}-of-{count:05d}"


def shards_in(folder: Path, split: str) -> list[str]:
    """Return the names of the shards of a split that are there, in order.

    Raises
    ------
    DataError
        If the folder cannot be read.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}") from None
    matches = filter(None, map(SHARD.fullmatch, names))
    return sorted(match.string for match in matches if match[1] == PREFIXES[split])


def absent(split: str, names: list[str]) -> list[str]:
    """Return the names that are missing among the shards of one split.

    Raises
    ------
    DataError
        If the names belong to more than one set.
    """
    counts = sorted({int(name.rpartition("-")[2]) for name in names})
    if len(counts) > 1:
        sets = ", ".join(shard_name(split, 0, count) for count in counts)
        raise DataError(f"shards of different sets in one folder ({sets}, ...): keep one set")
    wanted = (shard_name(split, number, count) for count in counts for number in range(count))
    return sorted(set(wanted) - set(names))
