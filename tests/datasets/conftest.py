import shutil
from pathlib import Path

import pytest

from ddl_core.datasets.sample import make_sample


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
