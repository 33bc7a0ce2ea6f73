"""The learning rate against values computed by hand."""

import subprocess
import sys
from functools import partial

import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.errors import NotInstalledError
from ddl_core.optim import make_optimizer, set_learning_rate
from ddl_core.schedules import learning_rate, peak_learning_rate
from ddl_core.strategies.base import Single
from ddl_tools.rank.pytorch import implementation

PER_EPOCH = 6400


def rate(epoch: float, **fields) -> float:
    """Learning rate of the first update after `epoch` epochs: 2 workers of 64, 50 steps each."""
    spec = RunSpec(strategy="ddp", gpus_per_node=2, **fields)
    return learning_rate(spec, int(epoch * PER_EPOCH), PER_EPOCH)


def test_the_peak_grows_with_real_and_virtual_workers():
    # Aach et al. 2023, Fig. 8: 0.025 per GPU, so 25.6 on 1024.
    paper = RunSpec(strategy="ddp", nodes=256, gpus_per_node=4)
    assert peak_learning_rate(paper) == pytest.approx(25.6)
    assert peak_learning_rate(RunSpec(accumulation=1024)) == pytest.approx(25.6)
    root = RunSpec(accumulation=1024, lr_scaling="sqrt")
    assert peak_learning_rate(root) == pytest.approx(0.8)


def test_warm_up_is_linear_and_reaches_the_peak_with_its_last_update():
    one_update = 128 / PER_EPOCH
    assert rate(0, schedule="constant") == pytest.approx(0.05 * one_update / 5)
    assert rate(2.5, schedule="constant") == pytest.approx(0.05 * (2.5 + one_update) / 5)
    assert rate(5 - one_update, schedule="constant") == pytest.approx(0.05)
    assert rate(0, warmup_epochs=0, schedule="constant") == pytest.approx(0.05)


# By hand from the paper's equations: 0.025 x 1024 = 25.6 at the peak, warm-up over 5 epochs.
PAPERS_RATES = {
    "step": {5: 25.6, 29: 25.6, 30: 2.56, 59: 2.56, 60: 0.256, 79: 0.256, 80: 0.0256},
    "cosine": {15: 23.885125, 30: 19.2, 45: 12.8, 60: 6.4, 75: 1.714875},
    "exponential": {5: 19.808792, 10: 15.327666, 45: 2.5456706, 80: 0.42279358},
}


@pytest.mark.parametrize("schedule", PAPERS_RATES)
def test_the_papers_rates_on_1024_gpus(schedule):
    spec = RunSpec(strategy="ddp", nodes=256, gpus_per_node=4, schedule=schedule)
    per_epoch = 19 * 65_536  # full steps of ImageNet's 1,281,167 images
    for epoch, expected in PAPERS_RATES[schedule].items():
        assert learning_rate(spec, epoch * per_epoch, per_epoch) == pytest.approx(expected)
    first, middle = learning_rate(spec, 0, per_epoch), learning_rate(spec, 45 * 65_536, per_epoch)
    assert (first, middle) == pytest.approx((25.6 / 95, 25.6 * 46 / 95))


@pytest.mark.parametrize("schedule", ["step", "cosine", "exponential"])
def test_a_shorter_training_keeps_the_shape_of_a_schedule(schedule):
    for tenth in range(1, 9):
        short = rate(tenth, schedule=schedule, epochs=9, warmup_epochs=0)
        assert short == pytest.approx(rate(10 * tenth, schedule=schedule, epochs=90))


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4, 2)
    )


