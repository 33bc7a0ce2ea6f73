"""How far apart the numbers of two computations are, and how far apart they may be.

docs/contributing/test-tolerances.md says what each tolerance was measured against.
To see the distances themselves: ``pytest -m numeric --log-cli-level=INFO``.
"""

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Numbers = Sequence[float] | Mapping[str, Tensor]

ROOM = 5  # times a tolerance: nearer than this, no planted unfairness may come


def apart(got: Numbers, want: Numbers) -> float:
    """Return |got - want| / |want|, Euclidean; of named tensors, that of the worst one.

    A norm of all elements, because a single one may be zero.
    """
    if not isinstance(want, Mapping):
        return _apart(
            torch.tensor(got, dtype=torch.float64), torch.tensor(want, dtype=torch.float64)
        )
    assert isinstance(got, Mapping)
    assert got.keys() == want.keys()
    distances = [_apart(got[name].double(), want[name].double()) for name in want]
    return float(torch.tensor(distances).max())  # NaN if one is, which `max` of Python may miss


def _apart(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got - want).norm() / want.norm())


def assert_near(got: Numbers, want: Numbers, tolerance: float) -> None:
    """Fail where both are further apart than `tolerance`, or not numbers."""
    distance = apart(got, want)
    log.info("%.1e apart, %.0e allowed", distance, tolerance)
    assert distance <= tolerance, f"{distance:.1e} apart, {tolerance:.0e} allowed"


def assert_far(got: Numbers, want: Numbers, tolerance: float) -> None:
    """Fail unless a planted unfairness is well seen: `assert_near` would fail by far."""
    distance = apart(got, want)
    log.info("%.1e apart by a planted unfairness, %.0e allowed", distance, tolerance)
    assert distance >= ROOM * tolerance, f"only {distance:.1e} apart, {tolerance:.0e} allowed"


def falls(losses: Sequence[float]) -> bool:
    """Say whether the last of `losses` is clearly below the first, so that something is learned."""
    return losses[-1] < 0.97 * losses[0]
