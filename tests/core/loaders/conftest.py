from pathlib import Path

import pytest

from tests.core.loaders.paths import make_data


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "sample")