def stepped(rate: float, **fields):
    """Do one step; return each parameter before it, its gradient, and it after the step."""
    model, generator = network(), torch.Generator().manual_seed(0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = make_optimizer(RunSpec(**fields), model)
    set_learning_rate(optimizer, rate)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()
    return [
        (old, new.grad, new.detach()) for old, new in zip(before, model.parameters(), strict=True)
    ]


def test_norm_and_bias_decay_only_if_wanted():
    model = network()
    (all_of_them,) = make_optimizer(RunSpec(), model).param_groups
    assert len(all_of_them["params"]) == 6
    weights, rest = make_optimizer(RunSpec(decay_norm_bias=False), model).param_groups
    assert [one.ndim for one in weights["params"]] == [4, 2]
    assert {one.ndim for one in rest["params"]} == {1}
    assert (weights["weight_decay"], rest["weight_decay"]) == (1e-4, 0.0)


def test_nesterov_looks_ahead_by_one_momentum():
    for old, grad, new in stepped(0.1, nesterov=True, momentum=0.5, weight_decay=0.0):
        torch.testing.assert_close(new, old - 0.15 * grad)  # v = g; w -= lr (g + 0.5 v)


def test_lars_scales_the_rate_of_each_layer():
    """You et al. 2017, eq. 6: local rate = 0.001 |w| / (|g| + decay |w|), for what decays."""
    fields = {"optimizer": "lars", "decay_norm_bias": False, "momentum": 0.0}
    for old, grad, new in stepped(2.0, **fields, weight_decay=0.01):
        update = grad
        if old.ndim > 1:
            local_rate = 0.001 * old.norm() / (grad.norm() + 0.01 * old.norm())
            update = local_rate * (grad + 0.01 * old)
        torch.testing.assert_close(new, old - 2.0 * update)


def test_lamb_moves_each_layer_by_the_rate_times_its_norm():
    """You et al. 2020, algorithm 2: the update of a layer has the length rate x |w|."""
    for old, _, new in stepped(0.1, optimizer="lamb", decay_norm_bias=False, weight_decay=0.01):
        if old.ndim > 1:
            torch.testing.assert_close((new - old).norm(), 0.1 * old.norm(), rtol=1e-4, atol=0)


def test_adamw_follows_its_equations():
    """Loshchilov and Hutter 2019, algorithm 2, in three steps; what does not decay is a vector."""
    beta1, beta2, eps, decay, rate = 0.8, 0.95, 0.01, 0.1, 0.5
    moments = {"adam_beta1": beta1, "adam_beta2": beta2, "adam_eps": eps}
    spec = RunSpec(optimizer="adamw", decay_norm_bias=False, weight_decay=decay, **moments)
    model, generator = network(), torch.Generator().manual_seed(0)
    optimizer = make_optimizer(spec, model)
    set_learning_rate(optimizer, rate)
    want = [one.detach().clone() for one in model.parameters()]
    first, second = [0.0] * len(want), [0.0] * len(want)
    for step in (1, 2, 3):
        for index, parameter in enumerate(model.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            first[index] = beta1 * first[index] + (1 - beta1) * parameter.grad
            second[index] = beta2 * second[index] + (1 - beta2) * parameter.grad**2
            root = (second[index] / (1 - beta2**step)).sqrt()
            update = first[index] / (1 - beta1**step) / (root + eps)
            own = decay if parameter.ndim > 1 else 0.0
            want[index] = (1 - rate * own) * want[index] - rate * update
        optimizer.step()
    for parameter, one in zip(model.parameters(), want, strict=True):
        torch.testing.assert_close(parameter.detach(), one)


def test_the_defaults_of_adamw_are_those_of_torch():
    ours = make_optimizer(RunSpec(optimizer="adamw"), network()).param_groups[0]
    of_torch = torch.optim.AdamW(network().parameters()).param_groups[0]
    own = {"params", "lr", "weight_decay", "initial_lr"}
    assert {k: v for k, v in ours.items() if k not in own} == {
        k: v for k, v in of_torch.items() if k not in own
    }


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_gradients_are_scaled_to_the_norm_that_is_asked_for(share):
    """That of all together; smaller ones stay as they are."""
    model, generator = network(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    before = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    spec = RunSpec(clip_grad_norm=share * float(before.norm()))
    strategy = Single(spec)
    strategy.setup(model, make_optimizer(spec, model))
    strategy.clip_gradients(torch.amp.GradScaler("cpu", enabled=False))
    after = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(after, min(share, 1.0) * before)


def test_an_optimizer_of_timm_does_not_lift_the_limit_of_compiling():
    """In a new process, since it is the import of timm that lifts it."""
    code = """
import torch._dynamo
from tests.core.test_optim import RunSpec, make_optimizer, network
before = torch._dynamo.config.recompile_limit
make_optimizer(RunSpec(optimizer="lars"), network())
assert torch._dynamo.config.recompile_limit == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_timm_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.optim", None)
    with pytest.raises(NotInstalledError, match=r"'lars' needs the package .*make env"):
        make_optimizer(RunSpec(optimizer="lars"), network())


@pytest.mark.parametrize(("optimizer", "of_torch"), [("sgd", "sgd"), ("adamw", "adam")])
def test_how_the_update_is_made_is_what_torch_does(monkeypatch, optimizer, of_torch):
    network, spec = torch.nn.Linear(2, 2), RunSpec(optimizer=optimizer)
    made = make_optimizer(spec, network)
    called = []
    for name in (f"_multi_tensor_{of_torch}", f"_single_tensor_{of_torch}"):
        note = partial(lambda name, *_, **__: called.append(name), name)
        monkeypatch.setattr(sys.modules[f"torch.optim.{of_torch}"], name, note)
    network(torch.ones(1, 2)).sum().backward()
    made.step()
    assert called == [f"_single_tensor_{of_torch}"]
    assert implementation(spec, torch.device("cpu")) == {"foreach": False, "fused": False}
