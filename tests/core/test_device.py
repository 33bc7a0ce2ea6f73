"""The arithmetic of a rank: TF32 where the run's precision has it, and nowhere else."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from ddl_core.config import RunSpec
from ddl_core.device import configure
from ddl_core.optim import make_optimizer
from ddl_core.step import TrainState
from ddl_core.strategies.base import Single

BACKENDS = (torch.backends.cudnn, torch.backends.cuda.matmul)


@pytest.fixture
def _restored() -> Iterator[None]:
    benchmark, before = torch.backends.cudnn.benchmark, [one.allow_tf32 for one in BACKENDS]
    yield
    torch.backends.cudnn.benchmark = benchmark
    for backend, value in zip(BACKENDS, before, strict=True):
        backend.allow_tf32 = value


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(
    ("precision", "in_convolutions", "in_products"),
    [
        ("fp32", False, False),
        ("tf32", True, True),
        ("torch", True, False),
        ("bf16", False, False),
        ("fp16", False, False),
    ],
)
def test_tf32_is_used_only_where_it_is_asked_for(
    precision: str, in_convolutions: bool, in_products: bool
) -> None:
    wanted = [in_convolutions, in_products]
    for backend, value in zip(BACKENDS, wanted, strict=True):
        backend.allow_tf32 = not value
    configure(RunSpec(precision=precision))
    assert [one.allow_tf32 for one in BACKENDS] == wanted


def test_precision_torch_is_what_torch_does_by_itself() -> None:
    code = "import torch; b = torch.backends; print(b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.usefixtures("_restored")
def test_precision_torch_computes_as_fp32_on_the_cpu() -> None:
    def gradients(precision: str) -> list[Tensor]:
        spec = RunSpec(precision=precision, device="cpu")
        configure(spec)
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))
        training = TrainState(spec, Single(spec), network, make_optimizer(spec, network))
        with training.autocast():
            training.predict(torch.randn(2, 3, 16, 16)).square().sum().backward()
        return [one.grad for one in network.parameters() if one.grad is not None]

    pairs = zip(gradients("torch"), gradients("fp32"), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
