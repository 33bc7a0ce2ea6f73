"""The layers of residual networks: their tensors and multiply-adds, without torch."""

from typing import NamedTuple

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.emulation.options import Emulated

BYTES = 4  # of a gradient in fp32

_BLOCKS = {
    "resnet18": (2, 2, 2, 2),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}


class Layer(NamedTuple):
    """A convolution with its normalisation, or the last layer.

    ``tensors`` are how many numbers each of its weights has, ``flop`` the multiply-adds of forward
    for one image.
    """

    tensors: tuple[int, ...]
    flop: float


def paced_layers(spec: RunSpec) -> list[Layer]:
    """Return ResNet50's layers with ``emu_shrink`` times fewer numbers, one of each at least."""
    shrink = spec.of(Emulated).emu_shrink
    return [
        Layer(tuple(max(1, round(count / shrink)) for count in layer.tensors), layer.flop)
        for layer in layers("resnet50", 224, spec.classes)
    ]


def layers(model: str, image_size: int = 224, classes: int = 1000) -> list[Layer]:
    """Return the layers of a residual network in the order of forward.

    He et al. 2016, as torchvision builds it. `SpecError` if the network is not known here.
    """
    if model not in _BLOCKS:
        raise SpecError(
            f"the scaling model has no gradients of model={model!r}; allowed: {', '.join(_BLOCKS)}"
        )
    side, inputs = image_size / 4, 64
    found = [_convolution(3, 64, 7, image_size / 2)]
    for stage, blocks in enumerate(_BLOCKS[model]):
        width = 64 * 2**stage
        outputs = width if model == "resnet18" else 4 * width
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            if model == "resnet18":
                found.append(_convolution(inputs, width, 3, side / stride))
            else:
                found.append(_convolution(inputs, width, 1, side))
                found.append(_convolution(width, width, 3, side / stride))
            side /= stride
            found.append(_convolution(width, outputs, 3 if model == "resnet18" else 1, side))
            if stride > 1 or inputs != outputs:
                found.append(_convolution(inputs, outputs, 1, side))
            inputs = outputs
    return [*found, Layer((inputs * classes, classes), float(inputs * classes))]


def _convolution(inputs: int, outputs: int, kernel: int, side: float) -> Layer:
    """Return a convolution with its normalisation: weights, scales, shifts."""
    weights = kernel**2 * inputs * outputs
    return Layer((weights, outputs, outputs), weights * side**2)
