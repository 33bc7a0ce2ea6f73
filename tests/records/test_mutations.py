"""Whatever is in one file of records, commands name it, draw the other runs, and end."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_tools.analysis.redraw import redraw
from ddl_tools.records.ledger import write_study
from ddl_tools.records.paths import STUDIES as STUDY_FILES
from ddl_tools.records.paths import RunFiles, StudyFiles, Tree, committed
from ddl_tools.records.progress import describe, fraction, read_progress
from ddl_tools.records.stored import run_dirs, stored, to_lines
from ddl_tools.study import Study
from tests.analysis.drawn import draw_only
from tests.launch.running import ddl
from tests.mutations import mutated, steady, text_of, torn

# Of each, the first runs: trained on the CPU with profiles, emulated, on a GPU, interleaved.
STUDIES = ("profile_laptop", "emulated_delays", "one_gpu", "laptop")
RUNS = 2  # of each study
DRAWN = ("comparison",)


class World:
    """A tree with some runs of each of `STUDIES`, and what its files held."""

    def __init__(self, root: Path) -> None:
        self.tree = Tree(root)
        for study in STUDIES:
            for directory in run_dirs(study, committed())[:RUNS]:
                files = RunFiles(self.tree.study(study) / directory.name)
                files.directory.mkdir(parents=True)
                run = stored(directory)
                profile = run.profile()
                files.record.write_text(text_of(run.record().content))
                lines = [text_of(one.content) + "\n" for one in run.epochs()]
                files.epochs.write_text("".join(lines))
                if profile:
                    files.profile.write_text(text_of(profile.content))
            write_study(Study.load(STUDY_FILES / f"{study}.yaml"), self.tree)
        self.contents = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def first(self, study: str) -> RunFiles:
        """Return the files of the run of a study that is changed."""
        return RunFiles(self.tree.folders(study)[0])

    def changed(self, path: Path, content: bytes) -> "World":
        """Let a file hold something else, and all others what they held."""
        for one, before in self.contents.items():
            one.parent.mkdir(parents=True, exist_ok=True)
            one.write_bytes(before)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return self


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("records"))


@pytest.fixture(autouse=True)
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few figures, into empty files: all of a study take a second."""
    draw_only(monkeypatch, *DRAWN)


def assert_survives(world: World, study: str, *, whole: int = RUNS - 1) -> None:
    """Verify, show and draw a study of which one run has been changed."""
    where = ["--results", world.tree.root]
    said = ""
    for words in (["verify", study], ["status", study]):
        found = ddl("study", *words, *where)
        assert isinstance(found.exception, SystemExit | None), found.exception
        assert found.exit_code in (0, 1)
        said += found.output
    done = redraw(world.tree, figures=world.tree.figures, studies=[study])
    assert not [line for line in done.damaged if "cannot be drawn" in line], done.damaged
    (line,) = done.lines
    assert whole == 0 or line.split("(")[1].split()[0] >= str(whole)
    for damaged in done.damaged:
        assert "damaged" in said or "plug-ins" in said, damaged


def one_of(data: st.DataObject, world: World) -> tuple[str, RunFiles]:
    study = data.draw(st.sampled_from(STUDIES))
    return study, world.first(study)


@given(data=st.data())
@steady(30)
def test_a_record(world: World, data: st.DataObject) -> None:
    study, files = one_of(data, world)
    content = data.draw(mutated(json.loads(world.contents[files.record])))
    world.changed(files.record, text_of(content).encode())
    assert_survives(world, study)


@given(data=st.data())
@steady(20)
def test_facts_of_a_record(world: World, data: st.DataObject) -> None:
    study, files = one_of(data, world)
    content = json.loads(world.contents[files.record])
    part = data.draw(st.sampled_from(["system", "provenance", "data", "attempts"]))
    content[part] = data.draw(mutated(content[part], most=3))
    world.changed(files.record, text_of(content).encode())
    assert_survives(world, study)


@given(data=st.data())
@steady(20)
def test_epochs(world: World, data: st.DataObject) -> None:
    study, files = one_of(data, world)
    rows = [json.loads(one) for one in world.contents[files.epochs].splitlines()]
    rows = data.draw(mutated(rows, most=3))
    for row in rows:
        with suppress(Exception):  # possible as far as it can be, so that others read it
            row["throughput_samples_per_s"] = row["samples"] / row["wall_s"]
    status = data.draw(st.sampled_from(["completed", "failed", "running"]))
    record = json.loads(world.contents[files.record]) | {"status": status}
    world.changed(files.epochs, "".join(text_of(row) + "\n" for row in rows).encode())
    files.record.write_text(text_of(record))
    assert_survives(world, study)


@given(data=st.data())
@steady(10)
def test_bytes(world: World, data: st.DataObject) -> None:
    study, files = one_of(data, world)
    names = [files.record, files.epochs, world.tree.asked(study)]
    path = data.draw(st.sampled_from(names))
    world.changed(path, data.draw(torn(world.contents[path])))
    assert_survives(world, study)


@given(data=st.data())
@steady(10)
def test_a_profile(world: World, data: st.DataObject) -> None:
    files = world.first("profile_laptop")
    content = data.draw(mutated(json.loads(world.contents[files.profile])))
    world.changed(files.profile, text_of(content).encode())
    assert_survives(world, "profile_laptop")


@given(data=st.data())
@steady(10)
def test_a_study_that_was_kept(world: World, data: st.DataObject) -> None:
    study, _ = one_of(data, world)
    path = world.tree.asked(study)
    content = data.draw(mutated(json.loads(world.contents[path])))
    world.changed(path, text_of(content).encode())
    assert_survives(world, study, whole=0)


@given(data=st.data())
@steady(10)
def test_published_lines(world: World, data: st.DataObject) -> None:
    study, files = one_of(data, world)
    world.changed(files.record, world.contents[files.record])
    lines = to_lines(world.tree.folders(study))
    for folder in world.tree.folders(study):
        shutil.rmtree(folder)
    for name, content in lines.items():
        (world.tree.study(study) / name).write_bytes(content)
    try:
        path = data.draw(st.sampled_from(StudyFiles(world.tree.study(study)).lines[:2]))
        rows = [json.loads(one) for one in path.read_bytes().splitlines()]
        if data.draw(st.booleans()):
            rows[0] = data.draw(mutated(rows[0]))
            path.write_text("".join(text_of(row) + "\n" for row in rows))
        else:
            path.write_bytes(data.draw(torn(path.read_bytes())))
        assert_survives(world, study, whole=0)
    finally:
        for path in StudyFiles(world.tree.study(study)).lines:
            path.unlink()
        world.changed(files.record, world.contents[files.record])


STANDING = {
    "phase": "train", "epoch": 0, "epochs": 4, "step": 1, "steps": 9, "images_per_s": 2.5,
    "stage": None, "what": "", "time_utc": "2026-01-01T00:00:00Z",
}  # fmt: skip


@given(content=mutated(STANDING), tears=st.booleans(), data=st.data())
@steady(50)
def test_a_progress(
    content: Any, tears: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = RunFiles(tmp_path_factory.getbasetemp())
    text = text_of(content).encode()
    files.progress.write_bytes(data.draw(torn(text)) if tears else text)
    assert isinstance(describe(read_progress(files.directory)), str)
    assert 0 <= fraction(read_progress(files.directory)) <= 1
