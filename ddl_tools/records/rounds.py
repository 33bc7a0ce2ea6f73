"""Rounds of interleaved studies that do not count."""

from collections.abc import Iterable
from statistics import median

from ddl_core.registry import COMMAND
from ddl_tools.records.damage import Examined
from ddl_tools.records.run import Slot

LEAST_CPU = 0.85
"""Of a run's median of CPU seconds over wall seconds: a window below it was disturbed."""
LEAST_CPU_S = 1.0
"""CPU seconds of a command's window that say something: it may wait for a GPU or a disk."""
FIRST, DISTURBED = "first of a start", "disturbed"
"""Why the windows of a round do not count."""

Round = tuple[str, str, int]
"""Study, block and number."""


def round_of(study: str, slot: Slot) -> Round:
    """Return the round that an epoch of a study was measured in."""
    return study, slot.block, slot.round


def rounds_left_out(runs: Iterable[Examined]) -> dict[Round, str]:
    """Return why rounds do not count; `runs` are all runs of their studies.

    A round is the first one of a start (`FIRST`), or one of its trainings had less of the processor
    than the rest of its run (`DISTURBED`). No run keeps such a round, so that what is left has a
    partner from the same seconds.
    """
    first, disturbed = dict[Round, str](), dict[Round, str]()
    for run in runs:
        warm = [row for row in run.rows if row.interleave and row.phase == "train" and not row.cold]
        own = [(row.interleave, row.cpu_s / row.wall_s) for row in warm if row.interleave]
        if run.record is None or not own:
            continue
        study = run.record.study
        begun = {slot.block: round_of(study, slot) for slot, _ in reversed(own)}
        first |= dict.fromkeys(begun.values(), FIRST)
        spec = run.record.spec
        few = spec.framework == COMMAND and median(row.cpu_s for row in warm) < LEAST_CPU_S
        if spec.work == "train" and not few:
            # Loading alone takes ten ticks of the CPU's clock, which show nothing.
            least = LEAST_CPU * median(cores for _, cores in own)
            low = (round_of(study, slot) for slot, cores in own if cores < least)
            disturbed |= dict.fromkeys(low, DISTURBED)
    return disturbed | first
