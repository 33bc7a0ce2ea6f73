"""Whether real studies of commands find known ratios: ten of them, of scripts with a known rate.

    python -m benchmarks.known_rates [STARTS]

Each study interleaves two commands, the second of which is truly faster or slower, or equal.
`scripts/known_rate.py` sleeps or spins until each step is due; a start varies by 1 % and a step by
5 %, as a study must stand it. All studies run at the same time, on a machine that is else quiet:
the scripts need almost no processor. Counted is how many of the 95 % intervals over starts contain
the true ratio. `command_rates.py` does the same on a simulated clock, 200 times. Takes 5 minutes.
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.interleaved import interval, shown, stored
from ddl_core.registry import COMMAND
from ddl_tools.analysis.interleaving import Interleaved
from ddl_tools.analysis.tables import windows_table
from ddl_tools.launch.measuring import LOCK
from ddl_tools.records.paths import Tree
from ddl_tools.study import Study

SCRIPT = Path(__file__).parent / "scripts" / "known_rate.py"
STARTS, WINDOWS = 3, 3  # the first window of a start does not count


class Case(NamedTuple):
    """A script in two forms: steps of `step_s`, and the same `ratio` times as fast."""

    mode: str
    ranks: int
    step_s: float
    ratio: float
    steps_per_line: int = 1
    who: str = "each"

    @property
    def name(self) -> str:
        """The case in words."""
        line = f", a line of {self.who} in {self.steps_per_line} steps"
        return (
            f"{self.mode}, {self.ranks} rank(s), steps of {self.step_s:g} s"
            f"{line if self.steps_per_line > 1 else ''}, {self.ratio:g} times as fast"
        )


CASES = (
    Case("sleep", 1, 0.02, 1.1),
    Case("spin", 1, 0.02, 1.1),
    Case("sleep", 1, 0.1, 1.0),
    Case("sleep", 2, 0.1, 1.1),
    Case("sleep", 2, 0.5, 0.9),
    Case("sleep", 1, 0.5, 1.25),
    Case("sleep", 1, 2.0, 1.1),
    Case("sleep", 2, 2.0, 1.05),
    Case("sleep", 1, 0.1, 1.1, 20),  # as a script that prints after each epoch
    Case("sleep", 2, 0.1, 1.1, 20, "one"),
)


def fields(number: int, starts: int) -> dict[str, Any]:
    """Return the study of a case, as its file has it."""
    case = CASES[number]
    command = (
        f"{sys.executable} {SCRIPT} {case.mode} {{step_s}} 100 {case.steps_per_line} {case.who}"
    )
    steps = [case.step_s, case.step_s / case.ratio]
    if case.ratio == 1:
        steps = [case.step_s, case.step_s + 1e-9]  # two configurations, though equal ones
    return {
        "name": f"known_{number}",
        "question": "Is the known ratio found?",
        "base": {
            "framework": COMMAND,
            "command": command,
            "strategy": "torchrun" if case.ranks > 1 else "single",
            "gpus_per_node": case.ranks,
            "epochs": WINDOWS + 1,
            "discard_steps": 2,
        },
        "axes": {"step_s": steps},
        "repeats": starts,
        "interleave": {"reference": {"step_s": case.step_s}},
    }


def found(number: int, tree: Tree, starts: int) -> dict[str, Any]:
    """Return what one study has found."""
    case, asked = CASES[number], Study.model_validate(fields(number, starts))
    assert asked.interleave is not None
    table = windows_table(tree, [asked.name])
    windows = Interleaved(table)
    base, other = (
        windows.of(
            asked.name,
            [run.run_id for run in asked.expand() if asked.interleave.is_reference(run) == is_base],
        )
        for is_base in (True, False)
    )
    ratio = windows.ratio(other, base)
    if ratio is None:
        raise SystemExit(f"{case.name}: no window counts")
    covered = ratio.low <= case.ratio <= ratio.high
    print(f"{case.name}: {shown(interval(ratio))}{'' if covered else ' misses it'}", flush=True)
    return {
        "case": case.name,
        "true": case.ratio,
        "ratio": interval(ratio),
        "starts": ratio.n,
        "covered": covered,
        "windows_left_out": table["left_out"].value_counts().to_dict(),
    }


def measure() -> dict[str, Any]:
    """Run all studies at the same time; print."""
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else STARTS
    with tempfile.TemporaryDirectory() as name:
        folder, running = Path(name), []
        for number in range(len(CASES)):
            file = folder / f"{number}.yaml"
            file.write_text(yaml.safe_dump(fields(number, starts)))
            words = [sys.executable, "-m", "ddl_tools.cli", "study", "run", str(file)]
            log = (folder / f"{number}.log").open("wb")
            running.append(
                subprocess.Popen(
                    [*words, "--results", str(folder / "results")],
                    # Each has a lock of its own: they share the machine, and may.
                    env={**os.environ, LOCK: str(folder / f"{number}.lock")},
                    stdout=log,
                    stderr=log,
                )
            )
        for number, one in enumerate(running):
            if one.wait():
                print((folder / f"{number}.log").read_text())
                raise SystemExit(f"{CASES[number].name}: the study ended with {one.returncode}")
        results = [found(number, Tree(folder / "results"), starts) for number in range(len(CASES))]
    bias = statistics.mean(math.log(one["ratio"]["ratio"] / one["true"]) for one in results)
    covered = sum(one["covered"] for one in results)
    print(f"{covered} of {len(results)} intervals cover; {math.expm1(bias):+.2%} off on average")
    return {"studies": results, "covered": covered, "bias": math.expm1(bias)}


if __name__ == "__main__":
    stored("known_rates", measure)
