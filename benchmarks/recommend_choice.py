"""Whether `ddl recommend` finds the fastest configuration: three searches and an exhaustive study.

    python -m benchmarks.recommend_choice

Searches ten minutes for ResNet18 and the sample images, three times from nothing. Then measures all
combinations of the same settings for an hour, interleaved, and compares each recommendation with
the fastest combination. All records lie in `build/recommend_choice`; what is complete there is not
measured again.
"""

import itertools
import shutil
import subprocess
import sys
from typing import Any

from benchmarks.interleaved import interval, shown, stored
from ddl_core.config import RunSpec
from ddl_tools.analysis.estimates import MARGIN, Estimate
from ddl_tools.analysis.interleaving import Interleaved
from ddl_tools.analysis.tables import write_tables
from ddl_tools.recommend.answer import write_study_file
from ddl_tools.recommend.candidates import Request, Space, difference
from ddl_tools.recommend.search import Search, study_of
from ddl_tools.records.ledger import ledger, read_study
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.study import Study

FOLDER = PROJECT / "build" / "recommend_choice"
MODEL = "resnet18"
SEARCHES = 3
MINUTES = 10.0
EXHAUSTIVE_S = 3600
NAME = "exhaustive"
BASELINE = "baseline"
MOST_STARTS = 9  # more than the time holds


def measure() -> dict[str, Any]:
    """Measure what is missing, compare and print."""
    every = Tree(FOLDER / NAME)
    data = every.dataset("sample")
    ddl("data", "sample", data)
    searches = [Search(Request(MODEL, data, MINUTES), Tree(FOLDER / f"search_{number}"))
                for number in range(SEARCHES)]  # fmt: skip
    for search in searches:
        if not (search.tree.root / "recommend").exists():
            shutil.rmtree(search.tree.root, ignore_errors=True)
            ddl("recommend", "--model", MODEL, "--minutes", MINUTES, "--data", data,
                "--results", search.tree.root)  # fmt: skip
    leaders = [search.race().left[0] for search in searches]
    if not every.study(NAME).exists():
        path = write_study_file(exhaustive(searches[0].space, leaders[0]), every)
        ddl("study", "run", path, "--data", data, "--results", every.root, limit_s=EXHAUSTIVE_S)
    return compared(every, searches[0].space.baseline, leaders)


def exhaustive(found: Space, leader: RunSpec) -> Study:
    """Return a study of all combinations, with epochs as long as those of a search."""
    size = {name: getattr(leader, name) for name in ("train_images", "min_steps_per_epoch")}
    levels = ([{}, *some] for some in found.factors.values())
    points = filter(None, (found.changed(*point) for point in itertools.product(*levels)))
    every = dict.fromkeys(one.model_copy(update=size) for one in points)
    return study_of(NAME, MODEL, every, MOST_STARTS)


def compared(tree: Tree, baseline: RunSpec, leaders: list[RunSpec]) -> dict[str, Any]:
    """Return what the searches chose beside the fastest combination, and print it."""
    study = read_study(NAME, tree)
    assert study is not None
    interleaved = Interleaved(write_tables(tree, NAME)[1])
    ids: dict[str, list[str]] = {}
    for item in ledger(study, tree):
        if item.state == "completed":
            ids.setdefault(named(item.spec, baseline), []).append(item.spec.run_id)
    windows = {name: interleaved.of(NAME, some) for name, some in ids.items()}

    def ratio(one: str, other: str) -> Estimate:
        found = interleaved.ratio(windows[one], windows[other])
        assert found is not None
        return found

    to_baseline = {name: ratio(name, BASELINE) for name in windows}
    order = sorted(windows, key=lambda name: -to_baseline[name].ratio)
    chosen = []
    for leader in leaders:
        name = named(leader, baseline)
        others = {one: ratio(one, name) for one in windows if one != name}
        faster = [one for one in order if one != name and others[one].ratio > 1 + MARGIN]
        beside = ratio(name, order[0])
        chosen.append(
            {
                "configuration": name,
                "to_fastest": interval(beside),
                "faster_by_margin": faster,
                "surely_faster": [one for one in faster if others[one].low > 1],
            }
        )
        print(f"chosen: {name}; {shown(chosen[-1]['to_fastest'])} of the fastest")
    print(f"fastest: {order[0]}; {to_baseline[order[0]].n} starts")
    return {
        "searches": chosen,
        "minutes": MINUTES,
        "exhaustive_minutes": EXHAUSTIVE_S / 60,
        "configurations": [
            {"configuration": name, "starts": to_baseline[name].n,
             "to_baseline": interval(to_baseline[name])}
            for name in order
        ],
    }  # fmt: skip


def named(spec: RunSpec, baseline: RunSpec) -> str:
    """Return a configuration by its difference from the baseline."""
    return difference(spec, baseline) or BASELINE


def ddl(*words: object, limit_s: float | None = None) -> None:
    """Run a command of this checkout; after the limit, end it: what is complete is kept."""
    with subprocess.Popen([sys.executable, "-m", "ddl_tools.cli", *map(str, words)]) as process:
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            return
    if process.returncode:
        raise SystemExit(f"ddl {words[0]} ended with {process.returncode}")


if __name__ == "__main__":
    stored("recommend_choice", measure)
