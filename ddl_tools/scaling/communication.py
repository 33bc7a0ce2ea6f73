"""Exposed communication of DDP, Horovod and DeepSpeed: a calculator in closed form.

    step = compute + communication that backward does not hide

All inputs are measured: compute time of a step, bandwidth and latency of the links. Nothing is
fitted. Terms and sources: docs/explanation/scaling-model.md. `emulated` validates the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.emulation.layers import BYTES, Layer, layers, paced_layers
from ddl_tools.scaling.candidate import positive

Values = NDArray[np.float64]

MIB = 2**20
DDP_BUCKET_MB = 25.0  # torch's default; only with it is the first bucket a small one
STRATEGIES = ("single", "ddp", "horovod", "deepspeed")
SHARDED = 1.5  # times the bytes of an all-reduce: DeepSpeed's stages 1 and 2
BACKWARD = 2 / 3  # of compute: backward has twice the arithmetic of forward
TREE_BANDWIDTH = 0.92  # of a ring's


@dataclass(frozen=True)
class Network:
    """Links between nodes and inside one.

    Bandwidths are bytes per second, per rank and direction ("busbw" of NCCL-tests). Latencies are
    those of one step of an all-reduce. "fastest" chooses for each message, as NCCL does.
    """

    bandwidth: float = np.inf
    latency_s: float = 0.0
    inside_bandwidth: float = np.inf
    inside_latency_s: float = 0.0
    gpus_per_node: int = 1
    algorithm: Literal["ring", "tree", "fastest"] = "ring"

    def __post_init__(self) -> None:
        positive(bandwidth=self.bandwidth, inside_bandwidth=self.inside_bandwidth)
        positive(gpus_per_node=self.gpus_per_node)

    def nodes(self, ranks: ArrayLike) -> Values:
        """Return the number of nodes that ranks fill."""
        return np.ceil(np.asarray(ranks, float) / self.gpus_per_node)


def all_reduce(nbytes: ArrayLike, ranks: ArrayLike, network: Network) -> Values:
    """Return the seconds of one all-reduce, for any shapes that broadcast; 0 for one rank."""
    positive(ranks=ranks)
    if network.algorithm == "ring":
        return ring(nbytes, ranks, network)
    if network.algorithm == "tree":
        return tree(nbytes, ranks, network)
    return np.minimum(ring(nbytes, ranks, network), tree(nbytes, ranks, network))


def ring(nbytes: ArrayLike, ranks: ArrayLike, network: Network) -> Values:
    """Return 2 (G - 1)/G n/b + (steps inside) a_in + (steps between) a."""
    count, nodes = np.asarray(ranks, float), network.nodes(ranks)
    between = 2 * (nodes - 1)
    inside = 2 * (count - 1) - between
    moved = 2 * (count - 1) / count * np.asarray(nbytes, float) / _bandwidth(nodes, network)
    return moved + inside * network.inside_latency_s + between * network.latency_s


def tree(nbytes: ArrayLike, ranks: ArrayLike, network: Network) -> Values:
    """Return 2 n/(0.92 b) + 2 (G/N - 1) a_in + 2 ceil(log2 N) a."""
    count, nodes = np.asarray(ranks, float), network.nodes(ranks)
    latency = 2 * (np.ceil(count / nodes) - 1) * network.inside_latency_s
    latency = latency + 2 * np.ceil(np.log2(nodes)) * network.latency_s
    moved = 2 * np.asarray(nbytes, float) / (TREE_BANDWIDTH * _bandwidth(nodes, network))
    return np.where(count > 1, moved + latency, 0.0)


def _bandwidth(nodes: Values, network: Network) -> Values:
    slowest = min(network.bandwidth, network.inside_bandwidth)
    return np.where(nodes > 1, slowest, network.inside_bandwidth)


class Gradients(NamedTuple):
    """Bytes of each tensor in the order in which backward finishes them, shape (T,).

    ``ready`` is the share of backward's time after which each is there, ascending to 1.
    """

    nbytes: Values
    ready: Values

    @property
    def total(self) -> float:
        """All bytes."""
        return float(self.nbytes.sum())


def resnet(model: str, image_size: int = 224, classes: int = 1000) -> Gradients:
    """Return the gradients of a residual network; backward's time is shared by multiply-adds."""
    return _of_layers(layers(model, image_size, classes))


def _of_layers(network: Sequence[Layer]) -> Gradients:
    """Return the gradients of layers that stand in the order of forward."""
    backward = network[::-1]
    passed = np.cumsum([layer.flop for layer in backward])
    ready = np.repeat(passed / passed[-1], [len(layer.tensors) for layer in backward])
    nbytes = [BYTES * count for layer in backward for count in layer.tensors[::-1]]
    return Gradients(np.array(nbytes, float), ready)


