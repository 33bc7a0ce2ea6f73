import shutil
from pathlib import Path
from types import ModuleType

import pytest

from ddl_tools.datasets.convert import plan_conversion
from ddl_tools.datasets.sample import make_sample

SMALL = {"train_per_class": 2, "val_per_class": 1}
SHARDS = {"train_shards": 3, "val_shards": 2}
IN_PROCESS = {"processes": 1}


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def fail_after(patch, module: ModuleType, step: str, error: BaseException, after: int) -> None:
    """Make a function fail when it was called so often, as an interrupt or a full disk does."""
    function, left = getattr(module, step), iter(range(after))

    def fail(task):
        if next(left, None) is None:
            raise error
        return function(task)

    patch.setattr(module, step, fail)


@pytest.fixture(scope="session")
def finished_sample(tmp_path_factory) -> Path:
    """The smallest sample set; not to be changed."""
    folder = tmp_path_factory.mktemp("datasets") / "sample"
    make_sample(folder, **SMALL, **IN_PROCESS)
    return folder


@pytest.fixture
def sample(finished_sample, tmp_path) -> Path:
    """A copy of it to be damaged."""
    return shutil.copytree(finished_sample, tmp_path / "sample")


@pytest.fixture(scope="session")
def finished_records(finished_sample, tmp_path_factory) -> Path:
    """It as TFRecord files; not to be changed."""
    folder = tmp_path_factory.mktemp("datasets") / "records"
    plan_conversion(finished_sample, folder, **SHARDS).run(**IN_PROCESS)
    return folder


@pytest.fixture
def records(finished_records, tmp_path) -> Path:
    """A copy of them to be damaged."""
    return shutil.copytree(finished_records, tmp_path / "records")
