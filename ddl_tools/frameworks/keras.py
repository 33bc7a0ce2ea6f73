"""Keras' layers on JAX: one compiled step for all ranks, each with its own batch's statistics.

Keras' own `DataParallel` is one program over the whole batch, so it normalises over all of it. Here
each rank computes its own part (`jax.shard_map`), and only the gradients meet.
"""

import os
import sys
from importlib.metadata import entry_points
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from optax.tree_utils import tree_get, tree_set

from ddl_core.config import RunSpec
from ddl_core.system import INTERLEAVED
from ddl_tools import gpus
from ddl_tools.frameworks.keras_layers import Network
from ddl_tools.frameworks.protocol import Floats, Layout, State, own_gpu, rule_of
from ddl_tools.frameworks.rendezvous import ControlGroup
from ddl_tools.frameworks.weights import NEW_SHARE, to_nchw, to_nhwc
from ddl_tools.rank.meeting import PATIENCE_S

SETTINGS: dict[str, Any] = {
    "jax_default_matmul_precision": "highest",  # of convolutions as well: no TF32 on a GPU
    "jax_enable_compilation_cache": False,  # every start compiles, and leaves nothing behind
    "jax_enable_preemption_service": False,  # it would take SIGTERM, and the rank live on
    "jax_enable_recoverability": True,  # a rank that fails ends, and waits for no other
    "jax_cpu_collectives_implementation": "gloo",
    "jax_num_cpu_devices": 1,
}

# Ranks that stand still between two turns send no heartbeat.
HEARTBEAT_S = 86_400 if INTERLEAVED in os.environ else round(PATIENCE_S)
RANKS = "ranks"  # the axis of the mesh: a device for each
EACH, SAME = PartitionSpec(RANKS), PartitionSpec()

# Optax' names of the moments in `State`: `momentum`, then `squares`.
MOMENTS = {"sgd": ("trace",), "adamw": ("mu", "nu")}

Arrays = list[Any]
"""Of JAX, in the order of the network's variables."""


