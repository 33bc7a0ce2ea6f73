"""Parameters from measurements, how sure they are, and bands around what follows from them.

Uncertainty is carried by profile likelihood. Each parameter in turn is held at a series of values
and all others fitted anew; every set whose sum of squares stays within chi-squared's 90 % of the
best one is admitted, and a band is what all admitted sets predict. It was preferred to the
bootstrap because a series has four or five points, too few to draw from, and because of what data
cannot identify: a limit that was never reached lies at its bound in every bootstrap sample, as if
it were known, while its profile stays flat, and the band shows what that leaves open.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from ddl_core.errors import DataError
from ddl_core.scaling.checks import positive

Values = NDArray[np.float64]
Known = Literal["identified", "at most", "at least", "not identified"]
Point = Mapping[str, float]

ADMITTED = 2.706  # chi-squared, one degree of freedom, 90 %
TWO_SIDED = 1.645  # standard deviations of a normal 90 % interval
MOST_OFF = 5.0  # noises that the best fit may miss on average; beyond, the records contradict
_GRID = 10  # steps of a profile from bound to bound
_SCAN = 13  # places that are tried for each parameter before slopes are followed
_PULL = 0.02  # noises: what the data leave open stays at its neutral value


@dataclass(frozen=True)
class Parameter:
    """A number to be found between two bounds, which are physical limits with a source.

    Attributes
    ----------
    name, unit
        What it is called.
    low, high
        Bounds, above 0; it is searched on a logarithmic scale.
    neutral
        Where it stays as far as the data say nothing, mostly the bound where it has no effect.
    """

    name: str
    unit: str
    low: float
    high: float
    neutral: float

    def __post_init__(self) -> None:
        positive(**{f"low of {self.name}": self.low, f"high of {self.name}": self.high})
        if not self.low < self.high:
            raise DataError(f"{self.name} has no room between {self.low!r} and {self.high!r}")

    def value(self, place: float) -> float:
        """Return the value at a place between 0 (low) and 1 (high)."""
        return float(self.low * (self.high / self.low) ** place)

    def place(self, value: float) -> float:
        """Undo `value`."""
        return float(np.log(value / self.low) / np.log(self.high / self.low))


@dataclass(frozen=True)
class Estimate:
    """What the data say of one parameter: its value, and the 90 % range that they admit."""

    parameter: Parameter
    value: float
    low: float
    high: float
    known: Known


@dataclass(frozen=True)
class Band:
    """A prediction with its 90 % band; arrays of one shape."""

    value: Values
    low: Values
    high: Values


@dataclass(frozen=True)
class Fitted:
    """The best parameters, and all sets that the data admit.

    ``off`` is the root mean square of what the best fit misses, in noises. ``spread`` is the
    relative noise that remains: that of the measurements, or more where the model misses more.
    """

    best: Point
    off: float
    spread: float
    estimates: Mapping[str, Estimate]
    admitted: Sequence[Point] = field(repr=False)

    def band(
        self, predict: Callable[[Point], ArrayLike], noise: float | Values | None = None
    ) -> Band:
        """Return what all admitted parameters predict of a single measurement.

        Parameters
        ----------
        predict
            From parameters to positive numbers of any one shape.
        noise
            Relative standard deviation of such a measurement; 0 for what is true. None: `spread`,
            because it is of the kind that was fitted.
        """
        every = np.array([np.asarray(predict(point), float) for point in self.admitted])
        return band(every, self.spread if noise is None else noise)


def of_ratio(noise: float, ranks: ArrayLike, base: float) -> Values:
    """Return the noise of a run's ratio to another run: none where that is the base itself."""
    return np.where(np.asarray(ranks) == base, 0.0, np.sqrt(2) * noise)


def band(every: Values, noise: float | Values) -> Band:
    """Return the band around what all admitted sets predict, shape (sets, ...), the best one first.

    `noise` is the relative standard deviation of the measurement that it is a band of.
    """
    value, more = every[0], TWO_SIDED * noise * every[0]
    low = value - np.hypot(value - every.min(axis=0), more)
    high = value + np.hypot(every.max(axis=0) - value, more)
    return Band(value, np.maximum(low, 0), high)


def fit(
    parameters: Sequence[Parameter],
    predict: Callable[[Point], ArrayLike],
    measured: ArrayLike,
    noise: float,
) -> Fitted:
    """Return the parameters with which `predict` comes nearest to what was `measured`.

    Parameters
    ----------
    parameters
        What to find.
    predict
        From parameters by name to the predicted values, shape (n,).
    measured
        Positive numbers, shape (n,).
    noise
        Relative standard deviation of a measurement: more than this is not asked of the model.

    Raises
    ------
    DataError
        If there are fewer than two measurements, one is not positive, or they contradict.
    """
    wanted = _checked(measured, noise)
    problem = _Problem(parameters, predict, wanted, noise)
    middle = np.full(len(parameters), 0.5)
    starts = [problem.scan(problem.neutral), problem.scan(middle), middle]
    place, loss = min((problem.solve(start) for start in starts), key=lambda found: found[1])
    off = float(np.sqrt(loss / len(wanted)))
    _not_contradictory(off, problem, place)
    scale = max(1.0, loss / max(len(wanted) - problem.seen(place), 1))
    admitted, estimates = [place], {}
    for index, parameter in enumerate(parameters):
        ends = [_profile(problem, index, place, loss, scale, end) for end in (0.0, 1.0)]
        admitted += [found for part in ends for found in part.places]
        estimates[parameter.name] = _estimate(parameter, place[index], ends)
    points = [problem.point(found) for found in admitted]
    return Fitted(points[0], off, noise * float(np.sqrt(scale)), estimates, points)


