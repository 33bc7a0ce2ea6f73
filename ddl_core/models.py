"""Networks with fresh weights: those of the registry, of torchvision and of timm; their checks.

A network maps images (N, 3, side, side) to logits (N, classes).
"""

import copy
import hashlib
import inspect
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_core.registry import known, resolve
from ddl_core.schedules import derive_seed
from ddl_core.spelling import suggestion

try:
    import torchvision as torchvision
except RuntimeError as error:
    if "torchvision::nms does not exist" not in str(error):
        raise
    # A wheel that was built for CUDA cannot load its operators beside a torch for the CPU. Networks
    # and transforms do not need them: to declare two names is enough.
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    _declared = torch.library.Library("torchvision", "DEF")  # must outlive the import
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision as torchvision

IMAGES = 2  # of what is tried: some normalisations need more than one
NO_MEMORY = "can't allocate memory"  # as torch's allocator of the CPU says it
# One loss, without what they add to it in training; and the weights of their papers.
_INCEPTION = {"aux_logits": False, "init_weights": True}


def _torchvision(name: str, classes: int, **options: Any) -> nn.Module:
    network: nn.Module = torchvision.models.get_model(
        name, weights=None, num_classes=classes, **options
    )
    return network


resnet18 = partial(_torchvision, "resnet18")  # He et al. 2016; for 224-pixel images, as all these
resnet50 = partial(_torchvision, "resnet50")  # with the stride in the 3x3 convolution
resnet101 = partial(_torchvision, "resnet101")
resnet152 = partial(_torchvision, "resnet152")
alexnet = partial(_torchvision, "alexnet")  # Krizhevsky 2014, the one-tower form
googlenet = partial(_torchvision, "googlenet", **_INCEPTION)  # Szegedy et al. 2015


class SmallResNet(nn.Module):
    """The ResNet of He et al. 2016, section 4.2, for 32-pixel images: depth 6n + 2.

    Shortcuts have no parameters (option A). `blocks_per_stage` is n of the paper.
    """

    def __init__(self, blocks_per_stage: int, classes: int) -> None:
        super().__init__()
        stages = []
        channels = 16
        for width in (16, 32, 64):
            for _ in range(blocks_per_stage):
                stages.append(_BasicBlock(channels, width))
                channels = width
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 3, 32, 32) to logits (N, classes)."""
        features = self.stages(self.stem(images))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class _BasicBlock(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.stride = 1 if channels == width else 2
        self.conv1 = nn.Conv2d(channels, width, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            return x
        x = x[:, :, ::2, ::2]  # option A: subsample, and zeros for the new channels
        return functional.pad(x, (0, 0, 0, 0, 0, x.shape[1]))


resnet8 = partial(SmallResNet, 1)  # for studies on a CPU
resnet44 = partial(SmallResNet, 7)


def of_torchvision(spec: RunSpec) -> nn.Module:
    """Return a classifier of torchvision; `SpecError` if it has none of that name."""
    name = _checked(spec, torchvision.models.list_models(module=torchvision.models))
    options: dict[str, Any] = _INCEPTION if name in ("googlenet", "inception_v3") else {}
    if name.startswith("vit_"):
        options = {"image_size": spec.image_size}
    return _torchvision(name, spec.classes, **options)


def of_timm(spec: RunSpec) -> nn.Module:
    """Return a classifier of timm; `SpecError` if it has none of that name."""
    import timm

    name = _checked(spec, timm.list_models())
    fixed = timm.get_pretrained_cfg_value(name, "fixed_input_size")
    size: dict[str, Any] = {"img_size": spec.image_size} if fixed else {}
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=spec.classes, **size)
    return network


def _checked(spec: RunSpec, known: Sequence[str]) -> str:
    zoo, _, name = spec.model.partition("/")
    if name not in known:
        fault = f"model = {spec.model!r}: {zoo} has no classifier of that name"
        raise SpecError("; ".join(filter(None, [fault, suggestion(name, known)])))
    return name


def inspect_network(network: nn.Module, spec: RunSpec) -> dict[str, Any]:
    """Try a copy of a new network on two images; draw none of the run's random numbers.

    Returns ``parameters`` (numbers), ``forward_flop`` of one image (a multiply-add is two),
    ``input`` (channels, height, width) and ``source_sha256`` of the file of a network of your own.
    `SpecError` if it has nothing to train, fails, or returns anything but logits; too little memory
    is no fault of the network, and stays the error that it is.
    """
    parameters = list(network.parameters())
    if any(map(is_lazy, parameters)):
        raise _refused(spec, "has sizes that are open until it sees images; give them")
    if not parameters:
        raise _refused(spec, "has no parameters to train")
    if not any(one.requires_grad for one in parameters):
        raise _refused(spec, "has no trainable parameters; set requires_grad of some")
    shape = (3, spec.image_size, spec.image_size)
    facts = {
        "parameters": sum(one.numel() for one in parameters),
        "input": list(shape),
        "source_sha256": _source(spec),
    }
    if spec.simulated:
        return facts | {"forward_flop": 0}
    counter, trial = FlopCounterMode(display=False), copy.deepcopy(network).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad(), counter:
        try:
            found = trial(torch.zeros(IMAGES, *shape))
        except Exception as error:  # whatever a network of others raises
            if isinstance(error, MemoryError) or NO_MEMORY in str(error):
                raise
            said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            text = f"fails on images of shape {shape} (image_size = {spec.image_size}): {said}"
            raise _refused(spec, text) from error
    if not isinstance(found, Tensor):
        raise _refused(
            spec, f"returns {type(found).__name__} in training, not a tensor; return the logits"
        )
    if found.shape != (IMAGES, spec.classes):
        raise _refused(
            spec,
            f"returns shape {tuple(found.shape)} of {IMAGES} images, but classes = {spec.classes}",
        )
    if spec.local_batch_size == 1 and spec.work == "train":
        _try_one_image(trial, spec, shape)
    return facts | {"forward_flop": counter.get_total_flops() // IMAGES}


def _try_one_image(trial: nn.Module, spec: RunSpec, shape: tuple[int, ...]) -> None:
    """Raise `SpecError` if a network that trains on two images does not on one alone."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            trial(torch.zeros(1, *shape))
        except ValueError as error:  # of batch normalisation, which needs more than one value
            said = str(error).strip().splitlines()[0]
            text = f"cannot train with local_batch_size = 1 at image_size = {spec.image_size}"
            raise _refused(spec, f"{text}: {said}; use 2 or more") from error


def _refused(spec: RunSpec, why: str) -> SpecError:
    return SpecError(f"model = {spec.model!r} {why}")


def _source(spec: RunSpec) -> str | None:
    """Return the digest of the file of a network of your own."""
    if ":" not in spec.model:
        return None
    made = resolve("model", spec.model)
    made = made.func if isinstance(made, partial) else made
    of_code = inspect.isroutine(made) or inspect.isclass(made)
    file = inspect.getsourcefile(made if of_code else type(made))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None


def drawn(spec: RunSpec) -> nn.Module:
    """Return the run's network with its initial weights, on the CPU: the same everywhere.

    `SpecError` if the function of the network returns anything else.
    """
    torch.manual_seed(derive_seed("weights", spec.seed, spec.repeat))
    entry, make = known("model", spec.model), resolve("model", spec.model)
    network = make(spec) if entry and entry.of_run else make(spec.classes)
    if not isinstance(network, nn.Module):
        raise _refused(
            spec, f"returns {type(network).__name__}, not a torch.nn.Module; return the network"
        )
    return network