class Keras:
    """Layers of Keras, trained by optax's rule in a step of JAX; see `Framework`."""

    layout: Layout = "NHWC"
    synchronous = False

    def __init__(self, spec: RunSpec, control: ControlGroup) -> None:
        self._spec, self._control = spec, control
        self.device = _configured(spec, control.local_rank)
        if control.world_size > 1:
            _join(control)
        self._pinned = _start_threads(spec, control.local_rank) if self.device == "cpu" else None
        mesh = Mesh(sorted(jax.devices(), key=lambda one: one.process_index), (RANKS,))
        self._each, self._same = NamedSharding(mesh, EACH), NamedSharding(mesh, SAME)
        self._connect(mesh)
        self._network = Network(spec, control.rank)
        # How many values each of a rank's own variables is a variance over; 0: it is none.
        self._counts = [one * spec.local_batch_size for one in self._network.pixels]
        self._rule, self._moments = _rule(spec), MOMENTS[spec.optimizer]
        self._compiled = self._compile(mesh)
        self._logits = jax.jit(self._evaluate)
        self._rate, self._updates = 0.0, 0
        self._total = self._no_loss()

    def _connect(self, mesh: Mesh) -> None:
        """Let the ranks' first collective be one to which all come at the same time.

        Gloo connects them in it, and waits 30 s for the last: the first step compiles for longer.
        """
        self._control.barrier()
        connecting = jax.shard_map(
            lambda one: jax.lax.psum(one, RANKS), mesh=mesh, in_specs=EACH, out_specs=SAME
        )
        jax.block_until_ready(jax.jit(connecting)(self._no_loss()))

    def _compile(self, mesh: Mesh) -> Any:
        """Return `_step` as one program over all ranks; new values take the place of the old."""
        # Unchecked: where JAX follows what differs between ranks, it sums gradients by itself.
        whole = jax.shard_map(
            self._step,
            mesh=mesh,
            in_specs=(SAME, EACH, SAME, EACH, EACH, EACH, SAME),
            out_specs=(SAME, EACH, SAME, EACH),
            check_vma=False,
        )
        return jax.jit(whole, donate_argnums=(0, 1, 2, 3))

    def _step(
        self,
        weights: Arrays,
        own: Arrays,
        momenta: Any,
        total: jax.Array,
        images: jax.Array,
        labels: jax.Array,
        rate: jax.Array,
    ) -> tuple[Arrays, Arrays, Any, jax.Array]:
        before = [one[0] for one in own]
        found = jax.value_and_grad(self._loss, has_aux=True)(weights, before, images, labels)
        (loss, after), gradients = found
        changes, momenta = self._rule.update(jax.lax.pmean(gradients, RANKS), momenta, weights)
        weights = [one - rate * by for one, by in zip(weights, changes, strict=True)]
        after = list(map(_unbiased, before, after, self._counts))
        return weights, [one[None] for one in after], momenta, total + loss

    def _loss(
        self, weights: Arrays, own: Arrays, images: jax.Array, labels: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        """Return the mean cross entropy with smoothed labels, and the new statistics."""
        logits, own = self._network.model.stateless_call(weights, own, images, training=True)
        logs, smoothing = jax.nn.log_softmax(logits), self._spec.label_smoothing
        right = jax.numpy.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
        each = (1 - smoothing) * right + smoothing * logs.mean(axis=1)
        return -each.mean(), own

    def _evaluate(self, weights: Arrays, own: Arrays, images: jax.Array) -> jax.Array:
        statistics = [one[0] for one in own]
        return self._network.model.stateless_call(weights, statistics, images, training=False)[0]

    def load(self, state: State) -> None:
        """Take over weights, statistics and moments; random numbers go on by the updates."""
        self._updates, of = state.updates, self._network
        weights = [to_nhwc(state.values[name]) for name in of.weights]
        own = [
            state.values[name] if name else np.array([seed, state.updates], np.uint32)
            for name, seed in zip(of.own, of.seeds, strict=True)
        ]
        momenta = self._rule.init(weights)
        if state.momentum:
            kept = zip(self._moments, (state.momentum, state.squares), strict=False)
            by_name = {own: [to_nhwc(one[name]) for name in of.weights] for own, one in kept}
            momenta = tree_set(momenta, **by_name)
        if "nu" in self._moments:  # their biases are corrected by the number of updates
            momenta = tree_set(momenta, count=np.int32(state.updates))
        # Copies: the step reuses what it is given.
        self._held = (
            [self._placed(one.copy(), self._same) for one in weights],
            [self._placed(one[None].copy(), self._each) for one in own],
            jax.tree.map(lambda one: self._placed(np.array(one), self._same), momenta),
        )

    def state(self) -> State:
        """Return this rank's."""
        of = self._network
        weights, own, momenta = jax.tree.map(_part, self._held)
        values = dict(zip(of.weights, weights, strict=True))
        values |= {name: one[0] for name, one in zip(of.own, own, strict=True)}
        by_name = (
            dict(zip(of.weights, tree_get(momenta, one), strict=True)) for one in self._moments
        )
        first, *second = (
            {name: to_nchw(one[name]) for name in of.names if name in one and self._updates}
            for one in by_name
        )
        values = {name: to_nchw(values[name]) for name in of.names}
        return State(values, first, self._updates, *second)

    def step(self, images: Floats, labels: npt.NDArray[np.int32], rate: float) -> None:
        """Do one update with the mean of all ranks' gradients; wait for nothing."""
        mine = [self._placed(one, self._each) for one in (images, labels)]
        *held, self._total = self._compiled(*self._held, self._total, *mine, np.float32(rate))
        self._held = tuple(held)
        self._rate, self._updates = rate, self._updates + 1

    def loss(self) -> float:
        """Return the sum of this rank's losses since the last call; waits for the device."""
        total = float(_part(self._total)[0])
        self._total = self._no_loss()
        return total

    def _no_loss(self) -> jax.Array:
        return self._placed(np.zeros(1, np.float32), self._each)

    def predict(self, images: Floats) -> Floats:
        """Return logits (n, classes) by the running statistics, on this rank's device alone."""
        weights, own, _ = jax.tree.map(lambda one: one.addressable_data(0), self._held)
        return np.array(self._logits(weights, own, images))

    def settings(self) -> dict[str, float]:
        """Return ``lr`` of the last update, and what the compiled step was made with."""
        return {"lr": self._rate, **rule_of(self._spec)}

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        jax.block_until_ready(self._total)

    def describe(self) -> dict[str, Any]:
        """Return what `Framework` says, and the name of a GPU.

        ``cores_pinned``: how many JAX's threads stay on; which ones differs from job to job.
        """
        own = {name: getattr(jax.config, name) for name in SETTINGS}
        carries = {"cpu": own["jax_cpu_collectives_implementation"], "cuda": "nccl"}[self.device]
        (device,) = jax.local_devices()
        return {
            "accelerator": device.device_kind if self.device == "cuda" else None,
            "threads": {"compute": self._spec.cpu_threads},
            "settings": {**own, "cores_pinned": self._pinned},
            # Also of one rank, as with other strategies: else it would be no base of two.
            "communication": {} if self._spec.strategy == "single" else {"library": carries},
        }

    def close(self) -> None:
        """Leave the group, rank 0 last, since the others' coordinator is in it.

        A failing rank first has to leave its reason: it leaves the group as it exits.
        """
        if not jax.distributed.is_initialized() or sys.exc_info()[0] is not None:
            return
        first = self._control.rank == 0
        if first:
            self._control.barrier()
        jax.distributed.shutdown()
        if not first:
            self._control.barrier()

    def _placed(self, value: npt.NDArray[Any], sharding: NamedSharding) -> jax.Array:
        """Return the array of all ranks of which `value` is this one's part, or the whole."""
        ranks = 1 if sharding is self._same else self._control.world_size
        shape = (ranks * value.shape[0], *value.shape[1:]) if value.ndim else ()
        (device,) = jax.local_devices()
        return jax.make_array_from_single_device_arrays(
            shape, sharding, [jax.device_put(value, device)]
        )


def _rule(spec: RunSpec) -> optax.GradientTransformation:
    """Return torch's SGD or AdamW but for the rate: v = mu v + g + wd w, or the step plus wd w."""
    decays = None if spec.decay_norm_bias else _matrices
    decay = optax.add_decayed_weights(spec.weight_decay, decays)
    if spec.optimizer == "adamw":
        adam = optax.scale_by_adam(spec.adam_beta1, spec.adam_beta2, spec.adam_eps)
        return optax.chain(adam, decay)
    return optax.chain(decay, optax.trace(spec.momentum))


def _matrices(weights: Arrays) -> list[bool]:
    return [one.ndim > 1 for one in weights]


def _unbiased(before: jax.Array, after: jax.Array, count: int) -> jax.Array:
    """Return a running variance after a batch of `count` values as torch updates it.

    Keras adds the batch's mean square deviation, torch n / (n - 1) times that; 0: no variance.
    """
    if not count:
        return after
    left = (1 - NEW_SHARE) * before
    return left + (after - left) * (count / (count - 1))


def _part(one: jax.Array) -> npt.NDArray[Any]:
    """Return a copy of this rank's part of an array."""
    return np.array(one.addressable_data(0))


def _configured(spec: RunSpec, local_rank: int) -> str:
    """Set JAX's switches; return ``"cpu"`` or ``"cuda"``, where the rank is to compute.

    `LaunchError` as `own_gpu`; a JAX without its plugin for CUDA sees no GPU.
    """
    plugin = any("cuda" in one.name for one in entry_points(group="jax_plugins"))
    # By the driver: JAX has to meet the other ranks before it may be asked.
    found = gpus.count() if plugin and spec.device != "cpu" else 0
    gpu = own_gpu(spec.device, "Keras", found, local_rank)
    own = {"jax_platforms": "cpu"}
    if gpu is not None:
        own = {"jax_platforms": "cuda,cpu", "jax_cuda_visible_devices": str(gpu)}
    for name, value in {**SETTINGS, **own}.items():
        jax.config.update(name, value)
    return "cpu" if gpu is None else "cuda"


def _join(control: ControlGroup) -> None:
    """Meet at a coordinator in rank 0, which shares the port that is kept for it."""
    address = control.exchange(control.reserve() if control.rank == 0 else "")[0]
    jax.distributed.initialize(
        address,
        control.world_size,
        control.rank,
        coordinator_bind_address=address,  # not on every network
        cluster_detection_method="deactivate",
        initialization_timeout=round(PATIENCE_S),
        heartbeat_timeout_seconds=HEARTBEAT_S,
    )
    control.release()


def _start_threads(spec: RunSpec, local_rank: int) -> int:
    """Let JAX make its threads on `cpu_threads` cores, other ones for each rank; return how many.

    It makes as many as it may use cores, and they stay on those. This thread only hands work to
    them; it and the threads that it starts later, of the loader, may use all cores again.
    """
    usable = sorted(os.sched_getaffinity(0))
    first = local_rank * spec.cpu_threads
    own = {usable[(first + one) % len(usable)] for one in range(spec.cpu_threads)}
    os.sched_setaffinity(0, own)
    try:
        jax.devices()
    finally:
        os.sched_setaffinity(0, usable)
    return len(own)
