"""CSV of tables: nothing in it is a formula, and what is read back is what was written."""

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest

from ddl_tools.analysis.csv_file import read_csv, to_csv
from ddl_tools.analysis.tables import COLUMNS, empty_table, read_table
from ddl_tools.records.paths import FIGURES, PROJECT
from tests.analysis.hostile import TEXTS

FORMULAS = ["=1+1", "+1-2", "-2+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "=", "-", "=\n1"]
PLAIN = ["'quoted'", "'=x", "''-1+2", "a=b", "<= 3", "'", "-0.5", "+3", "-1e-05", "Größe, 2", "''"]
TABLES = [*FIGURES.glob("*/*.csv"), *(PROJECT / "data" / "tables").rglob("*.csv")]


def cells(text: str) -> list[str]:
    """Return what a spreadsheet program reads."""
    return [cell for line in csv.reader(io.StringIO(text, newline="")) for cell in line]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("dtype", ["object", "string"])
def test_a_formula_becomes_a_text_and_is_read_back(dtype: str, tmp_path: Path) -> None:
    texts = [*FORMULAS, *PLAIN, *TEXTS.values(), math.nan]
    table = pd.DataFrame({"text": pd.Series(texts, dtype=dtype), "number": -1.5})
    path = tmp_path / "table.csv"
    path.write_text(to_csv(table, 9), encoding="utf-8", newline="")
    found = [one for one in cells(path.read_bytes().decode()) if one.startswith(tuple("=+-@\t\r"))]
    assert found
    assert all(map(is_number, found)), found
    again = read_csv(path, dtype={"text": dtype}, keep_default_na=False, na_values=[""])
    pd.testing.assert_frame_equal(again, table)


def test_plain_texts_and_numbers_are_written_as_they_are() -> None:
    table = pd.DataFrame(
        {"text": ["a", "-", "-0.5"], "number": [-1 / 3, None, 2.0], "n": [-1, 2, 3]}
    )
    lines = to_csv(table, 6).splitlines()
    assert lines == ["text,number,n", "a,-0.333333,-1", "'-,,2", "-0.5,2,3"]
    assert to_csv(table).splitlines()[1] == "a,-0.3333333333333333,-1"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_published_tables_hold_no_formula_and_are_read_as_before(path: Path) -> None:
    assert not [
        one for one in cells(path.read_text()) if one[:1] in "=+-@" and not is_number(one or "0")
    ]
    pd.testing.assert_frame_equal(read_csv(path), pd.read_csv(path))


def test_a_table_of_runs_keeps_its_texts(tmp_path: Path) -> None:
    table = empty_table()
    row = {name: "=1+1" if kind == "string" else None for name, kind in COLUMNS.items()}
    table = pd.concat([table, pd.DataFrame([row])]).astype(dict(COLUMNS))
    (tmp_path / "runs.csv").write_text(to_csv(table, 9))
    found = read_table(tmp_path / "runs.csv")
    pd.testing.assert_frame_equal(found, table.reset_index(drop=True))
