"""Write TFRecord files and their indices, and read them record by record with checksums."""

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ddl_core.data.tfrecord import FOOTER, HEADER, example_class, index_path, optional
from ddl_core.errors import DataError
from ddl_core.files import replacing, require_file

SYNSET = "image/class/synset"
FILENAME = "image/filename"
MASK_DELTA = 0xA282EAD8  # checksums are stored rotated and shifted by this

Value = int | bytes


class Record(NamedTuple):
    """One record of a file; `intact` is whether its data match their checksum."""

    offset: int
    data: bytes
    intact: bool


def example(features: Mapping[str, Value]) -> bytes:
    """Return an Example of these features: always the same bytes for the same features."""
    message = example_class()()
    for name, value in features.items():
        feature = message.features.feature[name]
        kind = feature.int64_list if isinstance(value, int) else feature.bytes_list
        kind.value.append(value)
    # The order of a map's entries is otherwise that of a hash table.
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def frame(data: bytes) -> bytes:
    """Return the record that holds `data`."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def write_index(shard: Path, places: Iterable[tuple[int, int]]) -> None:
    """Write the index of a shard, whole or not at all."""
    path = index_path(shard)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, sync=False) as file:
        file.write("".join(f"{offset} {size}\n" for offset, size in places).encode())


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
    crc = optional("crc32c").crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF)
