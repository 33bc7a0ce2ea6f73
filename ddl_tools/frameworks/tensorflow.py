"""TensorFlow: networks over its operations, weights in variables, one compiled function a step."""

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ddl_core.config import RunSpec
from ddl_core.schedules import derive_seed
from ddl_tools.frameworks.networks import Window, network
from ddl_tools.frameworks.protocol import Floats, Layout, State, own_gpu, rule_of
from ddl_tools.frameworks.rendezvous import ControlGroup
from ddl_tools.frameworks.tensorflow_groups import GROUPS
from ddl_tools.frameworks.weights import NEW_SHARE, is_statistic, to_nchw, to_nhwc

Tensor = Any  # the framework has no types of its own
Variables = dict[str, Any]


class TensorFlow:
    """One rank of a run; see `Framework`.

    The running statistics are the rank's own. Weights are plain variables under every strategy:
    all ranks load the same, and update them by the same mean of gradients.
    """

    layout: Layout = "NHWC"

    def __init__(self, spec: RunSpec, control: ControlGroup) -> None:
        self._spec, self._apply = spec, network(spec.model, spec.image_size)
        self._seed = derive_seed("dropout", spec.seed, spec.repeat, control.rank)
        self.device = _configure(spec, control.local_rank)
        self.synchronous = self.device == "cpu"
        self._group = GROUPS[spec.strategy](spec, control, self.device)
        self._values: Variables = {}
        self._momentum: Variables = {}
        self._squares: Variables = {}
        self._updates = tf.Variable(0, dtype=tf.int64)
        self._losses = tf.Variable(0.0, dtype=tf.float64)
        # The rate and the settings of the rule: an update reads them here.
        self._used = tf.Variable([0.0, *rule_of(spec).values()], dtype=tf.float32)
        self._update = self._adamw if spec.optimizer == "adamw" else self._sgd
        self._step = tf.function(self._train, autograph=False)
        self._logits = tf.function(
            lambda images: self._network(images, training=False), autograph=False
        )

    def load(self, state: State) -> None:
        """Take over weights, statistics and moments; the first call makes the variables."""
        if not self._values:
            self._values = {n: tf.Variable(to_nhwc(one)) for n, one in state.values.items()}
            self._momentum = self._zeros()
            self._squares = self._zeros() if self._spec.optimizer == "adamw" else {}
        for name, variable in self._values.items():
            variable.assign(to_nhwc(state.values[name]))
        for moments, given in ((self._momentum, state.momentum), (self._squares, state.squares)):
            for name, variable in moments.items():
                kept = given.get(name)
                variable.assign(tf.zeros_like(variable) if kept is None else to_nhwc(kept))
        self._updates.assign(state.updates)

    def _zeros(self) -> Variables:
        """Return a new variable for each parameter."""
        return {
            name: tf.Variable(tf.zeros_like(one))
            for name, one in self._values.items()
            if not is_statistic(name)
        }

    def state(self) -> State:
        """Return this rank's; its statistics are its own."""
        updates = int(self._updates)
        values, momentum, squares = (
            {name: to_nchw(one.numpy()) for name, one in variables.items()}
            for variables in (self._values, self._momentum, self._squares)
        )
        if not updates:
            return State(values)
        return State(values, momentum, updates, squares)

    def step(self, images: Floats, labels: npt.NDArray[np.int32], rate: float) -> None:
        """Do forward, backward, mean over ranks and one update."""
        self._step(tf.constant(images), tf.constant(labels), tf.constant(rate, tf.float32))

    def loss(self) -> float:
        """Return the sum of the steps' mean losses since the last call."""
        total = float(self._losses)
        self._losses.assign(0.0)
        return total

    def predict(self, images: Floats) -> Floats:
        """Return logits (n, classes) by the running statistics."""
        return np.asarray(self._logits(tf.constant(images)).numpy())

    def settings(self) -> dict[str, float]:
        """Return what the last update has read."""
        names = ("lr", *rule_of(self._spec))
        return dict(zip(names, self._used.numpy().tolist(), strict=True))

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if not self.synchronous:
            tf.test.experimental.sync_devices()

    def describe(self) -> dict[str, Any]:
        """Return threads, switches and what carries the gradients."""
        threading = tf.config.threading
        return {
            "threads": {
                "compute": threading.get_intra_op_parallelism_threads(),
                "interop": threading.get_inter_op_parallelism_threads(),
            },
            "settings": {
                "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
                "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0",
                "xla": bool(tf.config.optimizer.get_jit()),
            },
            "communication": self._group.describe(),
        }

    def close(self) -> None:
        """Leave the group."""
        self._group.close()

    def _train(self, images: Tensor, labels: Tensor, rate: Tensor) -> None:
        self._used[0].assign(rate)
        self._group.run(self._replica, images, labels)
        self._updates.assign_add(1)

    def _replica(self, images: Tensor, labels: Tensor) -> None:
        """Do what one rank does of a step."""
        weights = {name: self._values[name] for name in self._momentum}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(weights.values()))
            loss = _smoothed(self._network(images, training=True), labels, self._spec)
        own = tape.gradient(loss, list(weights.values()))
        gradients = self._group.all_reduce_mean(own)
        self._update(dict(zip(weights, gradients, strict=True)))
        self._losses.assign_add(tf.cast(loss, tf.float64))

    def _sgd(self, gradients: dict[str, Tensor]) -> None:
        """Update in place, as torch's SGD does: v = mu v + g + wd w, then w = w - rate v."""
        rate, mu, decay = tf.unstack(self._used)
        for name, gradient in gradients.items():
            weight = self._values[name]
            if self._decays(weight):
                gradient += decay * weight
            accumulated = self._momentum[name].handle
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle, accum=accumulated, lr=rate, grad=gradient, momentum=mu
            )

    def _adamw(self, gradients: dict[str, Tensor]) -> None:
        """Update in place, as torch's AdamW does: w = w - rate wd w, then Adam's step.

        The operation adds its epsilon to a root that has its bias still, torch to the corrected.
        """
        rate, beta1, beta2, eps, decay = tf.unstack(self._used)
        updates = tf.cast(self._updates + 1, tf.float64)
        left1, left2 = (tf.cast(beta, tf.float64) ** updates for beta in (beta1, beta2))
        root = tf.cast(tf.sqrt(1 - left2), tf.float32)
        for name, gradient in gradients.items():
            weight = self._values[name]
            if self._decays(weight):
                weight.assign_sub(rate * decay * weight)
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=self._momentum[name].handle,
                v=self._squares[name].handle,
                beta1_power=0.0,
                beta2_power=0.0,
                lr=rate * root / tf.cast(1 - left1, tf.float32),
                beta1=beta1,
                beta2=beta2,
                epsilon=eps * root,
                grad=gradient,
            )

    def _decays(self, weight: Any) -> bool:
        return self._spec.decay_norm_bias or weight.shape.rank > 1

    def _network(self, images: Tensor, training: bool) -> Tensor:
        seed = tf.stack([self._seed, self._updates]) if training else None
        return self._apply(_Operations(self._values, seed), images, self._spec.classes)


