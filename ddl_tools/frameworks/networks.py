"""The registered networks as functions over the operations of a framework.

One text for all frameworks; names, shapes and order of the parameters are those of torch's
``state_dict``. Padding is symmetric and written out, the stride of a bottleneck is in its 3x3
convolution (torchvision's v1.5).
"""

from collections.abc import Callable
from typing import Any, Protocol

from ddl_core.errors import SpecError

Value = Any
"""Input and output of an operation: a tensor, a symbol, a layer's output. They can be added."""

Window = tuple[int, int, int]
"""Kernel size, stride and padding, the same in both directions."""


class Ops(Protocol):
    """Operations of a framework; `name` is the beginning of the parameters' names in torch."""

    def conv(self, name: str, x: Value, width: int, window: Window, bias: bool = False) -> Value:
        """Convolve to `width` channels: ``name.weight``, ``name.bias`` (width)."""

    def norm(self, name: str, x: Value, eps: float = 1e-5) -> Value:
        """Normalise over the rank's own batch; running statistics take 0.1 of the new value.

        ``name.weight``, ``name.bias``, ``name.running_mean``, ``name.running_var``.
        """

    def linear(self, name: str, x: Value, outputs: int) -> Value:
        """Return x W' + b: ``name.weight``, ``name.bias`` (outputs)."""

    def relu(self, x: Value) -> Value:
        """Return max(x, 0)."""

    def concat(self, parts: list[Value]) -> Value:
        """Return the channels of all parts one after the other."""

    def max_pool(self, x: Value, window: Window, ceil: bool = False) -> Value:
        """Return the largest value of each window; `ceil`: of one beyond the edge as well.

        The input of a pooling comes from a ReLU, so zeros serve as padding.
        """

    def global_mean(self, x: Value) -> Value:
        """Return the mean over all pixels: (n, channels)."""

    def flatten(self, x: Value) -> Value:
        """Return (n, channels x height x width), in this order in every layout."""

    def halve(self, x: Value) -> Value:
        """Take every other pixel, and as many channels of zeros more: option A of He et al."""

    def dropout(self, x: Value, rate: float) -> Value:
        """Set a share `rate` of the values to zero in training, and scale the others up."""


Network = Callable[[Ops, Value, int], Value]


