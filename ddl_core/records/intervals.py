"""Unions, overlaps and lengths of time intervals: what all shares of a timeline are made of."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Spans = NDArray[Any]  # (n, 2): start and end, int64 nanoseconds or float64 seconds


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
