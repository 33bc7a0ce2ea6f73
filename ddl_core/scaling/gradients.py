"""The gradients of a network: how large they are, and when in backward each is there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddl_core.emulation.layers import BYTES, Layer, layers, paced_layers
from ddl_core.spec.run import RunSpec


@dataclass(frozen=True)
class Gradients:
    """Gradients in the order in which backward finishes them.

    Attributes
    ----------
    nbytes
        Bytes of each tensor, shape (T,).
    ready
        Share of backward's time after which each is there, shape (T,), ascending to 1.
    flop
        Multiply-adds of forward for one image.
    """

    nbytes: NDArray[np.float64]
    ready: NDArray[np.float64]
    flop: float

    @property
    def total(self) -> float:
        """All bytes."""
        return float(self.nbytes.sum())


def resnet(model: str, image_size: int = 224, classes: int = 1000) -> Gradients:
    """Return the gradients of a residual network; see `layers`.

    Backward is taken to spend its time as forward does, by multiply-adds.

    Raises
    ------
    SpecError
        If the network is not known here.
    """
    return of_layers(layers(model, image_size, classes))


def of_run(spec: RunSpec) -> Gradients:
    """Return the gradients that a run reduces; of a paced network those that it really sends.

    Raises
    ------
    SpecError
        If they are not known here.
    """
    if spec.emulated:
        return of_layers(paced_layers(spec))
    return resnet(spec.model, spec.image_size, spec.classes)


def of_layers(network: Sequence[Layer]) -> Gradients:
    """Return the gradients of layers that stand in the order of forward."""
    backward = network[::-1]
    passed = np.cumsum([layer.flop for layer in backward])
    ready = np.repeat(passed / passed[-1], [len(layer.tensors) for layer in backward])
    nbytes = [BYTES * count for layer in backward for count in layer.tensors[::-1]]
    return Gradients(np.array(nbytes, float), ready, float(passed[-1]))
