"""From records to files: all of them, the same bytes, without torch."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from ddl_core.analysis.plot.canvas import save_figure
from ddl_core.analysis.questions import QUESTIONS
from ddl_core.analysis.redraw import not_drawn, redraw
from ddl_core.errors import RecordError
from ddl_core.records.paths import PROJECT, Tree
from tests.analysis.conftest import MakeRun

# Without runs of ours these show what is stated; the others nothing.
OF_THE_PAPER = {
    "throughput_vs_workers",
    "efficiency_native",
    "efficiency_dali",
    "efficiency_by_model",
    "efficiency_by_loader",
    "kernel_shares",
    "scaling_prediction",
    "schedules",
    "accuracy_vs_batch_size",
}

REDRAW = """
import sys
from pathlib import Path
from ddl_core.analysis.redraw import redraw
from ddl_core.records.paths import Tree
redraw(Tree(Path(sys.argv[1])), figures=Path(sys.argv[2]))
assert "torch" not in sys.modules
assert not sys.modules["matplotlib.pyplot"].get_fignums()  # seaborn imports it
"""


def redraw_in_new_process(tree: Tree, figures: Path, seed: str, folder: Path) -> dict[str, str]:
    subprocess.run(
        [sys.executable, "-c", REDRAW, str(tree.root), str(figures)],
        check=True,
        cwd=folder,
        env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(PROJECT)},
    )
    places = {path.name: path for path in figures.iterdir()}
    places |= {str(path.relative_to(tree.root)): path for path in tree.tables.glob("**/*.csv")}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in places.items()}


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tree: Tree, laptop: MakeRun, tmp_path: Path) -> None:
    laptop(status="failed", rows=[], repeat=8)
    first = redraw_in_new_process(tree, tmp_path / "a", "1", tmp_path)
    second = redraw_in_new_process(tree, tmp_path / "b", "2", PROJECT)
    assert first == second
    figures = len(QUESTIONS) - 2  # no study of accuracy, so no learning_curves; no turns: no ratios
    assert len(first) == 4 * figures + 2  # a table, and one of windows


def test_redraw_without_runs_draws_the_paper(tmp_path: Path) -> None:
    written = redraw(Tree(tmp_path / "none"), figures=tmp_path / "figures")
    assert sorted(path.name for path in written) == sorted(
        f"{name}.{kind}" for name in OF_THE_PAPER for kind in ("svg", "pdf", "png", "csv")
    )
    assert all(path.stat().st_size for path in written)
    assert not (tmp_path / "none").exists()
    table = pd.read_csv(tmp_path / "figures" / "efficiency_native.csv")
    assert set(table["source"]) == {"stated"}


def test_a_figure_with_nothing_in_it_is_removed_and_named(tree: Tree, laptop: MakeRun) -> None:
    drawn = redraw(tree, figures=tree.figures)
    lacking = not_drawn(drawn)
    assert {"learning_curves", "time_shares", "all_reduce"} <= set(lacking)
    assert lacking["learning_curves"] == "a study of schedules or optimisers"
    stale = tree.figures / "learning_curves.png"
    stale.write_bytes(b"of runs that are gone")
    other = tree.figures / "mine.png"
    other.write_bytes(b"drawn by somebody")
    shutil.rmtree(tree.runs)
    again = redraw(tree, figures=tree.figures)
    assert set(not_drawn(again)) == {*QUESTIONS, "time_shares", "all_reduce"} - OF_THE_PAPER
    assert set(tree.figures.iterdir()) == {*again, other}


def test_runs_that_were_all_lost_are_no_figure(tree: Tree, make_run: MakeRun) -> None:
    make_run(status="failed", rows=[])
    assert "throughput_by_arm" in not_drawn(redraw(tree, figures=tree.figures))


def small(tmp_path: Path) -> list[Path]:
    figure = Figure(figsize=(1, 1))
    figure.add_subplot().plot([1, 2])
    return save_figure(figure, pd.DataFrame({"value": [1 / 3, None]}), tmp_path / "new" / "small")


def test_files_hold_no_date_and_no_program(tmp_path: Path) -> None:
    for path in small(tmp_path):
        content = path.read_bytes()
        for word in (b"CreationDate", b"dc:date", b"Matplotlib v", b"Software", b"matplotlib.org"):
            assert word not in content, (path.name, word)


def test_numbers_are_written_with_six_digits(tmp_path: Path) -> None:
    small(tmp_path)
    assert (tmp_path / "new" / "small.csv").read_bytes() == b'value\n0.333333\n""\n'


def test_nothing_but_the_files_is_left(tmp_path: Path) -> None:
    written = small(tmp_path)
    assert sorted((tmp_path / "new").iterdir()) == sorted(written)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir(mode=0o500)
    with pytest.raises(RecordError, match="cannot write"):
        small(tmp_path)


def test_place_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("")
    with pytest.raises(RecordError, match="cannot write"):
        small(tmp_path)
