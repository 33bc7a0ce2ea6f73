"""Everything that only a GPU can show, in about half an hour: a report, and a file to publish.

    python -m benchmarks.gpu [--device cpu] [--minutes 30] [--results DIR] [--dry-run] [PART ...]
    python -m benchmarks.gpu --site NAME [--account PROJECT] [--partition NAME] ...

The cost of each part comes first. The parts come one after the other, each in a process of its
own: what hangs or crashes costs its own part. Called again, runs that are complete are not made
again, so a machine that is lent for ten minutes at a time is used in several calls. Sample images
are made if there are none. Neither papermill nor any framework is needed: what is missing is named
in the report. Where there is no .git, say which code it is by DDL_COMMIT.

With --site, one SLURM job does this on one node. The first call says what it costs and submits it;
later calls show its state, and then the report.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import costs, report
from benchmarks.gpu.site import FILE, SiteCampaign
from ddl_core.errors import STOPPED, DDLError
from ddl_tools import gpus
from ddl_tools.launch import local_ranks, ranks
from ddl_tools.launch.screen import follow
from ddl_tools.launch.slurm.script import JobPlan
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.launch.study import check_data, pending, run_study, write_plans
from ddl_tools.processes import stoppable
from ddl_tools.records.archive import pack
from ddl_tools.records.ledger import ledger, read_study
from ddl_tools.records.paths import Tree, results
from ddl_tools.study import Study

if TYPE_CHECKING:
    from ddl_tools.recommend.search import Search

# Part -> its share of the time. What matters most comes first.
PARTS = {
    "checks": 0.1,
    "gpu_smoke": 0.18,
    "one_gpu": 0.17,
    "overhead": 0.08,
    "one_gpu_loaders": 0.2,
    "loaders": 0.07,
    "recommend": 0.15,
    "two_gpus": 0.05,
}
# Made only when named: part -> why.
ON_REQUEST = {"accuracy": "its design has to be piloted anew (studies/accuracy.yaml)"}
SHARES = {**PARTS, **dict.fromkeys(ON_REQUEST, 1.0)}
REHEARSED = ("checks", "gpu_smoke", "overhead", "loaders")  # what a CPU can do in a few minutes
ON_CPU = (*REHEARSED, "recommend")
OF_IMAGES = ("one_gpu_loaders", "loaders", "recommend")
AT_ONCE = 12  # runs of `accuracy`, which measure no time
GRACE_S = 30.0


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


def loaders(asked: argparse.Namespace) -> int:
    """Compare our DALI loader with DALI's own pipeline."""
    from benchmarks.loaders import on_device

    minutes = 0 if asked.device == "cpu" else asked.minutes / 2  # images are converted before
    on_device(Tree(asked.results).dataset("sample"), asked.device, minutes)
    return 0


def recommend(asked: argparse.Namespace) -> int:
    """Search for the fastest configuration; its answer ends the log."""
    from ddl_tools.recommend.answer import Answer

    found = search(Tree(asked.results), asked.device, asked.minutes)
    found.run()
    answer = Answer(found)
    answer.write()
    alarm = [answer.alarm] if answer.alarm else []
    print(report.ANSWER + "\n".join([*alarm, *answer.lines]), flush=True)
    return int(bool(answer.alarm) or found.stopped)


def search(tree: Tree, device: str, minutes: float) -> "Search":
    """Return the search of `ddl recommend` on this machine; on the CPU, of a small network."""
    from ddl_tools.recommend.search import Search
    from ddl_tools.recommend.search_space import Request

    small = {"model": "resnet8", "image_size": 64, "workers": (1,)}
    what: dict[str, Any] = {"model": "resnet50"} if device == "cuda" else small
    return Search(Request(data_dir=tree.dataset("sample"), minutes=minutes, **what), tree)


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


def accuracy(asked: argparse.Namespace) -> int:
    """Make the runs of the study `accuracy` that are left, `AT_ONCE` at a time; 1 if one failed."""
    wanted, tree = report.wanted(asked.part, asked.device), Tree(asked.results)
    deadline = time.monotonic() + 60 * asked.minutes
    todo = [item.spec for item in pending(ledger(wanted, tree))]
    for first in range(0, len(todo), AT_ONCE):
        block = todo[first : first + AT_ONCE]
        took_s = sum(costs.seconds(asked.part, spec) for spec in block)
        if first and time.monotonic() + took_s > deadline:
            print(f"no time for {len(todo) - first} runs; call again to go on", flush=True)
            break
        only = [spec.run_id for spec in block]
        run_study(wanted, tree, only=only, parallel=AT_ONCE, progress=False)
    return int(any(item.state == "failed" for item in ledger(wanted, tree)))


WORK: dict[str, Callable[[argparse.Namespace], int]] = {
    "checks": checks,
    "overhead": overhead,
    "loaders": loaders,
    "recommend": recommend,
    "accuracy": accuracy,
}


def default_parts(device: str, number: int) -> list[str]:
    """Return the parts that a machine with so many GPUs can do."""
    if device == "cpu":
        return list(REHEARSED)
    return [part for part in PARTS if part != "two_gpus" or number > 1]


