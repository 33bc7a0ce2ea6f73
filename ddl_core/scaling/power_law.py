"""The peer to beat: a straight line through the logarithms, value = a G^b."""

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
