"""The committed tables and figures are what the committed records give, byte for byte."""

import shutil
from pathlib import Path

import pytest

from ddl_tools.analysis import result_page
from ddl_tools.analysis.configurations import with_settings
from ddl_tools.analysis.redraw import redraw
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import FIGURES, Tree, committed
from ddl_tools.records.run import read_epochs, read_record


@pytest.mark.slow
@pytest.mark.timeout(900)  # all figures of all studies
def test_tables_figures_and_pages_are_those_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_page, "PROJECT", tmp_path)  # links are relative to it
    tree = Tree(tmp_path / "data")
    shutil.copytree(committed().runs, tree.runs)
    if committed().notes.exists():
        shutil.copy(committed().notes, tree.notes)
    done = redraw(tree, figures=tmp_path / "figures")
    assert done.damaged == []
    drawn = [path.relative_to(tmp_path / "figures") for path in [*done.files, *done.pages]]
    there = [path.relative_to(FIGURES) for path in FIGURES.rglob("*") if path.is_file()]
    assert sorted(drawn) == sorted(there)
    for path in drawn:
        new = (tmp_path / "figures" / path).read_bytes()
        assert new == (FIGURES / path).read_bytes(), f"run make figures: {path}"
    written = sorted(tree.tables.glob("**/*.csv"))
    tables = committed().tables
    kept = sorted(tables.glob("**/*.csv"))
    assert [path.relative_to(tree.tables) for path in written] == [
        path.relative_to(tables) for path in kept
    ]
    for path, table in zip(written, kept, strict=True):
        assert path.read_bytes() == table.read_bytes(), f"run make figures: {table}"


@pytest.mark.parametrize("study", ["related_mahon2020", "related_malik2018"])
def test_a_configuration_of_the_related_papers_is_one_at_every_size(study: str) -> None:
    """The record of how a strategy communicates must not depend on the number of workers."""
    runs = runs_table(committed().runs)
    runs = with_settings(runs[runs["study"] == study])
    groups = runs.groupby(["framework", "strategy", "model", "local_batch_size"])
    assert groups["world_size"].nunique().max() == 2
    assert groups["setting"].nunique().eq(1).all()


def test_libraries_have_trained_alike() -> None:
    """docs/reference/frameworks.md says so of the published study."""
    losses: dict[int, list[float]] = {}
    weights: dict[tuple[int, str], set[str | None]] = {}
    for run_dir in committed().run_folders("libraries"):
        record = read_record(run_dir)
        trained = [row for row in read_epochs(run_dir) if row.phase == "train"]
        assert sum(row.steps for row in trained) == 216
        repeat, library = record.spec.repeat, record.spec.framework
        losses.setdefault(repeat, []).append(trained[-1].loss or 0.0)
        weights.setdefault((repeat, library), set()).add(record.weights_sha256)
    assert [len(found) for found in losses.values()] == [7, 7, 7]
    assert all(max(found) < 1.01 * min(found) for found in losses.values())
    assert {len(found) for found in weights.values()} == {1}
