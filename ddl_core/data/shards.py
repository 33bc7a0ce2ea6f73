"""A TFRecord set: the names of its files, their indices, and each record by its number.

The names are those of the published ImageNet, with 1024 and 128 files. An index is that of DALI's
tfrecord2idx: a line ``offset size`` per record.
"""

import hashlib
import os
import re
import resource
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from ddl_core.data import dataset
from ddl_core.data.dataset import Arrays, EncodedDataset, once_per_node
from ddl_core.data.tfrecord import ENCODED, Example, unframe
from ddl_core.errors import DataError
from ddl_core.files import replacing, require_file, some

# Split -> how the names of its files begin.
PREFIXES = {"train": "train", "val": "validation"}
SHARD = re.compile(r"(train|validation)-(\d{5,})-of-(\d{5,})")

INDEX = "index"  # folder
DESCRIPTION = "shards.json"

Places = NDArray[np.int64]  # one row per record: offset, size


class Description(BaseModel):
    """What `ddl data convert` makes, written before the first shard; published sets have none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    source: str  # SHA-256 over class names and file names
    images: dict[str, int]  # by split
    shards: dict[str, int]
    classes: tuple[str, ...]  # the first has label 1 in the records


def read_description(folder: Path) -> Description | None:
    """Return the description of a TFRecord set, if it has one."""
    path = folder / DESCRIPTION
    try:
        require_file(path)
        return Description.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError:
        raise DataError(
            f"{path} is damaged; delete {folder} and make it again: ddl data convert"
        ) from None


def shard_name(split: str, number: int, count: int) -> str:
    """Return the name of a file of records, such as ``train-00000-of-01024``."""
    return f"{PREFIXES[split]}-{number:05d}-of-{count:05d}"


def shards_in(folder: Path, split: str) -> list[str]:
    """Return the names of the shards of a split in a folder, in order."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}") from None
    matches = filter(None, map(SHARD.fullmatch, names))
    return sorted(match.string for match in matches if match[1] == PREFIXES[split])


def absent(split: str, names: list[str]) -> list[str]:
    """Return the names that are missing among the shards of one split; refuse those of two sets."""
    counts = sorted({int(name.rpartition("-")[2]) for name in names})
    if len(counts) > 1:
        sets = ", ".join(shard_name(split, 0, count) for count in counts)
        raise DataError(f"shards of different sets in one folder ({sets}, ...): keep one set")
    wanted = (shard_name(split, number, count) for count in counts for number in range(count))
    return sorted(set(wanted) - set(names))


def index_path(shard: Path) -> Path:
    """Return the path of a shard's index."""
    return shard.parent / INDEX / f"{shard.name}.idx"


def write_index(shard: Path, places: Iterable[tuple[int, int]]) -> None:
    """Write the index of a shard, whole or not at all."""
    path = index_path(shard)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, sync=False) as file:
        file.write("".join(f"{offset} {size}\n" for offset, size in places).encode())


def read_index(shard: Path) -> Places:
    """Return offset and size of every record of a shard; refuse an index that does not fit it."""
    path = index_path(shard)
    advice = f"make it again: ddl data index {shard.parent}"
    try:
        size = shard.stat().st_size
        require_file(path)
        places = np.array(path.read_bytes().split(), dtype=np.int64).reshape(-1, 2)
    except FileNotFoundError as error:
        what = f"the index {path}" if str(error.filename) == str(path) else str(shard)
        raise DataError(f"{what} is missing; {advice}") from None
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, OverflowError):
        raise DataError(f"{path} is no index of `offset size` lines; {advice}") from None
    ends = places.sum(axis=1)
    if not np.array_equal(places[:, 0], np.concatenate(([0], ends[:-1]))[: len(places)]):
        raise DataError(f"{path} has gaps between its records; {advice}")
    end = int(ends[-1]) if len(ends) else 0
    if end != size:
        raise DataError(f"{path} ends at byte {end:,}, {shard.name} at {size:,}; {advice}")
    return places


