"""The loop's throughput on a device against a bare torch loop with the same arithmetic."""

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.interleaved import Took, interleave, ratio, say, timed
from ddl_core.config import RunSpec
from ddl_core.device import check_compiled, compile_network, configure
from ddl_core.loaders.synthetic import Synthetic
from ddl_core.loop import EpochLoop
from ddl_core.optim import make_optimizer
from ddl_core.registry import resolve
from ddl_core.step import TrainState
from ddl_core.strategies.base import Single

TARGET = 0.98
STEPS = 20
PAIRS = {"cuda": 8, "cpu": 2}  # rounds at least; the CPU is a rehearsal


def spec_of(device: str) -> RunSpec:
    """Return ResNet50 as a GPU trains it fastest; on the CPU something small, as a rehearsal."""
    if device == "cuda":
        size = {"model": "resnet50", "local_batch_size": 256, "precision": "bf16"}
        size |= {"channels_last": True, "compile": True, "train_images": 256 * STEPS}
    else:
        size = {"model": "resnet8", "image_size": 32, "local_batch_size": 8, "train_images": 32}
    return RunSpec.parse({"loader": "synthetic", "device": device, "epochs": 1, **size})


def measure(device: str, minutes: float) -> str:
    """Return the ratio as a line of text."""
    spec = spec_of(device)
    configure(spec)
    group = Single(spec)
    network = resolve("model", spec.model)(spec.classes).to(group.device)
    if spec.channels_last:
        network = network.to(memory_format=torch.channels_last)
    if spec.compile:
        compile_network(network)
    trainee = TrainState(spec, group, network, make_optimizer(spec, network))
    loader = Synthetic(spec, None, "train", 0, 1, group.device)
    works = {
        "bare loop": _bare(trainee, loader),
        "train_one_epoch": lambda: EpochLoop(trainee).train(loader, 0),
    }
    took = interleave(works, minutes, _until_idle, PAIRS[device])
    if spec.compile:
        check_compiled()
    row = ratio(took, "train_one_epoch", "bare loop", TARGET)
    rate = loader.images * len(took["bare loop"]) / sum(one.wall for one in took["bare loop"])
    return f"{say(row)}; bare loop: {rate:.0f} images/s; target {TARGET}"


def _bare(trainee: TrainState, loader: Synthetic) -> Callable[[], None]:
    """Return an epoch with nothing around it."""
    network, optimizer = trainee.network, trainee.optimizer
    criterion = nn.CrossEntropyLoss(label_smoothing=trainee.spec.label_smoothing)

    def epoch() -> None:
        network.train()
        loader.set_epoch(0)
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            with trainee.autocast():
                loss = criterion(network(trainee.ready(images)), labels)
            loss.backward()
            optimizer.step()

    return epoch


def _until_idle(work: Callable[[], object]) -> Took:
    """Return what a work took until the device was done with it."""
    _wait()
    return timed(lambda: (work(), _wait()))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
