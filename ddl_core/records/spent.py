"""Where the time of a training epoch went, told by marks in every step: no profiler needed."""

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Phase = Literal["data", "compute", "communication", "update"]
"""What a mark ends; an update also ends its step."""

PHASES: tuple[Phase, ...] = ("data", "compute", "communication", "update")


OURS = "ddl_core."
"""Before all names that this project gives in a profile."""

MARK = OURS + "mark."
"""Before the name of a phase: what a mark is called in a profile."""

WINDOW = OURS + "window"
"""What the range of the epoch that is looked at is called in a profile."""


class Spent(BaseModel):
    """Seconds of an epoch by what they were spent on, mean over ranks; the sum is its wall time.

    On a GPU they are times of the device: it computes while the host is already elsewhere.
    """

    model_config = ConfigDict(extra="forbid")

    start_s: float = Field(description="until the first batch is there: the loader starts")
    data_s: float = Field(description="waiting for the other batches")
    compute_s: float = Field(description="forward and backward, up to the last gradient")
    transfer_s: float = Field(
        description="exposed communication of the rank that came last in each step: no waiting"
    )
    waiting_s: float = Field(description="the rest of it: waiting for slower ranks")
    update_s: float = Field(description="of the weights")
    end_s: float = Field(description="from the last update until all ranks are there")


def by_step(phases: list[Phase], seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the seconds of each phase in each step.

    Parameters
    ----------
    phases
        What each interval was, in order of time; ``"update"`` closes a step.
    seconds : (n,)
        How long each interval took.

    Returns
    -------
    (steps, 4)
        In the order of `PHASES`.
    """
    kinds = np.array([PHASES.index(phase) for phase in phases], dtype=np.int64)
    closed = kinds == PHASES.index("update")
    step = np.cumsum(closed) - closed
    table = np.zeros((int(closed.sum()), len(PHASES)))
    within = step < len(table)
    np.add.at(table, (step[within], kinds[within]), seconds[within])
    return table
