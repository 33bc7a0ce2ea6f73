"""Making the sample set and converting it: whole, repeatable, resumable, with clear errors."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from ddl_core.errors import DataError
from ddl_tools.datasets import convert, sample
from ddl_tools.datasets.output import parallel, unfinished
from tests.datasets.conftest import IN_PROCESS, SHARDS, SMALL, contents, fail_after


class Maker(NamedTuple):
    make: Callable[..., int]
    finished: Path
    module: ModuleType
    step: str  # its function that makes an image or a shard
    is_whole: bool  # nothing is in the folder until all is


@pytest.fixture(params=["sample", "records"])
def maker(request, finished_sample, finished_records) -> Maker:
    def make(folder: Path, **options) -> int:
        return sample.make_sample(folder, **{**SMALL, **IN_PROCESS, **options})

    def convert_(folder: Path, processes: int = 1, **options) -> int:
        made = convert.plan_conversion(finished_sample, folder, **SHARDS, **options)
        return made.run(processes=processes)

    if request.param == "sample":
        return Maker(make, finished_sample, sample, "_make_image", True)
    return Maker(convert_, finished_records, convert, "_make_shard", False)


def stamps(folder: Path) -> dict[str, int]:
    """Return when each file was written, but for those that describe the set."""
    files = (path for path in folder.rglob("*") if path.suffix != ".json" and path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}


@pytest.mark.multiprocess
def test_the_bytes_do_not_depend_on_the_processes(maker: Maker, tmp_path: Path) -> None:
    maker.make(tmp_path / "set", processes=2)
    assert contents(tmp_path / "set") == contents(maker.finished)


def test_a_second_call_does_nothing(maker: Maker) -> None:
    before = stamps(maker.finished)
    assert maker.make(maker.finished) == 0
    assert stamps(maker.finished) == before


def test_an_interrupted_call_continues(maker: Maker, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "set"
    part = unfinished(folder) if maker.is_whole else folder
    with monkeypatch.context() as patch:
        error = OSError(errno.EROFS, "Read-only file system")
        fail_after(patch, maker.module, maker.step, error, 2)
        with pytest.raises(DataError, match=r"set: Read-only .*; the set needs \d MB; .* choose"):
            maker.make(folder)
    assert folder.exists() is not maker.is_whole
    before = stamps(part)
    assert before
    (part / max(before)).with_name(".killed.1.part").touch()
    maker.make(folder)
    assert before.items() <= stamps(folder).items()
    assert contents(folder) == contents(maker.finished)


def test_other_settings_are_refused(maker: Maker) -> None:
    with pytest.raises(DataError, match="seed = 0, not 3; ask for the same settings"):
        maker.make(maker.finished, seed=3)


def test_files_of_the_user_are_not_touched(maker: Maker, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.touch()
    with pytest.raises(DataError, match="not empty and was not made by"):
        maker.make(tmp_path)
    assert [*tmp_path.iterdir()] == [thesis]


def test_a_full_disk_is_found_before_anything_is_written(maker, tmp_path, monkeypatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match=r"set: not enough free space; the set needs \d MB; free"):
        maker.make(tmp_path / "set")
    assert not list(tmp_path.iterdir())


def double(number: int) -> int:
    return 2 * number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.multiprocess
def test_parallel_work_keeps_the_order_and_ends_with_the_first_error() -> None:
    options = {"processes": 2}
    assert list(parallel(double, range(100), "test", **options)) == list(range(0, 200, 2))
    with pytest.raises(DataError, match="2 processes was killed"):
        list(parallel(die, range(10), "test", **options))
