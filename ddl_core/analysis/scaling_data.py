"""What is read of data/scaling/, and what a figure of it shows: a panel per series and quantity.

Apart from the figures, because several show the same tables.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ddl_core.errors import DataError


class Panel(NamedTuple):
    """What a panel shows: a series of a table and a quantity of it."""

    title: str
    series: str
    quantity: str


def read_scaling(path: Path, written_by: str) -> pd.DataFrame:
    """Return a table of data/scaling/; `written_by` is the module that makes it anew.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""])
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; write it with `python -m {written_by}`"
        ) from None


def points_of(
    table: pd.DataFrame, panels: Sequence[Panel], axes: Mapping[str, str]
) -> pd.DataFrame:
    """Return the rows that the panels show, ``panel`` being title and label of the y axis.

    ``source`` is ``model`` (with low and high) or where a point is from, ``bound`` tells what of
    these is a bound.
    """
    parts = [
        table[(table["series"] == panel.series) & (table["quantity"] == panel.quantity)].assign(
            panel=f"{panel.title}: {axes[panel.quantity]}"
        )
        for panel in panels
    ]
    columns = ["panel", "source", "series", "quantity", "world_size", "bound"]
    return pd.concat(parts, ignore_index=True)[[*columns, "value", "low", "high"]]