def _small_resnet(blocks: int) -> Network:
    """He et al. 2016, section 4.2, for 32-pixel images: depth 6 `blocks` + 2."""

    def network(ops: Ops, x: Value, classes: int) -> Value:
        x = ops.relu(ops.norm("stem.1", ops.conv("stem.0", x, 16, (3, 1, 1))))
        for index in range(3 * blocks):
            at, width = f"stages.{index}", 16 * 2 ** (index // blocks)
            stride = 2 if index in (blocks, 2 * blocks) else 1
            y = ops.relu(ops.norm(f"{at}.bn1", ops.conv(f"{at}.conv1", x, width, (3, stride, 1))))
            y = ops.norm(f"{at}.bn2", ops.conv(f"{at}.conv2", y, width, (3, 1, 1)))
            x = ops.relu(y + (x if stride == 1 else ops.halve(x)))
        return ops.linear("head", ops.global_mean(x), classes)

    return network


Block = Callable[[Ops, str, Value, int, int], Value]
"""Of operations, name, input, channels of the stage and stride; before the sum."""


def _resnet(blocks: tuple[int, ...], block: Block, wider: int) -> Network:
    """He et al. 2016, table 1: four stages of `block`, each of `wider` times as many channels."""

    def network(ops: Ops, x: Value, classes: int) -> Value:
        x = ops.relu(ops.norm("bn1", ops.conv("conv1", x, 64, (7, 2, 3))))
        x = ops.max_pool(x, (3, 2, 1))
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for index in range(count):
                at, stride = f"layer{stage + 1}.{index}", 2 if stage and not index else 1
                y = block(ops, at, x, width, stride)
                if not index and (stage or wider > 1):
                    x = ops.conv(f"{at}.downsample.0", x, wider * width, (1, stride, 0))
                    x = ops.norm(f"{at}.downsample.1", x)
                x = ops.relu(y + x)
        return ops.linear("fc", ops.global_mean(x), classes)

    return network


def _basic(ops: Ops, at: str, x: Value, width: int, stride: int) -> Value:
    """Of ResNet18."""
    x = ops.relu(ops.norm(f"{at}.bn1", ops.conv(f"{at}.conv1", x, width, (3, stride, 1))))
    return ops.norm(f"{at}.bn2", ops.conv(f"{at}.conv2", x, width, (3, 1, 1)))


def _bottleneck(ops: Ops, at: str, x: Value, width: int, stride: int) -> Value:
    """Of ResNet50, 101 and 152."""
    x = ops.relu(ops.norm(f"{at}.bn1", ops.conv(f"{at}.conv1", x, width, (1, 1, 0))))
    x = ops.relu(ops.norm(f"{at}.bn2", ops.conv(f"{at}.conv2", x, width, (3, stride, 1))))
    return ops.norm(f"{at}.bn3", ops.conv(f"{at}.conv3", x, 4 * width, (1, 1, 0)))


def _alexnet(ops: Ops, x: Value, classes: int) -> Value:
    """Krizhevsky 2014, the one-tower form; torchvision's adaptive pooling changes nothing."""
    x = ops.relu(ops.conv("features.0", x, 64, (11, 4, 2), bias=True))
    x = ops.max_pool(x, (3, 2, 0))
    x = ops.relu(ops.conv("features.3", x, 192, (5, 1, 2), bias=True))
    x = ops.max_pool(x, (3, 2, 0))
    x = ops.relu(ops.conv("features.6", x, 384, (3, 1, 1), bias=True))
    x = ops.relu(ops.conv("features.8", x, 256, (3, 1, 1), bias=True))
    x = ops.relu(ops.conv("features.10", x, 256, (3, 1, 1), bias=True))
    x = ops.dropout(ops.flatten(ops.max_pool(x, (3, 2, 0))), 0.5)
    x = ops.relu(ops.linear("classifier.1", x, 4096))
    x = ops.relu(ops.linear("classifier.4", ops.dropout(x, 0.5), 4096))
    return ops.linear("classifier.6", x, classes)


# Channels of each module of GoogLeNet: the 1x1 branch; before and after each 3x3; after the pool.
# Szegedy et al. 2015, table 1; a max-pooling comes before 4a and 5a.
INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def _googlenet(ops: Ops, x: Value, classes: int) -> Value:
    """Szegedy et al. 2015 as in torchvision, without the auxiliary heads.

    With BatchNorm, whose eps is 1e-3, and 3x3 where the paper has 5x5.
    """
    x = ops.max_pool(_normed(ops, "conv1", x, 64, (7, 2, 3)), (3, 2, 0), ceil=True)
    x = _normed(ops, "conv3", _normed(ops, "conv2", x, 64), 192, (3, 1, 1))
    x = ops.max_pool(x, (3, 2, 0), ceil=True)
    for name, widths in INCEPTION.items():
        if name in ("4a", "5a"):
            x = ops.max_pool(x, (3 if name == "4a" else 2, 2, 0), ceil=True)
        x = _inception(ops, f"inception{name}", x, *widths)
    return ops.linear("fc", ops.dropout(ops.global_mean(x), 0.2), classes)


def _inception(ops: Ops, at: str, x: Value, *widths: int) -> Value:
    """Return four branches side by side."""
    one, narrow2, wide2, narrow3, wide3, pooled = widths
    first = _normed(ops, f"{at}.branch1", x, one)
    second = _normed(ops, f"{at}.branch2.0", x, narrow2)
    second = _normed(ops, f"{at}.branch2.1", second, wide2, (3, 1, 1))
    third = _normed(ops, f"{at}.branch3.0", x, narrow3)
    third = _normed(ops, f"{at}.branch3.1", third, wide3, (3, 1, 1))
    fourth = _normed(ops, f"{at}.branch4.1", ops.max_pool(x, (3, 1, 1)), pooled)
    return ops.concat([first, second, third, fourth])


def _normed(ops: Ops, at: str, x: Value, width: int, window: Window = (1, 1, 0)) -> Value:
    return ops.relu(ops.norm(f"{at}.bn", ops.conv(f"{at}.conv", x, width, window), eps=1e-3))


NETWORKS: dict[str, Network] = {
    "resnet8": _small_resnet(1),
    "resnet44": _small_resnet(7),
    "resnet18": _resnet((2, 2, 2, 2), _basic, 1),
    "resnet50": _resnet((3, 4, 6, 3), _bottleneck, 4),
    "resnet101": _resnet((3, 4, 23, 3), _bottleneck, 4),
    "resnet152": _resnet((3, 8, 36, 3), _bottleneck, 4),
    "alexnet": _alexnet,
    "googlenet": _googlenet,
}

# Whose last pooling leaves 6 x 6 pixels, as the adaptive one that follows in torch always does.
ALEXNET_SIZES = range(223, 255)


def network(model: str, image_size: int) -> Network:
    """Return a registered network for images of so many pixels.

    `SpecError` if AlexNet would be another network than torch's at this size.
    """
    if model == "alexnet" and image_size not in ALEXNET_SIZES:
        raise SpecError(
            f"image_size = {image_size}: outside torch, alexnet takes images of "
            f"{ALEXNET_SIZES[0]} to {ALEXNET_SIZES[-1]} pixels; use 224, or framework 'torch'"
        )
    return NETWORKS[model]