def on_site(asked: argparse.Namespace) -> int:
    """Submit the campaign as a job, or show its state or its report."""
    tree, plan = Tree(asked.results), JobPlan(asked.account, asked.partition)
    number = find_site(asked.site).gpus_per_node
    parts = asked.parts or default_parts(asked.device, number)
    limits = costs.limits(SHARES, parts, asked.minutes, asked.device)
    words = [*parts, f"--device={asked.device}", f"--minutes={asked.minutes:g}"]
    table = cost(limits, tree, asked.device)
    job = SiteCampaign(words, sum(limits.values()), table, tree, asked.site, plan)
    job.check(asked.device)
    job.proceed(print, asked.max_node_hours, asked.dry_run)
    return 0


def campaign(asked: argparse.Namespace) -> int:
    """Make all parts, write the report and the file; return 1 if anything went wrong.

    Ctrl-C and SIGTERM end the part at work; report and file have what is complete then.
    """
    folder, tree = asked.results / "gpu" / asked.name, Tree(asked.results)
    parts = asked.parts or default_parts(asked.device, gpus.count())
    limits = costs.limits(SHARES, parts, asked.minutes, asked.device)
    print(cost(limits, tree, asked.device), flush=True)
    if asked.dry_run:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    status = 0
    try:
        with stoppable(signal.SIGINT):
            if any(part in OF_IMAGES for part in parts):
                make_images(tree)
            for part, minutes in limits.items():
                print(f"== {part}, at most {minutes:.1f} min", flush=True)
                words = ["--device", asked.device, "--results", str(asked.results), "--part", part]
                words += ["--minutes", f"{minutes:.2f}"]
                ended = _child(words, folder / f"{part}.log", 60 * minutes + GRACE_S)
                status = max(status, int(ended != 0))
    except KeyboardInterrupt:
        print("stopped; the same command goes on. What is complete:", flush=True)
        status = STOPPED
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


def cost(limits: Mapping[str, float], tree: Tree, device: str) -> str:
    """Return what each part costs, and which parts are made only when named."""
    lines = [costs.table(costs.costs(limits, tree, device), device)]
    for part, why in ON_REQUEST.items():
        if device == "cuda" and part not in limits:
            (row,) = costs.costs({part: 0.0}, tree, device)
            lines.append(f"Only when named: {part} (needs {row.needed:.1f} min); {why}.")
    return "\n".join(lines)


def make_images(tree: Tree) -> None:
    """Make the sample images, unless they are there; parts that need them name what is missing."""
    from ddl_tools.datasets.sample import make_sample

    folder = tree.dataset("sample")
    if not folder.exists():
        print(f"making sample images in {folder} (a minute on two cores)", flush=True)
    try:
        make_sample(folder)
    except (DDLError, ImportError) as error:
        print(f"no sample images: {error}", flush=True)


def studies(tree: Tree, device: str) -> list[Study]:
    """Return all studies that a campaign may have made in a folder of results."""
    possible = ON_CPU if device == "cpu" else SHARES
    found = [report.wanted(part, device) for part in possible if report.is_study(part)]
    with suppress(DDLError, ImportError):  # without images there was no search
        if searched := read_study(search(tree, device, 1).name, tree):
            found.append(searched)
    return found


def write_file(path: Path, tree: Tree, device: str, text: str) -> str:
    """Write the completed runs of all studies and the report to one file; say what it is for."""
    names = [
        one.name
        for one in studies(tree, device)
        if any(item.state == "completed" for item in ledger(one, tree))
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
        except KeyboardInterrupt:
            _end(process)
            raise
        except subprocess.TimeoutExpired:
            _end(process)
            kept.write(f"WRONG    not done within {seconds:.0f} s\n")
            status = 1
    print(log.read_text(encoding="utf-8"), flush=True)
    return status


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part; a run in it is ended cleanly."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *SHARES], help="only these")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=30, help="of all parts together")
    parser.add_argument("--results", type=Path, default=results().root)
    parser.add_argument("--dry-run", action="store_true", help="say what it costs; do nothing")
    parser.add_argument("--part", choices=list(SHARES), help=argparse.SUPPRESS)
    parser.add_argument(
        "--site", help="make all parts in one SLURM job: a name from slurm/, or a path"
    )
    parser.add_argument("--account", help="project that the job is billed to")
    parser.add_argument("--partition", help="partition of the job")
    parser.add_argument("--max-node-hours", type=float, default=10, help="limit of the job")
    parser.add_argument("--as", dest="name", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.results = asked.results.absolute()
    if asked.device == "cpu":
        if other := [part for part in asked.parts if part not in ON_CPU]:
            parser.error(f"{other[0]} needs a GPU; a rehearsal has the parts {', '.join(ON_CPU)}")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as on a machine without a GPU
    if asked.part:
        try:
            return WORK.get(asked.part, study)(asked)
        except (DDLError, ImportError) as error:
            print(f"WRONG    {error}", flush=True)
            return 1
    try:
        return on_site(asked) if asked.site else campaign(asked)
    except DDLError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
