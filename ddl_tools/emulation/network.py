"""A network whose layers sleep instead of computing, and whose gradients are real tensors.

What a strategy sees is a network like any other: hooks fire as each gradient is there, buckets
fill, and real bytes travel. Only the arithmetic is not done, so that many ranks share a few cores.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddl_core.config import RunSpec
from ddl_tools.emulation.compute import SimulatedCompute, of_this_rank
from ddl_tools.emulation.layers import BYTES, paced_layers

# Of a step's compute: for each product of forward, backward has two.
FORWARD, BACKWARD = 1 / 3, 2 / 3
# Of rank 0; that of rank r is r + 1 times as large. Sums of multiples of a power of two are exact
# in any order, so weights show to the last bit whether a framework averages over all ranks.
GRADIENT = 2.0**-10


def paced_resnet50(spec: RunSpec) -> nn.Module:
    """ResNet50 of 224-pixel images, ``emu_shrink`` times smaller, in ``emu_step_ms`` a step.

    Each layer takes its share of that by its multiply-adds.
    """
    return Paced(spec)


class Paced(nn.Module):
    """Layers that take their time one after the other."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__()
        self._compute = compute = of_this_rank(spec)
        self._classes = spec.classes
        layers = paced_layers(spec)
        flop = sum(layer.flop for layer in layers)
        self.layers = nn.ModuleList(
            _Layer(layer.tensors, BACKWARD * layer.flop / flop, compute, first=layer is layers[0])
            for layer in layers
        )
        compute.gradient_bytes = BYTES * sum(one.numel() for one in self.parameters())

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes), all equal; nothing is sent in forward, so it sleeps once."""
        self._compute.begin_step()
        signal = images.mean(dim=(1, 2, 3))
        for layer in self.layers:
            signal = layer(signal)
        self._compute.work(FORWARD)
        return signal[:, None].expand(-1, self._classes)


class _Layer(nn.Module):
    def __init__(
        self, counts: Sequence[int], share: float, compute: SimulatedCompute, first: bool
    ) -> None:
        super().__init__()
        self.share, self.compute, self.first = share, compute, first
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(count)) for count in counts)
        value = GRADIENT * (1 + compute.rank)
        self.gradients = [torch.full((count,), value) for count in counts]

    def forward(self, signal: Tensor) -> Tensor:
        passed: Tensor = _Work.apply(signal, self, *self.weights)
        return passed


class _Work(torch.autograd.Function):
    """Passes its input on; backward takes the layer's time, then gives the weights' gradients."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, layer: _Layer, *weights: Tensor) -> Tensor:
        ctx.layer = layer
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        layer: _Layer = ctx.layer
        layer.compute.work(layer.share)
        if layer.first:
            layer.compute.end_step()
        # Copies: the owner of a gradient may reduce it in place.
        return gradients[0], None, *(one.clone() for one in layer.gradients)
