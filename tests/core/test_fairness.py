"""Every rule of the fairness contract: kept by an honest run, noticed when it is broken.

One process with two virtual workers, and pairs of threads; tests/test_equality.py has the real
processes.
"""

import pytest
import torch
from torch import nn

from ddl_core.config import RunSpec
from ddl_core.data.sampling import eval_batches, train_batches
from ddl_core.errors import FairnessError
from ddl_core.fairness import check_epoch
from ddl_core.loaders.base import Loader
from ddl_core.loop import EpochLoop
from ddl_core.monitor import check_setup
from ddl_core.optim import make_optimizer
from ddl_core.registry import resolve
from ddl_core.step import TrainState
from tests import planted
from tests.groups import ThreadGroup

CPU = torch.device("cpu")


class Images(Loader):
    """A loader of numbered random images; `order` may spoil which ones."""

    classes = 3

    def __init__(self, spec: RunSpec, split: str = "train", order=list, images: int = 23) -> None:
        self.images, self.epoch = images, 0
        self._spec, self._split, self._order = spec, split, order
        generator = torch.Generator().manual_seed(0)
        self._pixels = torch.randn(images, 3, 16, 16, generator=generator)

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.seen = epoch, []

    def _batches(self):
        spec = self._spec
        if self._split == "eval":
            return self._order(eval_batches(spec, self.images, 0, 1))
        return self._order(train_batches(spec, self.images, self.epoch, 0))

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self):
        for numbers in self._batches():
            self.seen.append(numbers)
            yield self._pixels[numbers], torch.from_numpy(numbers % 3)


def spec_of(**fields) -> RunSpec:
    values = {"classes": 3, "local_batch_size": 2, "epochs": 2, "accumulation": 2, "device": "cpu"}
    return RunSpec(**{**values, **fields})


def trainee_of(spec: RunSpec, fault: str | None = None) -> TrainState:
    make = getattr(planted, f"single__{fault}") if fault else resolve("strategy", "single")
    torch.manual_seed(0)
    network = planted.tiny(3)
    return TrainState(spec, make(spec), network, make_optimizer(spec, network))


def epochs(fault: str | None = None, order=list, **fields) -> list[str | None]:
    """Train two epochs; return the digests of their images."""
    spec = spec_of(**fields)
    subject = trainee_of(spec, fault)
    loader = Images(spec, order=order)
    return [EpochLoop(subject).train(loader, epoch).ids_sha256 for epoch in range(2)]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"local_batch_size": 5, "accumulation": 1},
        {"precision": "bf16"},
        {"compile": True},
        {"decay_norm_bias": False},
        {"nesterov": True},
        {"optimizer": "adamw", "decay_norm_bias": False},
        {"clip_grad_norm": 0.01},
    ],
)
def test_an_honest_run_breaks_no_rule(fields):
    first, second = epochs(**fields)
    assert len({first, second}) == 2  # each epoch leaves out other images


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda groups: groups[1].update(weight_decay=0.1), r"weight_decay = 0\.1, not 0\.0"),
        (lambda groups: groups[0].update(nesterov=False), "nesterov = False, not True"),
        (lambda groups: groups[0].update(momentum=0.5), r"momentum = 0\.5, not 0\.9"),
        (lambda groups: groups.pop(), "has 1 groups, not 2"),
    ],
)
def test_another_update_rule_is_caught_in_any_group(change, words):
    spec = spec_of(decay_norm_bias=False, nesterov=True)
    subject = trainee_of(spec)
    change(subject.optimizer.param_groups)
    with pytest.raises(FairnessError, match=f"same learning rate and update rule.*{words}"):
        EpochLoop(subject).train(Images(spec), 0)


def test_other_moments_are_caught():
    spec = spec_of(optimizer="adamw")
    subject = trainee_of(spec)
    subject.optimizer.param_groups[0].update(betas=(0.9, 0.99))
    words = r"same learning rate and update rule.*betas = \(0\.9, 0\.99\), not \(0\.9, 0\.999\)"
    with pytest.raises(FairnessError, match=words):
        EpochLoop(subject).train(Images(spec), 0)


def test_a_strategy_that_does_not_clip_is_caught():
    assert len(epochs("unclipped")) == 2
    with pytest.raises(FairnessError, match=r"gradients clipped.* clip_grad_norm = 0\.01"):
        epochs("unclipped", clip_grad_norm=0.01)


def test_a_training_that_diverges_is_a_result():
    assert len(epochs(base_lr=1e30)) == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("rate_twice", r"learning rate.* lr = 0\.0\d+, not 0\.0"),
        ("second_zero_grad", r"gradients zeroed once.*zero_grad\(\) was called between"),
        ("second_update", "one update per step.*without new gradients"),
        ("no_update", "one update per step.*no optimiser stepped"),
    ],
)
def test_an_unfair_strategy_is_caught_in_its_first_step(fault, words):
    with pytest.raises(FairnessError, match=words):
        epochs(fault)


