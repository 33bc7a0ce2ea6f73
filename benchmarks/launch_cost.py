"""What one run costs besides training: papermill, the kernel, imports and ends, in seconds.

Executes small runs as a study does, and divides the wall time of each at the marks that papermill,
the ranks' leader and rank 0 leave behind. By the wall clock alone: it is what somebody waits for.

    python -m benchmarks.launch_cost [REPEATS]
"""

import itertools
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat

from benchmarks.interleaved import shown, stored
from benchmarks.report import TRAINING, besides_training
from ddl_core.config import RunSpec
from ddl_tools.launch import local_ranks
from ddl_tools.launch.notebook import submit
from ddl_tools.launch.study import plan_run
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.progress import read_progress

POLL_S = 0.01
PARTS = (
    "kernel start",
    "imports of the notebook",
    "start of the ranks",
    "set-up of the ranks",
    TRAINING,
    "end of the ranks",
    "table and figure",
    "end of the kernel, saving",
)


def measure() -> dict[str, Any]:
    """Measure one and two ranks interleaved, and print."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    started = time.perf_counter()
    import papermill  # noqa: F401

    once = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder, local_ranks.shared():
        divided(Tree(Path(folder)), 1, repeats)  # not counted: torch is imported once for all runs
        runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        for repeat in range(repeats):
            for ranks in list(runs)[:: -1 if repeat % 2 else 1]:
                runs[ranks].append(divided(Tree(Path(folder)), ranks, repeat))
    medians = {
        ranks: {part: statistics.median(run[part] for run in rows) for part in PARTS}
        for ranks, rows in runs.items()
    }
    show(medians, once)
    for ranks, rows in runs.items():
        print(f"cost of a run besides training, {ranks} rank(s): {shown(besides_training(rows))} s")
    return {
        "import_papermill_once_s": once,
        "runs_s": runs,
    }


def divided(tree: Tree, ranks: int, repeat: int) -> dict[str, float]:
    """Return the seconds of each part of one run."""
    spec = RunSpec(
        strategy="ddp",
        gpus_per_node=ranks,
        loader="synthetic",
        model="resnet50",
        device="cpu",
        image_size=32,
        train_images=32,
        eval_images=16,
        local_batch_size=8,
        epochs=1,
        warmup_epochs=0,
        checkpoint_every=0,
        loader_workers=0,
        repeat=repeat,
    )
    run_dir = plan_run(spec, "launch_cost", tree)
    files = RunFiles(run_dir)
    begun = time.time()
    job = submit(run_dir)
    marks: dict[str, float] = {}
    while not job.ended:
        if next(files.logs.glob("attempt_0/*/attempt_0/0"), None):
            marks.setdefault("spawned", time.time())
        if progress := read_progress(run_dir):
            marks.setdefault(progress["phase"], time.time())
        time.sleep(POLL_S)
    ended = time.time()
    job.wait()
    cells = _cells(files.notebook)
    ranks_cell = next(cell for cell in cells if "run_ranks(" in cell.source)
    times = [
        begun,
        _time(cells[0], "start_time"),
        _time(ranks_cell, "start_time"),
        marks["spawned"],
        marks["train"],
        marks["done"],
        _time(ranks_cell, "end_time"),
        _time(cells[-1], "end_time"),
        ended,
    ]
    return dict(zip(PARTS, (b - a for a, b in itertools.pairwise(times)), strict=True))


def show(medians: dict[int, dict[str, float]], once: float) -> None:
    """Print a table: a row per part, a column per number of ranks."""
    print(f"{'seconds, median':<34}" + "".join(f"{ranks:>6} rank(s)" for ranks in medians))
    for part in PARTS:
        print(f"{part:<34}" + "".join(f"{row[part]:>14.2f}" for row in medians.values()))
    print(f"once per session: import papermill {once:.2f}")


def _cells(path: Path) -> list[Any]:
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _time(cell: Any, name: str) -> float:
    return datetime.fromisoformat(cell.metadata.papermill[name]).timestamp()


if __name__ == "__main__":
    stored("launch_cost", measure)
