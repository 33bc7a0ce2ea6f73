"""The tolerance between frameworks: wrong rules of training are far outside of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from tests.frameworks import equality
from tests.frameworks.equality import Training, distance, numbers

FAR = 5  # tolerances
Rule = Callable[[Tensor, Tensor, Tensor, float, float, float], None]


def right(w, v, g, rate, mu, decay) -> None:
    v.mul_(mu).add_(g + decay * w)
    w.sub_(rate * v)


def momentum_that_holds_the_rate(w, v, g, rate, mu, decay) -> None:
    """As SGD of Keras and MXNet."""
    v.mul_(mu).add_(rate * (g + decay * w))
    w.sub_(v)


def decay_beside_the_momentum(w, v, g, rate, mu, decay) -> None:
    """As `weight_decay` of Keras' optimisers."""
    v.mul_(mu).add_(g)
    w.sub_(rate * (v + decay * w))


def sum_of_gradients(w, v, g, rate, mu, decay) -> None:
    right(w, v, 2 * g, rate, mu, decay)


@pytest.fixture(scope="module")
def want() -> Training:
    return Training({})


def off(found: Training, want: Training) -> float:
    return distance(numbers(found.torch.state), numbers(want.torch.state))


def trained_by(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> Training:
    class ByRule(SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                settings = [group[name] for name in ("lr", "momentum", "weight_decay")]
                for weight in group["params"]:
                    momentum = self.state[weight].setdefault("momentum_buffer", 0 * weight)
                    rule(weight, momentum, weight.grad, *settings)

    def make(spec: Any, network: nn.Module) -> Optimizer:
        return ByRule(equality_optimizer(spec, network).param_groups)

    equality_optimizer = equality.make_optimizer
    monkeypatch.setattr(equality, "make_optimizer", make)
    return Training({})


def test_the_right_rule_is_near(want, monkeypatch) -> None:
    assert off(trained_by(right, monkeypatch), want) <= 1


@pytest.mark.parametrize(
    "rule", [momentum_that_holds_the_rate, decay_beside_the_momentum, sum_of_gradients]
)
def test_a_wrong_rule_is_far(want, monkeypatch, rule) -> None:
    assert off(trained_by(rule, monkeypatch), want) >= FAR


def test_statistics_over_the_images_of_all_ranks_are_far(want) -> None:
    assert off(Training({"local_batch_size": 16}, workers=1), want) >= FAR


def test_a_biased_running_variance_is_far(want, monkeypatch) -> None:
    def make_biased(module: nn.Module, inputs: tuple[Tensor], _: Tensor) -> None:
        variance = inputs[0].detach().var((0, 2, 3))
        count = inputs[0].numel() / len(variance)
        if module.training:
            module.running_var.data.sub_(0.1 * variance / count)  # type: ignore[union-attr]

    def biased(classes: int) -> nn.Module:
        network = equality_tiny(classes)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.register_forward_hook(make_biased)
        return network

    equality_tiny = equality.tiny
    monkeypatch.setattr(equality, "tiny", biased)
    assert off(Training({}), want) >= FAR
