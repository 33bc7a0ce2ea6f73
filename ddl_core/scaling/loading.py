"""What the input pipeline allows: a worker, a node, or the file system that all nodes share."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddl_core.scaling.checks import at_least, positive
from ddl_core.scaling.collectives import Network


@dataclass(frozen=True)
class Loading:
    """Limits of the input pipeline in images per second; infinite is no limit.

    Attributes
    ----------
    rank_rate
        Of one rank's loader processes.
    node_rate
        Of a node's cores, shared by its ranks.
    shared_rate
        Of the file system, shared by all.
    spare_cores
        Whether loading has cores of its own. If not, an image that is decoded takes time from
        training: the two add up instead of overlapping.
    prefetch
        Batches that a rank may hold ready (the simulation's; the closed form has no end of them).
    spread
        Standard deviation of the time to load a batch over its mean (the simulation's).
    """

    rank_rate: float = np.inf
    node_rate: float = np.inf
    shared_rate: float = np.inf
    spare_cores: bool = True
    prefetch: int = 2
    spread: float = 0.0

    def __post_init__(self) -> None:
        rates = {name: getattr(self, name) for name in ("rank_rate", "node_rate", "shared_rate")}
        positive(**rates, prefetch=self.prefetch)
        at_least(0, spread=self.spread)

    def batch_s(
        self, ranks: ArrayLike, local_batch_size: int, network: Network
    ) -> NDArray[np.float64]:
        """Return the seconds in which every rank gets a batch, all of them loading at once."""
        count = np.asarray(ranks, float)
        rate = np.minimum(count * self.rank_rate, network.nodes(count) * self.node_rate)
        return count * local_batch_size / np.minimum(rate, self.shared_rate)
