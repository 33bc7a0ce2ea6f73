"""The peer to beat: what is straight in logarithms, value = a G^b, or a G^b r^c with links of r."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddl_core.errors import DataError
from ddl_core.scaling.checks import positive


@dataclass(frozen=True)
class PowerLaw:
    """value = factor * ranks ** exponent."""

    factor: float
    exponent: float

    def predict(self, ranks: ArrayLike) -> NDArray[np.float64]:
        """Return the values at `ranks`."""
        return np.asarray(self.factor * np.asarray(ranks, float) ** self.exponent)


def power_law(ranks: ArrayLike, values: ArrayLike) -> PowerLaw:
    """Return the power law nearest to `values`, by least squares of the logarithms.

    Raises
    ------
    DataError
        If there are fewer than two numbers of ranks.
    SpecError
        If a value is not above 0.
    """
    positive(ranks=ranks, values=values)
    if len(np.unique(np.asarray(ranks, float))) < 2:
        raise DataError(f"a power law needs two numbers of ranks at least, not {ranks!r}")
    x, y = np.log(np.asarray(ranks, float)), np.log(np.asarray(values, float))
    exponent, offset = np.polyfit(x, y, 1)
    return PowerLaw(float(np.exp(offset)), float(exponent))


@dataclass(frozen=True)
class PowerPlane:
    """value = factor * ranks ** exponent * rate ** rate_exponent."""

    factor: float
    exponent: float
    rate_exponent: float

    def predict(self, ranks: ArrayLike, rate: ArrayLike) -> NDArray[np.float64]:
        """Return the values at `ranks` with links of `rate`."""
        grown = np.asarray(ranks, float) ** self.exponent
        return np.asarray(self.factor * grown * np.asarray(rate, float) ** self.rate_exponent)


def power_plane(ranks: ArrayLike, rate: ArrayLike, values: ArrayLike) -> PowerPlane:
    """Return the power law of both that is nearest to `values`, by least squares of logarithms.

    Raises
    ------
    SpecError
        If a value is not above 0.
    """
    positive(ranks=ranks, rate=rate, values=values)
    x, y, z = (np.log(np.asarray(part, float)) for part in (ranks, rate, values))
    solved, *_ = np.linalg.lstsq(np.column_stack([np.ones_like(x), x, y]), z, rcond=None)
    offset, exponent, rate_exponent = map(float, solved)
    return PowerPlane(float(np.exp(offset)), exponent, rate_exponent)
