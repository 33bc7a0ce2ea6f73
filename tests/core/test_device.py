"""The arithmetic of a rank: single precision means single precision."""

import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.device import configure

BACKENDS = (torch.backends.cudnn, torch.backends.cuda.matmul)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_tf32_is_used_only_where_it_is_asked_for(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At the end, all that `configure` sets is as it was.
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    for backend in BACKENDS:
        monkeypatch.setattr(backend, "allow_tf32", precision != "tf32")
    configure(RunSpec(precision=precision))
    assert [one.allow_tf32 for one in BACKENDS] == [precision == "tf32"] * 2
