"""What a notebook shows of a folder of results."""

from pathlib import Path

import pytest

from ddl_core.errors import RecordError
from ddl_tools.analysis.result import load


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"there is no folder of results .*nowhere"):
        load("efficiency", str(tmp_path / "nowhere"))
