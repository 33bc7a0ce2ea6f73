"""MXNet 1.9: a network of symbols, updated by Gluon's Trainer."""

import math
import os
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

# Both are read when MXNet is loaded. Operators come one after the other, each computed by
# the run's threads; fp32 means full single precision.
os.environ |= {"MXNET_CPU_WORKER_NTHREADS": "1", "NVIDIA_TF32_OVERRIDE": "0"}

import mxnet as mx
from mxnet import autograd, gluon, nd, sym

from ddl_core.config import RunSpec
from ddl_core.schedules import derive_seed
from ddl_tools.frameworks.mxnet_groups import GROUPS
from ddl_tools.frameworks.networks import Window, network
from ddl_tools.frameworks.protocol import Floats, Layout, State, own_gpu, rule_of
from ddl_tools.frameworks.rendezvous import ControlGroup
from ddl_tools.frameworks.weights import NEW_SHARE, biased, unbiased

AHEAD = 2  # steps that may be under way: each holds its images


class MXNet:
    """A network in MXNet on one rank; see `Framework`.

    MXNet's SGD keeps the rate in its velocity, u = -rate v. Multiplied with the ratio of this
    update's rate to the last one, the momentum makes it torch's rule (Goyal et al. 2017, section
    3): one operator an update, as without.
    """

    layout: Layout = "NCHW"
    synchronous = False

    def __init__(self, spec: RunSpec, control: ControlGroup) -> None:
        self._spec, self._rank = spec, control.rank
        own = own_gpu(spec.device, "MXNet", mx.context.num_gpus(), control.local_rank)
        self.device = "cpu" if own is None else "cuda"
        self._context = mx.cpu() if own is None else mx.gpu(own)
        self._build()
        self._trained = [one for one in self._parameters.values() if one.grad_req != "null"]
        for one in self._trained:  # scales, shifts and biases are vectors
            one.wd_mult = float(spec.decay_norm_bias or len(one.shape) > 1)
        self._adamw = spec.optimizer == "adamw"
        rule = (
            _AdamW(spec)
            if self._adamw
            else mx.optimizer.SGD(momentum=spec.momentum, wd=spec.weight_decay)
        )
        self._trainer = gluon.Trainer(self._trained, rule, kvstore=None)
        self._group = GROUPS[spec.strategy](spec, control, self.device)
        self._rate, self._ratio, self._updates = 1.0, 1.0, 0
        self._unbiased_at = -1
        self._sum, self._under_way = 0.0, deque[nd.NDArray]()

    def _build(self) -> None:
        """Make the network twice, to train and to predict: they share all but the variances."""
        spec, ops = self._spec, _Operations()
        suffix = ".unbiased" if self.device == "cpu" else ""
        images, labels = (sym.var(name, dtype="float32") for name in ("images", "labels"))
        apply = network(spec.model, spec.image_size)
        logits = apply(ops, images, spec.classes)
        predicted = apply(_Operations(suffix), images, spec.classes)
        self._network = gluon.SymbolBlock(_smoothed(logits, labels, spec), [images, labels])
        known = self._network.collect_params()
        self._predictor = gluon.SymbolBlock(predicted, [images], params=known)
        known.update(self._predictor.collect_params())
        for one in (self._network, self._predictor):
            one.hybridize(static_alloc=True, static_shape=True)

        batch = (spec.local_batch_size, 3, spec.image_size, spec.image_size)
        graph = sym.Group([logits, predicted, *ops.normalised.values()])
        arguments, outputs, statistics = graph.infer_shape(images=batch)
        names = graph.list_arguments() + graph.list_auxiliary_states()
        for name, shape in zip(names, arguments + statistics, strict=True):
            if name != "images":
                known[name].shape = shape
        known.initialize(mx.init.Zero(), ctx=self._context)
        self._drops = ops.drops
        self._parameters = {name: known[name] for name in ops.names}
        # Of the variances that are kept biased: cuDNN's are not.
        counts = [n * height * width for n, _, height, width in outputs[2:]]
        self._counts = dict(zip(ops.normalised, counts, strict=True)) if suffix else {}
        self._unbiased = {name: known[name + suffix] for name in self._counts}

    def load(self, state: State) -> None:
        """Take over weights, statistics and moments; all ranks load the same."""
        self._rate, self._updates, self._unbiased_at = 1.0, state.updates, -1
        for name, value in state.values.items():
            if name in self._counts:
                value = biased(value, self._counts[name], state.updates)
            self._parameters[name].set_data(nd.array(value))
        updater = self._trainer._updaters[0]
        updater.states.clear()
        for index, one in enumerate(self._trained):
            if one.name in state.momentum:
                updater.states[index] = self._moments(state, one.name)
                updater.states_synced[index] = True

    def _moments(self, state: State, name: str) -> Any:
        """Return what the optimiser holds of a parameter; SGD's after a rate of 1."""
        first = state.momentum[name]
        if self._adamw:
            return tuple(nd.array(one, ctx=self._context) for one in (first, state.squares[name]))
        return nd.array(-first, ctx=self._context)

    def state(self) -> State:
        """Return this rank's; its statistics are its own."""
        values = {name: one.data().asnumpy() for name, one in self._parameters.items()}
        for name, count in self._counts.items():
            values[name] = unbiased(values[name], count, self._updates)
        held = {
            self._trained[index].name: one
            for index, one in self._trainer._updaters[0].states.items()
            if one is not None
        }
        if self._adamw:
            momentum, squares = (
                {name: one[part].asnumpy() for name, one in held.items()} for part in (0, 1)
            )
            return State(values, momentum, self._updates, squares)
        momentum = {name: one.asnumpy() / np.float32(-self._rate) for name, one in held.items()}
        return State(values, momentum, self._updates)

    def step(self, images: Floats, labels: npt.NDArray[np.int32], rate: float) -> None:
        """Do forward, backward, mean over ranks and one update.

        Nothing is waited for but the step before the last one: images of more would pile up.
        """
        if self._drops:  # anew for each step: a resumed run draws what an undisturbed one does
            drawn_for = (self._spec.seed, self._spec.repeat, self._rank, self._updates)
            mx.random.seed(derive_seed("dropout", *drawn_for) % 2**31)
        self._rate, self._ratio = rate, rate / self._rate
        self._trainer.set_learning_rate(rate)
        if self._adamw:
            self._trainer.optimizer.updates = self._updates + 1
        else:
            self._trainer.optimizer.momentum = self._spec.momentum * self._ratio
        with autograd.record():
            loss = self._network(*map(self._sent, (images, labels)))
        loss.backward()
        self._group.all_reduce_sum([one.grad() for one in self._trained])
        self._trainer.step(self._spec.world_size)
        self._updates += 1
        self._under_way.append(loss)
        if len(self._under_way) > AHEAD:
            self._sum += self._under_way.popleft().asscalar()

    def _sent(self, values: npt.NDArray[Any]) -> nd.NDArray:
        return nd.array(values, dtype="float32").as_in_context(self._context)

    def loss(self) -> float:
        """Return the sum of the steps' mean losses since the last call."""
        total = self._sum + sum(loss.asscalar() for loss in self._under_way)
        self._sum = 0.0
        self._under_way.clear()
        return float(total)

    def predict(self, images: Floats) -> Floats:
        """Return logits (n, classes) by the running statistics, as torch keeps them."""
        if self._unbiased_at != self._updates:
            for name, count in self._counts.items():
                kept = self._parameters[name].data().asnumpy()
                self._unbiased[name].set_data(nd.array(unbiased(kept, count, self._updates)))
            self._unbiased_at = self._updates
        return self._predictor(self._sent(images)).asnumpy()

    def settings(self) -> dict[str, float]:
        """Return ``lr`` and the settings of the rule at the last update, as torch counts."""
        optimizer = self._trainer.optimizer
        used = {"lr": optimizer.learning_rate, "weight_decay": optimizer.wd}
        if self._adamw:
            return used | optimizer.moments
        momentum = round(optimizer.momentum / self._ratio, 12)  # as it was before the product
        return used | {"momentum": momentum}

    def wait(self) -> None:
        """Wait until all that was asked for is done."""
        nd.waitall()

    def describe(self) -> dict[str, Any]:
        """Return threads, switches, and what carries the gradients."""
        features = mx.runtime.Features()
        return {
            "threads": {
                "compute": int(os.environ.get("OMP_NUM_THREADS", 0)),
                "interop": int(os.environ["MXNET_CPU_WORKER_NTHREADS"]),
            },
            "settings": {
                "onednn": features.is_enabled("MKLDNN"),
                "cudnn": features.is_enabled("CUDNN"),
                "static_alloc": True,
                "tf32": False,
            },
            "communication": self._group.describe(),
        }

    def close(self) -> None:
        """Leave the group; end what was started."""
        self._group.close()


