"""List the records of a TFRecord set, and read each by its number."""

import hashlib
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddl_core.datasets.folder import some
from ddl_core.datasets.record_index import Places, read_index
from ddl_core.datasets.shard_log import SHARD_LOG, read_shard_log
from ddl_core.datasets.shard_names import PREFIXES, SHARD, absent, shards_in
from ddl_core.datasets.tfrecord import ENCODED, Example, unframe
from ddl_core.errors import DataError


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
        self._most_open = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

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
    places = [read_index(root / name) for name in shards]
    return RecordList(root, shards, plan.classes if plan else (), places)


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
