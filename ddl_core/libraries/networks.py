"""The registered networks as functions over the operations of a library.

One text for all libraries; names, shapes and order of the parameters are those of torch's
``state_dict``. Padding is symmetric and written out, the stride of a bottleneck is in its 3x3
convolution (torchvision's v1.5).
"""

from collections.abc import Callable
from typing import Any, Protocol

Value = Any
"""What a library's operations pass on: a tensor, a symbol, a layer's output."""


class Ops(Protocol):
    """A library's operations; `name` is the beginning of the parameters' names in torch."""

    def conv(
        self,
        name: str,
        x: Value,
        channels: int,
        width: int,
        kernel: int,
        stride: int,
        padding: int,
        bias: bool = False,
    ) -> Value:
        """Convolve: ``name.weight`` (width, channels, kernel, kernel), ``name.bias`` (width)."""
        ...

    def norm(self, name: str, x: Value, width: int, eps: float = 1e-5) -> Value:
        """Normalise over the rank's own batch, momentum 0.1 of the new value.

        ``name.weight``, ``name.bias``, ``name.running_mean``, ``name.running_var`` (width).
        """
        ...

    def linear(self, name: str, x: Value, width: int, outputs: int) -> Value:
        """Return x W' + b: ``name.weight`` (outputs, width), ``name.bias`` (outputs)."""
        ...

    def relu(self, x: Value) -> Value:
        """Return max(x, 0)."""
        ...

    def tanh(self, x: Value) -> Value:
        """Return tanh x."""
        ...

    def add(self, a: Value, b: Value) -> Value:
        """Return a + b."""
        ...

    def concat(self, parts: list[Value]) -> Value:
        """Return the channels of all parts one after the other."""
        ...

    def max_pool(
        self, x: Value, kernel: int, stride: int, padding: int, ceil: bool = False
    ) -> Value:
        """Return the largest value of each window; `ceil`: of one beyond the edge as well.

        What is pooled comes after a ReLU, so zeros serve as padding.
        """
        ...

    def global_mean(self, x: Value) -> Value:
        """Return the mean over all pixels: (n, channels)."""
        ...

    def flatten(self, x: Value) -> Value:
        """Return (n, channels x height x width), in this order in every layout."""
        ...

    def halve(self, x: Value) -> Value:
        """Take every other pixel, and as many channels of zeros more: option A of He et al."""
        ...

    def dropout(self, x: Value, rate: float) -> Value:
        """Set a share `rate` of the values to zero in training, and scale the others up."""
        ...


Network = Callable[[Ops, Value, int], Value]


def _small_resnet(blocks: int) -> Network:
    """He et al. 2016, section 4.2, for 32-pixel images: depth 6 `blocks` + 2."""

    def network(ops: Ops, x: Value, classes: int) -> Value:
        x = ops.relu(ops.norm("stem.1", ops.conv("stem.0", x, 3, 16, 3, 1, 1), 16))
        channels, index = 16, 0
        for width in (16, 32, 64):
            for _ in range(blocks):
                at, stride = f"stages.{index}", 1 if channels == width else 2
                y = ops.conv(f"{at}.conv1", x, channels, width, 3, stride, 1)
                y = ops.relu(ops.norm(f"{at}.bn1", y, width))
                y = ops.norm(f"{at}.bn2", ops.conv(f"{at}.conv2", y, width, width, 3, 1, 1), width)
                x = ops.relu(ops.add(y, x if stride == 1 else ops.halve(x)))
                channels, index = width, index + 1
        return ops.linear("head", ops.global_mean(x), channels, classes)

    return network


def _bottlenecks(blocks: tuple[int, ...]) -> Network:
    """ResNet50, 101 and 152."""

    def network(ops: Ops, x: Value, classes: int) -> Value:
        x = ops.relu(ops.norm("bn1", ops.conv("conv1", x, 3, 64, 7, 2, 3), 64))
        x, channels = ops.max_pool(x, 3, 2, 1), 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for block in range(count):
                at, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
                y = ops.conv(f"{at}.conv1", x, channels, width, 1, 1, 0)
                y = ops.relu(ops.norm(f"{at}.bn1", y, width))
                y = ops.conv(f"{at}.conv2", y, width, width, 3, stride, 1)
                y = ops.relu(ops.norm(f"{at}.bn2", y, width))
                y = ops.conv(f"{at}.conv3", y, width, 4 * width, 1, 1, 0)
                y = ops.norm(f"{at}.bn3", y, 4 * width)
                if not block:
                    x = ops.conv(f"{at}.downsample.0", x, channels, 4 * width, 1, stride, 0)
                    x = ops.norm(f"{at}.downsample.1", x, 4 * width)
                x, channels = ops.relu(ops.add(y, x)), 4 * width
        return ops.linear("fc", ops.global_mean(x), channels, classes)

    return network


def tiny(ops: Ops, x: Value, classes: int) -> Value:
    """Apply the network of the equality tests: smooth, so that rounding does not grow."""
    x = ops.tanh(ops.norm("1", ops.conv("0", x, 3, 8, 3, 2, 0), 8))
    x = ops.tanh(ops.norm("4", ops.conv("3", x, 8, 16, 3, 2, 0), 16))
    return ops.linear("8", ops.global_mean(x), 16, classes)


NETWORKS: dict[str, Network] = {
    "resnet8": _small_resnet(1),
    "resnet44": _small_resnet(7),
    "resnet50": _bottlenecks((3, 4, 6, 3)),
    "resnet101": _bottlenecks((3, 4, 23, 3)),
    "resnet152": _bottlenecks((3, 8, 36, 3)),
}
