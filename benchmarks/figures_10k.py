"""How long tables and figures take from the records of 10,000 runs.

    python -m benchmarks.figures_10k

Writes invented records into a temporary folder: 50 studies of 200 runs, with a few epochs (3) and
with those of the paper (90). Times `redraw` in a new process each, imports included: of one study,
as after a run of it, and of all with a few epochs, each in a folder of its own, one after another.
Target: 30 s for one. All of them is hundreds of figures: stated, with their number. About 15
minutes.
"""

import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.interleaved import CLOCKS, Took, interval, shown, stored
from ddl_core.config import RunSpec
from ddl_tools.analysis.estimates import middle
from ddl_tools.records.paths import PROJECT, RunFiles, Tree
from ddl_tools.records.run import Attempt, EpochRecord, RunRecord

STUDIES = 50
RUNS_PER_STUDY = 200
REPEATS = {3: {1: 3, STUDIES: 2}, 90: {1: 3}}  # by epochs, and by how many studies are drawn
REDRAW = """
import sys
from pathlib import Path
from ddl_tools.analysis.redraw import redraw
from ddl_tools.records.paths import Tree
if __name__ == "__main__":
    tree = Tree(Path(sys.argv[1]))
    redraw(tree, figures=tree.figures, studies=sys.argv[2:])
"""


def measure() -> dict[str, Any]:
    """Measure and print."""
    cases = []
    for epochs, repeats in REPEATS.items():
        with tempfile.TemporaryDirectory() as folder:
            tree = Tree(Path(folder))
            runs = write_records(tree, epochs)
            cases += [case(tree, *drawn, runs, epochs) for drawn in repeats.items()]
    return {"cases_s": cases}


def case(tree: Tree, studies: int, repeats: int, runs: int, epochs: int) -> dict[str, Any]:
    """Measure the figures of one study, or of all, and print."""
    chosen = tree.studies()[:1] if studies == 1 else []
    took = [redrawing(tree, chosen) for _ in range(repeats)]
    found = {c: interval(middle([getattr(one, c) for one in took])) for c in CLOCKS}
    drawn = len(list(tree.figures.rglob("*.csv")))
    text = ", ".join(f"{shown(found[clock])} s by {clock}" for clock in CLOCKS)
    print(f"{drawn} figures of {studies} studies, {epochs} epochs: {text}", flush=True)
    about = {"runs": runs, "epochs_per_run": epochs, "studies_drawn": studies, "figures": drawn}
    return about | {"n": len(took), **found}


def redrawing(tree: Tree, studies: list[str]) -> Took:
    """Return what a new process takes that imports the analysis and redraws."""
    started, before = time.perf_counter(), os.times()
    subprocess.run(
        [sys.executable, "-c", REDRAW, str(tree.root), *studies], check=True, cwd=PROJECT
    )
    wall_s, after = time.perf_counter() - started, os.times()
    return Took(wall_s, sum(after[2:4]) - sum(before[2:4]))  # of children, user and system


def write_records(tree: Tree, epochs: int) -> int:
    """Write the invented records; return how many runs they are."""
    chance = random.Random(0)
    lines = epoch_lines(epochs)
    written = 0
    for number in range(STUDIES):
        for spec in itertools.islice(specs(number, epochs), RUNS_PER_STUDY):
            record = RunRecord.plan(f"study_{number:02d}", spec)
            record.status = "completed"
            record.attempts = [Attempt(started_utc=record.created_utc, status="completed")]
            record.provenance = {"git_commit": "0" * 40, "git_dirty": False}
            record.system = {
                "device": "cpu",
                "accelerator": None,
                "cpu": "invented",
                "cpu_cores": 2,
            }
            files = RunFiles(tree.study(record.study) / record.run_id)
            files.directory.mkdir(parents=True)
            files.record.write_text(record.model_dump_json())
            wall_s = 20 / spec.world_size**0.95 * chance.gauss(1, 0.02)
            told = lines.replace('"wall_s":1.0', f'"wall_s":{wall_s}')
            rate = f'"throughput_samples_per_s":{320 / wall_s}'
            files.epochs.write_text(told.replace('"throughput_samples_per_s":320.0', rate))
            written += 1
    return written


def specs(number: int, epochs: int) -> Iterator[RunSpec]:
    """Yield the runs of one study: loaders x models x world sizes x repeats."""
    grid = itertools.product(
        range(3),
        ("native", "synthetic"),
        ("resnet50", "resnet101", "resnet152"),
        (2**power for power in range(11)),
    )
    runs = [
        RunSpec(
            strategy="ddp",
            loader=loader,
            model=model,
            nodes=size,
            image_size=64 + 8 * number,
            epochs=epochs,
            repeat=repeat,
        )
        for repeat, loader, model, size in grid
    ]
    yield from runs
    yield from (
        RunSpec(strategy="single", image_size=64 + 8 * number, epochs=epochs, repeat=repeat)
        for repeat in range(RUNS_PER_STUDY - len(runs))
    )


def epoch_lines(epochs: int) -> str:
    """Return ``epochs.jsonl`` of a run: train and eval in every epoch, wall time 1.0."""
    rows = []
    for epoch, phase in itertools.product(range(epochs), ("train", "eval")):
        row = EpochRecord(
            attempt=0,
            epoch=epoch,
            phase=phase,  # type: ignore[arg-type]
            cold=epoch == 0,
            steps=40,
            samples=320,
            corrupt_images=0,
            wall_s=1.0,
            cpu_s=31.41592653589793,
            data_s=0.2718281828459045,
            rank_wall_s_min=19.123456789,
            rank_wall_s_max=19.987654321,
            step_s_median=0.4142135623730951,
            step_s_p95=0.5772156649015329,
            throughput_samples_per_s=320.0,
            loss=6.907755278982137,
            top1=0.001,
            top5=0.005,
            lr=0.025,
            max_memory_bytes=None,
        )
        rows.append(row.model_dump_json() + "\n")
    return "".join(rows)


if __name__ == "__main__":
    stored("figures_10k", measure)
