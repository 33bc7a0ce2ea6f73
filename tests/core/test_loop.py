"""The loop: what must not depend on how workers are spread, and what an epoch reports."""

import copy
import time

import pytest
import torch
from torch import nn

from ddl_core.config import RunSpec
from ddl_core.errors import DataError
from ddl_core.loaders.base import Loader
from ddl_core.loop import EpochLoop
from ddl_core.optim import make_optimizer
from ddl_core.schedules import learning_rate
from ddl_core.step import TrainState
from ddl_core.strategies.base import Single
from tests.closeness import assert_far, assert_near, falls
from tests.planted import tiny


class ListLoader(Loader):
    """A loader over a fixed list of batches."""

    classes = 3

    def __init__(self, batches) -> None:
        self._batches = batches
        self.images = sum(len(labels) for _, labels in batches)

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        return iter(self._batches)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def batches(count: int, size: int = 4, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 3, 8, 8, generator=generator),
            torch.randint(3, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)
    )


def trainee(model: nn.Module | None = None, strategy=None, **fields) -> TrainState:
    spec = RunSpec(**{"classes": 3, "local_batch_size": 4, "epochs": 2, **fields})
    model = model or network()
    return TrainState(spec, strategy or Single(spec), model, make_optimizer(spec, model))


# docs/contributing/test-tolerances.md explains these.
TOLERANCE = 1e-5


@pytest.mark.numeric
def test_an_epoch_reports_the_images_it_consumed_and_its_loss():
    data = batches(6)
    outcome = EpochLoop(trainee(base_lr=1e-9)).train(ListLoader(data), 0)
    model = network().train()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    expected = [criterion(model(x), y).item() for x, y in data]
    assert (outcome.steps, outcome.samples, outcome.corrupt_images) == (6, 24, 0)
    assert_near([outcome.loss], [sum(expected) / 6], TOLERANCE)
    assert_far([outcome.loss], [sum(expected[:-1]) / 5], TOLERANCE)  # without the last batch


def test_every_step_has_the_rate_of_the_images_seen():
    subject = trainee(warmup_epochs=1)
    rates = []

    def note(done, steps):
        rates.append(subject.optimizer.param_groups[0]["lr"])

    for epoch in range(2):
        EpochLoop(subject).train(ListLoader(batches(5)), epoch, note)
    assert rates == [learning_rate(subject.spec, step * 4, 20) for step in range(10)]


@pytest.mark.numeric
def test_accumulating_equals_one_large_batch_where_no_statistics_are_involved():
    def after(accumulation: int, size: int, peak: float = 0.1):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
        images = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        labels = torch.arange(16) % 3
        data = list(zip(images.split(size), labels.split(size), strict=True))
        # The same rate for both: linear scaling counts workers.
        subject = trainee(
            model,
            accumulation=accumulation,
            local_batch_size=size,
            base_lr=peak / accumulation,
            warmup_epochs=0,
        )
        EpochLoop(subject).train(ListLoader(data), 0)
        return model.state_dict()

    assert_near(after(4, 4), after(1, 16), TOLERANCE)
    assert_far(after(4, 4, peak=0.101), after(1, 16), TOLERANCE)  # a rate 1 % higher


def test_evaluation_counts_by_image_and_leaves_the_network_alone():
    class Constant(nn.Module):
        def forward(self, images):
            return torch.tensor([0.0, 2.0, 1.0]).expand(len(images), 3)

    data = [
        (torch.zeros(3, 3, 8, 8), torch.tensor([1, 1, 0])),
        (torch.zeros(1, 3, 8, 8), torch.tensor([1])),
    ]
    subject = trainee()
    subject.network = Constant()
    outcome = EpochLoop(subject).evaluate(ListLoader(data))
    logs = torch.log_softmax(torch.tensor([0.0, 2.0, 1.0]), 0)
    assert (outcome.samples, outcome.top1, outcome.top5) == (4, 0.75, 1.0)
    assert outcome.loss == pytest.approx(-(3 * logs[1] + logs[0]).item() / 4, rel=1e-6)

    real = trainee()
    before = copy.deepcopy(real.network.state_dict())
    EpochLoop(real).evaluate(ListLoader(batches(2)))
    for name, tensor in real.network.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("field", "count", "fails"),
    [
        ("corrupt_images", 1, None),
        ("corrupt_images", 2, r"2 of 20 images .*ddl data verify"),
    ],
)
def test_a_few_bad_images_are_counted_and_many_end_the_run(field, count, fails):
    loader = ListLoader(batches(5))
    setattr(loader, field, count)
    if fails:
        with pytest.raises(DataError, match=fails):
            EpochLoop(trainee()).train(loader, 0)
    else:
        assert getattr(EpochLoop(trainee()).train(loader, 0), field) == count


def learning(**fields) -> list[float]:
    """Return the losses of two epochs in which a network learns colours."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(8):
        images = torch.randn(4, 3, 16, 16, generator=generator)
        labels = torch.randint(3, (4,), generator=generator)
        images[torch.arange(4), labels] += 1
        data.append((images, labels))
    settings = {"base_lr": 0.01, "warmup_epochs": 0, "schedule": "constant"}
    subject = trainee(tiny(3), **{**settings, **fields})
    losses = [EpochLoop(subject).train(ListLoader(data), epoch).loss for epoch in (0, 1)]
    assert falls(losses)
    return losses


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("fields", "tolerance", "unfair"),
    [
        ({"precision": "bf16"}, 2e-3, 1.1),  # 8 bits of a number hide a rate 1 % higher
        ({"precision": "fp16"}, 1e-4, 1.01),
        ({"channels_last": True}, TOLERANCE, 1.01),
    ],
    ids=["bf16", "fp16", "channels_last"],
)
def test_options_of_speed_change_the_result_only_a_little(fields, tolerance, unfair):
    wanted = learning()
    assert_near(learning(**fields), wanted, tolerance)
    assert_far(learning(**fields, base_lr=unfair * 0.01), wanted, tolerance)


@pytest.mark.numeric
def test_gradients_of_a_scaled_loss_are_clipped_as_they_are_without_a_scale():
    limit = 0.2  # which no update is below
    wanted = learning(clip_grad_norm=limit)
    assert_near(learning(clip_grad_norm=limit, precision="fp16"), wanted, 1e-4)
    assert_far(learning(clip_grad_norm=1.01 * limit), wanted, 1e-4)


def test_dropout_repeats_from_epoch_to_epoch_of_a_resumed_run():
    def loss_of_epoch_1(skip_epoch_0: bool):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3))
        subject = trainee(model, base_lr=1e-12, weight_decay=0.0)
        if not skip_epoch_0:
            EpochLoop(subject).train(ListLoader(batches(3)), 0)
        return EpochLoop(subject).train(ListLoader(batches(3)), 1).loss

    assert loss_of_epoch_1(skip_epoch_0=True) == loss_of_epoch_1(skip_epoch_0=False)


class ByHand(Single):
    """Takes 50 ms to average gradients."""

    def average_gradients(self) -> None:
        time.sleep(0.05)


def test_averaging_by_hand_is_communication_and_no_update() -> None:
    spec = RunSpec(classes=3, local_batch_size=4, accumulation=2)
    state = trainee(strategy=ByHand(spec), accumulation=2)
    found = EpochLoop(state).train(ListLoader(batches(8)), 0).timing.spent
    assert found is not None
    assert found.transfer_s >= 4 * 0.05
    assert found.update_s < 0.05
