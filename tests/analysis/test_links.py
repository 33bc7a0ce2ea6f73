"""A folder of results with links in it, or that cannot be written: what is whole is shown."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from ddl_tools.launch import report
from ddl_tools.records.paths import NOTEBOOKS, StudyFiles, Tree
from ddl_tools.records.stored import to_lines
from tests.analysis.conftest import SPEC, MakeRun
from tests.analysis.drawn import draw_only
from tests.launch.fixtures import Mount
from tests.launch.running import ddl

pytestmark = pytest.mark.usefixtures("few_figures")

# Where a link leads to.
PLACES = ("elsewhere", "nowhere", "itself", "no name")
READ = ("", "run.json", "epochs.jsonl", "profile.json")  # by the commands; the folder, its files
UNREAD = ("logs", "progress.json", "error.json", ".lock", "run.ipynb", "checkpoint.pt")


Link = Callable[[Path, str], None]


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "comparison")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Write the file of a study of the two runs below."""
    content = {"name": "laptop", "question": "?", "base": SPEC, "repeats": 1}
    content["axes"] = {"strategy": ["single", "ddp"]}
    path = tmp_path / "laptop.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def runs(make_run: MakeRun) -> list[Path]:
    return [make_run(strategy=name) for name in ("single", "ddp")]


@pytest.fixture
def link(tmp_path: Path) -> Link:
    """Put a link in the place of a file or a folder, which is then elsewhere if it was there."""

    def make(path: Path, place: str) -> None:
        elsewhere = tmp_path / "elsewhere"
        if path.exists():
            path.rename(elsewhere)
        # The last is longer than the name of any file.
        places = {"elsewhere": elsewhere, "nowhere": "gone", "itself": path, "no name": "x" * 300}
        path.symlink_to(places[place])

    return make


def shown(tree: Tree, study: Path, status: int) -> list[str]:
    """Return what figures, verify and status print; the first two end with `status`."""
    where = ("--results", tree.root)
    return [
        ddl("figures", *where, status=status).output,
        ddl("study", "verify", "laptop", *where, status=status).output,
        ddl("study", "status", study, *where, status=0).output,
    ]


def drawn(tree: Tree) -> list[str]:
    table = pd.read_csv(tree.tables / "laptop.csv")
    assert (tree.figures / "laptop" / "comparison.csv").is_file()
    return sorted(table.loc[table["status"] == "completed", "strategy"])


@pytest.mark.parametrize(
    ("part", "place"),
    [*((part, "elsewhere") for part in READ[2:]), *(("", one) for one in PLACES),
     *(("run.json", one) for one in PLACES)],
)  # fmt: skip
def test_a_run_with_a_link_is_named_and_the_others_are_shown(
    tree: Tree, study: Path, runs: list[Path], link: Link, part: str, place: str
) -> None:
    linked, whole = runs
    path = linked / part
    link(path, place)
    figures, verified, status = shown(tree, study, 1)
    for text in (figures, verified):
        assert f"{path.name} is a symbolic link" in text
        assert str(linked) in text
        assert str(whole) not in text
    assert "2 records of laptop: 1 whole, 1 damaged" in verified
    assert drawn(tree) == ["ddp"]
    assert "1 completed, 1 damaged" in status
    (line,) = [line for line in status.splitlines() if line.startswith("damaged")]
    assert "is a symbolic link" in line


@pytest.mark.parametrize("part", UNREAD)
def test_a_link_that_no_command_reads_changes_nothing(
    tree: Tree, study: Path, runs: list[Path], link: Link, part: str
) -> None:
    for place in PLACES:
        link(runs[0] / part, place)
        assert "2 completed" in shown(tree, study, 0)[2]
        (runs[0] / part).unlink()
    assert drawn(tree) == ["ddp", "single"]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("form", ["folder", "lines"])
