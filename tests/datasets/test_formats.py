"""Formats of data: one entry of the registry is all that loaders and commands need."""

import numpy as np
import pytest

from ddl_core import registry
from ddl_core.config import RunSpec
from ddl_core.data.formats import ClassFolders, format_of
from ddl_core.errors import DataError, SpecError
from ddl_core.loaders.base import open_loader
from ddl_tools.datasets.bench import CPU
from ddl_tools.datasets.convert import plan
from ddl_tools.datasets.verify import Findings, verify
from ddl_tools.doctor import machine
from ddl_tools.launch.preflight import check_data
from tests.datasets.conftest import IN_PROCESS
from tests.launch.running import ddl, study_file


class Nested(ClassFolders):
    """Class folders below a folder of their own."""

    verifier = ""

    def __init__(self, folder):
        super().__init__(folder / "inner")


class Counted(Nested):
    """The same, with a verifier."""

    verifier = f"{__name__}:count"


def count(folder, parallel):
    return {split: Findings(len(Nested(folder.parent).images(split))) for split in ("train", "val")}


@pytest.fixture
def nested(sample, tmp_path, monkeypatch):
    """A set in a format that the project does not have."""
    monkeypatch.setitem(registry.FORMATS, "nested", registry.Entry(f"{__name__}:Nested"))
    sample.rename(tmp_path / "inner")
    return tmp_path


def test_a_format_of_ones_own_is_found_checked_and_loaded(nested):
    assert format_of(nested) == "nested"
    check_data(nested, "nested")
    assert machine.data(nested, "nested").detail.startswith(f"{nested}, 16 classes")
    spec = RunSpec(data_format="nested", loader_workers=0, local_batch_size=4, image_size=32)
    loader = open_loader(spec, nested, "train", 0, 1, CPU)
    loader.set_epoch(0)
    assert sum(len(labels) for _, labels in loader) == loader.images == 32


@pytest.mark.parametrize("loader", ["dali_cpu", "dali_gpu", "synthetic"])
def test_a_loader_that_cannot_read_it_is_refused_before_a_run(nested, tmp_path, loader):
    fields = {"data_format": "nested", "dataset": "ours", "loader_workers": 1, "device": "auto"}
    path = study_file(tmp_path, **fields, loader=["native", loader])
    for command in ("plan", "run"):
        shown = ddl("study", command, path, "--data", nested, "--dry-run", status=1).output
        assert loader in shown
        assert "data_format = 'nested'" in shown
    path = study_file(tmp_path, **fields, loader=["native", "turbo"])
    ddl("study", "plan", path, "--data", nested, "--dry-run", status=0)


def test_it_is_verified_by_its_own_function(nested, monkeypatch):
    with pytest.raises(DataError, match="'nested', which `ddl data verify` cannot read"):
        verify(nested, **IN_PROCESS)
    monkeypatch.setitem(registry.FORMATS, "nested", registry.Entry(f"{__name__}:Counted"))
    assert "train: 32 images" in verify(nested, **IN_PROCESS).text()


def test_a_format_without_a_writer_is_not_written(sample):
    with pytest.raises(SpecError, match=r"cannot write data_format 'folder'.*'tfrecord'"):
        plan(sample, "folder", None)


def test_a_broken_package_of_a_format_disables_its_own_name_only(tmp_path, monkeypatch):
    monkeypatch.setitem(registry.FORMATS, "gone", registry.Entry("a_package_that_is_gone:Format"))
    assert format_of(tmp_path) == "folder"


def test_files_that_are_no_images_are_named(sample):
    folder = next((sample / "train").iterdir())
    for path in folder.iterdir():
        path.unlink()
    np.save(folder / "one.npy", np.zeros(3))
    found = [
        one.detail for one in verify(sample, **IN_PROCESS).problems if one.kind == "empty_class"
    ]
    assert found == ["other files (.npy), which verify cannot read"]
