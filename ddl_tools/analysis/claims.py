"""The statements of three papers, each with a verdict from the published runs.

``data/paper/claims.csv`` lists the comparisons that each statement makes, all of them ratios:

==========  =============================  ====================================
relation    confirmed by an interval       refuted by an interval
==========  =============================  ====================================
greater     above 1                        below 1
similar     within the margin              outside the margin
lower       above the stated number        below it
upper       below the stated number        above it
value       within the margin of it        outside that margin
==========  =============================  ====================================

A statement is supported if every comparison confirms it (an intersection-union test, which needs no
adjustment). It is contradicted if any comparison refutes it: the p are doubled for the two
directions and adjusted after Holm as one family.

Statements of Aach et al. are tested by runs under the paper's conditions alone (`SPEED`,
`LEARNING`). The same comparison at other sizes or on other hardware stands beside it (``here``)
and is no evidence. Rankings of the two other papers are tested wherever they were measured.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.config import RunSpec
from ddl_tools.analysis import estimates
from ddl_tools.analysis import tables as records
from ddl_tools.analysis.configurations import KEYS, commits, ended_runs, with_settings
from ddl_tools.analysis.estimates import ALPHA, MARGIN, POINT, Estimate
from ddl_tools.analysis.figures import accuracy_runs
from ddl_tools.analysis.interleaving import Interleaved, Sample, over_blocks, relative
from ddl_tools.analysis.paper import AACH, BASE_WORLD_SIZE, FORMATS, read_paper
from ddl_tools.analysis.plot import style
from ddl_tools.labels import REPEATS, called, plural
from ddl_tools.records.paths import Tree
from ddl_tools.scaling.paper import BATCH_SIZE, EPOCHS, covers

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
DECIDED = (SUPPORTED, CONTRADICTED)
NOT_TESTABLE = "not testable here"
ELSEWHERE = {SUPPORTED: "confirmed here", CONTRADICTED: "contradicted here"}  # other papers' words
COLUMNS = ["paper", "statement", "kind", "claim", "place", "verdict", "why", "here"]
SEEN = "related"

# The conditions of the paper: data/paper/settings.csv. Accumulation may stand for GPUs in accuracy.
_TASK = {"dataset": "imagenet", "classes": 1000, "image_size": 224, "local_batch_size": BATCH_SIZE}
SPEED = _TASK | {"accumulation": 1, "gpus_per_node": BASE_WORLD_SIZE, "on_cpu": False}
LEARNING = _TASK | {"model": "resnet50", "epochs": EPOCHS, "optimizer": "sgd"}
LEARNING |= {"base_lr": 0.025, "lr_scaling": "linear"}

LAST_SMALL_WORLD = 64  # GPUs: a batch of 4,096, before the first clear drop of accuracy (A01, A02)
EARLY = 20 / EPOCHS  # of a training: the epochs in which the curves of Fig. 9 are called alike
# Columns that may differ besides the compared one.
_FREE = {"loader": {"data_format"}, "framework": {"strategy"}, "global_batch_size": {"shape"}}
_NAMED = ("framework", "strategy", "loader", "model", "schedule")
_ACCURACIES = ("top1", "top1_early", "top1_late")
_SHARES = {"allreduce_percent": "allreduce", "cudnn_percent": "cudnn"}
_SYMBOLS = {"runtime": "T", "speedup": "speed-up", "throughput_scaling": "speed-up",
            "parallel_efficiency": "E"}  # fmt: skip
_TESTABLE = {"throughput", *_SYMBOLS, *_SHARES, *_ACCURACIES}

Part = Any
"""A row of claims.csv with "" in empty cells: one comparison of a statement."""


@dataclass(frozen=True, eq=False)
class Configuration:
    """Runs that may be pooled: a value of each, by run or repeat, with commits and windows.

    `gpus` is the number of ranks; of accuracies (as exponentials), of the paper's GPUs with this
    batch.
    """

    about: dict[str, Any]
    gpus: int
    values: pd.Series
    sample: Sample
    lost: int
    on_terms: bool


@dataclass(frozen=True)
class Comparison:
    """One comparison in the records: of two configurations, or of one with a stated number."""

    part: Part
    estimate: Estimate
    sizes: frozenset[int]
    place: str = ""
    text: str = ""


@dataclass(frozen=True)
class Evidence:
    """All configurations of one quantity, and what two of them share if they are compared."""

    found: list[Configuration]
    keys: Sequence[str] = tuple(KEYS)
    interleaved: Interleaved = field(default_factory=lambda: Interleaved(None))

    def same(self, one: Configuration, free: set[str]) -> list[Configuration]:
        """Return the others that may differ from `one` in some of the keys alone."""
        keys = [name for name in self.keys if name not in free]
        others = (other for other in self.found if other is not one)
        return [other for other in others if all(other.about[k] == one.about[k] for k in keys)]

    def ratio(self, one: Configuration, other: Configuration) -> Estimate:
        """Return the ratio of two: of paired repeats or windows, else of all runs."""
        if set(one.values.index) == set(other.values.index):
            return estimates.paired_ratio(one.values, other.values.loc[one.values.index])
        return self.interleaved.compare(one.sample, other.sample)

    def baseline(self, one: Configuration, strict: bool) -> Configuration | None:
        """Return the same with the fewest ranks, if fewer; strict: with the paper's four."""
        fewer = [other for other in self.same(one, {"world_size"}) if other.gpus < one.gpus]
        fewer = [other for other in fewer if other.gpus == BASE_WORLD_SIZE or not strict]
        return min(fewer, key=lambda other: other.gpus, default=None)


