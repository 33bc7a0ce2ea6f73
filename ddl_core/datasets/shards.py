"""A TFRecord set: the names of its files, DALI's index of them, and each record by its number.

The names are those of the published ImageNet, 1024 and 128 of them. The index has a line
``offset size`` per record, as tfrecord2idx writes it.
"""

import hashlib
import os
import re
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddl_core.datasets import listing
from ddl_core.datasets.listing import Arrays
from ddl_core.datasets.manifest import SHARD_LOG, read_shard_log, write_whole
from ddl_core.datasets.tfrecord import ENCODED, Example, unframe
from ddl_core.errors import DataError
from ddl_core.spec.gate import require_file, some

# Split -> how the names of its files begin.
PREFIXES = {"train": "train", "val": "validation"}
SHARD = re.compile(r"(train|validation)-(\d{5,})-of-(\d{5,})")

FOLDER = "index"

Places = NDArray[np.int64]  # one row per record: offset, size


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


def index_path(shard: Path) -> Path:
    """Return where the index of a shard lies."""
    return shard.parent / FOLDER / f"{shard.name}.idx"


def write_index(shard: Path, places: Iterable[tuple[int, int]]) -> None:
    """Write the index of a shard, whole or not at all."""
    path = index_path(shard)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(f"{offset} {size}\n" for offset, size in places).encode())


def read_index(shard: Path) -> Places:
    """Return offset and size of every record of a shard.

    Raises
    ------
    DataError
        If the shard or its index is missing, or if the two do not fit.
    """
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


class RecordList:
    """The records of one split.

    About 20 MB for the 1.28 million records of ImageNet, in arrays alone, so that a forked loader
    process shares them. Files are opened when first read; what is read is independent of a file's
    position, so that forked processes may share open files, and threads too.

    Attributes
    ----------
    folder : Path
        Where the shards lie.
    shards : tuple of str
        Their names.
    classes : tuple of str
        A label is an index into them; empty where the set does not name them.
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
        self._open: OrderedDict[int, int] = OrderedDict()  # shard -> file descriptor
        self._lock = threading.Lock()
        # A quarter of what the system grants: for a list of each split, and as much for others.
        granted = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = granted == resource.RLIM_INFINITY
        self._most_open = len(self.shards) if unlimited else max(1, granted // 4)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._places)

    def read(self, index: int) -> tuple[bytes, int]:
        """Return the encoded image and its label from 0, ``0 <= index < len``.

        Raises
        ------
        DataError
            If the shard is gone, or if the record is not what the index and the format say.
        """
        shard, _ = self._locate(index)
        offset, size = self._places[index].tolist()
        try:
            record = self._read(shard, size, offset)
        except FileNotFoundError:
            path = self.folder / self.shards[shard]
            raise DataError(f"{path} was there when the run began and is gone now") from None
        except OSError as error:
            raise DataError(f"cannot read {self._where(index)}: {error.strerror}") from None
        if len(record) < size:
            raise DataError(f"{self._where(index)}: the file was longer when the run began")
        try:
            features = Example(unframe(record))
            return features.blob(ENCODED), features.label()
        except ValueError as error:
            raise DataError(
                f"{self._where(index)}: {error}; check the set: ddl data verify {self.folder}"
            ) from None

    def name(self, index: int) -> str:
        """Return shard and number of a record, for messages and records."""
        shard, number = self._locate(index)
        return f"{self.shards[shard]} record {number}"

    def places(self, shard: int) -> Places:
        """Return offset and size of each record of a shard, the first of them number 0."""
        return self._places[self._starts[shard] : self._starts[shard + 1]]

    def fingerprint(self) -> str:
        """Return the SHA-256 over shard names, offsets and sizes, but not over contents."""
        digest = hashlib.sha256("\0".join((*self.shards, "")).encode())
        digest.update(self._places.astype("<i8").tobytes())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"} | {
            "_open": OrderedDict()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __del__(self) -> None:
        # Absent if the constructor failed.
        for descriptor in self.__dict__.get("_open", {}).values():
            os.close(descriptor)

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        return shard, index - int(self._starts[shard])

    def _read(self, shard: int, size: int, offset: int) -> bytes:
        with self._lock:  # a duplicate: another thread may close the original meanwhile
            descriptor = os.dup(self._descriptor(shard))
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def _descriptor(self, shard: int) -> int:
        """Return an open file; the least recently used one makes room."""
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        if len(self._open) >= self._most_open:
            os.close(self._open.popitem(last=False)[1])
        self._open[shard] = os.open(self.folder / self.shards[shard], os.O_RDONLY)
        return self._open[shard]

    def _where(self, index: int) -> str:
        return f"{self.folder}/{self.name(index)}"


def list_records(folder: str | Path, split: str) -> RecordList:
    """List the records of one split.

    Parameters
    ----------
    folder
        Made by ``ddl data convert``, or published, with indices by ``ddl data index``.
    split
        ``train`` or ``val``.

    Raises
    ------
    DataError
        If shards or indices are missing, or do not fit.
    """
    root = Path(folder).absolute()
    shards = shards_in(root, split)
    if not shards:
        raise DataError(f"{root} has no shards {PREFIXES[split]}-*-of-*\n{expected_shards(root)}")
    plan, _ = read_shard_log(root)
    missing = absent(split, shards)
    if missing:
        unfinished = "; complete it: ddl data convert" if plan else ""
        raise DataError(f"{root} lacks {len(missing)} shards: {some(missing)}{unfinished}")
    places = _places_once(root, shards)
    return RecordList(root, shards, plan.classes if plan else (), places)


def _places_once(root: Path, shards: Sequence[str]) -> list[Places]:
    """Read the indices of `shards` once for all ranks of a node; see `listing`."""

    def look() -> Arrays:
        read = [read_index(root / name) for name in shards]
        return np.concatenate(read), np.array([len(one) for one in read])

    files = [place for name in shards for place in (root / name, index_path(root / name))]
    places, counts = listing.once_per_node(
        files, look, worth=lambda arrays: len(arrays[0]) >= listing.WORTH
    )
    return np.split(places, np.cumsum(counts)[:-1])


def is_record_folder(folder: Path) -> bool:
    """Tell a TFRecord set, even an unfinished one, from an image folder."""
    if not folder.is_dir():
        return False
    names = [path.name for path in folder.iterdir()]
    return SHARD_LOG in names or any(map(SHARD.fullmatch, names))


def expected_shards(root: Path) -> str:
    """Return what a TFRecord folder looks like and how to get one."""
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
