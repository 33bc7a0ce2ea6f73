"""`uncached`: the files of an epoch leave the system's cache before the epoch begins."""

import os
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from tests.core.loaders.paths import DALI, FORMATS, open_loader


@pytest.fixture
def dropped(monkeypatch) -> list[Path]:
    """Return the paths, in a list that grows, of what the system is told to forget."""
    found: list[Path] = []

    def advise(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)  # all of a file
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return found


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("name", ["native", "turbo", DALI])
def test_all_files_of_an_epoch_are_dropped_once(name, data_format, data, dropped):
    for rank in (0, 1):
        fields = {"data_format": data_format, "uncached": True, "world_size": 2, "rank": rank}
        open_loader(name, data, train_images=None, **fields).set_epoch(0)
    files = set(dropped)
    if data_format == "folder":
        assert files == {path.resolve() for path in (data / "train").glob("*/*")}
        assert len(dropped) == len(files)
    else:
        assert files == {path.resolve() for path in (data / "tfrecord").glob("train-*-of-*")}


def test_by_default_the_system_keeps_what_it_has_read(data, dropped):
    open_loader("native", data).set_epoch(0)
    assert dropped == []


@pytest.mark.parametrize("loader", ["synthetic", "memory"])
def test_what_reads_no_files_in_an_epoch_is_refused(loader):
    with pytest.raises(SpecError, match=f"loader = '{loader}' with uncached = true: it reads"):
        RunSpec.parse({"loader": loader, "uncached": True})
