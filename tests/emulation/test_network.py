"""The paced network: shapes of the real one, gradients that are reduced, time as asked."""

import time

import pytest
import torch
from torch import nn

from ddl_core.config import RunSpec
from ddl_core.models import drawn, resnet50
from ddl_tools.emulation.compute import of_this_rank
from ddl_tools.emulation.network import GRADIENT
from tests.fields import EMULATED


@pytest.fixture(autouse=True)
def _no_rank_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    of_this_rank.cache_clear()


def network(**fields: object) -> tuple[nn.Module, RunSpec]:
    spec = RunSpec(**{**EMULATED, "emu_step_ms": 1, **fields})
    return drawn(spec), spec


def test_its_tensors_are_those_of_resnet50_so_many_times_smaller() -> None:
    real = sorted(one.numel() for one in resnet50(1000).parameters())
    assert sorted(one.numel() for one in network(emu_shrink=1)[0].parameters()) == real
    small, spec = network(emu_shrink=64)
    sizes = [max(1, round(count / 64)) for count in real]
    assert sorted(one.numel() for one in small.parameters()) == sizes
    assert of_this_rank(spec).gradient_bytes == 4 * sum(sizes)


def test_each_gradient_comes_after_its_layer_s_time_the_first_layer_s_last() -> None:
    model, spec = network(emu_step_ms=300)
    moments: list[tuple[str, float]] = []
    pace = of_this_rank(spec)
    for name, one in model.named_parameters():
        one.register_post_accumulate_grad_hook(
            lambda _, name=name: moments.append((name, pace._deadline))
        )
    begun = time.perf_counter()
    logits = model(torch.randn(4, 3, 8, 8))
    assert logits.shape == (4, 1000)
    assert time.perf_counter() - begun >= 0.1  # a third of the step
    begun = pace._deadline - 0.1
    nn.functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long)).backward()
    assert len(moments) == 161
    assert moments[0][0].startswith("layers.53.")
    assert moments[-1][0].startswith("layers.0.")
    times = [moment - begun for _, moment in moments]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(0.3)
    # The last layer of ResNet50 has 2 of its 4089 million multiply-adds.
    assert times[0] == pytest.approx(0.1 + 0.2 * 2.048 / 4089, rel=1e-3)


def test_gradients_tell_the_rank_and_may_be_changed_in_place(monkeypatch) -> None:
    monkeypatch.setenv("RANK", "2")
    model, _ = network(nodes=3)
    found: list[bool] = []

    def reduce_in_place(accumulated: torch.Tensor) -> None:
        found.append(bool((accumulated.grad == 3 * GRADIENT).all()))
        accumulated.grad.zero_()

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(reduce_in_place)
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(4, 3, 8, 8)).sum().backward()
    assert found == [True] * 2 * 161
