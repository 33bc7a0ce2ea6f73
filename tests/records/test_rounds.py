"""Which rounds of an interleaved study do not count."""

from types import SimpleNamespace
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_tools.records.rounds import DISTURBED, FIRST, rounds_left_out
from ddl_tools.records.run import Slot

TRAINING = RunSpec()
COMMAND = RunSpec(framework="command", command="python train.py")


def left_out(spec: RunSpec, cpu_s: list[float]) -> dict[int, str]:
    """Return the reasons by round of a run whose windows of 5 s had some CPU seconds."""
    rows = [
        SimpleNamespace(
            interleave=Slot(block="b", reference="r", round=number, place=0),
            **{"phase": "train", "cold": False, "cpu_s": seconds, "wall_s": 5.0},
        )
        for number, seconds in enumerate(cpu_s)
    ]
    run: Any = SimpleNamespace(record=SimpleNamespace(study="s", spec=spec), rows=rows)
    return {number: why for (_, _, number), why in rounds_left_out([run]).items()}


@pytest.mark.parametrize("spec", [TRAINING, COMMAND])
def test_a_window_with_less_of_the_processor_than_others_does_not_count(spec: RunSpec) -> None:
    assert left_out(spec, [5.0, 5.0, 5.0, 3.0]) == {0: FIRST, 3: DISTURBED}


def test_the_few_cpu_seconds_of_a_command_that_waits_say_nothing() -> None:
    """It may wait for a GPU: some ticks of the CPU's clock differ from window to window."""
    assert left_out(COMMAND, [0.05, 0.05, 0.05, 0.03]) == {0: FIRST}