class _AdamW(mx.optimizer.Optimizer):
    """Torch's AdamW by MXNet's operator, which leaves the correction of the biases to its caller.

    It adds its epsilon to a root that has its bias still, torch to the corrected.

    Attributes
    ----------
    updates : int
        The number of the next update, from 1.
    moments : dict
        The run's fields beside rate and decay.
    """

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(wd=spec.weight_decay)
        self.updates = 1
        self.moments = {
            name: value for name, value in rule_of(spec).items() if name.startswith("adam_")
        }

    def create_state(self, index: int, weight: nd.NDArray) -> tuple[nd.NDArray, nd.NDArray]:
        """Return the two moments of a parameter before its first update."""
        return nd.zeros_like(weight), nd.zeros_like(weight)

    def update(self, index: int, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        """Replace a weight and its moments."""
        beta1, beta2, eps = self.moments.values()
        root = math.sqrt(1 - beta2**self.updates)
        nd.contrib.adamw_update(
            weight,
            grad,
            *state,
            out=weight,
            rescale_grad=self.rescale_grad,
            eta=self._get_lr(index),
            lr=root / (1 - beta1**self.updates),
            beta1=beta1,
            beta2=beta2,
            epsilon=eps * root,
            wd=self._get_wd(index),
        )


class _Operations:
    """The operations of `networks.py` as symbols; see `Ops`.

    Attributes
    ----------
    drops
        Whether values are dropped, by random numbers.
    names
        Of all parameters and statistics, in the order of torch.
    normalised
        What each running variance is taken of, by its name.
    """

    def __init__(self, suffix: str = "") -> None:
        self._suffix = suffix
        self.drops = False
        self.names: list[str] = []
        self.normalised: dict[str, Any] = {}

    def _variable(self, name: str) -> Any:
        self.names.append(name)
        return sym.var(name)

    def conv(self, name: str, x: Any, width: int, window: Window, bias: bool = False) -> Any:
        parameters = {"weight": self._variable(f"{name}.weight")}
        if bias:
            parameters["bias"] = self._variable(f"{name}.bias")
        return sym.Convolution(
            x, **parameters, no_bias=not bias, num_filter=width, **_window(window)
        )

    def norm(self, name: str, x: Any, eps: float = 1e-5) -> Any:
        """Normalise over the rank's own batch; MXNet keeps the biased variance."""
        variance = f"{name}.running_var"
        self.normalised[variance] = x
        return sym.BatchNorm(
            x,
            gamma=self._variable(f"{name}.weight"),
            beta=self._variable(f"{name}.bias"),
            moving_mean=self._variable(f"{name}.running_mean"),
            moving_var=self._variable(variance + self._suffix),
            eps=eps,
            momentum=1 - NEW_SHARE,
            fix_gamma=False,
        )

    def linear(self, name: str, x: Any, outputs: int) -> Any:
        weight, bias = self._variable(f"{name}.weight"), self._variable(f"{name}.bias")
        return sym.FullyConnected(x, weight=weight, bias=bias, num_hidden=outputs)

    def relu(self, x: Any) -> Any:
        return sym.Activation(x, act_type="relu")

    def concat(self, parts: list[Any]) -> Any:
        return sym.concat(*parts, dim=1)

    def max_pool(self, x: Any, window: Window, ceil: bool = False) -> Any:
        convention = "full" if ceil else "valid"
        return sym.Pooling(x, pool_type="max", pooling_convention=convention, **_window(window))

    def global_mean(self, x: Any) -> Any:
        return sym.flatten(sym.Pooling(x, pool_type="avg", global_pool=True))

    def flatten(self, x: Any) -> Any:
        return sym.flatten(x)

    def halve(self, x: Any) -> Any:
        ends = (None, None, None, None)
        kept = sym.slice(x, begin=ends, end=ends, step=(1, 1, 2, 2))
        return sym.concat(kept, sym.zeros_like(kept), dim=1)

    def dropout(self, x: Any, rate: float) -> Any:
        self.drops = True
        return sym.Dropout(x, p=rate)


def _window(window: Window) -> dict[str, tuple[int, int]]:
    names = ("kernel", "stride", "pad")
    return {name: (value, value) for name, value in zip(names, window, strict=True)}


def _smoothed(logits: Any, labels: Any, spec: RunSpec) -> Any:
    """Return the mean cross entropy as torch smooths it.

    MXNet's own smoothing gives the wrong labels alone a share of it, torch's all of them.
    """
    logs, smoothing = sym.log_softmax(logits), spec.label_smoothing
    own = (1 - smoothing) * sym.pick(logs, labels)
    return -sym.mean(own + smoothing / spec.classes * sym.sum(logs, axis=1))
