"""What a network holds, before anything is computed: its parameters, and what is normalised."""

from math import prod

from ddl_core.libraries.networks import network

Shape = tuple[int, ...]
"""Of one image at some place in the network: (channels, height, width), or (features,)."""


def shapes(model: str, classes: int, image_size: int) -> dict[str, Shape]:
    """Return shapes by name: parameters and running statistics as torch's ``state_dict`` has them.

    Raises
    ------
    SpecError
        If the model is another one at this size.
    """
    return _noted(model, classes, image_size).shapes


def pixels(model: str, image_size: int) -> dict[str, int]:
    """Return over how many pixels of an image each normalisation takes its statistics.

    Raises
    ------
    SpecError
        If the model is another one at this size.
    """
    return _noted(model, 1, image_size).pixels


def _noted(model: str, classes: int, image_size: int) -> "Notes":
    notes = Notes()
    network(model, image_size)(notes, (3, image_size, image_size), classes)
    return notes


class Notes:
    """The operations of a library that computes nothing: a value is its `Shape`."""

    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}
        self.pixels: dict[str, int] = {}

    def conv(
        self,
        name: str,
        x: Shape,
        channels: int,
        width: int,
        kernel: int,
        stride: int,
        padding: int,
        bias: bool = False,
    ) -> Shape:
        """Note weight and bias."""
        self.shapes[f"{name}.weight"] = (width, channels, kernel, kernel)
        if bias:
            self.shapes[f"{name}.bias"] = (width,)
        return (width, *((side + 2 * padding - kernel) // stride + 1 for side in x[1:]))

    def norm(self, name: str, x: Shape, width: int, eps: float = 1e-5) -> Shape:
        """Note weight, bias, the statistics, and the pixels."""
        for part in ("weight", "bias", "running_mean", "running_var"):
            self.shapes[f"{name}.{part}"] = (width,)
        self.pixels[name] = prod(x[1:])
        return x

    def linear(self, name: str, x: Shape, width: int, outputs: int) -> Shape:
        """Note weight and bias."""
        self.shapes[f"{name}.weight"] = (outputs, width)
        self.shapes[f"{name}.bias"] = (outputs,)
        return (outputs,)

    def relu(self, x: Shape) -> Shape:
        """Change nothing."""
        return x

    def tanh(self, x: Shape) -> Shape:
        """Change nothing."""
        return x

    def add(self, a: Shape, b: Shape) -> Shape:
        """Change nothing."""
        return a

    def concat(self, parts: list[Shape]) -> Shape:
        """Add the channels up."""
        return (sum(part[0] for part in parts), *parts[0][1:])

    def max_pool(
        self, x: Shape, kernel: int, stride: int, padding: int, ceil: bool = False
    ) -> Shape:
        """Count the windows."""
        more = stride - 1 if ceil else 0
        return (x[0], *((side + 2 * padding - kernel + more) // stride + 1 for side in x[1:]))

    def global_mean(self, x: Shape) -> Shape:
        """Leave the channels."""
        return x[:1]

    def flatten(self, x: Shape) -> Shape:
        """Count all values."""
        return (prod(x),)

    def halve(self, x: Shape) -> Shape:
        """Leave half of the pixels each way, and double the channels."""
        return (2 * x[0], *(-(-side // 2) for side in x[1:]))

    def dropout(self, x: Shape, rate: float) -> Shape:
        """Change nothing."""
        return x
