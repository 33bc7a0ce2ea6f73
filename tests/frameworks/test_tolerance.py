"""The tolerance between frameworks: wrong rules of training are far outside of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.frameworks import equality
from tests.frameworks.equality import ADAMW, Training, distance, numbers

FAR = 5  # tolerances
Rule = Callable[[Tensor, Tensor, Tensor, float, float, float], None]
Step = Callable[[Tensor, Tensor, dict[str, Any], dict[str, Any]], None]
"""Of a weight, its gradient, its part of the optimiser's state and the group's settings."""


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


def sgd(rule: Rule, w: Tensor, g: Tensor, state: dict[str, Any], of: dict[str, Any]) -> None:
    v = state.setdefault("momentum_buffer", torch.zeros_like(w))
    rule(w, v, g, of["lr"], of["momentum"], of["weight_decay"])


def adamw(
    w: Tensor,
    g: Tensor,
    state: dict[str, Any],
    of: dict[str, Any],
    coupled: bool = False,
    biased: bool = False,
    eps_on_biased: bool = False,
) -> None:
    """As torch; or with decay in the gradient, biased moments, or eps as in Keras' AdamW."""
    m, s = (state.setdefault(name, torch.zeros_like(w)) for name in ("exp_avg", "exp_avg_sq"))
    state["step"] = updates = state.get("step", 0) + 1
    (beta1, beta2), decay = of["betas"], of["weight_decay"]
    if coupled:
        g = g + decay * w
    else:
        w.mul_(1 - of["lr"] * decay)
    m.mul_(beta1).add_((1 - beta1) * g)
    s.mul_(beta2).add_((1 - beta2) * g**2)
    left1, left2 = (1, 1) if biased else (1 - beta1**updates, 1 - beta2**updates)
    eps = of["eps"] / (left2**0.5 if eps_on_biased else 1)
    w.sub_(of["lr"] * m / left1 / ((s / left2).sqrt() + eps))


@pytest.fixture(scope="module")
def want() -> Training:
    return Training({})


@pytest.fixture(scope="module")
def want_of_adamw() -> Training:
    return Training(ADAMW)


def off(found: Training, want: Training) -> float:
    return distance(numbers(found.torch.state), numbers(want.torch.state))


def trained_by(
    step: Step, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any] | None = None
) -> Training:
    class ByRule(Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for weight in group["params"]:
                    step(weight, weight.grad, self.state[weight], group)

    def make(spec: Any, network: nn.Module) -> Optimizer:
        return ByRule(equality_optimizer(spec, network).param_groups, {})

    equality_optimizer = equality.make_optimizer
    monkeypatch.setattr(equality, "make_optimizer", make)
    return Training(fields or {})


def test_the_right_rule_is_near(want, monkeypatch) -> None:
    assert off(trained_by(partial(sgd, right), monkeypatch), want) <= 1


def test_the_right_rule_of_adamw_is_near(want_of_adamw, monkeypatch) -> None:
    assert off(trained_by(adamw, monkeypatch, ADAMW), want_of_adamw) <= 1


@pytest.mark.parametrize("fault", ["coupled", "biased", "eps_on_biased"])
def test_a_wrong_rule_of_adamw_is_far(want_of_adamw, monkeypatch, fault) -> None:
    wrong = partial(adamw, **{fault: True})
    assert off(trained_by(wrong, monkeypatch, ADAMW), want_of_adamw) >= FAR


@pytest.mark.parametrize(
    "rule", [momentum_that_holds_the_rate, decay_beside_the_momentum, sum_of_gradients]
)
def test_a_wrong_rule_is_far(want, monkeypatch, rule) -> None:
    assert off(trained_by(partial(sgd, rule), monkeypatch), want) >= FAR


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
