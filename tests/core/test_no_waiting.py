"""Inside a window nothing waits for the device: not the loop, not an evaluation, not a loader.

On a GPU each of the calls looked for makes the host wait until the device has done all it was
given. A CPU shows that they are made, if not what they cost.
"""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ddl_core import step
from ddl_core.batch_norm import precise_statistics, split_statistics
from ddl_core.config import RunSpec
from ddl_core.device import make_clock
from ddl_core.loaders import native
from ddl_core.loop import EpochLoop, load_epoch
from ddl_core.optim import make_optimizer
from ddl_core.registry import resolve
from ddl_core.step import TrainState
from ddl_core.strategies.base import Single
from ddl_core.timing import Clock
from tests.fake_gpu import GPU, Streams
from tests.launch.running import TINY
from tests.pictures import CLASSES, write_pictures
from tests.planted import tiny

READS = ("item", "tolist", "cpu")
CONVERSIONS = ("__bool__", "__int__", "__float__", "__index__", "numpy")
MAKES = ("tensor", "as_tensor")

# They read a seed, and a count of steps, from tensors that are never on a device.
ON_THE_HOST = (
    "torch/utils/data/dataloader.py",
    "timm/optim/_helpers.py",
    "torch/optim/optimizer.py",
    "torch/nn/utils/clip_grad.py",  # it copies to the device on which a number is
)


def names_device(arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    places = (*arguments[1:], named.get("device"))
    return any(isinstance(one, (str, torch.device)) for one in places)


def waits_to_copy(arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    blocking = not named.get("non_blocking") and True not in arguments[1:]
    return names_device(arguments, named) and blocking


class Detector:
    """Writes down who waits in a window."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found: list[str] = []
        self._patch, self._open = patch, False
        start, stop = Clock.start, Clock.stop

        def opened(clock: Clock) -> None:
            start(clock)
            self._open = True

        def closed(clock: Clock) -> Any:
            self._open = False
            return stop(clock)

        patch.setattr(Clock, "start", opened)
        patch.setattr(Clock, "stop", closed)
        for name in READS:
            self.watch(Tensor, name)
        for name in MAKES:
            self.watch(torch, name, names_device)
        self.watch(Tensor, "to", waits_to_copy)

    def watch(self, owner: Any, name: str, waits: Callable[..., bool] = lambda *_: True) -> None:
        """Write down calls of ``owner.name`` for which `waits` says that they do."""
        original = getattr(owner, name)

        def called(*arguments: Any, **named: Any) -> Any:
            if self._open and waits(arguments, named):
                caller = traceback.extract_stack(limit=2)[0]
                if not caller.filename.endswith(ON_THE_HOST):
                    self.found.append(f"{name} in {caller.filename}:{caller.lineno}")
            return original(*arguments, **named)

        self._patch.setattr(owner, name, called)


@pytest.fixture
def detector(monkeypatch) -> Detector:
    return Detector(monkeypatch)


def spec_of(**fields) -> RunSpec:
    few = {"image_size": 16, "classes": 3, "local_batch_size": 2, "train_images": 24}
    return RunSpec(**{**TINY, **few, "eval_images": 5, **fields})


def trainee_of(spec: RunSpec) -> TrainState:
    network = tiny(3)
    return TrainState(spec, Single(spec), network, make_optimizer(spec, network))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"accumulation": 3},
        {"precision": "bf16", "channels_last": True},
        {"optimizer": "lars", "decay_norm_bias": False},
        {"optimizer": "lamb"},
        {"optimizer": "adamw"},
        {"clip_grad_norm": 0.01},
    ],
    ids=["plain", "accumulation", "bf16", "lars", "lamb", "adamw", "clipping"],
)
def test_the_loop_waits_for_nothing(detector, fields):
    spec = spec_of(**fields)
    trainee = trainee_of(spec)
    loader = {split: made(spec, None, split, torch.device("cpu")) for split in ("train", "eval")}
    for name in CONVERSIONS:
        detector.watch(Tensor, name)
    for epoch in range(2):  # three steps of the first are watched closely, which costs, and cold
        detector.found.clear()
        EpochLoop(trainee).train(loader["train"], epoch)
    EpochLoop(trainee).evaluate(loader["eval"])
    assert detector.found == []


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_new_statistics_wait_for_nothing(detector, micro_batches):
    """A plain mean asked the device in each layer of each pass for the number of passes."""
    spec, network = spec_of(), tiny(3)
    if micro_batches > 1:
        split_statistics(network, micro_batches)
    for name in CONVERSIONS:
        detector.watch(Tensor, name)
    clock = make_clock(Single(spec))
    with torch.no_grad(), precise_statistics(network):
        clock.start()
        for _ in range(3):
            network(torch.rand(4, 3, 16, 16))
        clock.stop()
    assert detector.found == []


def made(spec, data, split, device):
    return resolve("loader", spec.loader)(spec, data, split, 0, 1, device)


@pytest.mark.parametrize("name", ["native", "turbo", "memory"])
def test_a_loader_waits_for_nothing(detector, name, tmp_path, monkeypatch):
    Streams(monkeypatch)
    monkeypatch.setattr(native, "start_method", lambda spec, device: "fork")
    one = {"loader_workers": 1, "pin_memory": False}
    spec = spec_of(loader=name, work="load", classes=CLASSES, **one)
    loader = made(spec, write_pictures(tmp_path, 24, 0), "train", GPU)
    outcome = load_epoch(spec, loader, 0, make_clock(Single(spec)))
    assert outcome.steps == 12
    assert detector.found == []


@pytest.mark.parametrize(
    "wait",
    [
        lambda image: torch.tensor([1.0], device=image.device),
        lambda image: torch.as_tensor([1.0], device="cpu"),
        lambda image: image.sum().item(),
        lambda image: image.tolist(),
        lambda image: image.cpu(),
        lambda image: image.to(image.device),
        lambda image: image.to("cpu", torch.float64),
    ],
)
def test_what_waits_is_found(detector, wait, monkeypatch):
    correct = step._correct

    def waiting(logits, labels):
        wait(logits)
        return correct(logits, labels)

    monkeypatch.setattr(step, "_correct", waiting)
    spec = spec_of()
    loader = made(spec, None, "eval", torch.device("cpu"))
    EpochLoop(trainee_of(spec)).evaluate(loader)
    assert len(detector.found) == len(loader)
    assert all(__file__ in one for one in detector.found)
