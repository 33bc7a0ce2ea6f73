"""Write the images of a TFRecord set back into folders, byte for byte."""

import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tqdm import tqdm

from ddl_core.datasets.bulk import alone, explained, require_space, stream
from ddl_core.datasets.manifest import write_whole
from ddl_core.datasets.sample import SPLITS
from ddl_core.datasets.shards import RecordList, list_records, shards_in
from ddl_core.datasets.tfrecord import ENCODED, FILENAME, SYNSET, Example, Record, read_records
from ddl_core.errors import DataError

LOCK = ".extracting.lock"
ORIGIN = ".extracted"  # holds the fingerprint of what the folder was extracted from


class _Task(NamedTuple):
    shard: Path
    split_dir: Path
    classes: tuple[str, ...]


def extract(
    folder: str | Path,
    out_dir: str | Path,
    *,
    progress: bool = True,
    processes: int | None = None,
) -> int:
    """Write ``train/<class>/<file>`` and ``val/<class>/<file>``; return the number of images.

    Classes are named by ``shards.jsonl``, else by the records' synsets; files by the records.
    An interrupted extraction continues.

    Parameters
    ----------
    folder
        A TFRecord set with indices.
    out_dir
        New, empty, or of an extraction of the same set.
    progress
        Show a progress bar on stderr.
    processes
        Default: one per usable core.

    Raises
    ------
    DataError
        If the set is not whole, if a record is damaged or does not say what its class and file
        are, or if the folder is not writable, too full, or holds something else.
    """
    root, out = Path(folder).absolute(), Path(out_dir).absolute()
    present = [split for split in SPLITS if shards_in(root, split)]
    lists = {split: list_records(root, split) for split in present or SPLITS}
    size = sum(
        (root / name).stat().st_size for records in lists.values() for name in records.shards
    )
    origin = "\n".join(records.fingerprint() for records in lists.values())
    with explained(f"extract into {out}", size):
        out.mkdir(parents=True, exist_ok=True)
        _require_ours(out, origin)
        with alone(out / LOCK):
            write_whole(out / ORIGIN, origin.encode())
            require_space(out, size - _used(out))
            _write(lists, out, progress, processes)
    for split, records in lists.items():
        _require_all(out / split, len(records))
    return sum(map(len, lists.values()))


def _require_ours(out: Path, origin: str) -> None:
    marker = out / ORIGIN
    there = marker.read_text() if marker.exists() else None
    names = {path.name for path in out.iterdir()} - {LOCK}
    if there != origin and names:
        raise DataError(
            f"{out} is not empty and does not come from these records; choose another folder"
        )


def _used(out: Path) -> int:
    folders = os.walk(out)
    return sum((Path(top) / name).stat().st_size for top, _, names in folders for name in names)


def _write(lists: dict[str, RecordList], out: Path, progress: bool, processes: int | None) -> None:
    tasks = (
        _Task(records.folder / name, out / split, records.classes)
        for split, records in lists.items()
        for name in records.shards
    )
    total = sum(map(len, lists.values()))
    with tqdm(total=total, desc="extract", unit="img", disable=not progress) as bar:
        for count in stream(_extract_shard, tasks, processes):
            bar.update(count)


def _require_all(split_dir: Path, records: int) -> None:
    files = sum(len(names) for _, _, names in os.walk(split_dir))
    if files < records:
        raise DataError(
            f"{records:,} records made {files:,} files in {split_dir}: some have the same class "
            "and file name"
        )


def _extract_shard(task: _Task) -> int:
    count = 0
    for count, record in enumerate(read_records(task.shard), 1):
        try:
            name, content = _file(record, task.classes)
        except ValueError as error:
            raise DataError(f"{task.shard} record {count - 1}: {error}") from None
        path = task.split_dir / name
        if not path.exists() or path.stat().st_size != len(content):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
    return count


def _file(record: Record, classes: tuple[str, ...]) -> tuple[PurePosixPath, bytes]:
    if not record.intact:
        raise ValueError("the data do not fit their checksum")
    features = Example(record.data)
    if classes:
        label = features.label()
        if label >= len(classes):
            raise ValueError(f"label {label + 1} of {len(classes)} classes")
        folder = classes[label]
    else:
        folder = os.fsdecode(features.blob(SYNSET))
    file = PurePosixPath(os.fsdecode(features.blob(FILENAME)))
    # A file may come from anywhere: it must not write anywhere.
    if not file.name or file.is_absolute() or ".." in file.parts or not _is_plain(folder):
        raise ValueError(f"{folder!r} and {str(file)!r} do not name a file in a class folder")
    return folder / file, features.blob(ENCODED)


def _is_plain(folder: str) -> bool:
    return folder not in ("", ".", "..") and "/" not in folder
