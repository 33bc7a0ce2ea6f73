"""Fairness rules of PyTorch, checked in every run: a broken rule ends the run and is named.

Costly checks are done outside the timed window or in the first steps after a start. A rule that
only a comparison of runs can check, such as the mean of gradients, is in tests/test_equality.py.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ddl_core.config import RunSpec
from ddl_core.errors import broken
from ddl_core.fairness import check_agreement
from ddl_core.optim import group_settings, own_gradients
from ddl_core.schedules import learning_rate
from ddl_core.strategies.base import Strategy

CLOSELY_WATCHED_STEPS = 3
ROUNDING = 1e-3  # of the norm of clipped gradients


def check_setup(before: str, after: str) -> None:
    """Check by hashes that a strategy's `setup` left the seeded weights as they were."""
    if before != after:
        raise broken("same initial weights", "setup() of the strategy changed weights or buffers")


def statistics(network: nn.Module) -> Tensor:
    """Return all buffers of `network` as one vector of float64, without NaN to be comparable."""
    parts = [buffer.detach().double().nan_to_num().flatten() for buffer in network.buffers()]
    return torch.cat(parts) if parts else torch.empty(0)


class FairnessMonitor:
    """Watches how one rank trains `network`; `optimizer` is what the step calls."""

    def __init__(
        self, spec: RunSpec, strategy: Strategy, network: nn.Module, optimizer: Optimizer
    ) -> None:
        self._spec, self._group = spec, strategy
        self._network, self._optimizer = network, optimizer
        self._close_steps = CLOSELY_WATCHED_STEPS
        self._images_seen = self._images_per_epoch = 0
        self._waiting = False  # gradients were added that no update has used
        self._depth = 0
        # Whether a gradient of this rank was not zero, in each update that is watched closely.
        self._gradients = np.ones(CLOSELY_WATCHED_STEPS)
        self._statistics = torch.empty(0)
        # Calls of ``torch.cuda.synchronize`` or that of a stream or event, in the steps of the
        # epoch on this rank; None for a compiled network.
        self.device_waits: int | None = None

    @contextmanager
    def watching(self, epoch: int, steps: int, images: int) -> Iterator[None]:
        """Watch the `steps` steps of `epoch` on a training set of `images` images.

        Inside, `FairnessError` is raised by the call that breaks a rule.
        """
        batch = self._spec.global_batch_size
        if steps != images // batch:
            raise broken(
                "only an incomplete last batch is dropped",
                f"{steps} steps are planned, but {images} images give {images // batch}",
            )
        self._images_per_epoch = steps * batch
        self._images_seen = epoch * self._images_per_epoch
        with ExitStack() as stack:
            # Hooks of all optimisers: a strategy may step another one than it returned.
            stack.callback(register_optimizer_step_pre_hook(self._before_update).remove)
            stack.callback(register_optimizer_step_post_hook(self._after_update).remove)
            for owner in (self._optimizer, self._network):
                stack.enter_context(_guarded(owner, "zero_grad", self._gradients_may_go))
            if not self._spec.compile:  # the compiler times its own choices
                self.device_waits = 0
                for waiting in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
                    stack.enter_context(_guarded(waiting, "synchronize", self._count_wait))
                if self._close_steps:
                    self._statistics = statistics(self._network)
                    hook = self._network.register_forward_pre_hook(self._before_forward)
                    stack.callback(hook.remove)
            yield

    def gradients_added(self) -> None:
        """Note that a backward pass is done."""
        self._waiting = True
        if self._close_steps:
            self._statistics = statistics(self._network)

    def step_done(self, may_be_skipped: bool) -> None:
        """Note that the loop's step is done; fp16 may skip an update whose gradients overflowed."""
        if self._waiting and not may_be_skipped:
            raise broken("one update per step", "no optimiser stepped")
        self._waiting = False
        self._images_seen += self._spec.global_batch_size
        self._close_steps = max(0, self._close_steps - 1)

    def check_training(self) -> None:
        """Check the network and its first updates after an epoch. A collective."""
        # A rank may update a part of the weights, whose gradients are zero where units are dead.
        if not self._group.reduce(self._gradients, "max").all():
            raise broken(
                "gradients zeroed once, before backward", "all gradients were zero in an update"
            )
        vector = statistics(self._network).cpu().numpy()
        digest = hashlib.sha256(vector.tobytes()).hexdigest()
        check_agreement(self._group, digest, "batch statistics averaged over ranks")

    def _before_update(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._depth += 1
        self._check_settings(optimizer)
        if self._depth > 1:  # an optimiser made by subclassing calls its parent's step
            return
        if not self._waiting:
            raise broken("one update per step", "an optimiser stepped again without new gradients")
        if self._close_steps:
            self._gradients[-self._close_steps] = _has_gradient(optimizer)
            self._check_norm(optimizer)
        self._waiting = False

    def _after_update(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._depth -= 1

    def _check_settings(self, optimizer: Optimizer) -> None:
        rule = "same learning rate and update rule"
        rate = learning_rate(self._spec, self._images_seen, self._images_per_epoch)
        groups, expected = optimizer.param_groups, group_settings(self._spec)
        if len(groups) != len(expected):
            raise broken(rule, f"the optimiser has {len(groups)} groups, not {len(expected)}")
        for group, settings in zip(groups, expected, strict=True):
            for name, value in {"lr": rate, **settings}.items():
                if not np.array_equal(group[name], value):
                    raise broken(rule, f"it stepped with {name} = {group[name]}, not {value}")

    def _check_norm(self, optimizer: Optimizer) -> None:
        """Check what this rank has of the gradients: a part has no larger norm than the whole."""
        limit = self._spec.clip_grad_norm
        if limit is None:
            return
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        norm = float(nn.utils.get_total_norm(own_gradients(parameters)))
        if norm > (1 + ROUNDING) * limit:
            raise broken(
                "gradients clipped by their norm",
                f"an update had gradients of norm {norm:.3g}, but clip_grad_norm = {limit:g}",
            )

    def _gradients_may_go(self) -> None:
        if self._waiting:
            raise broken(
                "gradients zeroed once, before backward",
                "zero_grad() was called between backward and update",
            )

    def _count_wait(self) -> None:
        self.device_waits = (self.device_waits or 0) + 1

    def _before_forward(self, _network: nn.Module, _inputs: Any) -> None:
        if self._close_steps and not torch.equal(statistics(self._network), self._statistics):
            raise broken(
                "batch statistics local within an epoch",
                "buffers changed between backward and the next forward",
            )


def _has_gradient(optimizer: Optimizer) -> bool:
    return any(
        parameter.grad is not None and bool(parameter.grad.any())
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


@contextmanager
def _guarded(owner: Any, name: str, guard: Callable[[], None]) -> Iterator[None]:
    """Call `guard` before every call of ``owner.name`` inside the block."""
    original, own = getattr(owner, name), name in vars(owner)

    def guarded(*arguments: Any, **named: Any) -> Any:
        guard()
        return original(*arguments, **named)

    setattr(owner, name, guarded)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
