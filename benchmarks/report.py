"""The results as tables, written into the texts that quote them.

    python -m benchmarks.report

Every number that a text quotes from `results/` stands between two marks, and is put there from the
files; a test compares. Run it after a benchmark.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.interleaved import CLOCKS, RESULTS, estimate_of, interval, judged, shown
from benchmarks.make_sizes import FOLDERS
from benchmarks.make_times import TARGETS
from ddl_tools.analysis.estimates import middle
from ddl_tools.analysis.figures import advice as figure_of_advice
from ddl_tools.estimate import Estimate, three_digits
from ddl_tools.markdown import Blocks, Markdown, page, table
from ddl_tools.recommend.plan import Verdict
from ddl_tools.records.paths import FIGURES
from ddl_tools.scaling import amdahl, paper
from ddl_tools.scaling import emulated as scaling_emulated

PROJECT = Path(__file__).resolve().parent.parent
NOT_YET, UNKNOWN = "Not measured yet.", "not measured"
OTHERS = (
    "bad_inputs",
    "command_rates",
    "coverage",
    "faults",
    "figures_10k",
    "known_rates",
    "launch_cost",
    "loader_memory",
    "recommend_choice",
    "recommend_worlds",
    "scaling",
    "slurm_faults",
)
EMULATED = ("emulated_cluster", "emulated_horovod")
TRAINING = "training and evaluation"  # the part of a run that is no cost


def result(name: str) -> dict[str, Any] | None:
    """Return one stored result, None if there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def ratios() -> str:
    """Return all ratios: paired, with intervals, by both clocks."""
    rows = []
    for name in ("loop_overhead", "marks", "accuracy_loop", "loaders", "crops"):
        found = result(name)
        if found is None:
            rows.append([f"`{name}`", NOT_YET.lower(), "", "", "", "", ""])
            continue
        for row in found["ratios"]:
            what = f"{row['of']} / {row['to']}" + (f" ({row['case']})" if "case" in row else "")
            rows.append([f"`{name}`", what, row["n"], *(shown(row[c]) for c in CLOCKS), *goal(row)])
    return table(["", "throughput of", "n", "by wall", "by CPU", "target", "by wall, CPU"], rows)


def goal(row: dict[str, Any]) -> tuple[object, str]:
    """Return the target of a ratio and whether each clock says that it was reached."""
    if row["target"] is None:
        return "", ""
    return row["target"], ", ".join(judged(row[clock], row["target"]) for clock in CLOCKS)


def loaders() -> str:
    """Return the ratios of data paths alone."""
    found = result("loaders")
    if found is None:
        return NOT_YET
    rows = [[f"{r['of']} / {r['to']}", *(shown(r[c]) for c in CLOCKS)] for r in found["ratios"]]
    return table(["", "by wall", "by CPU"], rows)


def stages() -> str:
    """Return the share of each stage of two loaders, percent."""
    found = result("loaders")
    if found is None:
        return NOT_YET
    shares = found["stage_shares"]
    names = list(next(iter(shares.values())))
    rows = [[name, *(f"{share[one]:.0%}" for one in names)] for name, share in shares.items()]
    return table(["CPU time of", *names], rows)


def others() -> str:
    """Return what is measured without being compared."""
    found = {name: result(name) for name in OTHERS}
    return page(
        Path(__file__).with_name("others.md.j2"),
        **found,
        missing=[name for name in OTHERS if found[name] is None],
        in_short=Markdown(in_short(found["recommend_worlds"] or {})),
        choices=Markdown(choices()),
        designs=designs,
        percents=lambda cells, name: percents(one[name] for one in cells),
        shown=shown,
        besides_training=besides_training,
        megabytes=megabytes,
        most=most,
        minutes=lambda one: f"{one['wall_s'] / 60:.0f}",
        counted=lambda counts, form: ", ".join(form.format(*one) for one in counts.items()),
    ).rstrip()


def own_scripts() -> str:
    """Return how scripts of users are measured, against our loop and their own clocks."""
    found = result("own_scripts")
    if found is None:
        return NOT_YET
    head = [
        "script",
        "lines added",
        "measured rate / our loop's",
        "measured rate / own clock's",
        "starts",
    ]
    rows = [
        [
            one["name"],
            len(one["added"]),
            shown(one["to_ours"]),
            shown(one["to_own_clock"]),
            one["starts"],
        ]
        for one in found["scripts"]
    ]
    return table(head, rows)


