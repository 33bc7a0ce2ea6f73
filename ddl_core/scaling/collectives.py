"""How long an all-reduce takes, by latency and bandwidth: ring and tree, inside and between nodes.

The equations are those by which NCCL itself chooses (src/graph/tuning.cc, 2.28): a ring makes
2 (G - 1) steps, of which 2 (N - 1) cross nodes; a tree is a chain inside each of N nodes and a
binary tree between them, and reaches 0.92 of the ring's bandwidth. Gloo has the ring alone.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddl_core.scaling.checks import at_least, positive

Algorithm = Literal["ring", "tree", "fastest"]
Times = NDArray[np.float64]

TREE_BANDWIDTH = 0.92  # of a ring's


@dataclass(frozen=True)
class Network:
    """What joins the ranks. Bandwidths are per rank and direction, as "busbw" of NCCL-tests.

    Attributes
    ----------
    bandwidth, inside_bandwidth
        Bytes per second between nodes and inside one; infinite is no limit.
    latency_s, inside_latency_s
        Seconds of one step between nodes and inside one.
    gpus_per_node
        Ranks that share a node.
    algorithm
        "fastest" is the faster of the two for each message, as NCCL chooses.
    """

    bandwidth: float = np.inf
    latency_s: float = 0.0
    inside_bandwidth: float = np.inf
    inside_latency_s: float = 0.0
    gpus_per_node: int = 1
    algorithm: Algorithm = "ring"

    def __post_init__(self) -> None:
        positive(bandwidth=self.bandwidth, inside_bandwidth=self.inside_bandwidth)
        positive(gpus_per_node=self.gpus_per_node)
        at_least(0, latency_s=self.latency_s, inside_latency_s=self.inside_latency_s)

    def nodes(self, ranks: ArrayLike) -> Times:
        """Return how many nodes so many ranks fill."""
        return np.ceil(np.asarray(ranks, float) / self.gpus_per_node)


def all_reduce(nbytes: ArrayLike, ranks: ArrayLike, network: Network) -> Times:
    """Return the seconds of one all-reduce, for any shapes that broadcast; 0 for one rank.

    Raises
    ------
    SpecError
        If there is not at least one rank, or a message of negative size.
    """
    at_least(1, ranks=ranks)
    at_least(0, nbytes=nbytes)
    if network.algorithm == "ring":
        return ring(nbytes, ranks, network)
    if network.algorithm == "tree":
        return tree(nbytes, ranks, network)
    return np.minimum(ring(nbytes, ranks, network), tree(nbytes, ranks, network))


def ring(nbytes: ArrayLike, ranks: ArrayLike, network: Network) -> Times:
    """Return 2 (G - 1)/G n/b + (steps inside) a_in + (steps between) a."""
    count, nodes = np.asarray(ranks, float), network.nodes(ranks)
    between = 2 * (nodes - 1)
    inside = 2 * (count - 1) - between
    moved = 2 * (count - 1) / count * np.asarray(nbytes, float) / _bandwidth(nodes, network)
    return moved + inside * network.inside_latency_s + between * network.latency_s


def tree(nbytes: ArrayLike, ranks: ArrayLike, network: Network) -> Times:
    """Return 2 n/(0.92 b) + 2 (G/N - 1) a_in + 2 ceil(log2 N) a."""
    count, nodes = np.asarray(ranks, float), network.nodes(ranks)
    latency = 2 * (np.ceil(count / nodes) - 1) * network.inside_latency_s
    latency = latency + 2 * np.ceil(np.log2(nodes)) * network.latency_s
    moved = 2 * np.asarray(nbytes, float) / (TREE_BANDWIDTH * _bandwidth(nodes, network))
    return np.where(count > 1, moved + latency, 0.0)


def _bandwidth(nodes: Times, network: Network) -> Times:
    slowest = min(network.bandwidth, network.inside_bandwidth)
    return np.where(nodes > 1, slowest, network.inside_bandwidth)
