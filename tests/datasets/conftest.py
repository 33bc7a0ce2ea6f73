import shutil
from pathlib import Path

import pytest

from ddl_tools.datasets.convert import plan_conversion
from ddl_tools.datasets.sample import make_sample


@pytest.fixture(scope="session")
def finished_sample(tmp_path_factory) -> Path:
    """The smallest sample set; not to be changed."""
    folder = tmp_path_factory.mktemp("datasets") / "sample"
    make_sample(folder, train_per_class=2, val_per_class=1, progress=False, processes=1)
    return folder


@pytest.fixture
def sample(finished_sample, tmp_path) -> Path:
    """A copy of it to be damaged."""
    return shutil.copytree(finished_sample, tmp_path / "sample")


@pytest.fixture(scope="session")
def finished_records(finished_sample, tmp_path_factory) -> Path:
    """It as TFRecord files; not to be changed."""
    folder = tmp_path_factory.mktemp("datasets") / "records"
    plan_conversion(finished_sample, folder, train_shards=3, val_shards=2).run(
        progress=False, processes=1
    )
    return folder


@pytest.fixture
def records(finished_records, tmp_path) -> Path:
    """A copy of them to be damaged."""
    return shutil.copytree(finished_records, tmp_path / "records")
