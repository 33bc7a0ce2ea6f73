"""The TFRecord format: the records of a file, and the features of an image's record.

The features are those of the published conversions of ImageNet, so that every reader of those
reads ours, and this module reads both.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ddl_core.errors import DataError, NotInstalledError
from ddl_core.files import require_file

ENCODED = "image/encoded"
LABEL = "image/class/label"  # from 1: 0 was kept for a background class
SYNSET = "image/class/synset"
FILENAME = "image/filename"

# A record: length (8 bytes), its checksum (4), that many bytes, their checksum (4).
HEADER, FOOTER = 12, 4
MASK_DELTA = 0xA282EAD8  # checksums are stored rotated and shifted by this

# TensorFlow's Example, without the kind of values that no feature of ours has.
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

Value = int | bytes


class Record(NamedTuple):
    """One record of a file; `intact` tells whether its data match their checksum."""

    offset: int
    data: bytes
    intact: bool


class Example:
    """The features of one record; a `ValueError` if it is none, or has no such feature."""

    def __init__(self, data: bytes | memoryview) -> None:
        try:
            self._features = _message().FromString(data).features.feature
        except _import("google.protobuf.message").DecodeError:
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
    """Return the data of one whole record; its length is checked, its checksums are not."""
    stated = int.from_bytes(record[:8], "little") + HEADER + FOOTER
    if len(record) != stated:
        raise ValueError(f"{len(record)} bytes in the index, {stated} in the record's header")
    return memoryview(record)[HEADER:-FOOTER]


def example(features: Mapping[str, Value]) -> bytes:
    """Return an Example of these features: always the same bytes for the same features."""
    message = _message()()
    for name, value in features.items():
        feature = message.features.feature[name]
        kind = feature.int64_list if isinstance(value, int) else feature.bytes_list
        kind.value.append(value)
    # The order of a map's entries is otherwise that of a hash table.
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def read_lengths(path: Path) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each record, header and checksums included; skips the data.

    Raise a `DataError` if the file is no TFRecord file, or ends within a record.
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
    """Yield every record with the outcome of its checksum; errors as in `read_lengths`."""
    require_file(path)
    with path.open("rb") as file:
        for offset, size in read_lengths(path):
            file.seek(offset + HEADER)
            data = file.read(size - HEADER - FOOTER)
            yield Record(offset, data, file.read(FOOTER) == _checksum(data))


def _size(header: bytes, left: int, where: str) -> int:
    if len(header) == HEADER and header[8:] == _checksum(header[:8]):
        size = int.from_bytes(header[:8], "little") + HEADER + FOOTER
        if size <= left:
            return size
        raise DataError(f"{where}: the file ends {size - left:,} bytes too early")
    reason = "its length does not fit its checksum" if len(header) == HEADER else "cut off"
    raise DataError(f"{where}: {reason}; the file is damaged, or no TFRecord file")


def _checksum(data: bytes) -> bytes:
    crc = _import("crc32c").crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF)


@cache
def _message() -> Any:
    """Return the class Example, in a pool of its own: TensorFlow has one in the common pool."""
    text_format = _import("google.protobuf.text_format")
    description = _import("google.protobuf.descriptor_pb2").FileDescriptorProto()
    pool = _import("google.protobuf.descriptor_pool").DescriptorPool()
    pool.AddSerializedFile(text_format.Parse(EXAMPLE, description).SerializeToString())
    factory = _import("google.protobuf.message_factory")
    return factory.GetMessageClass(pool.FindMessageTypeByName("Example"))


def _import(name: str) -> Any:
    """Import a package on first use, so that image folders are read where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalledError(
            f"TFRecord files need packages that are not installed here ({error}); run `make env`, "
            "or for a library beside torch its own target, as `make tensorflow`"
        ) from None
