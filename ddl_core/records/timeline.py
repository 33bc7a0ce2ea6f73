"""Where the time of some steps went, from the spans on one rank's timeline: sets of time only."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Spans = NDArray[Any]  # (n, 2): start and end, int64 nanoseconds or float64 seconds

Part = Literal["compute", "communication", "copies", "data", "other", "idle"]
PARTS: tuple[Part, ...] = get_args(Part)

Seconds = NDArray[Any]  # float64


def union(spans: ArrayLike) -> Spans:
    """Return the time that at least one span covers.

    Parameters
    ----------
    spans
        Shape (n, 2), start and end, in any order; they may overlap. Times are in any unit and
        half-open: a span that ends where it starts covers nothing.

    Returns
    -------
    numpy.ndarray
        Shape (m, 2) and the input's type: sorted, with a gap between any two.

    Raises
    ------
    ValueError
        If the shape is another, or a span ends before it starts.
    """
    spans = _checked(spans)
    spans = spans[spans[:, 0] < spans[:, 1]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    covered_to = np.maximum.accumulate(spans[:, 1])
    first = np.append(True, spans[1:, 0] > covered_to[:-1])
    last = np.append(first[1:], True)
    return np.column_stack([spans[first, 0], covered_to[last]])


def length(spans: ArrayLike) -> float:
    """Return the time that at least one span covers, in the spans' unit; 0 without spans."""
    merged = union(spans)
    return float((merged[:, 1] - merged[:, 0]).sum())


def intersect(a: ArrayLike, b: ArrayLike) -> Spans:
    """Return the time that both `a` and `b` cover; shapes and errors as in `union`."""
    a, b = union(a), union(b)
    if not len(a) or not len(b):
        return a[:0]
    # Within a union starts and ends both rise, so what meets a span of `a` is one run of `b`.
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    runs = np.searchsorted(b[:, 0], a[:, 1], side="left") - first
    of_a = np.repeat(np.arange(len(a)), runs)
    of_b = np.arange(len(of_a)) + np.repeat(first - (np.cumsum(runs) - runs), runs)
    return np.column_stack([np.maximum(a[of_a, 0], b[of_b, 0]), np.minimum(a[of_a, 1], b[of_b, 1])])


def subtract(a: ArrayLike, b: ArrayLike) -> Spans:
    """Return the time that `a` covers and `b` does not; shapes and errors as in `union`."""
    a, b = union(a), union(b)
    if not len(a) or not len(b):
        return a
    edges = np.concatenate([a[:1, 0], b.ravel(), a[-1:, 1]])
    gaps = edges.reshape(-1, 2)  # before, between and after the spans of `b`
    return intersect(a, gaps[gaps[:, 0] < gaps[:, 1]])


def _checked(spans: ArrayLike) -> Spans:
    array = np.asarray(spans)
    if array.size == 0:
        return array.reshape(0, 2)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"spans of shape {array.shape}; (n, 2) is needed: start and end of each")
    wrong = ~(array[:, 0] <= array[:, 1])  # so that not-a-number is wrong too
    if wrong.any():
        start, end = array[wrong][0]
        raise ValueError(f"a span from {start} to {end}; a span may not end before it starts")
    return array


@dataclass(frozen=True)
class Timeline:
    """What one rank did, each kind (n, 2): starts and ends in seconds, any order, may overlap.

    `steps` (n + 1,) are the edges of the watched steps. `collectives` are operations on the way,
    `waits` times in which the rank has its gradients and waits for their mean over ranks, `data`
    times in which it waits for its next batch, `calls` whatever else it was seen doing.
    """

    steps: Seconds
    compute: Spans
    collectives: Spans
    copies: Spans
    waits: Spans
    data: Spans
    calls: Spans

    def parts(self) -> dict[Part, Spans]:
        """Divide the window: each moment belongs to the first kind that covers it, else to idle.

        Collectives come before copies, which are short and often their own; waiting for the mean
        comes after copies, since a rank that copies does not only wait.
        """
        order: tuple[tuple[Part, Spans], ...] = (
            ("compute", self.compute),
            ("communication", self.collectives),
            ("copies", self.copies),
            ("communication", self.waits),
            ("data", self.data),
            ("other", self.calls),
        )
        left = self._window()
        found: dict[Part, list[Spans]] = {part: [] for part in PARTS}
        for part, spans in order:
            found[part].append(intersect(left, spans))
            left = subtract(left, spans)
        found["idle"].append(left)
        return {part: union(np.concatenate(pieces)) for part, pieces in found.items()}

    def overlapped_s(self) -> float:
        """Return the time in which a collective was on its way while the rank computed."""
        return length(intersect(intersect(self.collectives, self.compute), self._window()))

    def by_step(self, spans: Spans) -> Seconds:
        """Return how much of each step `spans` cover, (n,)."""
        merged = union(spans)
        if not len(merged):
            return np.zeros(len(self.steps) - 1)
        grows = np.column_stack([np.zeros(len(merged)), merged[:, 1] - merged[:, 0]])
        return np.diff(np.interp(self.steps, merged.ravel(), np.cumsum(grows)))

    def _window(self) -> Spans:
        return np.array([[self.steps[0], self.steps[-1]]])


def device_steps(host: Seconds, launched: Seconds, ends: Seconds) -> Seconds:
    """Return when a device was done with what the host launched before each edge of its steps.

    Parameters
    ----------
    host : (n + 1,)
        The edges on the host, which runs ahead.
    launched, ends : (work,)
        When each piece of work was launched, -inf if before all edges; when the device ended it.
    """
    order = np.argsort(launched)
    done = np.maximum.accumulate(np.append(-np.inf, ends[order]))
    return np.maximum(host, done[np.searchsorted(launched[order], host)])


def transfer_and_waiting(exposed: Seconds) -> tuple[float, Seconds]:
    """Tell waiting for slower ranks from moving data.

    Parameters
    ----------
    exposed : (ranks, steps)
        Seconds in which communication was all that went on.

    Returns
    -------
    transfer : float
        Seconds of the rank that waited least in each step, summed: it came last, so that nobody
        was left to wait for. The same for all ranks.
    waiting : (ranks,)
        The rest.
    """
    transfer = float(exposed.min(axis=0).sum())
    return transfer, (exposed - exposed.min(axis=0)).sum(axis=1)
