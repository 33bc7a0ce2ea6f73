"""CSV of tables: no text in it is a formula to a spreadsheet program, and all are read back."""

import csv
import re
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pandas as pd

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def to_csv(table: pd.DataFrame, digits: int | None = None) -> str:
    """Return a table as CSV, its floats with so many significant digits, by default all.

    A text that a spreadsheet program would compute gets an apostrophe before it; numbers stay.
    """
    guarded = table.copy(deep=False)
    for name, column in table.items():
        cells = [*column]
        texts = [*map(_guarded, cells)]
        if any(text is not cell for text, cell in zip(texts, cells, strict=True)):
            guarded[name] = pd.Series(texts, column.index, dtype="object")
    has_returns = any(isinstance(one, str) and "\r" in one for one in guarded.to_numpy().flat)
    text = guarded.to_csv(
        index=False,
        float_format=f"%.{digits}g" if digits else None,
        lineterminator="\n",
        # Without quotes, a carriage return would begin a new line.
        quoting=csv.QUOTE_ALL if has_returns else csv.QUOTE_MINIMAL,
    )
    return str(text)


def read_csv(path: Path | IO[str], **options: Any) -> pd.DataFrame:
    """Read what `to_csv` wrote, with its texts as they were; `options` are those of pandas."""
    table = pd.read_csv(path, lineterminator="\n", **options)
    for name in table.columns[[not pd.api.types.is_numeric_dtype(one) for one in table.dtypes]]:
        table[name] = table[name].map(_plain, na_action="ignore").astype(table[name].dtype)
    return table


def _guarded(cell: Any) -> Any:
    if not isinstance(cell, str) or not _FORMULA.match(cell):
        return cell
    with suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"


def _plain(cell: Any) -> Any:
    has_guard = isinstance(cell, str) and cell.startswith("'") and _FORMULA.match(cell, 1)
    return cell[1:] if has_guard else cell
