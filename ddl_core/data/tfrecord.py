"""TFRecord sets of images: each record by its number.

Names of files and features are those of the published conversions of ImageNet. An index is that of
DALI's tfrecord2idx: a line ``offset size`` per record.
"""

import hashlib
import json
import os
import re
import resource
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddl_core.data.folder import Arrays, cached_on_node
from ddl_core.errors import DataError, NotInstalledError
from ddl_core.files import some
from ddl_core.origin import INSTALL, made

# Split -> how the names of its files begin.
PREFIXES = {"train": "train", "val": "validation"}
SHARD = re.compile(r"(train|validation)-(\d{5,})-of-(\d{5,})")
TFRECORD = "tfrecord"  # folder of a conversion, in that of the images
INDEX = "index"  # folder in it
DESCRIPTION = "shards.json"  # of `ddl data convert`, with the names of the classes

ENCODED = "image/encoded"
LABEL = "image/class/label"  # from 1: 0 was kept for a background class

# A record: length (8 bytes), its checksum (4), that many bytes, their checksum (4).
HEADER, FOOTER = 12, 4

# TensorFlow's Example, without lists of floats.
EXAMPLE = """
name: "example.proto" syntax: "proto3"
message_type {
  name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES }
}
message_type {
  name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 }
}
message_type {
  name: "Feature"
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: "BytesList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: "Int64List" oneof_index: 0 }
  oneof_decl { name: "kind" }
}
message_type {
  name: "Features"
  field {
    name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "FeatureEntry"
  }
  nested_type {
    name: "FeatureEntry"
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: "Feature" }
    options { map_entry: true }
  }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: "Features" }
}
"""

Places = NDArray[np.int64]  # one row per record: offset, size


class Example:
    """The features of one record; `ValueError` if it is no Example, or lacks a feature."""

    def __init__(self, data: bytes | memoryview) -> None:
        try:
            self._features = example_class().FromString(data).features.feature
        except optional("google.protobuf.message").DecodeError:
            raise ValueError("the record is no Example") from None

    def __contains__(self, name: str) -> bool:
        return name in self._features

    def first(self, name: str) -> Any:
        """Return the first value of a feature, bytes or an integer."""
        feature = self._features.get(name)
        kind = feature and feature.WhichOneof("kind")
        values = getattr(feature, kind).value if kind else ()
        if not values:
            raise ValueError(f"the record has no feature {name}")
        return values[0]

    def label(self) -> int:
        """Return the label, counted from 0."""
        label = self.first(LABEL)
        if not isinstance(label, int) or label < 1:
            raise ValueError(f"{LABEL} is {label}; labels count from 1")
        return label - 1


@cache
def example_class() -> Any:
    """Return the class Example, in a pool of its own: TensorFlow uses the common one."""
    text_format = optional("google.protobuf.text_format")
    description = optional("google.protobuf.descriptor_pb2").FileDescriptorProto()
    pool = optional("google.protobuf.descriptor_pool").DescriptorPool()
    pool.AddSerializedFile(text_format.Parse(EXAMPLE, description).SerializeToString())
    factory = optional("google.protobuf.message_factory")
    return factory.GetMessageClass(pool.FindMessageTypeByName("Example"))


def optional(name: str) -> Any:
    """Import a package on first use: image folders need none."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalledError(
            f"TFRecord files need packages that are not installed here ({error}); run `{INSTALL}`, "
            f"or for a library beside torch its own target, as `{made('tensorflow')}`"
        ) from None


def shard_name(split: str, number: int, count: int) -> str:
    """Return the name of a file of records, such as ``train-00000-of-01024``."""
    return f"{PREFIXES[split]}-{number:05d}-of-{count:05d}"


def shards_in(folder: Path, split: str) -> list[str]:
    """Return the names of the shards of a split in a folder, in order."""
    try:
        matches = [SHARD.fullmatch(path.name) for path in folder.iterdir()]
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}") from None
    return sorted(one.string for one in matches if one and one[1] == PREFIXES[split])


def absent(split: str, names: list[str]) -> list[str]:
    """Return the names that are missing among the shards of a split; refuse those of two sets."""
    counts = sorted({int(name.rpartition("-")[2]) for name in names})
    if len(counts) > 1:
        sets = ", ".join(shard_name(split, 0, count) for count in counts)
        raise DataError(f"shards of different sets in one folder ({sets}, ...): keep one set")
    wanted = (shard_name(split, number, count) for count in counts for number in range(count))
    return sorted(set(wanted) - set(names))


def index_path(shard: Path) -> Path:
    """Return the path of a shard's index."""
    return shard.parent / INDEX / f"{shard.name}.idx"


