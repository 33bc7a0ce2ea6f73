from collections.abc import Callable
from functools import lru_cache

import pytest

from tests.frameworks.equality import STEPS, Training


@pytest.fixture(scope="module")
def trained() -> Callable[..., Training]:
    @lru_cache
    def by_torch(workers: int = 2, steps: int = STEPS, **fields) -> Training:
        return Training(fields, steps, workers)

    return by_torch
