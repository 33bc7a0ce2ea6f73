"""What a framework contributes: a network, the mean of its gradients, and its update rule."""

from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools import gpus
from ddl_tools.frameworks.weights import Floats as Floats
from ddl_tools.frameworks.weights import State as State

Layout = Literal["NCHW", "NHWC"]

# Fields with which an optimiser makes its update, beside the rate.
RULES = {
    "sgd": ("momentum", "weight_decay"),
    "adamw": ("adam_beta1", "adam_beta2", "adam_eps", "weight_decay"),
}


def rule_of(spec: RunSpec) -> dict[str, float]:
    """Return the fields of a run with which its optimiser makes an update, beside the rate."""
    return {name: getattr(spec, name) for name in RULES[spec.optimizer]}


def own_gpu(device: str, framework: str, found: int, local_rank: int) -> int | None:
    """Return which of the `found` GPUs that a framework sees is this rank's; None for the CPU.

    `LaunchError` if CUDA is asked for and not there, or if the framework sees no GPU that the
    driver lists.

    Parameters
    ----------
    device
        ``"auto"``, ``"cpu"`` or ``"cuda"``, as the run asks.
    """
    if device == "cpu":
        return None
    if found:  # some sites show every rank all GPUs of the node, some only its own
        return local_rank % found
    listed = gpus.count()
    if device == "auto" and not listed:
        return None
    raise LaunchError(
        f"device {device!r}: {framework} sees no CUDA device, and this machine has {listed} GPUs; "
        f"use a CUDA build of {framework} (docs/reference/frameworks.md), or device 'cpu'"
    )


class Framework(Protocol):
    """A network and its update rule on one rank. The constructor takes ``(spec, control)``.

    It joins the group of the run's strategy, builds the network and sets threads and arithmetic;
    weights come by `load`.
    """

    layout: Layout
    synchronous: bool
    """Whether a step has ended when `step` returns: only then may steps be timed one by one."""
    device: str
    """``"cpu"`` or ``"cuda"``."""

    def load(self, state: State) -> None:
        """Take over weights, statistics and moments; all ranks load the same."""

    def state(self) -> State:
        """Return this rank's; its statistics are its own."""

    def step(self, images: Floats, labels: npt.NDArray[np.int32], rate: float) -> None:
        """Do forward, backward, mean over ranks and one update; wait for nothing.

        Parameters
        ----------
        images : (n, 3, s, s) or (n, s, s, 3)
            In `layout`; n is the run's local batch size, in every step.
        labels : (n,)
        rate
            Learning rate of the update.
        """

    def loss(self) -> float:
        """Return the sum of the steps' mean losses since the last call; waits for the device."""

    def predict(self, images: Floats) -> Floats:
        """Return logits (n, classes) in float32 by the running statistics. Local.

        All calls have the same n, so that nothing is compiled anew for a last batch.
        """

    def settings(self) -> dict[str, float]:
        """Return ``lr`` and the fields of `rule_of` as the last update has used them."""

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""

    def describe(self) -> dict[str, Any]:
        """Return what the record tells beside the layout.

        ``threads`` (dict), ``settings`` (dict of switches in effect) and ``communication`` (dict
        with ``library``: what carries the gradients).
        """

    def close(self) -> None:
        """Leave the group; end what was started."""