def designs(found: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each design of which the coverage of intervals was simulated, with its cells."""
    cells = groupby(found["over_starts"], lambda one: (one["starts"], one["rounds"]))
    for (starts, rounds), own in cells:
        yield f"over {starts} starts of {rounds} rounds", list(own)
    own = found["one_start"]
    yield f"over the windows of one start of {own[0]['rounds']} rounds", own


def worlds() -> str:
    """Return how good the answers of simulated searches are, in each world, new and old."""
    found = result("recommend_worlds")
    if found is None:
        return NOT_YET
    head = ["world", "within 5 % of the best", "mean loss", "wrongly proven", "proven",
            "too disturbed", "20 minutes: within 5 %", "older search: within 5 %",
            "mean loss"]  # fmt: skip
    rows = []
    for name, new in found["new"].items():
        old, said = found["old"][name], new["verdicts"]
        rows.append(
            [
                f"`{name}`",
                f"{estimate_of(new['good'], 'share'):.1%}",
                f"{new['loss_mean']:.1%}",
                f"{estimate_of(new['wrongly_proven'], 'share'):.1%}",
                f"{said[Verdict.PROVEN]:.0%}",
                f"{said[Verdict.DISTURBED]:.0%}",
                f"{found['longer'][name]['good']['share']:.1%}",
                f"{estimate_of(old['good'], 'share'):.1%}",
                f"{old['loss_mean']:.1%}",
            ]
        )
    searches = (next(iter(found[kind].values()))["searches"] for kind in ("new", "old"))
    new, old = (f"{number:,}" for number in searches)
    text = f"{new} searches of ten minutes in each world, and {old} of the older search:"
    return f"{text}\n\n{table(head, rows)}"


def in_short(found: dict[str, Any]) -> str:
    """Return the range over worlds of what simulated searches reach."""
    if not found:
        return ""
    good, old = (percents(one["good"]["share"] for one in found[kind].values())
                 for kind in ("new", "old"))  # fmt: skip
    wrong = percents(one["wrongly_proven"]["share"] for one in found["new"].values())
    return (
        f"{good} of the searches of a world recommend what is within 5 % of the best (older "
        f"search: {old}); {wrong} are wrongly proven."
    )


def answer() -> str:
    """Return the whole answer of one search of this machine: the first of `choices`."""
    found = result("recommend_choice")
    if found is None:
        return NOT_YET
    return "\n".join(["```text", *found["answer"], "```"])


def choices() -> str:
    """Return what searches of this machine have answered, and whether that fits together."""
    found = result("recommend_choice")
    if found is None:
        return NOT_YET
    gains: dict[str, list[str]] = defaultdict(list)
    for one in found["searches"]:
        ratio = one["to_default"].get(one["chosen"])
        first_line = f"{one['verdict']}{': ' * bool(one['chosen'])}{one['chosen']}"
        gains[first_line].append(f"{shown(ratio)} times the default" if ratio else "too few starts")
    answers = "; ".join(f"*{line}* ({', '.join(own)})" for line, own in gains.items())
    doubts = ", ".join(found["contradictions"]) or "none"
    return (
        f"{len(found['searches'])} searches of {found['minutes']:g} minutes answered: {answers}. "
        f"Configurations in which two searches contradict each other: {doubts}."
    )


def percents(shares: Iterable[float]) -> str:
    """Return the range of some shares as text."""
    known = sorted(shares)
    ends = dict.fromkeys(f"{100 * one:.1f}" for one in (known[0], known[-1]))
    return " to ".join(ends) + " %"


def besides_training(runs: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return what a run costs of which the seconds of each part are known, several runs."""
    costs = [sum(s for part, s in run.items() if part != TRAINING) for run in runs]
    return interval(middle(costs))


def most(seconds: dict[str, dict[str, float]]) -> str:
    """Return the longest of some times as text, by both clocks."""
    wall, cpu = (max(one[clock] for one in seconds.values()) for clock in CLOCKS)
    return f"{wall:.2g} s by wall, {cpu:.2g} s by CPU,"


def megabytes(number: float) -> str:
    """Return a number of bytes as text."""
    return f"{number / 1e6:.1f} MB"


def make() -> str:
    """Return how long `make` takes."""
    found = result("make_times")
    if found is None:
        return f"{NOT_YET} `python -m benchmarks.make_times` does it."
    rows = [[f"`make {name}`", f"{s / 60:.1f}"] for name, s in found["seconds"].items()]
    machine = f"{found['system']['cpu_cores']} cores of {found['system']['cpu']}"
    return (
        f"In a fresh clone, one after the other, on {machine}, with pip's downloads and Horovod's "
        f"build in the cache:\n\n{table(['', 'min'], rows)}"
    )


def durations() -> str:
    """Return the same as a sentence."""
    found = result("make_times")
    if found is None:
        return "How long they take was not measured yet."
    took = ", then ".join(f"`make {name}` {s / 60:.0f} min" for name, s in found["seconds"].items())
    cores = found["system"]["cpu_cores"]
    return f"On {cores} cores without a GPU, with downloads and Horovod's build cached: {took}."


def costs() -> str:
    """Return time, downloads and disk space of `make`, as far as they were measured."""
    times, sizes = result("make_times") or {}, result("make_sizes") or {}
    downloads = {"env": sizes.get("downloads_bytes"), "reproduce": 0}
    rows = []
    for target in TARGETS:
        seconds = times.get("seconds", {}).get(target)
        taken = sizes.get("disk_bytes", {}).get(target)
        rows.append(
            [
                f"`make {target}`",
                UNKNOWN if seconds is None else f"{seconds / 60:.0f} min",
                amount(downloads.get(target)),
                f"{amount(taken)} in `{FOLDERS[target]}/`" if target in FOLDERS else "none is left",
            ]
        )
    origins = [
        f"{what}: {found['system']['cpu_cores']} cores of {found['system']['cpu']}, torch "
        f"{found['provenance']['packages']['torch']}, commit "
        f"`{found['provenance']['git_commit'][:8]}`."
        for what, found in (("Time", times), ("Downloads and disk", sizes))
        if found
    ]
    head = ["", "time", "downloads", "disk"]
    return f"{table(head, rows)}\n\n{' '.join(origins)}"


def amount(size: int | None) -> str:
    """Return some bytes as text, an unknown number as that."""
    if size is None:
        return UNKNOWN
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB" if size else "none"


def where() -> str:
    """Return commit and machine of every result."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        code, system = content["provenance"], content["system"]
        cpu = f"{system['cpu_cores']} x {system['cpu']}"
        rows.append(
            [f"`{path.stem}`", code["git_commit"][:8], cpu, f"{system['load_average_1min']:.1f}"]
        )
    return table(["", "commit", "machine", "load at the end"], rows)


def validation() -> str:
    """Return the calculated steps of the emulated cluster beside the measured ones."""
    rows = []
    steps = scaling_emulated.validate()
    for name, mbit in dict.fromkeys((one.framework, one.link_mbit) for one in steps):
        own = [one for one in steps if (one.framework, one.link_mbit) == (name, mbit)]
        errors = [f"{one.nodes}: {100 * one.error:+.1f} %" for one in own]
        most = max(own, key=lambda one: one.nodes)
        rows.append(
            [name, f"{mbit:g} Mbit/s", sum(one.n for one in own), ", ".join(errors),
             f"{most.predicted_efficiency:.2f}", f"{most.measured_efficiency:.2f}"]
        )  # fmt: skip
    head = ["framework", "links", "runs", "error of the step, by nodes", "E calculated"]
    return table([*head, "E measured"], rows)


def error() -> str:
    """Return how far the calculated steps of the emulated cluster are off."""
    errors = [100 * abs(one.error) for one in scaling_emulated.validate()]
    within = sum(one <= 5 for one in errors)
    return (
        f"The median error is {statistics.median(errors):.1f} %, the largest {max(errors):.1f} %; "
        f"{within} of {len(errors)} steps are within 5 %."
    )


def calculated() -> str:
    """Return the calculated and the stated loss of a step of ResNet50 on 1024 GPUs, by DDP."""
    step = scaling_emulated.of_the_paper()
    ranks = step.nodes * scaling_emulated.LINKS.gpus_per_node
    return (
        f"On {ranks} GPUs with the links above, the calculator gives {step.framework} "
        f"{1000 * step.exposed_s:.1f} ms of exposed communication a step of ResNet50 (E = "
        f"{step.predicted_efficiency:.2f}). The paper's E = {step.measured_efficiency:.2f} means "
        f"that a step of {1000 * step.compute_s:.0f} ms loses {1000 * step.lost_s:.1f} ms "
        "([C9](../results/paper.md))."
    )


def constant() -> str:
    """Return the constant per epoch by Amdahl's law, by stated efficiency on 1024 GPUs."""
    rows = []
    for model in ("resnet50", "resnet152"):
        base = paper.base_time_s(model)
        assert base is not None
        for one in paper.stated(model, "ddp", "dali_cpu"):
            if one.bound == "value":
                serial = amdahl.serial_part(one.value, one.ranks, paper.BASE)
                seconds = serial * base / paper.EPOCHS
                rows.append([model, one.statement, f"{one.value:.3f}", f"{seconds:.2f} s"])
    return table(["network", "statement", "E on 1024 GPUs", "constant per epoch"], rows)


def advice() -> str:
    """Return the options that docs/how-to/choose-a-stack.md shows, of one strategy and loader."""
    points = figure_of_advice.points()
    points = points[(points["strategy"] == "ddp") & (points["loader"] == "dali_cpu")]
    rows = []
    for _, row in points.sort_values("world_size").iterrows():
        spans = [str(Estimate.of(row, name)) for name in ("hours", "node_hours", "accuracy")]
        rows.append([row["world_size"], *spans, row["limits"]])
    return table(["GPUs", "hours", "node-hours", "accuracy (%)", "limits"], rows)


def emulated() -> str:
    """Return the efficiency on emulated nodes with the slowest links."""
    rows = []
    for study in EMULATED:
        points = pd.read_csv(FIGURES / study / "efficiency_emulated.csv")
        slowest = points["emu_link_mbit"] == points["emu_link_mbit"].min()
        points = points[slowest & (points["n"] > 0) & (points["world_size"] > 1)]
        for _, row in points.sort_values(["line", "world_size"]).iterrows():
            known = f"{row['low']:.3f} to {row['high']:.3f}" if row["n"] > 1 else "one run: none"
            values = (f"{row[name]:.3f}" for name in ("value", "calculated"))
            step = f"{row['emu_step_ms'] / 1000:g}"
            rows.append([row["line"], step, row["world_size"], *values, known, row["n"]])
    return table(["", "step (s)", "nodes", "E", "calculated", "95 % interval of E", "n"], rows)


def memory(study: str) -> str:
    """Return the memory and the speed of each configuration of a study."""
    points = pd.read_csv(FIGURES / study / "memory_per_rank.csv")
    rows = [
        [row["label"], *(three_digits(row[name]) for name in ("value", "state", "throughput"))]
        for _, row in points[points["n"] > 0].iterrows()
    ]
    head = ["configuration", "peak of a rank (GiB)", "share of the state (GiB)", "images/s"]
    return table(head, rows)


TEXTS: dict[str, Callable[[], str]] = {
    "ratios": ratios,
    "loaders": loaders,
    "stages": stages,
    "others": others,
    "make": make,
    "durations": durations,
    "costs": costs,
    "where": where,
    "validation": validation,
    "error": error,
    "calculated": calculated,
    "constant": constant,
    "advice": advice,
    "emulated": emulated,
    "memory": partial(memory, "sharding"),
    "memory_vit": partial(memory, "vit_laptop"),
    "memory_vit_gpu": partial(memory, "vit_one_gpu"),
    "worlds": worlds,
    "answer": answer,
    "choices": choices,
    "own_scripts": own_scripts,
}
PAGES = (
    "README.md",
    "benchmarks/README.md",
    "docs/reference/costs.md",
    "docs/reference/loaders.md",
    "docs/reference/strategies.md",
    "docs/explanation/scaling-model.md",
    "docs/how-to/choose-a-stack.md",
    "docs/how-to/measure-your-script.md",
    "docs/how-to/recommend.md",
    "docs/explanation/statistics.md",
    "docs/explanation/emulation.md",
)
BLOCKS = Blocks("results", [PROJECT / name for name in PAGES], lambda name: TEXTS[name]())

if __name__ == "__main__":
    BLOCKS.write()
