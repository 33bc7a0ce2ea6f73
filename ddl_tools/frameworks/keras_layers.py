"""A registered network of Keras' layers, whose variables are called as torch calls them."""

import os
from typing import Any

# Keras reads both when it is imported: what computes, and the folder of its settings, which might
# be another number format. It would write them there as well; in this one it finds and leaves none.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["KERAS_HOME"] = os.devnull

import keras

from ddl_core.config import RunSpec
from ddl_core.schedules import derive_seed
from ddl_tools.frameworks.networks import Value, Window, network
from ddl_tools.frameworks.weights import NEW_SHARE

LATER = "zeros"  # `Keras.load` brings the weights; nothing is compiled to draw others


class Network:
    """The model of a run; its variables in torch's names.

    Parameters
    ----------
    spec
        The run.
    rank
        Whose: each draws random numbers of its own.

    Attributes
    ----------
    model : keras.Model
        From images (n, s, s, 3) to logits.
    names
        Of all variables, in torch's order.
    weights, own
        Of the trainable variables and of the others, in the model's order; empty: a random state.
    seeds
        Of each random state among `own`, else 0.
    pixels
        Over how many of each image each of `own` is a running variance, 0 if it is none.
    """

    def __init__(self, spec: RunSpec, rank: int) -> None:
        inputs = keras.Input((spec.image_size, spec.image_size, 3))
        layers = _Layers((spec.seed, spec.repeat, rank))
        outputs = network(spec.model, spec.image_size)(layers, inputs, spec.classes)
        self.model = keras.Model(inputs, outputs)
        names = {id(variable): name for name, variable in layers.variables.items()}
        own = self.model.non_trainable_variables
        self.names = list(layers.variables)
        self.weights = [names[id(one)] for one in self.model.trainable_variables]
        self.own = [names.get(id(one), "") for one in own]
        self.seeds = [0 if id(one) in names else int(one.numpy()[0]) for one in own]
        self.pixels = [layers.pixels.get(name, 0) for name in self.own]


class _Layers:
    """Operations as layers of Keras; see `Ops`.

    Attributes
    ----------
    variables
        Keras' by torch's names, in torch's order.
    pixels
        Over how many of each image a running variance is taken, by its name.
    """

    def __init__(self, seeds: tuple[int, ...]) -> None:
        self._seeds = seeds
        self._dropouts = 0
        self.variables: dict[str, Any] = {}
        self.pixels: dict[str, int] = {}

    def _keep(self, name: str, **variables: Any) -> None:
        found = {f"{name}.{part}": one for part, one in variables.items() if one is not None}
        self.variables |= found

    def conv(self, name: str, x: Value, width: int, window: Window, bias: bool = False) -> Value:
        kernel, stride, padding = window
        layer = keras.layers.Conv2D(width, kernel, stride, use_bias=bias, kernel_initializer=LATER)
        y = layer(_padded(x, padding, padding))
        self._keep(name, weight=layer.kernel, bias=layer.bias)
        return y

    def norm(self, name: str, x: Value, eps: float = 1e-5) -> Value:
        """Normalise; Keras keeps the variance biased, which `Keras` makes good."""
        layer = keras.layers.BatchNormalization(momentum=1 - NEW_SHARE, epsilon=eps)
        y = layer(x)
        self._keep(name, weight=layer.gamma, bias=layer.beta)
        self._keep(name, running_mean=layer.moving_mean, running_var=layer.moving_variance)
        self.pixels[f"{name}.running_var"] = x.shape[1] * x.shape[2]
        return y

    def linear(self, name: str, x: Value, outputs: int) -> Value:
        layer = keras.layers.Dense(outputs, kernel_initializer=LATER)
        y = layer(x)
        self._keep(name, weight=layer.kernel, bias=layer.bias)
        return y

    def relu(self, x: Value) -> Value:
        return keras.ops.relu(x)

    def concat(self, parts: list[Value]) -> Value:
        return keras.ops.concatenate(parts, axis=-1)

    def max_pool(self, x: Value, window: Window, ceil: bool = False) -> Value:
        kernel, stride, padding = window
        beyond = -(x.shape[1] + 2 * padding - kernel) % stride if ceil else 0
        return keras.layers.MaxPooling2D(kernel, stride)(_padded(x, padding, padding + beyond))

    def global_mean(self, x: Value) -> Value:
        return keras.ops.mean(x, axis=(1, 2))

    def flatten(self, x: Value) -> Value:
        return keras.layers.Flatten()(keras.ops.transpose(x, (0, 3, 1, 2)))

    def halve(self, x: Value) -> Value:
        x = x[:, ::2, ::2, :]
        return keras.ops.concatenate([x, keras.ops.zeros_like(x)], axis=-1)

    def dropout(self, x: Value, rate: float) -> Value:
        seed = derive_seed("dropout", *self._seeds, self._dropouts) % 2**32
        self._dropouts += 1
        return keras.layers.Dropout(rate, seed=seed)(x)


def _padded(x: Value, before: int, after: int) -> Value:
    """Return `x` with so many zeros above and left, below and right."""
    if not after:
        return x
    return keras.layers.ZeroPadding2D(((before, after), (before, after)))(x)
