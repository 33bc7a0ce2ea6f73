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
from ddl_tools.records.stored import run_dirs


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.timeout(900)  # all figures of all studies
def test_files_are_those_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_page, "PROJECT", tmp_path)  # links are relative to it
    tree = Tree(tmp_path / "data")
    shutil.copytree(committed().runs, tree.runs)
    shutil.copytree(committed().second().runs, tree.second().runs)
    if committed().notes.exists():
        shutil.copy(committed().notes, tree.notes)
    figures = tmp_path / "figures"
    done = redraw(tree, figures=figures)
    assert done.damaged == []
    assert sorted([*done.files, *done.pages]) == sorted(files(figures))
    for new, kept in ((figures, FIGURES), (tree.tables, committed().tables)):
        names = sorted(path.relative_to(kept) for path in files(kept))
        assert sorted(path.relative_to(new) for path in files(new)) == names
        for name in names:
            same = (new / name).read_bytes() == (kept / name).read_bytes()
            assert same, f"run make figures: {kept / name}"


@pytest.mark.parametrize("study", ["related_mahon2020", "related_malik2018"])
def test_a_configuration_of_the_related_papers_is_one_at_every_size(study: str) -> None:
    """The record of how a strategy communicates must not depend on the number of workers."""
    runs = runs_table(committed())
    runs = with_settings(runs[runs["study"] == study])
    groups = runs.groupby(["framework", "strategy", "model", "local_batch_size"])
    assert groups["world_size"].nunique().max() == 2
    assert groups["setting"].nunique().eq(1).all()


def test_libraries_have_trained_alike() -> None:
    """docs/reference/frameworks.md says so of the published study."""
    losses: dict[int, list[float]] = {}
    weights: dict[tuple[int, str], set[str | None]] = {}
    for run_dir in run_dirs("libraries", committed()):
        record = read_record(run_dir)
        trained = [row for row in read_epochs(run_dir) if row.phase == "train"]
        assert sum(row.steps for row in trained) == 216
        repeat, library = record.spec.repeat, record.spec.framework
        losses.setdefault(repeat, []).append(trained[-1].loss or 0.0)
        weights.setdefault((repeat, library), set()).add(record.weights_sha256)
    assert [len(found) for found in losses.values()] == [7, 7, 7]
    assert all(max(found) < 1.01 * min(found) for found in losses.values())
    assert {len(found) for found in weights.values()} == {1}