@pytest.mark.parametrize("owner", [torch.cuda, torch.cuda.Stream, torch.cuda.Event])
def test_device_synchronisations_of_a_strategy_are_counted(monkeypatch, owner):
    monkeypatch.setattr(owner, "synchronize", lambda *_: None)
    subject = trainee_of(spec_of())
    assert EpochLoop(subject).train(Images(subject.spec), 0).device_waits == 0
    plain = subject.strategy.backward

    def backward(loss) -> None:
        plain(loss)
        owner.synchronize(owner)

    monkeypatch.setattr(subject.strategy, "backward", backward)
    done = EpochLoop(subject).train(Images(subject.spec), 1)
    assert done.device_waits == done.steps * subject.spec.accumulation


def test_synchronisations_that_nobody_counts_are_not_none():
    subject = trainee_of(spec_of(compile=True))  # the compiler's own calls would be among them
    assert EpochLoop(subject).train(Images(subject.spec), 0).device_waits is None


def test_gradients_cleared_without_zero_grad_are_noticed():
    subject = trainee_of(spec_of())

    class Clearing(type(subject.strategy)):
        def optimizer_step(self, scaler):
            for parameter in subject.network.parameters():
                parameter.grad = None
            super().optimizer_step(scaler)

    subject.strategy.__class__ = Clearing
    with pytest.raises(FairnessError, match="all gradients were zero"):
        EpochLoop(subject).train(Images(subject.spec), 0)


def test_statistics_that_change_between_steps_are_noticed():
    subject = trainee_of(spec_of())
    outer = nn.Sequential(subject.network)

    def spoil(*_):
        subject.network[0][1].running_mean.zero_()

    outer.register_forward_pre_hook(spoil)
    subject.wrapped = outer
    with pytest.raises(FairnessError, match="batch statistics local"):
        EpochLoop(subject).train(Images(subject.spec), 0)


def other_images(batches):
    return [22 - one for one in batches]


def one_batch_again_and_again(batches):
    return [next(batches)] * 10


@pytest.mark.parametrize(
    ("own_order", "order", "words"),
    [
        (False, lambda batches: list(batches)[:-2], "last batch is dropped.*4 steps .*give 5"),
        (False, one_batch_again_and_again, "each image once.*2 images were used more than once"),
        (False, other_images, "same images.*20 images were used"),
        (True, one_batch_again_and_again, "each image once.*2 images were used more than once"),
        (True, lambda batches: [one[:1] for one in batches], "each image once.*10 .*20 should"),
    ],
)
def test_a_loader_that_feeds_something_else_is_noticed(own_order, order, words, monkeypatch):
    monkeypatch.setattr(Images, "own_order", own_order)
    with pytest.raises(FairnessError, match=words):
        epochs(order=order)


def test_a_loader_may_have_an_order_of_its_own(monkeypatch):
    monkeypatch.setattr(Images, "own_order", True)
    assert epochs(order=other_images) != epochs()


def test_evaluation_must_see_every_image():
    subject = trainee_of(spec_of())
    assert EpochLoop(subject).evaluate(Images(subject.spec, "eval")).ids_sha256
    short = Images(subject.spec, "eval", order=lambda batches: list(batches)[1:])
    with pytest.raises(FairnessError, match="21 images were used, 23 should have been"):
        EpochLoop(subject).evaluate(short)


def test_an_image_on_two_ranks_is_noticed():
    def work(rank):
        spec = spec_of(strategy="ddp", gpus_per_node=2, accumulation=1)
        loader = Images(spec)
        loader.seen = list(train_batches(spec, loader.images, 0, 0))
        with pytest.raises(FairnessError, match="each image once"):
            check_epoch(spec, rank, loader, 0)
        return True

    assert ThreadGroup(2).run(work) == [True, True]


def test_a_strategy_may_not_change_the_seeded_weights():
    check_setup("aa", "aa")
    with pytest.raises(FairnessError, match="same initial weights"):
        check_setup("aa", "bb")


def test_the_watch_leaves_nothing_behind():
    subject = trainee_of(spec_of())
    wait = torch.cuda.synchronize
    EpochLoop(subject).train(Images(subject.spec), 0)
    assert torch.cuda.synchronize is wait
    assert not {"zero_grad"} & (vars(subject.optimizer).keys() | vars(subject.network).keys())
    subject.optimizer.param_groups[0]["lr"] = 1.0
    subject.optimizer.step()  # outside an epoch nobody watches