@dataclass(frozen=True)
class Exchange:
    """A network's gradients and how a strategy sends them. Sizes in MiB, as in `RunSpec`."""

    gradients: Gradients
    strategy: str = "ddp"
    bucket_mb: float = DDP_BUCKET_MB
    first_bucket_mb: float | None = None
    fusion_mb: float = 128.0
    cycle_ms: float = 1.0
    zero_stage: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("strategy", STRATEGIES), ("zero_stage", (0, 1, 2))):
            if (value := getattr(self, name)) not in allowed:
                raise SpecError(
                    f"{name}={value!r}: its communication is not modelled; "
                    f"allowed: {', '.join(map(str, allowed))}"
                )
        positive(bucket_mb=self.bucket_mb, fusion_mb=self.fusion_mb, cycle_ms=self.cycle_ms)

    @classmethod
    def of(cls, spec: RunSpec) -> "Exchange":
        """Return the exchange of a run, for an emulated one the messages that it really sends.

        `SpecError` if its network or its communication is unknown.
        """
        return cls(
            _of_layers(paced_layers(spec))
            if spec.simulated
            else resnet(spec.model, spec.image_size, spec.classes),
            spec.strategy,
            spec.ddp_bucket_mb,
            spec.ddp_first_bucket_mb,
            spec.horovod_fusion_mb,
            spec.horovod_cycle_ms,
            spec.deepspeed_zero_stage,
        )


class Message(NamedTuple):
    """Bytes that are reduced together, and the share of backward after which they are ready."""

    nbytes: float
    ready: float


def messages(exchange: Exchange) -> list[Message]:
    """Return the messages of a step in order; Horovod's tensors before they are fused."""
    gradients = exchange.gradients
    if exchange.strategy == "single":
        return []
    if exchange.strategy == "deepspeed":
        factor = SHARDED if exchange.zero_stage else 1.0
        return [Message(factor * gradients.total, 1.0)]
    tensors = list(map(Message, gradients.nbytes.tolist(), gradients.ready.tolist()))
    return tensors if exchange.strategy == "horovod" else _buckets(tensors, exchange)


def _buckets(tensors: Sequence[Message], exchange: Exchange) -> list[Message]:
    """Return DDP's buckets: each closes when it reaches its size, torch's own first at 1 MiB."""
    bucket_mb = exchange.bucket_mb
    first = exchange.first_bucket_mb or (1.0 if bucket_mb == DDP_BUCKET_MB else bucket_mb)
    limit, found, size = first * MIB, [], 0.0
    for nbytes, ready in tensors:
        size += nbytes
        if size >= limit:
            found.append(Message(size, ready))
            limit, size = bucket_mb * MIB, 0.0
    return [*found, Message(size, 1.0)] if size else found


def exposed_s(
    exchange: Exchange,
    compute_s: float,
    network: Network,
    ranks: ArrayLike,
    backward_share: float = BACKWARD,
) -> Values:
    """Return the seconds of communication in a step that backward does not hide, shape (R,).

    One rank computes `compute_s` seconds in a step; `ranks` has shape (R,), or is one number.
    """
    positive(compute_s=compute_s, backward_share=backward_share, ranks=ranks)
    backward, sent = compute_s * backward_share, messages(exchange)
    ready, nbytes = np.array(sent, float).reshape(-1, 2).T[::-1]

    def end(count: float) -> float:
        """Return when the last message is reduced."""
        if count == 1:
            return 0.0

        def seconds(size: float) -> float:
            return float(all_reduce(size, count, network))

        if exchange.strategy == "horovod":
            return reduced_in_cycles(ready * backward, nbytes, seconds, exchange)
        time = 0.0
        for message in sent:
            time = max(message.ready * backward, time) + seconds(message.nbytes)
        return time

    counts = np.atleast_1d(np.asarray(ranks, float))
    return np.array([max(end(float(count)) - backward, 0.0) for count in counts])


def reduced_in_cycles(
    ready_s: Values, nbytes: Values, seconds: Callable[[float], float], exchange: Exchange
) -> float:
    """Return when Horovod has reduced the last tensor.

    Tensor i of `nbytes` is ready on all ranks at `ready_s`, ascending; `seconds` is the time of a
    message. Cycles are not in step with backward: the first one comes after half a cycle, the mean.
    """
    cycle, limit = exchange.cycle_ms / 1e3, exchange.fusion_mb * MIB
    moved = np.concatenate([[0.0], np.cumsum(nbytes)])
    now, sent, end = cycle / 2, 0, 0.0
    while sent < len(ready_s):
        if ready_s[sent] > now:
            now += cycle * np.ceil((ready_s[sent] - now) / cycle)
        there = int(np.searchsorted(ready_s, now, side="right"))
        room = int(np.searchsorted(moved, moved[sent] + limit, side="right")) - 1
        last = max(min(max(there, sent + 1), room), sent + 1)
        end = now + seconds(float(moved[last] - moved[sent]))
        now, sent = max(now + cycle, end), last
    return float(end)
