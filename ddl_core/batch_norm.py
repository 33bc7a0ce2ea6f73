"""Batch normalisation: each micro-batch has its own statistics, and running ones are shared.

Running statistics are the mean over virtual workers and over ranks. The update with momentum is
linear, so both equal averaging over all workers after every step. `precise_statistics` estimates
them anew for an evaluation.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ddl_core.errors import SpecError
from ddl_core.loop import mean_over_ranks
from ddl_core.strategies.base import Strategy


class GhostBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation that normalises several micro-batches of one pass separately.

    Image n belongs to micro-batch n modulo `micro_batches`, so that in NCHW the micro-batches are
    channels, without a copy (ghost batch normalisation, Hoffer et al. 2017, arXiv:1705.08741).
    Running statistics take the mean over micro-batches.
    """

    micro_batches = 1

    def forward(self, input: Tensor) -> Tensor:
        """Normalise images (micro_batches * n, C, H, W)."""
        if not self.training:
            return super().forward(input)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        count, (images, channels) = self.micro_batches, input.shape[:2]
        self.num_batches_tracked.add_(1)
        # Without a momentum the running statistics are plain means, as in torch.
        momentum = self.momentum or 1 / float(self.num_batches_tracked)
        mean, variance = self.running_mean.repeat(count), self.running_var.repeat(count)
        normalised = functional.batch_norm(
            input.reshape(images // count, count * channels, *input.shape[2:]),
            mean,
            variance,
            self.weight.repeat(count),
            self.bias.repeat(count),
            True,
            momentum,
            self.eps,
        )
        with torch.no_grad():
            self.running_mean.copy_(mean.view(count, channels).mean(0))
            self.running_var.copy_(variance.view(count, channels).mean(0))
        return normalised.reshape(input.shape)


def split_statistics(network: nn.Module, micro_batches: int) -> None:
    """Let the layers of `network` normalise so many micro-batches of a pass separately.

    `SpecError` if it has a normalisation over the batch that is no plain `BatchNorm2d`.
    """
    for layer in _layers(network):
        plain = type(layer) is nn.BatchNorm2d and layer.affine and layer.track_running_stats
        if not plain:
            raise SpecError(
                f"micro_batches_per_pass = {micro_batches} splits BatchNorm2d, but the network has "
                f"{type(layer).__name__}",
                remedy="leave micro_batches_per_pass out",
            )
        layer.__class__ = GhostBatchNorm2d  # with its weights, hooks and names
        cast(GhostBatchNorm2d, layer).micro_batches = micro_batches


class VirtualWorkers:
    """Keeps the running statistics of the workers that one rank stands for.

    Each pass begins with what the last step left and adds its own micro-batches; the step leaves
    their mean: with momentum m, (1 - m) r + m mean(s).
    """

    def __init__(self, network: nn.Module, passes: int) -> None:
        self._passes = passes
        layers = _layers(network) if passes > 1 else []
        both = [one for layer in layers for one in (layer.running_mean, layer.running_var)]
        self._running = [one for one in both if one is not None]
        self._before = [one.clone() for one in self._running]
        self._mean = [one.clone() for one in self._running]

    def pass_done(self, number: int) -> None:
        """Take pass `number` of a step, counted from 0, into the mean; wait for nothing."""
        if not self._running:
            return
        if number == 0:
            torch._foreach_copy_(self._mean, self._running)
        else:  # exact where all are equal, unlike a sum that is divided
            torch._foreach_lerp_(self._mean, self._running, 1 / (number + 1))
        if number + 1 == self._passes:
            torch._foreach_copy_(self._before, self._mean)
        torch._foreach_copy_(self._running, self._before)


@contextmanager
def precise_statistics(network: nn.Module) -> Iterator[None]:
    """Begin new running statistics: means over the batches that pass in the block (PreciseBN).

    They belong to the weights as they are; those of training lag behind by some updates (Wu and
    Johnson 2021, arXiv:2105.07576). At the end the layers have their own again. No other layer
    trains, so nothing is drawn at random.
    """
    layers, passes = _layers(network), itertools.count(1)
    kept = [(layer.momentum, [one.clone() for one in layer.buffers()]) for layer in layers]
    network.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.train()

    def count(*_: object) -> None:
        """Let the pass that begins make plain means; torch would ask the device for its number."""
        share = 1 / next(passes)
        for layer in layers:
            layer.momentum = share

    counting = network.register_forward_pre_hook(count)
    try:
        yield
    finally:
        counting.remove()
        network.eval()
        for layer, (momentum, buffers) in zip(layers, kept, strict=True):
            layer.momentum = momentum
            for buffer, own in zip(layer.buffers(), buffers, strict=True):
                buffer.copy_(own)


def _layers(network: nn.Module) -> list[_BatchNorm]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


def average_batch_statistics(strategy: Strategy, network: nn.Module) -> None:
    """Replace every running statistic by its mean over ranks, once an epoch. A collective."""
    if strategy.world_size == 1:
        return
    buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    values = torch.cat([buffer.flatten() for buffer in buffers])
    mean = torch.from_numpy(mean_over_ranks(strategy, values.cpu().numpy()))
    for buffer, part in zip(buffers, mean.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))