def read_index(shard: Path) -> Places:
    """Return offset and size of every record of a shard; refuse an index that does not fit."""
    path = index_path(shard)
    advice = f"make it again: ddl data index {shard.parent}"
    try:
        size = shard.stat().st_size
        places = np.array(path.read_bytes().split(), dtype=np.int64).reshape(-1, 2)
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}; {advice}") from None
    except (ValueError, OverflowError):
        raise DataError(f"{path} is no index of `offset size` lines; {advice}") from None
    ends = np.concatenate(([0], places.sum(axis=1)))
    if not np.array_equal(places[:, 0], ends[:-1]) or ends[-1] != size:
        raise DataError(f"{path} does not fit the {size:,} bytes of {shard.name}; {advice}")
    return places


class _Opened:
    """An open file, until nothing refers to it."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class RecordList:
    """The records of one split, in arrays that forked loader processes share.

    Threads and forked processes may share an open file too, since `os.pread` has no position.
    """

    def __init__(
        self, folder: Path, shards: Sequence[str], classes: Sequence[str], places: Sequence[Places]
    ) -> None:
        """Take, for each shard, the offset and size of its records."""
        self.folder = folder
        self.shards = tuple(shards)
        self.classes = tuple(classes)
        self._places = np.concatenate(places)
        self._starts = np.cumsum([0, *map(len, places)], dtype=np.int64)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # A quarter for each split; the rest is for others. Without a limit, -1.
        self._opened = lru_cache(limit // 4 if limit > 0 else None)(_Opened)

    def __reduce__(self) -> tuple[Any, ...]:
        places = [self.places(shard) for shard in range(len(self.shards))]
        return RecordList, (self.folder, self.shards, self.classes, places)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int) -> tuple[bytes, int]:
        """Return the encoded image and its label; a `DataError` if its file has changed."""
        path = self.folder / self.shards[self._locate(index)[0]]
        where = f"{self.folder}/{self.name(index)}"
        offset, size = self._places[index].tolist()
        try:
            opened = self._opened(path)  # the name keeps it open if another thread evicts it
            record = os.pread(opened.descriptor, size, offset)
        except FileNotFoundError:
            raise DataError(f"{path} was listed when the run began and is gone now") from None
        except OSError as error:
            raise DataError(f"cannot read {where}: {error.strerror}") from None
        try:
            if int.from_bytes(record[:8], "little") != size - HEADER - FOOTER or len(record) < size:
                raise ValueError("the file has changed, or its index does not fit")
            features = Example(memoryview(record)[HEADER:-FOOTER])
            return features.first(ENCODED), features.label()
        except ValueError as error:
            raise DataError(
                f"{where}: {error}; check the set: ddl data verify {self.folder}"
            ) from None

    def paths(self, indices: NDArray[np.int64]) -> set[str]:
        """Return the paths of the shards that hold some records."""
        shards = np.unique(np.searchsorted(self._starts, indices, side="right") - 1)
        return {f"{self.folder}/{self.shards[shard]}" for shard in shards.tolist()}

    def name(self, index: int) -> str:
        """Return shard and number of a record."""
        shard, number = self._locate(index)
        return f"{self.shards[shard]} record {number}"

    def places(self, shard: int) -> Places:
        """Return offset and size of each record of a shard."""
        return self._places[self._starts[shard] : self._starts[shard + 1]]

    def places_of(self, indices: NDArray[np.int64], shard: int) -> Places:
        """Return offset and size of those of some ascending `indices` that a shard has."""
        low, high = np.searchsorted(indices, self._starts[shard : shard + 2])
        return self._places[indices[low:high]]

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
        raise DataError(
            f"{root} has no shards {shard_name(split, 0, 128)} and so on; make them from an image "
            "folder: ddl data convert DIR"
        )
    if missing := absent(split, shards):
        raise DataError(
            f"{root} lacks {len(missing)} shards: {some(missing)}; if `ddl data convert` was "
            "interrupted, run it again"
        )

    def read() -> tuple[Arrays, bool]:
        indices = [read_index(root / name) for name in shards]
        return {"places": np.concatenate(indices), "counts": np.array([*map(len, indices)])}, True

    files = [place for name in shards for place in (root / name, index_path(root / name))]
    arrays = cached_on_node(files, read)
    places = np.split(arrays["places"], np.cumsum(arrays["counts"])[:-1])
    return RecordList(root, shards, _class_names(root), places)


def _class_names(folder: Path) -> list[str]:
    """Return the names of the classes, the first of label 1; published sets have none."""
    path = folder / DESCRIPTION
    if not path.exists():
        return []
    try:
        return [str(name) for name in json.loads(path.read_bytes())["classes"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"cannot read {path}: {error}; make the set again: ddl data convert"
        ) from None


def shards_folder(data_dir: Path) -> Path:
    """Return the folder of TFRecord shards: ``tfrecord/`` in the data folder, or that itself."""
    inner = data_dir / TFRECORD
    return inner if inner.is_dir() else data_dir