def _checked(measured: ArrayLike, noise: float) -> Values:
    positive(noise=noise)
    wanted = np.asarray(measured, float)
    if wanted.size < 2:
        raise DataError(
            f"a fit needs two measurements at least, not {wanted.size}: one number of workers says "
            "nothing about another; measure at a second one"
        )
    if not (np.isfinite(wanted) & (wanted > 0)).all():
        raise DataError(f"measured values have to be positive numbers, not {wanted.tolist()}")
    return wanted


class _Problem:
    """Least squares in places between bounds; a place may be held."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        predict: Callable[[Point], ArrayLike],
        wanted: Values,
        noise: float,
    ) -> None:
        self.parameters, self.predict = parameters, predict
        self.wanted, self.noise = wanted, noise
        self.neutral = np.array([p.place(p.neutral) for p in parameters])

    def point(self, place: Values) -> dict[str, float]:
        return {p.name: p.value(x) for p, x in zip(self.parameters, place, strict=True)}

    def missed(self, place: Values) -> Values:
        """Return by how many noises each measurement is missed."""
        found = np.asarray(self.predict(self.point(place)), float)
        return np.asarray(np.log(found / self.wanted) / self.noise)

    def scan(self, place: Values) -> Values:
        """Return a better place to start from: slopes do not lead to a limit that is far away."""
        best = place.copy()
        for index in [*range(len(place))] * 2:
            tried = [best.copy() for _ in range(_SCAN)]
            for held, one in zip(np.linspace(0, 1, _SCAN), tried, strict=True):
                one[index] = held
            best = min([best, *tried], key=lambda one: float(np.sum(self.missed(one) ** 2)))
        return best

    def seen(self, place: Values) -> int:
        """Return how many parameters the data see: directions in which all of a range moves them.

        A parameter without effect takes no measurement away from the estimate of the noise.
        """
        step = 1e-3
        moves = [
            (self.missed(place + shift) - self.missed(place - shift)) / (2 * step)
            for shift in step * np.eye(len(place))
        ]
        return int((np.linalg.svd(np.array(moves), compute_uv=False) > 1).sum())

    def solve(self, start: Values, held: int | None = None) -> tuple[Values, float]:
        """Return the best place and its sum of squares; the place `held` stays as in `start`."""
        free = np.array([index != held for index in range(len(start))])

        def whole(part: Values) -> Values:
            place = start.copy()
            place[free] = part
            return place

        def residuals(part: Values) -> Values:
            place = whole(part)
            return np.concatenate([self.missed(place), _PULL * (place - self.neutral)])

        if free.any():
            inside = np.clip(start[free], 1e-6, 1 - 1e-6)
            part = least_squares(
                residuals, inside, bounds=(0, 1), diff_step=1e-4, xtol=1e-5, ftol=1e-5
            ).x
            start = whole(part)
        return start, float(np.sum(self.missed(start) ** 2))


def _not_contradictory(off: float, problem: _Problem, place: Values) -> None:
    if off <= MOST_OFF:
        return
    missed = problem.missed(place)
    worst = int(np.argmax(np.abs(missed)))
    raise DataError(
        "the measurements contradict each other or the model: the best fit misses them by "
        f"{100 * off * problem.noise:.0f} % on average and number {worst + 1}, "
        f"{problem.wanted[worst]:.6g}, by {100 * np.expm1(missed[worst] * problem.noise):+.0f} %; "
        "look for runs of another machine, model or batch among them"
    )


@dataclass(frozen=True)
class _Walk:
    """From the best place to one bound: what was admitted, and where it ended."""

    places: list[Values]
    end: float
    reached_bound: bool


def _profile(
    problem: _Problem, index: int, best: Values, loss: float, scale: float, bound: float
) -> _Walk:
    """Hold one parameter ever farther from its best place until the data refuse it."""
    inside: list[Values] = []
    last, excess = best, 0.0
    steps = max(int(np.ceil(_GRID * abs(bound - best[index]))), 1)
    for held in np.linspace(best[index], bound, steps + 1)[1:]:
        start = last.copy()
        start[index] = held
        place, found = problem.solve(start, held=index)
        more = max(found - loss, 0.0) / scale
        if more > ADMITTED:
            edge = _edge(last[index], held, excess, more)
            start = last.copy()
            start[index] = edge
            return _Walk([*inside, problem.solve(start, held=index)[0]], edge, False)
        inside.append(place)
        last, excess = place, more
    return _Walk(inside, bound, True)


def _edge(inner: float, outer: float, less: float, more: float) -> float:
    """Return where the sum of squares crosses the limit, its root taken as linear."""
    low, high = np.sqrt(less), np.sqrt(more)
    share = (np.sqrt(ADMITTED) - low) / max(high - low, 1e-12)
    return float(inner + np.clip(share, 0, 1) * (outer - inner))


def _estimate(parameter: Parameter, place: float, ends: Sequence[_Walk]) -> Estimate:
    known: dict[tuple[bool, bool], Known] = {
        (False, False): "identified",
        (True, False): "at most",
        (False, True): "at least",
        (True, True): "not identified",
    }
    down, up = ends
    return Estimate(
        parameter,
        parameter.value(place),
        parameter.value(down.end),
        parameter.value(up.end),
        known[down.reached_bound, up.reached_bound],
    )
