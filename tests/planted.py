"""Faults to plant into a strategy or a loader, and a worker that knows them.

``python -m tests.planted RUN_DIR`` is a rank like any other, but these names exist for it too:

- model ``tiny``: a small network with batch statistics;
- strategy ``S_FAULT``: the registered strategy S with a fault of `STRATEGY_FAULTS`;
- loader ``L_FAULT``: the registered loader L, native or turbo, with a fault of `LOADER_FAULTS`;
- strategy ``manual``: from a module of that name, if there is one on the path.
"""

import logging
import sys
import time
from importlib import import_module
from typing import Any

from torch import nn

from ddl_core import registry
from ddl_core.data.image import CropSampler
from ddl_core.optim import own_gradients
from ddl_tools.rank import worker


def tiny(classes: int) -> nn.Module:
    """Return a small network with batch statistics, and smooth.

    Another order of additions then stays as small as it is. With ReLU, one activation that changes
    its sign would make two equal trainings differ visibly after 20 steps. Sixteen channels at
    least, because with fewer the instruction sets of a processor all compute the same bits.
    """

    def block(channels: int, width: int) -> nn.Module:
        convolution = nn.Conv2d(channels, width, 3, stride=2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.Tanh())

    return nn.Sequential(
        block(3, 16),
        block(16, 32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


class RateTwice:
    """Scales the learning rate once more, as a framework does that means to help."""

    def setup(self, model, optimizer):
        model, self.planted = super().setup(model, optimizer)
        return model, self.planted

    def optimizer_step(self, scaler):
        for group in self.planted.param_groups:
            group["lr"] *= 2
        super().optimizer_step(scaler)


class SecondZeroGrad(RateTwice):
    """Clears the gradients between backward and update."""

    def optimizer_step(self, scaler):
        self.planted.zero_grad()
        super(RateTwice, self).optimizer_step(scaler)


class SecondUpdate:
    """Updates twice with the same gradients."""

    def optimizer_step(self, scaler):
        super().optimizer_step(scaler)
        super().optimizer_step(scaler)


class NoUpdate:
    """Forgets to update."""

    def optimizer_step(self, scaler):
        return None


class Stays:
    """Fails, and then never leaves, as a library that waits for other ranks."""

    def optimizer_step(self, scaler):
        raise ValueError("the first step failed")

    def teardown(self):
        time.sleep(600)


class StatisticsKept:
    """Takes no part in averaging: what is larger than a few numbers is not reduced."""

    def all_reduce(self, tensor, op="sum"):
        if tensor.is_floating_point() and tensor.numel() > 16:
            return tensor.mul_(self.world_size)
        return super().all_reduce(tensor, op)


class GradientsSummed:
    """Sums gradients where the others average them; no run by itself looks wrong."""

    def backward(self, loss):
        super().backward(loss * self.world_size)


class GradientsLarger:
    """Makes gradients 1 % larger, as a mean over too few images does."""

    def backward(self, loss):
        super().backward(loss * 1.01)


class Unclipped:
    """Forgets to clip."""

    def clip_gradients(self, scaler):
        return None


class ClippedByPart:
    """Clips by the norm of this rank's part of the gradients; no run by itself looks wrong."""

    def clip_gradients(self, scaler):
        parameters = list(self.model.parameters())
        norm = nn.utils.get_total_norm(own_gradients(parameters))
        nn.utils.clip_grads_with_norm_(parameters, self.spec.clip_grad_norm, norm)


class OwnGradients(RateTwice):
    """Updates each rank with gradients of its own."""

    def optimizer_step(self, scaler):
        for group in self.planted.param_groups:
            for parameter in group["params"]:
                parameter.grad *= 1 + self.rank
        super(RateTwice, self).optimizer_step(scaler)


STRATEGY_FAULTS = {
    "rate_twice": RateTwice,
    "second_zero_grad": SecondZeroGrad,
    "second_update": SecondUpdate,
    "no_update": NoUpdate,
    "statistics_kept": StatisticsKept,
    "gradients_summed": GradientsSummed,
    "gradients_larger": GradientsLarger,
    "own_gradients": OwnGradients,
    "unclipped": Unclipped,
    "clipped_by_part": ClippedByPart,
    "stays": Stays,
}


class LastBatchDropped:
    """Ends an epoch one step early."""

    def __init__(self, spec, *arguments):
        super().__init__(spec, *arguments)
        self.missing = spec.accumulation

    def __len__(self):
        return super().__len__() - self.missing


class CropShifted:
    """Cuts crops one pixel further to the left, or to the right at the edge."""

    def make_samples(self):
        samples = super().make_samples()
        if samples.crops:
            samples.crops = Shifted(self._spec)
        return samples


class Shifted(CropSampler):
    def draw(self, *place):
        right = super().draw(*place)
        return right._replace(left=right.left - 1 if right.left else 1)


LOADER_FAULTS = {"last_batch_dropped": LastBatchDropped, "crop_shifted": CropShifted}


def names() -> list[tuple[dict[str, registry.Entry], str, str]]:
    """Return the additional names: (registry, name, place)."""
    here = "tests.planted"
    found = [(registry.MODELS, "tiny", f"{here}:tiny")]
    for name in list(registry.STRATEGIES):
        found += [
            (registry.STRATEGIES, f"{name}_{f}", f"{here}:{name}__{f}") for f in STRATEGY_FAULTS
        ]
    for name in ("native", "turbo"):
        found += [(registry.LOADERS, f"{name}_{f}", f"{here}:{name}__{f}") for f in LOADER_FAULTS]
    found.append((registry.STRATEGIES, "manual", "manual:Manual"))
    return found


def teach(patch: Any, worker: str = "tests.planted") -> None:
    """Let this process, and the ranks it starts, know the additional names of a worker."""
    for table, name, place in import_module(worker).names():
        patch.setitem(table, name, registry.Entry(place))
    patch.setattr("ddl_tools.launch.ranks.WORKER", worker)


def __getattr__(name: str) -> Any:
    """Return the class that an entry of `names` points to."""
    base, _, fault = name.partition("__")
    if fault in STRATEGY_FAULTS and base in registry.STRATEGIES:
        return type(name, (STRATEGY_FAULTS[fault], registry.resolve("strategy", base)), {})
    if fault in LOADER_FAULTS and base in registry.LOADERS:
        return type(name, (LOADER_FAULTS[fault], registry.resolve("loader", base)), {})
    raise AttributeError(name)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    planted = import_module("tests.planted")  # one module, not a second one named __main__
    for table, name, place in planted.names():
        table[name] = registry.Entry(place)
    sys.exit(worker.main(sys.argv[1:]))
