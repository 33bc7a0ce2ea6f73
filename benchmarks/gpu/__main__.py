"""Everything that only a GPU can show, in about half an hour: a report, and a file to publish.

    python -m benchmarks.gpu [--device cpu] [--minutes 30] [--results DIR] [--dry-run] [PART ...]

The cost of each part comes first. The parts come one after the other, each in a process of its
own: what hangs or crashes costs its own part. Called again, runs that are complete are not made
again, so a machine that is lent for ten minutes at a time is used in several calls. Neither
papermill nor any framework is needed: what is missing is named in the report. Where there is no
.git, say which code it is by DDL_COMMIT.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu import costs, report
from ddl_core.errors import DDLError
from ddl_tools import gpus
from ddl_tools.launch import local_ranks, ranks
from ddl_tools.launch.screen import follow
from ddl_tools.launch.study import check_data, pending, write_plans
from ddl_tools.records.archive import pack
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import Tree, results

# Part -> its share of the time. What matters most comes first.
PARTS = {
    "checks": 0.12,
    "gpu_smoke": 0.2,
    "one_gpu": 0.22,
    "overhead": 0.08,
    "one_gpu_loaders": 0.3,
    "two_gpus": 0.08,
}
REHEARSED = ("checks", "gpu_smoke", "overhead")  # what a CPU can do in that time
GRACE_S = 30.0
FILE = "ddl-gpu.zip"


def checks(asked: argparse.Namespace) -> int:
    """Make all checks; return 1 if one found something wrong."""
    from benchmarks.gpu.checks import CHECKS, outcome_of

    wrong = 0
    with local_ranks.shared():
        for check in CHECKS:
            state, seen = outcome_of(check, asked.device)
            wrong += state == "WRONG"
            print(f"{state:8} {check.__name__}: {seen}", flush=True)
    return int(wrong > 0)


def overhead(asked: argparse.Namespace) -> int:
    """Measure what the loop costs."""
    from benchmarks.gpu.overhead import measure

    minutes = 0 if asked.device == "cpu" else asked.minutes / 2  # compiling takes the other half
    print(measure(asked.device, minutes), flush=True)
    return 0


def study(asked: argparse.Namespace) -> int:
    """Make the runs of a study that are left, as long as there is time; return 1 if one failed."""
    wanted, tree = report.wanted(asked.part, asked.device), Tree(asked.results)
    deadline = time.monotonic() + 60 * asked.minutes
    todo = pending(ledger(wanted, tree))
    check_data(todo, tree)
    write_plans(wanted, todo, tree, None)
    failed = 0
    with local_ranks.shared():  # torch is imported once for all runs
        for number, item in enumerate(todo):
            # The first one is tried in any case, or a second call would not help either.
            if number and time.monotonic() + costs.seconds(asked.part, item.spec) > deadline:
                print(f"no time for {len(todo) - number} runs; call again to go on", flush=True)
                break
            try:
                ranks.run_ranks(item.directory, on_progress=follow(item.spec.run_id))
            except DDLError as error:
                failed += 1
                print(f"failed {item.spec.run_id}: {str(error).splitlines()[0]}", flush=True)
    return int(failed > 0)


WORK: dict[str, Callable[[argparse.Namespace], int]] = {"checks": checks, "overhead": overhead}


def default_parts(device: str) -> list[str]:
    """Return the parts that this machine can do."""
    if device == "cpu":
        return list(REHEARSED)
    return [part for part in PARTS if part != "two_gpus" or gpus.count() > 1]


def campaign(asked: argparse.Namespace) -> int:
    """Make all parts, write the report and the file; return 1 if anything went wrong."""
    folder, tree = asked.results / "gpu", Tree(asked.results)
    parts = asked.parts or default_parts(asked.device)
    limits = costs.limits(PARTS, parts, asked.minutes, asked.device)
    print(costs.table(costs.costs(limits, tree, asked.device)), flush=True)
    if asked.dry_run:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    status = 0
    for part, minutes in limits.items():
        print(f"== {part}, at most {minutes:.1f} min", flush=True)
        words = ["--device", asked.device, "--results", str(asked.results), "--part", part]
        words += ["--minutes", f"{minutes:.2f}"]
        ended = _child(words, folder / f"{part}.log", 60 * minutes + GRACE_S)
        status = max(status, int(ended != 0))
    path = report.write(folder, tree, parts, asked.device)
    text = path.read_text(encoding="utf-8")
    print(text)
    print(f"the report: {path}")
    try:
        print(write_file(folder / FILE, tree, asked.device, text))
    except DDLError as error:
        print(f"no file to publish: {error}")
        status = 1
    return status


def write_file(path: Path, tree: Tree, device: str, text: str) -> str:
    """Write the completed runs of all studies and the report to one file; say what it is for."""
    possible = REHEARSED if device == "cpu" else PARTS
    studies = [report.wanted(part, device) for part in possible if part not in WORK]
    names = [
        one.name for one in studies if any(item.state == "completed" for item in ledger(one, tree))
    ]
    if not names:
        return "no file to publish: no run is complete"
    runs = pack(tree, names, path, text)
    if device == "cpu":
        return f"a rehearsal, of {runs} runs; with a GPU, this is the file to send: {path}"
    return (
        f"send this file: {path} ({path.stat().st_size / 1e6:.2f} MB)\n"
        f"It holds {runs} runs of {', '.join(names)}, and the report. In a checkout of the "
        f"project, `ddl study publish {path.name}` copies the runs to data/runs/."
    )


def _child(words: list[str], log: Path, seconds: float) -> int:
    """Let a process do a part, for some seconds at most; its output is shown and kept."""
    with log.open("w", encoding="utf-8") as kept:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu", *words], stdout=kept, stderr=subprocess.STDOUT
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # a run in it is ended cleanly
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            kept.write(f"WRONG    not done within {seconds:.0f} s\n")
            status = 1
    print(log.read_text(encoding="utf-8"), flush=True)
    return status


def main() -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="only these")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=30, help="of all parts together")
    parser.add_argument("--results", type=Path, default=results().root)
    parser.add_argument("--dry-run", action="store_true", help="say what it costs; do nothing")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        return WORK.get(asked.part, study)(asked)
    return campaign(asked)


if __name__ == "__main__":
    sys.exit(main())
