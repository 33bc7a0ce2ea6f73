"""The TFRecord format: the records of a file, and the features of ImageNet's records.

The features are those of the published conversions, so that ours are read by whatever reads those,
and those by us.
"""

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any, NamedTuple

from ddl_core.errors import DataError, NotInstalledError
from ddl_core.spec.gate import require_file

ENCODED = "image/encoded"
LABEL = "image/class/label"  # from 1: 0 was kept for a background class
SYNSET = "image/class/synset"
FILENAME = "image/filename"

# A record: length (8 bytes), its checksum (4), that many bytes, their checksum (4).
HEADER, FOOTER = 12, 4
MASK_DELTA = 0xA282EAD8  # checksums are stored rotated and shifted by this

Value = int | bytes


class Record(NamedTuple):
    """One record of a file; `intact` tells whether its data fit their checksum."""

    offset: int
    data: bytes
    intact: bool


class Example:
    """The features of one record.

    Raises
    ------
    ValueError
        Here if the record is no Example; when asked for a feature, if it is missing.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        packages = _packages()
        try:
            self._features = packages.message.Example.FromString(data).features.feature
        except packages.DecodeError:
            raise ValueError("the record is no Example") from None

    def __contains__(self, name: str) -> bool:
        return name in self._features

    def blob(self, name: str) -> bytes:
        """Return the first value of a feature of bytes."""
        return self._first(name, "bytes_list")  # type: ignore[no-any-return]

    def number(self, name: str) -> int:
        """Return the first value of a feature of integers."""
        return self._first(name, "int64_list")  # type: ignore[no-any-return]

    def label(self) -> int:
        """Return the label, counted from 0."""
        label = self.number(LABEL)
        if label < 1:
            raise ValueError(f"{LABEL} is {label}; labels count from 1")
        return label - 1

    def _first(self, name: str, kind: str) -> Any:
        # A look-up of an unknown key would add it.
        values = getattr(self._features[name], kind).value if name in self._features else ()
        if not values:
            raise ValueError(f"the record has no feature {name}")
        return values[0]


def frame(data: bytes) -> bytes:
    """Return the record that holds `data`."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def unframe(record: bytes) -> memoryview:
    """Return the data of one whole record, without a look at the checksums.

    Raises
    ------
    ValueError
        If the record is of another length than its header says.
    """
    stated = int.from_bytes(record[:8], "little") + HEADER + FOOTER
    if len(record) != stated:
        raise ValueError(f"{len(record)} bytes in the index, {stated} in the record's header")
    return memoryview(record)[HEADER:-FOOTER]


def example(features: Mapping[str, Value]) -> bytes:
    """Return an Example of these features: always the same bytes for the same features."""
    message = _packages().message.Example()
    for name, value in features.items():
        feature = message.features.feature[name]
        kind = feature.int64_list if isinstance(value, int) else feature.bytes_list
        kind.value.append(value)
    # The order of a map's entries is otherwise that of a hash table.
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def read_lengths(path: Path) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each record, header and checksums included; skips the data.

    Raises
    ------
    DataError
        If the file is no TFRecord file, or ends within a record.
    OSError
        If it cannot be read, or is no file.
    """
    require_file(path)
    with path.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        offset = number = 0
        while offset < end:
            file.seek(offset)
            size = _size(file.read(HEADER), end - offset, f"{path} record {number}")
            yield offset, size
            offset, number = offset + size, number + 1


def read_records(path: Path) -> Iterator[Record]:
    """Yield every record with the outcome of its checksum.

    Raises
    ------
    DataError
        If the file is no TFRecord file, or ends within a record.
    OSError
        If it cannot be read, or is no file.
    """
    require_file(path)
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        offset = number = 0
        while offset < end:
            size = _size(file.read(HEADER), end - offset, f"{path} record {number}")
            data = file.read(size - HEADER - FOOTER)
            yield Record(offset, data, file.read(FOOTER) == _checksum(data))
            offset, number = offset + size, number + 1


def _size(header: bytes, left: int, where: str) -> int:
    if len(header) == HEADER and header[8:] == _checksum(header[:8]):
        size = int.from_bytes(header[:8], "little") + HEADER + FOOTER
        if size <= left:
            return size
        raise DataError(f"{where}: the file ends {size - left:,} bytes too early")
    reason = "its length does not fit its checksum" if len(header) == HEADER else "cut off"
    raise DataError(f"{where}: {reason}; the file is damaged, or no TFRecord file")


def _checksum(data: bytes) -> bytes:
    crc = _packages().crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF)


class _Packages(NamedTuple):
    crc32c: Callable[[bytes], int]
    message: Any  # the module of the Example message
    DecodeError: type[Exception]


@cache
def _packages() -> _Packages:
    """Import on first use, so that image folders are read where these packages are missing."""
    try:
        from crc32c import crc32c
        from google.protobuf.message import DecodeError

        return _Packages(crc32c, _message(), DecodeError)
    except ImportError as error:
        raise NotInstalledError(
            f"TFRecord files need packages that are not installed here ({error}); run `make env`, "
            "or install the versions pinned in requirements/train.txt"
        ) from None


def _message() -> Any:
    """Load one module of the package tfrecord, and not the package.

    That imports torch where it is installed: seconds and 200 MB in every process that converts.
    """
    package = find_spec("tfrecord")
    inner = package and PathFinder.find_spec("example_pb2", package.submodule_search_locations)
    if not inner or not inner.loader:
        raise ImportError("No module named 'tfrecord'")
    module = module_from_spec(inner)
    inner.loader.exec_module(module)
    return module
