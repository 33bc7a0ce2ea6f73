"""Running statistics of normalisation: the mean over virtual workers, and that over ranks.

The update with momentum is linear, so both equal averaging over all workers after every step.
`precise_statistics` estimates them anew for an evaluation.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ddl_core.loop import mean_over_ranks
from ddl_core.strategies.base import Strategy


class VirtualWorkers:
    """Keeps the running statistics of the workers that one rank stands for.

    Each begins a step with what the last step left and adds its own micro-batch; the step leaves
    their mean: with momentum m, (1 - m) r + m mean(s).
    """

    def __init__(self, network: nn.Module, workers: int) -> None:
        self._workers = workers
        self._running = _running(network) if workers > 1 else []
        self._before = [one.clone() for one in self._running]
        self._mean = [one.clone() for one in self._running]

    def micro_batch_done(self, micro: int) -> None:
        """Take micro-batch number `micro` of a step, from 0, into the mean; wait for nothing."""
        if not self._running:
            return
        if micro == 0:
            torch._foreach_copy_(self._mean, self._running)
        else:  # exact where all are equal, unlike a sum that is divided
            torch._foreach_lerp_(self._mean, self._running, 1 / (micro + 1))
        if micro + 1 == self._workers:
            torch._foreach_copy_(self._before, self._mean)
        torch._foreach_copy_(self._running, self._before)


@contextmanager
def precise_statistics(network: nn.Module) -> Iterator[None]:
    """Begin new running statistics: means over the batches that pass in the block (PreciseBN).

    They belong to the weights as they are; those of training lag behind by some updates (Wu and
    Johnson 2021, arXiv:2105.07576). At the end the layers have their own again. No other layer
    trains, so nothing is drawn at random.
    """
    layers = _layers(network)
    kept = [(layer.momentum, [one.clone() for one in layer.buffers()]) for layer in layers]
    network.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean, in torch
        layer.train()
    try:
        yield
    finally:
        network.eval()
        for layer, (momentum, buffers) in zip(layers, kept, strict=True):
            layer.momentum = momentum
            for buffer, own in zip(layer.buffers(), buffers, strict=True):
                buffer.copy_(own)


def _layers(network: nn.Module) -> list[_BatchNorm]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


def _running(network: nn.Module) -> list[Tensor]:
    found = [one for layer in _layers(network) for one in (layer.running_mean, layer.running_var)]
    return [one for one in found if one is not None]


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
