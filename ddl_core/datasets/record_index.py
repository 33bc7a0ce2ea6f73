"""DALI's index of a TFRecord file: a line ``offset size`` per record, as tfrecord2idx writes it."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ddl_core.datasets.manifest import write_whole
from ddl_core.datasets.parallel import stream
from ddl_core.datasets.shard_names import PREFIXES, shards_in
from ddl_core.datasets.tfrecord import read_lengths
from ddl_core.errors import DataError

FOLDER = "index"

Places = NDArray[np.int64]  # one row per record: offset, size


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


def make_indices(
    folder: str | Path, *, progress: bool = True, processes: int | None = None
) -> tuple[int, int]:
    """Write the indices that TFRecord files in `folder` lack; return how many made and kept.

    Parameters
    ----------
    folder
        Holds ``train-*-of-*`` and ``validation-*-of-*``; receives ``index/*.idx``.
    progress
        Show a progress bar on stderr.
    processes
        Default: one per usable core.

    Raises
    ------
    DataError
        If there are no TFRecord files, if one is damaged, or if the folder is not writable.
    """
    root = Path(folder).absolute()
    shards = [root / name for split in PREFIXES for name in shards_in(root, split)]
    if not shards:
        raise DataError(f"{root} has no files train-*-of-* or validation-*-of-*")
    todo = [shard for shard in shards if not index_fits(shard)]
    with tqdm(total=len(todo), desc="index", unit="file", disable=not progress) as bar:
        for _ in stream(_make_index, todo, processes):
            bar.update()
    return len(todo), len(shards) - len(todo)


def index_fits(shard: Path) -> bool:
    """Tell whether a shard has an index that fits it."""
    try:
        read_index(shard)
    except DataError:
        return False
    return True


def _make_index(shard: Path) -> None:
    try:
        places = list(read_lengths(shard))
    except OSError as error:
        raise DataError(f"cannot read {shard}: {error.strerror}") from None
    try:
        write_index(shard, places)
    except OSError as error:
        folder = index_path(shard).parent
        raise DataError(
            f"cannot write into {folder}: {error.strerror}; where the files may not be "
            "accompanied, make a folder of symbolic links and index that:\n"
            f"  mkdir links && ln -s {shard.parent}/train-* {shard.parent}/validation-* links/ "
            "&& ddl data index links"
        ) from None
