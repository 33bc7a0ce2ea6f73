"""Which device a rank of another framework computes on."""

import pytest

from ddl_core.errors import LaunchError
from ddl_tools import gpus
from ddl_tools.frameworks.protocol import own_gpu


@pytest.fixture
def listed(monkeypatch):
    """Let the driver list two GPUs."""
    monkeypatch.setattr(gpus, "count", lambda: 2)


@pytest.mark.parametrize(("found", "own"), [(4, 3), (2, 1), (1, 0)])
def test_a_rank_takes_its_own_of_the_gpus_that_it_is_shown(found, own) -> None:
    assert own_gpu("auto", "MXNet", found, 3) == own_gpu("cuda", "MXNet", found, 3) == own


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_framework_that_cannot_use_the_drivers_gpu_does_not_train_on_the_cpu(listed, device):
    with pytest.raises(LaunchError, match=r"MXNet sees no .*device 'cpu'"):
        own_gpu(device, "MXNet", 0, 0)


def test_the_cpu_is_taken_where_it_is_asked_for_or_all_there_is(listed, monkeypatch) -> None:
    assert own_gpu("cpu", "MXNet", 2, 0) is None
    monkeypatch.setattr(gpus, "count", lambda: 0)
    assert own_gpu("auto", "MXNet", 0, 0) is None
