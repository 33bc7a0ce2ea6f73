"""What a user names as an output: a file or folder that `ddl` did not write is not replaced."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import Result

from ddl_core.errors import RecordError
from ddl_tools.records.paths import Tree, results
from ddl_tools.records.storage import require_ours
from tests.analysis.test_nsys import report
from tests.cli.bad_inputs import commands
from tests.datasets.test_write import Split
from tests.launch.running import ddl, finish, planned
from tests.pictures import write_pictures

ADVICE = ("advise", "--site", "juwels_booster", "--gpus", 64, "--figure")
PAGES = ("proposal.md", "proposal.tex", "proposal.pdf", "efficiency.csv", "efficiency.png")
Call = Callable[..., Result]


def _import(folder: Path, *words: object) -> Result:
    return ddl("profile", "import", report(folder, rank=0), "--csv", folder / "out.csv", *words)


def _advise(folder: Path, *words: object) -> Result:
    return ddl(*ADVICE, folder / "out", *words)


def _propose(folder: Path, *words: object) -> Result:
    return ddl("proposal", "related_malik2018", "--to", folder, *words)


# Options that name files: what is called, and the files that it writes.
FILES: dict[str, tuple[Call, tuple[str, ...]]] = {
    "profile import --csv": (_import, ("out.csv",)),
    "advise --figure": (_advise, ("out.csv", "out.png", "out.pdf", "out.svg")),
    "proposal --to": (_propose, PAGES),
}
# Parameters that name folders to write: what is called with `folder`, which is not empty.
FOLDERS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "data sample folder": lambda folder: ("data", "sample", folder),
    "data import folder": lambda folder: ("data", "import", "digits", folder),
    "data write folder": lambda folder: ("data", "write", "tests.cli.test_outputs:work", folder),
    "data convert --out": lambda folder: ("data", "convert", folder.parent, "--out", folder),
    "study export folder": lambda folder: ("study", "export", "one_gpu", folder),
    "report --to": lambda folder: ("report", "--results", folder.parent, "--to", folder),
}
# The rest: tests of their own (figures, kernel), records, or nothing that is written.
OTHERS = {
    *("figures --results", "figures --to", "report --results", "kernel install --prefix"),
    *("advise --results", "doctor --show", "bench loader --data", "profile import files"),
    "proposal --results",
    *("data import --source", "data convert folder", "data index folder", "data verify folder"),
    *(f"{name} --{kind}" for kind in ("results", "data") for name in
      ("run", "recommend", "doctor", "study plan", "study run", "study resume", "study submit")),
    *(f"study {name} --results" for name in
      ("status", "verify", "compare", "publish", "cancel")),
}  # fmt: skip


def work() -> None:
    """Be a function of images that is not to be called."""
    raise AssertionError("the folder is looked at first")


def tiny() -> dict[str, Split]:
    """Return a set of one image in each part."""
    return dict.fromkeys(("train", "val"), Split([np.zeros((8, 8, 3), np.uint8)]))


def paths() -> set[str]:
    """Return the parameters of `ddl` that name files or folders."""
    return {
        f"{' '.join(words)} {one.opts[0]}"
        for words, command in commands().items()
        for one in command.params
        if isinstance(one.type, click.Path)
    }


def test_every_parameter_that_names_a_path_is_known_here() -> None:
    assert paths() == {*FILES, *FOLDERS, *OTHERS}


@pytest.mark.parametrize(
    ("option", "name"), [(one, name) for one, (_, names) in FILES.items() for name in names]
)
def test_a_file_of_the_users_stays_unless_they_say_so(
    option: str, name: str, tmp_path: Path
) -> None:
    call, names = FILES[option]
    mine = tmp_path / name
    mine.write_text("my thesis\n")
    done = call(tmp_path)
    assert done.exit_code == 1
    assert f"{mine} was not written by `ddl`" in done.output
    assert "--overwrite" in done.output
    assert mine.read_text() == "my thesis\n"
    assert [one for one in names if (tmp_path / one).exists()] == [name]
    assert call(tmp_path, "--overwrite").exit_code == 0
    assert mine.read_bytes()[:9] != b"my thesis"


@pytest.mark.parametrize("option", FILES)
def test_a_file_of_the_same_command_is_replaced(option: str, tmp_path: Path) -> None:
    call, (table, *_) = FILES[option]
    assert call(tmp_path).exit_code == 0
    before = (tmp_path / table).read_bytes()
    (tmp_path / table).write_bytes(before + b"older rows\n")
    assert call(tmp_path).exit_code == 0
    assert (tmp_path / table).read_bytes() == before


@pytest.mark.parametrize("option", FILES)
@pytest.mark.parametrize("words", [(), ("--overwrite",)])
def test_what_is_no_file_is_never_replaced(option: str, words: Any, tmp_path: Path) -> None:
    call, (table, *_) = FILES[option]
    path = tmp_path / table
    path.symlink_to("/dev/full")
    done = call(tmp_path, *words)
    assert done.exit_code == 1
    assert "it is not a plain file" in done.output
    assert path.is_symlink()


@pytest.mark.parametrize("option", FOLDERS)
def test_a_folder_of_the_users_stays(option: str, tmp_path: Path) -> None:
    planned()
    write_pictures(tmp_path / "results", 6, 6)
    folder = tmp_path / "results" / "mine"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("my thesis")
    done = ddl(*FOLDERS[option](folder))
    assert done.exit_code == 1, done.output
    assert str(folder) in done.output
    if option == "report --to":
        assert "or choose another place with --to DIR" in done.output
    assert [path.name for path in folder.rglob("*")] == ["thesis.txt"]


# What is called with a place that cannot be written, and what the error advises.
PLACES: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "data sample folder": FOLDERS["data sample folder"],
    "data import folder": FOLDERS["data import folder"],
    "data write folder": lambda path: ("data", "write", "tests.cli.test_outputs:tiny", path),
    "data convert --out": lambda path: ("data", "convert", path.parents[1], "--out", path),
    "profile import --csv": lambda path: (
        "profile", "import", report(path.parents[1], rank=0), "--csv", path),
    "advise --figure": lambda path: (*ADVICE, path),
    "proposal --to": lambda path: ("proposal", "related_malik2018", "--to", path),
    "figures --to": lambda path: ("figures", "--results", results().root, "--to", path),
    "run --results": lambda path: ("run", "--loader", "synthetic", "--results", path),
}  # fmt: skip
ADVISED = {
    **{f"data {name} folder": "for DIR" for name in ("sample", "import", "write")},
    "profile import --csv": "with --csv OUT",
    "advise --figure": "with --figure FILE",
}


@pytest.mark.parametrize("option", PLACES)
def test_an_error_of_writing_advises_the_option_of_its_command(option: str, tmp_path: Path) -> None:
    planned()
    write_pictures(tmp_path, 6, 6)
    (tmp_path / "file").write_text("")
    done = ddl(*PLACES[option](tmp_path / "file" / "below"))
    assert done.exit_code == 1, done.output
    advised = ADVISED.get(option, f"with {option.split()[-1]} DIR")
    assert f"choose another place {advised}\n" in done.output


def test_an_error_of_writing_advises_no_option_that_the_command_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("ddl_tools.cli.study.committed", lambda: Tree(tmp_path / "file"))
    finish(planned())
    done = ddl("study", "publish", "test", status=1)
    assert "cannot write" in done.output
    assert "another place" not in done.output


def test_nothing_of_an_unknown_kind_is_taken_for_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("")  # what begins with nothing, begins as anything
    with pytest.raises(RecordError, match="move it away"):
        require_ours(path, None)
