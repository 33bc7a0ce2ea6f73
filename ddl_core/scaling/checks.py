"""Absurd numbers are refused where they come in, by name."""

import numpy as np
from numpy.typing import ArrayLike

from ddl_core.errors import SpecError


def positive(**values: ArrayLike) -> None:
    """Refuse what is not above 0.

    Raises
    ------
    SpecError
        It names the value.
    """
    for name, value in values.items():
        if not (np.asarray(value, float) > 0).all():
            raise SpecError(f"{name}={value!r} has to be above 0")


def at_least(least: float, **values: ArrayLike) -> None:
    """Refuse what is below `least`, or no number.

    Raises
    ------
    SpecError
        It names the value.
    """
    for name, value in values.items():
        if not (np.asarray(value, float) >= least).all():
            raise SpecError(f"{name}={value!r} has to be at least {least:g}")
