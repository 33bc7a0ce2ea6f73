"""The learning rate against values computed by hand."""

import pytest
import torch

from ddl_core.optim import learning_rate, make_optimizer, peak_learning_rate, set_learning_rate
from ddl_core.spec import RunSpec

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


@pytest.mark.parametrize(
    ("schedule", "epoch", "factor"),
    [
        ("constant", 89, 1),
        ("step", 29, 1),
        ("step", 30, 0.1),
        ("step", 60, 0.01),
        ("step", 80, 0.001),
        ("cosine", 45, 0.5),
        ("cosine", 60, 0.25),
        ("cosine", 30, 0.75),
        ("exponential", 10, 0.5987369392383787),
        ("exponential", 89, 0.01040880),
    ],
)
def test_schedules_by_hand(schedule, epoch, factor):
    assert rate(epoch, schedule=schedule) == pytest.approx(0.05 * factor, rel=1e-6)


def test_warm_up_is_linear_and_reaches_the_peak_with_its_last_update():
    one_update = 128 / PER_EPOCH
    assert rate(0, schedule="constant") == pytest.approx(0.05 * one_update / 5)
    assert rate(2.5, schedule="constant") == pytest.approx(0.05 * (2.5 + one_update) / 5)
    assert rate(5 - one_update, schedule="constant") == pytest.approx(0.05)


def test_without_warm_up_the_first_update_has_the_full_rate():
    assert rate(0, warmup_epochs=0, schedule="constant") == pytest.approx(0.05)


def test_the_optimiser_takes_its_settings_and_every_group_its_rate():
    spec = RunSpec(momentum=0.8, weight_decay=5e-4)
    optimizer = make_optimizer(spec, torch.nn.Linear(2, 2))
    set_learning_rate(optimizer, 0.123)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.123, 0.8, 5e-4)