def of_records(tree: Tree) -> pd.DataFrame:
    """Return the statements of Aach et al. judged by the records in `tree`, see `judged`."""
    claims = read_paper().claims
    runs, windows = records.runs_table(tree.runs), records.windows_table(tree.runs)
    return judged(runs, claims[claims["paper"] == AACH], windows, records.profiles_table(tree))


def judged(
    runs: pd.DataFrame,
    claims: pd.DataFrame,
    windows: pd.DataFrame | None = None,
    profiles: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return each statement in `claims` (claims.csv) with its verdict: `COLUMNS`.

    Without windows nothing is paired but repeats of accuracies, and without profiles nothing is
    known of kernel time. ``why`` explains the verdict; ``here`` is what the records show of the
    comparison at whatever size and hardware, empty where they show nothing.
    """
    runs = records.not_emulated(records.whole(runs))
    torch = runs[runs["framework"] == "torch"]  # the paper's frameworks are PyTorch's
    rows = []
    for paper, statements in claims.groupby("paper", sort=False):
        own = paper == AACH
        found = _evidence(torch, windows, profiles) if own else _of_libraries(runs, windows)
        for _, table in statements.astype(object).fillna("").groupby("statement", sort=False):
            row = table.iloc[0]
            judge = _possible(row, torch) if row["quantity"] == "possible" else _judge(table, found)
            rows.append(row.to_dict() | judge)
    return pd.DataFrame(rows, columns=COLUMNS).astype("string")


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many statements of a kind have which verdict, and of how many anything is seen."""
    counts = pd.crosstab(table["kind"], table["verdict"]).reindex(table["kind"].unique())
    counts = counts.reindex(columns=[*DECIDED, UNDECIDED], fill_value=0)
    seen = table["here"].ne("").groupby(table["kind"]).sum()
    return counts.assign(**{SEEN: seen}).rename_axis(columns=None)


def answer(table: pd.DataFrame) -> list[str]:
    """Return how many judged statements have which verdict, in sentences."""
    counts = summary(table).drop("quoted", errors="ignore").sum()
    quoted = int((table["kind"] == "quoted").sum())
    verdicts = ", ".join(f"{counts[word]} {word}" for word in (*DECIDED, UNDECIDED))
    return [
        f"{len(table) - quoted} statements of the paper: {verdicts}.",
        f"{counts[SEEN]} have related measurements at other sizes or on other hardware, which do "
        "not count as evidence.",
        f"{quoted} more are quoted from other sources, and not tested.",
    ]


def _judge(table: pd.DataFrame, evidence: dict[str, Evidence]) -> dict[str, str]:
    row = table.iloc[0]
    tested = table["quantity"].isin(_TESTABLE) & (table["relation"] != "")
    parts = list(table[tested].itertuples(index=False))
    own, margin = row["paper"] == AACH, math.expm1(POINT) if row["kind"] == "accuracy" else MARGIN
    everywhere = [one for part in parts for one in _comparisons(part, evidence, strict=False)]
    here = {"here": _here(everywhere, margin)}
    if not own:
        word, why = verdict(parts, everywhere, margin, bool(row["open"]), row["reason"])
        word = NOT_TESTABLE if row["reason"] else ELSEWHERE.get(word, word)
        return here | {"verdict": word, "why": row["reason"] or why}
    on_terms = [one for part in parts for one in _comparisons(part, evidence, strict=True)]
    word, why = verdict(parts, on_terms, margin, bool(row["open"]), row["reason"])
    if not on_terms:
        missing = "not measured" if parts else ""
        word, why = UNDECIDED, "; ".join(filter(None, [missing, row["plan"], row["reason"]]))
    return here | {"verdict": word, "why": why}


def _possible(row: pd.Series, runs: pd.DataFrame) -> dict[str, str]:
    """Describe the runs with both; "cannot be used together" is about the releases of 2022."""
    loaders = runs["loader"].map(lambda name: covers(row["loader"], name)).astype(bool)
    both = runs[loaders & (runs["strategy"] == row["strategy"]) & (runs["work"] == "train")]
    done = both[both["status"] == "completed"]
    if done.empty:
        return {"verdict": UNDECIDED, "why": "no completed run with both", "here": ""}
    releases = done["communication"].dropna().str.split(";").str[0]
    devices = np.where(done["device_used"] == "cpu", "the CPU", "a GPU")
    how = (done["study"], releases[releases.str.startswith(row["strategy"])], devices)
    parts = ", ".join(name for names in how for name in sorted(set(names)))
    here = f"{plural(len(done), 'completed run')} with both ({parts})"
    why = "it is about the releases of 2022, and was not measured with them"
    return {"verdict": UNDECIDED, "why": why, "here": here}


# --- from estimates to a verdict ---


def verdict(
    parts: Sequence[Part],
    seen: Sequence[Comparison],
    margin: float = MARGIN,
    open_reading: bool = False,
    reason: str = "",
) -> tuple[str, str]:
    """Return the verdict on a statement and why, from all its comparisons.

    Supported: every part is confirmed wherever it was measured, and was measured at both ends of
    its range. Contradicted: a comparison is refuted; with an open reading (the paper names no
    strategy or model) all parts must be. `reason` says what of the statement cannot be tested.
    """
    ranges = [_claimed(one.part, margin) for one in seen]
    p = [_p_outside(one.estimate, *ends) for one, ends in zip(seen, ranges, strict=True)]
    against = [one for one, p in zip(seen, estimates.holm(p), strict=True) if p <= ALPHA]
    if against and (not open_reading or {one.part for one in against} == set(parts)):
        return CONTRADICTED, "; ".join(f"{one.place}: {one.text}" for one in against)
    if missing := next(filter(None, (_missing(part, seen) for part in parts)), ""):
        return UNDECIDED, missing
    confirmed = sum(low < one.estimate.low and one.estimate.high < high
                    for one, (low, high) in zip(seen, ranges, strict=True))  # fmt: skip
    if confirmed == len(seen) and reason:
        return UNDECIDED, f"only in part testable: {reason}"
    decided = f"{confirmed} of {len(seen)} comparisons decided so"
    return (SUPPORTED if confirmed == len(seen) else UNDECIDED), decided


def _claimed(part: Part, margin: float) -> tuple[float, float]:
    """Return the ratios between which a comparison is as claimed."""
    if part.relation in ("greater", "lower"):
        return 1.0, math.inf
    return (0.0, 1.0) if part.relation == "upper" else (1 / (1 + margin), 1 + margin)


def _p_outside(ratio: Estimate, low: float, high: float) -> float:
    """Return the p against "the ratio lies between these", doubled for the two directions."""
    below = estimates.p_less(ratio, low) if low else 1.0
    return min(1.0, 2 * below, 2 * estimates.p_greater(ratio, high))


def _missing(part: Part, seen: Sequence[Comparison]) -> str:
    """Say where a part was not measured, of both ends of its range; nothing if at both."""
    own = [one.sizes for one in seen if one.part == part]
    sizes = frozenset[int]().union(*own)
    ends = {part.world_size_min, part.world_size_max} - {""}
    needed = ends if part.compared != "global_batch_size" else set()
    if needed and part.quantity in ("parallel_efficiency", "speedup"):
        needed = needed | {BASE_WORLD_SIZE}
    if own and needed <= sizes:
        return ""
    at = f"measured at {', '.join(map(str, sorted(sizes)))}" if sizes else "not measured"
    if ends:
        return f"the claim is about {' to '.join(map(str, sorted(ends)))} GPUs, {at}"
    return f"{at} with several numbers of ranks: {part.right}"


# --- what the records show ---


def _evidence(
    runs: pd.DataFrame, windows: pd.DataFrame | None, profiles: pd.DataFrame | None
) -> dict[str, Evidence]:
    """Return what was measured of each quantity that Aach et al. state."""
    done = runs[runs["status"] == "completed"]
    long = (done["epochs"] == EPOCHS) & (done["dataset"] == "imagenet") & (done["work"] == "train")
    times = Evidence(_pooled(with_settings(done[long]), "runtime_s"))
    found = _throughput(runs, windows) | {"runtime": times, "speedup": times} | _accuracy(runs)
    profiles = records.empty_table(records.PROFILE_COLUMNS) if profiles is None else profiles
    for quantity, share in _SHARES.items():
        rows = profiles[(profiles["of"] == records.KERNELS) & (profiles["share"] == share)]
        means = rows.groupby(["study", "run_id"], as_index=False)["value"].mean()
        profiled = with_settings(done.merge(means, on=["study", "run_id"]))
        found[quantity] = Evidence(_pooled(profiled, "value"))
    return found


def _of_libraries(runs: pd.DataFrame, windows: pd.DataFrame | None) -> dict[str, Evidence]:
    """Return what studies of several libraries measured: throughput, and last accuracy."""
    runs = runs[runs.groupby("study")["framework"].transform("nunique") > 1]
    finished = ended_runs(runs)
    finished = finished.assign(top1=np.exp(finished["top1"].mask(finished["lost"])))
    top1 = Evidence(_pooled(finished, "top1", index="repeat"))
    return _throughput(runs, windows) | {"top1": top1}


def _throughput(runs: pd.DataFrame, windows: pd.DataFrame | None) -> dict[str, Evidence]:
    interleaved = Interleaved(windows)
    found = _pooled(ended_runs(runs), "value", interleaved=interleaved)
    evidence = Evidence(found, interleaved=interleaved)
    return dict.fromkeys(("throughput", "parallel_efficiency", "throughput_scaling"), evidence)


def _accuracy(runs: pd.DataFrame) -> dict[str, Evidence]:
    """Return the accuracies of studies that learnt by plain SGD, as the paper's did."""
    runs = accuracy_runs.made(runs)
    runs = runs[runs["optimizer"] == "sgd"]
    free = (*REPEATS, *accuracy_runs.SHAPE, "schedule")
    alike = ["study", "hardware", "differs", *(n for n in RunSpec.model_fields if n not in free)]
    good = (runs["status"] == "completed") & ~runs["diverged"] & runs["top1"].notna()
    batches = runs.groupby("study")["global_batch_size"]
    values = [[run["top1"], *_early_late(run)] for run in runs.to_dict("records")]
    table = pd.DataFrame(values, runs.index, _ACCURACIES, dtype=float)
    runs = runs.assign(
        alike=runs.groupby(alike, dropna=False).ngroup(),
        shape=runs.groupby(accuracy_runs.SHAPE).ngroup(),
        smallest=batches.transform("min"),
        largest=batches.transform("max"),
        gpus=runs["global_batch_size"] // BATCH_SIZE,
        **{name: np.exp(table[name].where(good)) for name in _ACCURACIES},
    )
    keys = ["alike", "schedule", "global_batch_size", "shape"]
    return {name: Evidence(_pooled(runs, name, keys, "repeat"), keys) for name in _ACCURACIES}


def _early_late(run: dict[str, Any]) -> list[float]:
    """Return the mean accuracies over the evaluations in both parts of the training."""
    epochs, values = (
        accuracy_runs.numbers(run[f"evaluated_{name}"]) for name in ("epochs", "top1")
    )
    early = epochs <= EARLY * run["epochs"]
    parts = (values[early], values[~early])
    return [float(np.mean(part)) if len(part) else math.nan for part in parts]


def _pooled(
    runs: pd.DataFrame,
    value: str,
    keys: Sequence[str] = KEYS,
    index: str = "run_id",
    interleaved: Interleaved | None = None,
) -> list[Configuration]:
    found = []
    settings = runs.groupby("study")["setting"].nunique()
    terms = SPEED if keys is KEYS else LEARNING
    for _, part in runs.groupby(list(keys), dropna=False, sort=True):
        known = part[part[value] > 0].drop_duplicates(index)
        if len(known):
            about: dict[str, Any] = known.iloc[0].to_dict()
            about["run_in"] = about["setting" if settings[about["study"]] > 1 else "study"]
            windows = interleaved.of(about["study"], known["run_id"]) if interleaved else {}
            on_terms = all(about[name] == wanted for name, wanted in terms.items())
            on_terms = on_terms and (terms is LEARNING or _reads_as_stated(about))
            gpus = int(about.get("gpus", about["world_size"]))
            values, lost = known.set_index(index)[value].astype(float), len(part) - len(known)
            sample = Sample(values.to_numpy(), windows, list(commits(known)))
            found.append(Configuration(about, gpus, values, sample, lost, on_terms))
    return found


def _reads_as_stated(about: dict[str, Any]) -> bool:
    """Say whether a loader reads the format that it reads in the paper."""
    return bool(about["data_format"] == FORMATS.get(about["loader"]))


def _comparisons(part: Part, evidence: dict[str, Evidence], strict: bool) -> Iterator[Comparison]:
    """Return what is known of a part: under the paper's conditions (strict), or anywhere."""
    if own := evidence.get(part.quantity):
        fitting = [one for one in own.found if _fits(one, part, strict)]
        yield from (_compared if part.compared else _reached)(part, own, fitting, strict)


def _fits(one: Configuration, part: Part, strict: bool) -> bool:
    """Say whether a part speaks of a configuration.

    Under other conditions, hardware, data, batch, format and (unless compared) the network may be
    others, and the sizes too, unless a number is stated of them. Where loaders or networks are
    compared, one process without a framework counts too. A statement on small batches is looked
    for at a study's smallest, one on large batches at its largest.
    """
    about = one.about
    stated = {name: getattr(part, name) for name in _NAMED if getattr(part, name)}
    sized = not part.world_size_max or part.compared == "world_size"
    sized = sized or part.world_size_min <= one.gpus <= part.world_size_max
    if not strict:
        if part.compared == "schedule":
            end = "smallest" if part.world_size_max <= LAST_SMALL_WORLD else "largest"
            return bool(about["global_batch_size"] == about[end])
        stated.pop("model", None)
        if part.compared in ("loader", "model") and about["strategy"] == "single":
            stated.pop("strategy", None)
        # A stated accuracy is one of ImageNet, and means nothing for another task.
        sized = bool(part.compared) or (sized and part.quantity not in _ACCURACIES)
    named = all(covers(name, str(about[column])) for column, name in stated.items())
    return named and sized and (one.on_terms or not strict)


def _pairs(
    part: Part, evidence: Evidence, fitting: list[Configuration], strict: bool
) -> Iterator[tuple[Configuration, Configuration]]:
    """Return the pairs that differ in what is compared alone."""
    lefts = [one for one in fitting if _is_side(one, part, part.left, "smallest", strict)]
    rights = [one for one in fitting if _is_side(one, part, part.right, "largest", strict)]
    free = {part.compared} | _FREE.get(part.compared, set())
    for one in lefts:
        for other in (other for other in evidence.same(one, free) if other in rights):
            formats = {pair.about["data_format"] for pair in (one, other)}
            stated = all(_reads_as_stated(pair.about) for pair in (one, other))
            if part.compared != "loader" or len(formats) == 1 or stated:
                yield one, other


def _is_side(one: Configuration, part: Part, name: str, end: str, strict: bool) -> bool:
    about = one.about
    if part.compared == "framework":  # "torch ddp", or a library, however it is distributed
        library, _, strategy = name.partition(" ")
        own = about["strategy"]
        return about["framework"] == library and (own == strategy if strategy else own != "single")
    if part.compared == "global_batch_size" and not strict:
        return bool(about["global_batch_size"] == about[end])
    return covers(name, str(about[part.compared]))


def _compared(
    part: Part, evidence: Evidence, fitting: list[Configuration], strict: bool
) -> Iterator[Comparison]:
    """Compare pairs: their values, or these relative to each one's baseline."""
    for one, other in _pairs(part, evidence, fitting, strict):
        estimate, names = evidence.ratio(one, other), _names(part, one, other)
        place, sizes = _place(one, part), {one.gpus, other.gpus}
        if part.quantity in _ACCURACIES:
            lost = one.lost + other.lost
            text = f"{names}{f' ({lost} lost)' if lost else ''}: {points(estimate)} points"
        elif part.quantity != "parallel_efficiency":
            text = f"{names} {interval(estimate)}"
        else:
            bases = [base for side in (one, other) if (base := evidence.baseline(side, strict))]
            if len(bases) < 2 or bases[0].gpus != bases[1].gpus:
                continue
            paired = relative(
                *(
                    relative(side.sample.windows, base.sample.windows)
                    for side, base in zip((one, other), bases, strict=True)
                )
            )
            estimate = over_blocks(paired) if paired else (
                estimates.product(estimate, evidence.ratio(bases[1], bases[0])))  # fmt: skip
            sizes.add(bases[0].gpus)
            place += f", base {bases[0].gpus}"
            text = f"E of {names} {interval(estimate)}{_against_single(evidence, one, other)}"
        yield Comparison(part, estimate, frozenset(sizes), place, text)


def _against_single(evidence: Evidence, *pair: Configuration) -> str:
    """Return throughput per rank over that of one process: a slow baseline flatters E."""
    values = []
    for side in pair:
        same = evidence.same(side, {"strategy", "world_size"})
        same = [one for one in same if (one.about["strategy"], one.gpus) == ("single", 1)]
        if not same:
            return ""
        values.append(f"{evidence.ratio(side, same[0]).ratio / side.gpus:.2f}")
    return f", against one process without a framework {' and '.join(values)}"


def _reached(
    part: Part, evidence: Evidence, fitting: list[Configuration], strict: bool
) -> Iterator[Comparison]:
    """Compare the quantity itself with the number that is stated of it."""
    for one in fitting:
        value, base = estimates.middle(one.values), None
        place, stated = _place(one, part), float(part.stated or 1)
        if part.quantity in _ACCURACIES:
            text, stated = f"V of {_name(one, 'schedule')} {points(value)} points", math.exp(stated)
        else:
            if part.quantity != "runtime":
                if not (base := evidence.baseline(one, strict)):
                    continue
                place += f", base {base.gpus}"
                # A speed-up is of runtimes.
                pair = (base, one) if part.quantity == "speedup" else (one, base)
                ideal = one.gpus / base.gpus if part.quantity == "parallel_efficiency" else 1.0
                value = estimates.scaled(evidence.ratio(*pair), 1 / ideal)
            name = f"{_name(one, 'framework')} ({_name(one, 'loader')})"
            text = f"{_SYMBOLS[part.quantity]} of {name} {interval(value)}"
        sizes = frozenset({one.gpus, base.gpus} if base else {one.gpus})
        yield Comparison(part, estimates.scaled(value, 1 / stated), sizes, place, text)


# --- in words ---


def interval(value: Estimate) -> str:
    """Return e.g. "1.25 [1.16, 1.35]"; with one start there is no interval."""
    places = 2 if value.ratio < 100 else 0  # ratios; seconds
    middle, low, high = (f"{one:.{places}f}" for one in (value.ratio, value.low, value.high))
    return f"{middle} [{low}, {high}]" if value.n > 1 else f"{middle} (one start)"


def points(value: Estimate) -> str:
    """Return e.g. "+1.8 [+0.4, +3.2]" percentage points; one repeat has no interval."""
    logs = value.log_mean, math.log(value.low), math.log(value.high)
    middle, low, high = (f"{100 * one:+.1f}" for one in logs)
    return f"{middle} [{low}, {high}]" if value.n > 1 else f"{middle} (single run)"


def _here(seen: list[Comparison], margin: float) -> str:
    """Return the comparisons by place, with the decision on two that are compared."""
    places: dict[str, list[str]] = {}
    for (place, text), one in {(one.place, one.text): one for one in seen}.items():
        known = one.part.compared and one.estimate.n > 1
        word = f", {estimates.decision(one.estimate, margin)}" if known else ""
        places.setdefault(place, []).append(text + word)
    return "; ".join(f"{place}: {'; '.join(shown)}" for place, shown in places.items())


def _place(one: Configuration, part: Part) -> str:
    """Return where one was measured, e.g. "laptop, 2 ranks, 2 CPU cores, ResNet50"."""
    about = one.about
    model = [] if part.compared == "model" else [style.model_name(about["model"])]
    if "alike" in about:  # of a study of accuracy
        batch = [f"batch {about['global_batch_size']:,}"]
        batch = batch if part.compared != "global_batch_size" else []
        return ", ".join([about["study"], style.dataset_name(about["dataset"]), *model, *batch])
    ranks = plural(one.gpus, "rank")
    machine = f"{about['cpu_cores']} CPU cores" if about["on_cpu"] else str(about["hardware"])
    single = ["one process"] if about["strategy"] == "single" else []
    return ", ".join([about["run_in"], ranks, machine, *model, *single])


def _names(part: Part, one: Configuration, other: Configuration) -> str:
    between = " - " if part.quantity in _ACCURACIES else " / "
    names = between.join(_name(side, part.compared) for side in (one, other))
    if part.compared == "world_size":
        return f"{names} ranks"
    if part.compared == "global_batch_size":
        return f"{_name(one, 'schedule')}: batch {names}"
    return f"{names} ({_name(one, 'loader')})" if part.compared in ("strategy", "model") else names


def _name(one: Configuration, column: str) -> str:
    about = one.about
    if column == "loader":
        return style.loader_name(about["loader"], about["data_format"], formats=True)
    if column == "framework" and about["framework"] != "torch":
        return called(about["framework"], about["strategy"])
    column = "strategy" if column == "framework" else column
    known = column in ("strategy", "model", "schedule")
    return str(getattr(style, f"{column}_name")(about[column])) if known else f"{about[column]:,}"
