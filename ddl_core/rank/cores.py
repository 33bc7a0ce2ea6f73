"""Which cores the ranks of a run may use."""

import os
from typing import Any

import numpy as np

from ddl_core.rank.group import Group

_CORES = 1024  # of a node: the most that Linux tells of without being asked twice


def affinity(group: Group, ranks_per_node: int) -> dict[str, Any]:
    """Return how many cores each rank may use, and whether two of one node share any. A collective.

    ``cores_least`` and ``cores_most`` over all ranks; ``shared`` is None where a node has one rank.
    """
    own = sorted(os.sched_getaffinity(0))
    users = np.zeros(group.world_size // ranks_per_node * _CORES)
    users[[group.rank // ranks_per_node * _CORES + core % _CORES for core in own]] = 1
    users = group.reduce(users)
    most, minus_least = group.reduce(np.array([len(own), -len(own)]), "max").tolist()
    return {
        "cores_least": -minus_least,
        "cores_most": most,
        "shared": bool(users.max() > 1) if ranks_per_node > 1 else None,
    }