class _Opened:
    """An open file; it is closed when nothing refers to it."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class RecordList(EncodedDataset):
    """The records of one split.

    About 20 MB for the 1.28 million records of ImageNet, in arrays alone, so that a forked loader
    process shares them. Files are opened when first read. Threads and forked processes may share
    an open file, since `os.pread` has no position.

    """

    def __init__(
        self, folder: Path, shards: Sequence[str], classes: Sequence[str], places: Sequence[Places]
    ) -> None:
        """Take, for each shard, the offset and size of its records."""
        self.folder = folder
        self.shards = tuple(shards)
        self.classes = tuple(classes)
        self._places = np.concatenate(places)
        counts = [len(shard) for shard in places]
        self._starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        # A quarter of what the system grants: for a list of each split, and as much for others.
        granted = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = granted == resource.RLIM_INFINITY
        most = len(self.shards) if unlimited else max(1, granted // 4)
        self._opened = lru_cache(most)(_Opened)

    def __reduce__(self) -> tuple[Any, ...]:
        places = np.split(self._places, self._starts[1:-1])
        return RecordList, (self.folder, self.shards, self.classes, places)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._places)

    def read(self, index: int) -> tuple[bytes, int]:
        """Return the encoded image and its label; see `EncodedDataset`."""
        shard, _ = self._locate(index)
        path = self.folder / self.shards[shard]
        where = f"{self.folder}/{self.name(index)}"
        offset, size = self._places[index].tolist()
        try:
            opened = self._opened(path)  # the name keeps it open if another thread evicts it
            record = os.pread(opened.descriptor, size, offset)
        except FileNotFoundError:
            raise DataError(f"{path} was there when the run began and is gone now") from None
        except OSError as error:
            raise DataError(f"cannot read {where}: {error.strerror}") from None
        if len(record) < size:
            raise DataError(f"{where}: the file was longer when the run began")
        try:
            features = Example(unframe(record))
            return features.blob(ENCODED), features.label()
        except ValueError as error:
            raise DataError(
                f"{where}: {error}; check the set: ddl data verify {self.folder}"
            ) from None

    def name(self, index: int) -> str:
        """Return shard and number of a record."""
        shard, number = self._locate(index)
        return f"{self.shards[shard]} record {number}"

    def places(self, shard: int) -> Places:
        """Return offset and size of each record of a shard."""
        return self._places[self._starts[shard] : self._starts[shard + 1]]

    def fingerprint(self) -> str:
        """Return the SHA-256 over shard names, offsets and sizes."""
        digest = hashlib.sha256("\0".join((*self.shards, "")).encode())
        digest.update(self._places.astype("<i8").tobytes())
        return digest.hexdigest()

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        return shard, index - int(self._starts[shard])


def list_records(folder: str | Path, split: str) -> RecordList:
    """List the records of the split ``train`` or ``val``; refuse missing shards and indices."""
    root = Path(folder).absolute()
    shards = shards_in(root, split)
    if not shards:
        raise DataError(f"{root} has no shards {PREFIXES[split]}-*-of-*\n{_expected(root)}")
    description = read_description(root)
    missing = absent(split, shards)
    if missing:
        unfinished = "; complete it: ddl data convert" if description else ""
        raise DataError(f"{root} lacks {len(missing)} shards: {some(missing)}{unfinished}")

    def look() -> tuple[Arrays, bool]:
        indices = [read_index(root / name) for name in shards]
        arrays = {"places": np.concatenate(indices), "counts": np.array(list(map(len, indices)))}
        return arrays, len(arrays["places"]) >= dataset.WORTH

    files = [place for name in shards for place in (root / name, index_path(root / name))]
    arrays = once_per_node(files, look)
    places = np.split(arrays["places"], np.cumsum(arrays["counts"])[:-1])
    return RecordList(root, shards, description.classes if description else (), places)


def is_record_folder(folder: Path) -> bool:
    """Tell a TFRecord set, even an unfinished one, from an image folder."""
    if not folder.is_dir():
        return False
    names = [path.name for path in folder.iterdir()]
    return DESCRIPTION in names or any(map(SHARD.fullmatch, names))


def _expected(root: Path) -> str:
    return (
        "expected a TFRecord folder:\n"
        f"  {root}/\n"
        "    train-00000-of-01024 ...\n"
        "    validation-00000-of-00128 ...\n"
        "    index/train-00000-of-01024.idx ...\n"
        "make one from an image folder with `ddl data convert DIR`, and the indices of a "
        "published one with `ddl data index DIR`"
    )


def converted_folder(data_dir: Path) -> Path:
    """Return where a conversion of a data folder to TFRecord goes by default."""
    return data_dir / "tfrecord"


def shards_folder(data_dir: Path) -> Path:
    """Return where the TFRecord shards of a data folder are: in ``tfrecord/``, else in itself."""
    inner = converted_folder(data_dir)
    return inner if inner.is_dir() else data_dir