@pytest.mark.parametrize("place", PLACES)
def test_a_study_behind_a_link_is_named_and_the_others_are_drawn(
    tree: Tree, make_run: MakeRun, link: Link, form: str, place: str
) -> None:
    run = make_run(study="other")
    path = run.parent
    if form == "lines":
        path = StudyFiles(path).runs
        path.write_bytes(to_lines([run])[path.name])
    link(path, place)
    text = ddl("figures", "--results", tree.root, status=1).output
    assert f"{path} is a symbolic link" in text
    assert drawn(tree) == ["ddp", "single"]
    assert "2 whole" in ddl("study", "verify", "laptop", "--results", tree.root, status=0).output
    text = ddl("study", "verify", "other", "--results", tree.root, status=1).output
    assert f"{path} is a symbolic link" in text


@pytest.mark.usefixtures("runs")
def test_a_study_behind_a_link_is_named_and_the_others_are_used(
    tree: Tree, study: Path, make_run: MakeRun, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    make_run(study="other")
    path = tree.study("other")
    link(path, "elsewhere")
    where = ("--results", tree.root)
    content = yaml.safe_load(study.read_text())  # `plan` learns of others what varies in turns
    study.write_text(yaml.safe_dump(content | {"interleave": {"reference": {"strategy": "ddp"}}}))
    for words in (
        ("advise", "--gpus", 1),
        ("study", "plan", study, "--dry-run"),
        ("study", "submit", study, "--site", "localtest", "--dry-run"),
    ):
        caplog.clear()
        done = ddl(*words, *where)
        assert "symbolic link" not in done.output
        assert [
            one.message for one in caplog.records if f"{path} is a symbolic link" in one.message
        ]


@pytest.mark.notebook
@pytest.mark.usefixtures("runs")
def test_a_report_names_a_study_behind_a_link(
    tree: Tree, make_run: MakeRun, link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(study="another")
    link(tree.study("another"), "elsewhere")
    (tmp_path / "notebooks").mkdir()
    shutil.copy(NOTEBOOKS / "11_throughput.ipynb", tmp_path / "notebooks")
    monkeypatch.setattr(report, "NOTEBOOKS", tmp_path / "notebooks")
    ddl("report", "--results", tree.root, "--to", tmp_path / "sent", status=0)
    index = (tmp_path / "sent" / "index.html").read_text()
    assert f"{tree.study('another')} is a symbolic link" in index
    assert "laptop" in index
    assert "Study laptop" in re.sub(
        "<[^>]*>", "", (tmp_path / "sent" / "11_throughput.html").read_text()
    )


def test_a_damaged_run_behind_a_link_is_not_set_aside_there(
    tree: Tree, study: Path, link: Link
) -> None:
    content = yaml.safe_load(study.read_text())
    content["base"]["loader"] = "synthetic"
    content["axes"]["strategy"] = ["single"]
    study.write_text(yaml.safe_dump(content))
    ddl("study", "plan", study, "--results", tree.root, status=0)
    (run,) = tree.folders("laptop")
    link(run, "elsewhere")
    before = {path: path.stat().st_ino for path in run.iterdir()}
    text = ddl("study", "resume", study, "--results", tree.root, status=1).output
    assert f"{run} is a symbolic link" in text
    assert {path: path.stat().st_ino for path in run.iterdir()} == before


def test_results_that_cannot_be_written_are_shown_and_drawn_elsewhere(
    study: Path, tmp_path: Path, mount: Mount, tree: Tree, runs: list[Path]
) -> None:
    place = tree.root
    if os.geteuid() == 0:  # whom permissions do not keep from writing
        place = mount("size=4m")
        subprocess.run(["cp", "-r", f"{tree.root}/.", place], check=True)
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    else:
        for folder in (tree.root, tree.runs, tree.study("laptop"), *runs):
            folder.chmod(0o555)
    where = ("--results", place)
    text = ddl("figures", *where, status=1).output
    assert f"cannot write {place}" in text
    ddl("figures", *where, "--to", tmp_path / "mine", status=0)
    assert (tmp_path / "mine" / "figures" / "laptop" / "comparison.csv").is_file()
    assert "2 whole" in ddl("study", "verify", "laptop", *where, status=0).output
    assert "2 completed" in ddl("study", "status", study, *where, status=0).output
    if os.geteuid() != 0:
        for folder in (tree.root, tree.runs, tree.study("laptop"), *runs):
            folder.chmod(0o755)
