"""Weights as arrays, and a hash that is the same in every framework."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def values(state: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """Return parameters and running statistics of a state of torch, without counters of batches."""
    return {
        name: tensor.detach().float().cpu().contiguous().numpy()
        for name, tensor in state.items()
        if tensor.is_floating_point()
    }


def state_sha256(values: Mapping[str, npt.NDArray[np.float32]]) -> str:
    """Return a hash over all parameters and statistics by name."""
    digest = hashlib.sha256()
    for name, array in sorted(values.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array, np.float32).tobytes())
    return digest.hexdigest()
