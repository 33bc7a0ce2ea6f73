"""A rank that fails says why, and only then leaves the group: else the others complain first."""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from ddl_tools.rank import worker
from ddl_tools.records.paths import RunFiles


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(worker, "allow_open_files", lambda: None)


def main(directory: Path, execute: Callable[[Path, ExitStack], object]) -> int:
    """Run a rank that does what `execute` does."""

    class Run:
        def __init__(self, directory: Path, publish: object) -> None:
            self.directory = directory

        def execute(self, leaving: ExitStack) -> None:
            execute(self.directory, leaving)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "part", Run)
        return worker.main([str(directory)])


def test_a_failing_rank_leaves_after_it_has_said_why(tmp_path: Path) -> None:
    found: list[tuple[str, type | None]] = []

    def leave() -> None:
        told = json.loads(RunFiles(tmp_path).error.read_text())["message"]
        found.append((told, sys.exc_info()[0]))

    def execute(directory: Path, leaving: ExitStack) -> None:
        leaving.callback(leave)
        raise ValueError("planted")

    assert main(tmp_path, execute) == 1
    assert found == [("ValueError: planted", ValueError)]


@pytest.mark.parametrize("interrupted", [False, True])
def test_every_rank_leaves_once(tmp_path: Path, interrupted: bool) -> None:
    left = []

    def execute(directory: Path, leaving: ExitStack) -> None:
        leaving.callback(left.append, directory)
        if interrupted:
            raise KeyboardInterrupt

    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            main(tmp_path, execute)
    else:
        assert main(tmp_path, execute) == 0
    assert left == [tmp_path]
    assert not RunFiles(tmp_path).error.exists()
