"""Make the indices that TFRecord files lack, as published ones do."""

from pathlib import Path

from tqdm import tqdm

from ddl_core.datasets.bulk import stream
from ddl_core.datasets.shards import PREFIXES, index_path, read_index, shards_in, write_index
from ddl_core.datasets.tfrecord import read_lengths
from ddl_core.errors import DataError


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