class _Operations:
    """TensorFlow's operations on (n, height, width, channels); see `networks.Ops`.

    Parameters
    ----------
    values
        Parameters and running statistics by torch's names.
    seed : (2,)
        Of this step's random numbers; None where nothing is trained.
    """

    def __init__(self, values: Variables, seed: Tensor | None) -> None:
        self._values, self._seed = values, seed
        self._dropouts = 0

    def conv(self, name: str, x: Tensor, width: int, window: Window, bias: bool = False) -> Tensor:
        """Convolve; "SAME" would pad right and below alone where the stride is 2."""
        _, stride, padding = window
        edges = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
        y = tf.nn.conv2d(x, self._values[f"{name}.weight"], stride, edges)
        return tf.nn.bias_add(y, self._values[f"{name}.bias"]) if bias else y

    def norm(self, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        """Normalise; the operation itself makes the running variance unbiased."""
        training = self._seed is not None
        mean, variance = (self._values[f"{name}.running_{one}"] for one in ("mean", "var"))
        y, new_mean, new_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=self._values[f"{name}.weight"],
            offset=self._values[f"{name}.bias"],
            mean=mean,
            variance=variance,
            epsilon=eps,
            exponential_avg_factor=NEW_SHARE if training else 1.0,
            is_training=training,
        )
        if training:
            mean.assign(new_mean)
            variance.assign(new_variance)
        return y

    def linear(self, name: str, x: Tensor, outputs: int) -> Tensor:
        return tf.nn.bias_add(x @ self._values[f"{name}.weight"], self._values[f"{name}.bias"])

    def relu(self, x: Tensor) -> Tensor:
        return tf.nn.relu(x)

    def concat(self, parts: list[Tensor]) -> Tensor:
        return tf.concat(parts, -1)

    def max_pool(self, x: Tensor, window: Window, ceil: bool = False) -> Tensor:
        kernel, stride, padding = window
        more = [(kernel - side - 2 * padding) % stride * ceil for side in x.shape[1:3]]
        edges = [[0, 0], *([padding, padding + side] for side in more), [0, 0]]
        return tf.nn.max_pool2d(tf.pad(x, edges), kernel, stride, "VALID")

    def global_mean(self, x: Tensor) -> Tensor:
        return tf.reduce_mean(x, [1, 2])

    def flatten(self, x: Tensor) -> Tensor:
        _, height, width, channels = x.shape
        return tf.reshape(tf.transpose(x, [0, 3, 1, 2]), [-1, channels * height * width])

    def halve(self, x: Tensor) -> Tensor:
        half = x[:, ::2, ::2]
        return tf.concat([half, tf.zeros_like(half)], -1)

    def dropout(self, x: Tensor, rate: float) -> Tensor:
        """Draw by the run's seed and the number of the update: one resumed draws the same."""
        if self._seed is None:
            return x
        self._dropouts += 1
        seed = tf.random.fold_in(self._seed, self._dropouts)
        return tf.nn.experimental.stateless_dropout(x, rate, seed)


def _smoothed(logits: Tensor, labels: Tensor, spec: RunSpec) -> Tensor:
    """Return the mean cross-entropy, `label_smoothing` of it against all classes alike."""
    shares = tf.nn.log_softmax(logits)
    own = tf.gather(shares, labels, batch_dims=1)
    smoothing = spec.label_smoothing
    return -tf.reduce_mean((1 - smoothing) * own + smoothing * tf.reduce_mean(shares, -1))


def _configure(spec: RunSpec, local_rank: int) -> str:
    """Set device, threads and arithmetic before anything computes; return the kind of device.

    One operation at a time, cut among the run's threads: with as many operations at once, a rank
    would compute with twice the threads that it is given. `LaunchError` if CUDA is asked for and
    not there, or if the driver lists a GPU that TensorFlow cannot use.
    """
    tf.config.threading.set_intra_op_parallelism_threads(spec.cpu_threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    found = [] if spec.device == "cpu" else tf.config.list_physical_devices("GPU")
    number = own_gpu(spec.device, "TensorFlow", len(found), local_rank)
    own = [] if number is None else [found[number]]
    tf.config.set_visible_devices(own, "GPU")
    for device in own:
        tf.config.experimental.set_memory_growth(device, True)
    return "cuda" if own else "cpu"
