"""How ranks work together, one file per strategy; here is what ranks of all frameworks share."""

import os
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

import numpy.typing as npt

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError

Reduction = Literal["sum", "min", "max"]


@dataclass(frozen=True)
class RankInfo:
    """Which rank this process is: `rank` of `world_size`, `local_rank` on its node."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_environment(cls, spec: RunSpec) -> Self:
        """Read the variables that torchrun sets."""
        info = cls(
            rank=int(os.environ.get("RANK", 0)),
            local_rank=int(os.environ.get("LOCAL_RANK", 0)),
            world_size=int(os.environ.get("WORLD_SIZE", 1)),
        )
        if info.world_size != spec.world_size:
            raise LaunchError(
                f"{info.world_size} ranks were started, but the run asks for {spec.world_size} "
                f"(nodes {spec.nodes} x gpus_per_node {spec.gpus_per_node})"
            )
        return info


class Group(Protocol):
    """The ranks of a run, as one of them sees them: `rank` of `world_size`, from 0."""

    rank: int
    local_rank: int
    world_size: int

    def reduce(self, values: npt.ArrayLike, op: Reduction = "sum") -> npt.NDArray[Any]:
        """Return `values` reduced over ranks element by element, in their own type. A collective.

        Exact for integers and float64.
        """

    def barrier(self) -> None:
        """Wait until all ranks are here."""
