"""Numbers out of range are refused by name."""

import numpy as np
from numpy.typing import ArrayLike

from ddl_core.errors import SpecError


def positive(**values: ArrayLike) -> None:
    """Raise a SpecError that names the first value that is not above 0."""
    for name, value in values.items():
        if not (np.asarray(value, float) > 0).all():
            raise SpecError(f"{name}={value!r} has to be above 0")


def at_least(least: float, **values: ArrayLike) -> None:
    """Raise a SpecError that names the first value that is below `least`."""
    for name, value in values.items():
        if not (np.asarray(value, float) >= least).all():
            raise SpecError(f"{name}={value!r} has to be at least {least:g}")
