"""The numbers that others state, as data/paper and data/published have them, without pandas."""

import csv
from pathlib import Path

from ddl_core.errors import DataError

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table of text.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; it belongs to the repository, restore it with "
            "`git checkout data`"
        ) from None
