"""The committed tables and figures are what the committed records give, byte for byte."""

import shutil
from pathlib import Path

import pytest

from ddl_core.analysis.redraw import redraw
from ddl_core.records.paths import FIGURES, Tree, committed


@pytest.mark.slow
def test_tables_and_figures_are_those_of_the_records(tmp_path: Path) -> None:
    shutil.copytree(committed().runs, tmp_path / "runs")
    drawn = redraw(Tree(tmp_path), figures=tmp_path / "figures")
    assert sorted(path.name for path in drawn) == sorted(path.name for path in FIGURES.iterdir())
    for path in drawn:
        assert path.read_bytes() == (FIGURES / path.name).read_bytes(), f"run make figures: {path}"
    written = sorted((tmp_path / "tables").glob("**/*.csv"))
    tables = committed().tables
    kept = sorted(tables.glob("**/*.csv"))
    assert [path.relative_to(tmp_path / "tables") for path in written] == [
        path.relative_to(tables) for path in kept
    ]
    for path, table in zip(written, kept, strict=True):
        assert path.read_bytes() == table.read_bytes(), f"run make figures: {table}"
