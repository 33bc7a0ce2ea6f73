"""The committed tables and figures are what the committed records give, byte for byte."""

import shutil
from pathlib import Path

import pytest

from ddl_core.analysis.redraw import redraw
from ddl_core.records.paths import FIGURES, Tree, committed


@pytest.mark.slow
def test_tables_and_figures_are_those_of_the_records(tmp_path: Path) -> None:
    shutil.copytree(committed().runs, tmp_path / "runs")
    done = redraw(Tree(tmp_path), figures=tmp_path / "figures")
    assert done.damaged == []
    drawn = [path.relative_to(tmp_path / "figures") for path in done.files]
    there = [path.relative_to(FIGURES) for path in FIGURES.rglob("*") if path.is_file()]
    assert sorted(drawn) == sorted(there)
    for path in drawn:
        new = (tmp_path / "figures" / path).read_bytes()
        assert new == (FIGURES / path).read_bytes(), f"run make figures: {path}"
    written = sorted((tmp_path / "tables").glob("**/*.csv"))
    tables = committed().tables
    kept = sorted(tables.glob("**/*.csv"))
    assert [path.relative_to(tmp_path / "tables") for path in written] == [
        path.relative_to(tables) for path in kept
    ]
    for path, table in zip(written, kept, strict=True):
        assert path.read_bytes() == table.read_bytes(), f"run make figures: {table}"
