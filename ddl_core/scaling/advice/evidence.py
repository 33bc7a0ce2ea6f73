"""What is known of one strategy with one loader on one kind of machine, whoever measured it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddl_core.scaling.fit import Point, Values
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, predict


@dataclass(frozen=True, eq=False)  # one is itself alone: it holds arrays
class Evidence:
    """A fitted machine for one arm, and what the fit rests on.

    Attributes
    ----------
    machine
        The kind of machine that the numbers are from.
    strategy, loader, model, dataset
        The arm.
    gpus_per_node
        Ranks that shared a node.
    sizes
        Numbers of ranks of which something was measured, ascending.
    rests_on
        Sentences that name the records, the paper's values or the published series.
    admitted
        All sets of parameters that the measurements admit, the best one first.
    noise
        Relative standard deviation of a single run.
    training, built
        What is trained, and the machine that a set of parameters describes.
    in_jobs
        Whether they were measured in jobs of SLURM.
    power_w
        The least and the most power of a rank that was measured while training; None if none was.
    """

    machine: str
    strategy: str
    loader: str
    model: str
    dataset: str
    gpus_per_node: int
    sizes: tuple[int, ...]
    rests_on: tuple[str, ...]
    admitted: Sequence[Point]
    noise: float
    training: Training
    built: Callable[[Point], Machine]
    in_jobs: bool = False
    power_w: tuple[float, float] | None = None

    def epoch_s(self, images: int, ranks: Sequence[int]) -> Values:
        """Return the seconds of an epoch by every admitted set, shape (sets, number of `ranks`)."""
        training = replace(self.training, images=images)
        machines = map(self.built, self.admitted)
        return np.array([predict(one, training, ranks).epoch_s for one in machines])

    def load_s(self, ranks: Sequence[int]) -> Values:
        """Return the seconds in which all ranks get a batch and train nothing, of that shape."""
        batch, machines = self.training.local_batch_size, map(self.built, self.admitted)
        return np.array([one.loading.batch_s(ranks, batch, one.network) for one in machines])

    def beyond(self, ranks: int) -> float:
        """Return how many times outside the measured numbers of ranks this one is; 1 is inside."""
        return max(ranks / self.sizes[-1], self.sizes[0] / ranks, 1.0)
