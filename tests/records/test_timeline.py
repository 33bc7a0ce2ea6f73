"""Shares of a window: every moment counted once, against a moment-by-moment count."""

import numpy as np
import pytest

from ddl_tools.records.profiling import PARTS, Timeline, transfer_and_waiting

KINDS = ("compute", "collectives", "copies", "waits", "data", "calls")
TICKS = 200


def random_timeline(seed: int) -> Timeline:
    """Whole ticks, also before and after the window, overlapping one another."""
    draw = np.random.default_rng(seed)
    spans = {}
    for name in KINDS:
        starts = draw.integers(-20, TICKS, size=draw.integers(0, 12))
        spans[name] = np.column_stack([starts, starts + draw.integers(0, 40, size=len(starts))])
    steps = np.array([0, *sorted(draw.choice(np.arange(1, TICKS), 3, replace=False)), TICKS])
    return Timeline(steps=steps.astype(float), **spans)


def covered(spans, tick: int) -> bool:
    return any(start <= tick < end for start, end in spans)


def part_at(line: Timeline, tick: int) -> str:
    if covered(line.compute, tick):
        return "compute"
    if covered(line.collectives, tick):
        return "communication"
    if covered(line.copies, tick):
        return "copies"
    if covered(line.waits, tick):
        return "communication"
    if covered(line.data, tick):
        return "data"
    return "other" if covered(line.calls, tick) else "idle"


@pytest.mark.parametrize("seed", range(20))
def test_each_moment_belongs_to_one_part(seed):
    line = random_timeline(seed)
    seconds = {name: line.by_step(spans) for name, spans in line.parts().items()}
    assert tuple(seconds) == PARTS
    for step, (start, end) in enumerate(zip(line.steps, line.steps[1:], strict=False)):
        ticks = [part_at(line, tick) for tick in range(int(start), int(end))]
        assert {name: seconds[name][step] for name in PARTS} == {
            name: ticks.count(name) for name in PARTS
        }
    assert sum(spent.sum() for spent in seconds.values()) == TICKS
    both = sum(covered(line.compute, t) and covered(line.collectives, t) for t in range(TICKS))
    assert line.overlapped_s() == both


def test_waiting_is_what_exceeds_the_rank_that_came_last():
    exposed = np.array([[3.0, 1.0, 2.0], [1.0, 4.0, 2.0]])
    transfer, waiting = transfer_and_waiting(exposed)
    assert transfer == 1 + 1 + 2
    assert waiting.tolist() == [2 + 0 + 0, 0 + 3 + 0]
    transfer, waiting = transfer_and_waiting(exposed[:1])  # one rank waits for nobody
    assert (transfer, waiting.tolist()) == (6.0, [0.0])
