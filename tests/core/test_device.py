"""The arithmetic of a rank: single precision means single precision."""

from collections.abc import Iterator

import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.device import configure

BACKENDS = (torch.backends.cudnn, torch.backends.cuda.matmul)


@pytest.fixture
def _restored() -> Iterator[None]:
    benchmark, before = torch.backends.cudnn.benchmark, [one.allow_tf32 for one in BACKENDS]
    yield
    torch.backends.cudnn.benchmark = benchmark
    for backend, value in zip(BACKENDS, before, strict=True):
        backend.allow_tf32 = value


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_tf32_is_used_only_where_it_is_asked_for(precision: str) -> None:
    for backend in BACKENDS:
        backend.allow_tf32 = precision != "tf32"
    configure(RunSpec(precision=precision))
    assert [one.allow_tf32 for one in BACKENDS] == [precision == "tf32"] * 2
