"""Where the time of some steps went, from the spans on one rank's timeline: sets of time only."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ddl_core.records.intervals import Spans, intersect, length, subtract, union

Part = Literal["compute", "communication", "copies", "data", "other", "idle"]
PARTS: tuple[Part, ...] = get_args(Part)

Seconds = NDArray[Any]  # float64


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
