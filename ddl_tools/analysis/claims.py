"""The statements of three papers, each judged by the published runs.

``data/paper/claims.csv`` lists the comparisons that each statement makes. One of them can confirm
or refute it:

==========  =============================  =====================================
relation    confirmed                      refuted
==========  =============================  =====================================
greater     the ratio surely is above 1    it surely is below 1
similar     equivalent within the margin   it surely lies outside the margin
lower       surely above what is stated    surely below it
upper       surely below what is stated    surely above it
value       equivalent to what is stated   it surely lies outside the margin of it
==========  =============================  =====================================

A statement is supported if every comparison confirms it, each by its own interval (an
intersection-union test, which needs no adjustment). It is contradicted if any comparison refutes
it: the p are doubled for the two directions and adjusted after Holm as one family.

Statements of Aach et al. are judged by runs under the paper's conditions alone (`SPEED`,
`LEARNING`). The same comparison at other sizes or on other hardware stands beside it (``here``)
and judges nothing. Rankings of the two other papers are judged wherever they were measured.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.config import RunSpec
from ddl_tools.analysis import estimates
from ddl_tools.analysis import tables as records
from ddl_tools.analysis.configurations import KEYS, made_runs, with_settings
from ddl_tools.analysis.estimates import ALPHA, MARGIN, Estimate
from ddl_tools.analysis.figures import accuracy
from ddl_tools.analysis.paper import AACH, BASE_WORLD_SIZE, FORMATS, covers, read_paper
from ddl_tools.analysis.plot import style
from ddl_tools.analysis.turns import Turns, Windows, over_blocks, relative
from ddl_tools.labels import REPEATS, called
from ddl_tools.records.paths import Tree

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", estimates.CANNOT_SAY
NOT_TESTABLE = "not testable here"
ELSEWHERE = {SUPPORTED: "confirmed here", CONTRADICTED: "contradicted here"}  # other papers' words
COLUMNS = ["paper", "statement", "kind", "claim", "place", "verdict", "why", "here"]
SEEN = "seen here"

# The conditions of the paper: data/paper/settings.csv. Accumulation may stand for GPUs in accuracy.
LOCAL_BATCH, EPOCHS = 64, 90
_TASK = {"dataset": "imagenet", "classes": 1000, "image_size": 224, "local_batch_size": LOCAL_BATCH}
SPEED = _TASK | {"accumulation": 1, "gpus_per_node": BASE_WORLD_SIZE, "on_cpu": False}
LEARNING = _TASK | {"model": "resnet50", "epochs": EPOCHS, "base_lr": 0.025, "optimizer": "sgd"}

POINT = 0.01  # accuracies are alike within one percentage point
LAST_SMALL_WORLD = 64  # GPUs: a batch of 4,096, before the first clear drop of accuracy (A01, A02)
EARLY = 20 / EPOCHS  # of a training: the epochs in which the curves of Fig. 9 are called alike
# Columns that may differ besides the compared one.
_FREE = {"loader": {"data_format"}, "framework": {"library", "strategy"},
         "global_batch_size": {"shape"}}  # fmt: skip
_NAMED = ("library", "strategy", "loader", "model", "schedule")
_ACCURACIES = ("top1", "top1_early", "top1_late")
_SHARES = {"allreduce_percent": "allreduce", "cudnn_percent": "cudnn"}
_SYMBOLS = {"runtime": "T", "speedup": "speed-up", "throughput_scaling": "speed-up",
            "parallel_efficiency": "E"}  # fmt: skip
_TESTABLE = {"throughput", *_SYMBOLS, *_SHARES, *_ACCURACIES}

Part = Any
"""A row of claims.csv with "" in empty cells: one comparison of a statement."""


@dataclass(frozen=True, eq=False)
class Arm:
    """Runs that may be pooled: a value of each, by run or repeat, and their windows.

    `gpus` is the number of workers; of accuracies (as exponentials), of the paper's GPUs with this
    batch.
    """

    about: dict[str, Any]
    gpus: int
    values: pd.Series
    windows: Windows
    lost: int
    on_terms: bool


@dataclass(frozen=True)
class Seen:
    """One comparison in the records: a ratio of two arms, or of an arm to what is stated."""

    part: Part
    estimate: Estimate
    sizes: frozenset[int]
    place: str = ""
    text: str = ""


@dataclass(frozen=True)
class Evidence:
    """All arms of one quantity, and what two of them must have in common to be compared."""

    arms: list[Arm]
    keys: Sequence[str] = tuple(KEYS)
    turns: Turns = field(default_factory=lambda: Turns(None))

    def same(self, arm: Arm, free: set[str]) -> list[Arm]:
        """Return the other arms that may differ from `arm` in some of the keys alone."""
        keys = [name for name in self.keys if name not in free]
        others = (other for other in self.arms if other is not arm)
        return [one for one in others if all(one.about[key] == arm.about[key] for key in keys)]

    def ratio(self, one: Arm, other: Arm) -> Estimate:
        """Return the ratio of two arms: of paired windows, of paired repeats, else of all runs."""
        if paired := self.turns.ratio(one.windows, other.windows):
            return paired
        values, base = one.values, other.values
        if set(values.index) == set(base.index):
            return estimates.paired_ratio(values.to_numpy(), base.loc[values.index].to_numpy())
        return estimates.unpaired_ratio(values.to_numpy(), base.to_numpy())

    def base(self, arm: Arm, strict: bool) -> Arm | None:
        """Return the same arm with the fewest workers, if fewer; strict: with the paper's base."""
        fewer = [other for other in self.same(arm, {"world_size"}) if other.gpus < arm.gpus]
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
    torch = runs[runs["library"] == "torch"]  # the paper's frameworks are PyTorch's
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
    counts = counts.reindex(columns=[SUPPORTED, CONTRADICTED, UNDECIDED], fill_value=0)
    seen = table["here"].ne("").groupby(table["kind"]).sum()
    return counts.assign(**{SEEN: seen}).rename_axis(columns=None)


def _judge(table: pd.DataFrame, evidence: dict[str, Evidence]) -> dict[str, str]:
    row = table.iloc[0]
    tested = table["quantity"].isin(_TESTABLE) & (table["relation"] != "")
    parts = list(table[tested].itertuples(index=False))
    own, margin = row["paper"] == AACH, math.expm1(POINT) if row["kind"] == "accuracy" else MARGIN
    seen = [one for part in parts for one in _seen(part, evidence, strict=own)]
    here = _here([one for part in parts for one in _seen(part, evidence, strict=False)], margin)
    word, why = verdict(parts, seen, margin, bool(row["open"]), row["reason"])
    if own and not seen:
        terms = "not measured on its terms" if parts else ""
        word, why = UNDECIDED, "; ".join(filter(None, [terms, row["plan"], row["reason"]]))
    elif not own:
        word = NOT_TESTABLE if row["reason"] else ELSEWHERE.get(word, word)
    return {"verdict": word, "why": (not own and row["reason"]) or why, "here": here}


def _possible(row: pd.Series, runs: pd.DataFrame) -> dict[str, str]:
    """Tell of runs with both; "cannot be used together" is about the releases of 2022."""
    loaders = runs["loader"].map(lambda name: covers(row["loader"], name)).astype(bool)
    both = runs[loaders & (runs["strategy"] == row["strategy"]) & (runs["work"] == "train")]
    done = both[both["status"] == "completed"]
    if done.empty:
        return {"verdict": UNDECIDED, "why": "no completed run with both", "here": ""}
    releases = done["communication"].dropna().str.split(";").str[0]
    places = done["device_used"].map(lambda name: "the CPU" if name == "cpu" else "a GPU")
    how = (done["study"], releases[releases.str.startswith(row["strategy"])], places)
    told = "; ".join(filter(None, (", ".join(sorted(set(names))) for names in how)))
    here = f"{len(done)} completed run{'s' if len(done) > 1 else ''} with both ({told})"
    why = "it is about the releases of 2022, and was not measured with them"
    return {"verdict": UNDECIDED, "why": why, "here": here}


# --- from estimates to a verdict ---


def verdict(
    parts: Sequence[Part],
    seen: Sequence[Seen],
    margin: float = MARGIN,
    open_reading: bool = False,
    reason: str = "",
) -> tuple[str, str]:
    """Return the verdict on a statement and why, from all its comparisons.

    Supported: every part is confirmed wherever it was measured, and was measured at both ends of
    its range. Contradicted: a comparison is refuted; with an open reading (the paper names no
    strategy or model) all parts must be. `reason` says what of the statement cannot be tested.
    """
    sure = [p <= ALPHA for p in estimates.holm([_refutes(one, margin) for one in seen])]
    against = [one for one, refuted in zip(seen, sure, strict=True) if refuted]
    if against and (not open_reading or {one.part for one in against} == set(parts)):
        return CONTRADICTED, "; ".join(f"{one.place}: {one.text}" for one in against)
    if missing := _missing(parts, seen):
        return UNDECIDED, missing
    confirmed = sum(_confirms(one, margin) for one in seen)
    decided = f"{confirmed} of {len(seen)} comparisons decided so"
    if confirmed == len(seen) and reason:
        return UNDECIDED, f"only in part testable: {reason}"
    return (SUPPORTED if confirmed == len(seen) else UNDECIDED), decided


def _confirms(seen: Seen, margin: float) -> bool:
    """Say whether the interval of a comparison is as claimed."""
    ratio, relation = seen.estimate, seen.part.relation
    if relation in ("greater", "lower"):
        return ratio.low > 1
    if relation == "upper":
        return ratio.high < 1
    return estimates.decision(ratio, margin) == estimates.EQUIVALENT


def _refutes(seen: Seen, margin: float) -> float:
    """Return the p against "the comparison is as claimed", doubled for the two directions."""
    ratio, relation = seen.estimate, seen.part.relation
    bound = 1 + margin if relation in ("similar", "value") else 1.0
    below, above = estimates.p_less(ratio, 1 / bound), estimates.p_greater(ratio, bound)
    p = {"greater": below, "lower": below, "upper": above}.get(relation, min(below, above))
    return min(1.0, 2 * p)


def _missing(parts: Sequence[Part], seen: Sequence[Seen]) -> str:
    """Return which part was not measured at both ends of its range; nothing where all were."""
    for part in parts:
        own = [one.sizes for one in seen if one.part == part]
        sizes = frozenset[int]().union(*own)
        if not own or _ends(part) - sizes:
            known = ", ".join(str(size) for size in sorted(sizes))
            at = f"measured at {known}" if known else "not measured"
            ends = dict.fromkeys(str(end) for end in (part.world_size_min, part.world_size_max))
            return f"the claim is about {' to '.join(ends)} GPUs, {at}" if any(ends) else (
                f"{at} with several numbers of workers: {part.right}")  # fmt: skip
    return ""


def _ends(part: Part) -> set[int]:
    """Return the numbers of GPUs without which the range of a part is not covered."""
    if part.compared == "global_batch_size" or not part.world_size_max:
        return set()
    base = {BASE_WORLD_SIZE} if part.quantity in ("parallel_efficiency", "speedup") else set()
    return base | {part.world_size_min, part.world_size_max}


# --- what the records show ---


def _evidence(
    runs: pd.DataFrame, windows: pd.DataFrame | None, profiles: pd.DataFrame | None
) -> dict[str, Evidence]:
    """Return the arms of each quantity that Aach et al. state."""
    done = runs[runs["status"] == "completed"]
    long = (done["epochs"] == EPOCHS) & (done["dataset"] == "imagenet") & (done["work"] == "train")
    times = Evidence(_arms(with_settings(done[long]), "runtime_s"))
    found = _throughput(runs, windows) | {"runtime": times, "speedup": times} | _accuracy(runs)
    profiles = records.empty_profiles() if profiles is None else profiles
    for quantity, share in _SHARES.items():
        rows = profiles[(profiles["of"] == records.KERNELS) & (profiles["share"] == share)]
        means = rows.groupby(["study", "run_id"], as_index=False)["value"].mean()
        profiled = with_settings(done.merge(means, on=["study", "run_id"]))
        found[quantity] = Evidence(_arms(profiled, "value"))
    return found


def _of_libraries(runs: pd.DataFrame, windows: pd.DataFrame | None) -> dict[str, Evidence]:
    """Return the arms of studies of several libraries: by throughput, and by last accuracy."""
    runs = runs[runs.groupby("study")["library"].transform("nunique") > 1]
    made = made_runs(runs)
    made = made.assign(top1=np.exp(made["top1"].mask(made["lost"])))
    return _throughput(runs, windows) | {"top1": Evidence(_arms(made, "top1", index="repeat"))}


def _throughput(runs: pd.DataFrame, windows: pd.DataFrame | None) -> dict[str, Evidence]:
    turns = Turns(windows)
    evidence = Evidence(_arms(made_runs(runs), "value", turns=turns), turns=turns)
    return dict.fromkeys(("throughput", "parallel_efficiency", "throughput_scaling"), evidence)


def _accuracy(runs: pd.DataFrame) -> dict[str, Evidence]:
    """Return the arms of accuracy studies that learnt by plain SGD, as the paper's did."""
    made = accuracy.made(runs)
    made = made[made["optimizer"] == "sgd"]
    free = (*REPEATS, *accuracy.SHAPE, "schedule")
    alike = ["study", "hardware", "differs", *(n for n in RunSpec.model_fields if n not in free)]
    good = (made["status"] == "completed") & ~made["diverged"] & made["top1"].notna()
    batches = made.groupby("study")["global_batch_size"]
    parts = [[_mean(run, early) for run in made.to_dict("records")] for early in (True, False)]
    early, late = (pd.Series(values, made.index, dtype=float) for values in parts)
    made = made.assign(
        alike=made.groupby(alike, dropna=False).ngroup(),
        shape=made.groupby(accuracy.SHAPE).ngroup(),
        smallest=batches.transform("min"),
        largest=batches.transform("max"),
        gpus=made["global_batch_size"] // LOCAL_BATCH,
        **{name: np.exp(values.where(good))
           for name, values in zip(_ACCURACIES, (made["top1"], early, late), strict=True)},
    )  # fmt: skip
    keys = ["alike", "schedule", "global_batch_size", "shape"]
    return {name: Evidence(_arms(made, name, keys, "repeat"), keys) for name in _ACCURACIES}


def _mean(run: dict[str, Any], early: bool) -> float:
    """Return the mean accuracy over the evaluations in one part of the training."""
    epochs, values = (accuracy.numbers(run[f"evaluated_{name}"]) for name in ("epochs", "top1"))
    chosen = values[(epochs <= EARLY * run["epochs"]) == early]
    return float(np.mean(chosen)) if len(chosen) else math.nan


def _arms(
    runs: pd.DataFrame,
    value: str,
    keys: Sequence[str] = KEYS,
    index: str = "run_id",
    turns: Turns | None = None,
) -> list[Arm]:
    found = []
    settings = runs.groupby("study")["setting"].nunique()
    for _, part in runs.groupby(list(keys), dropna=False, sort=True):
        known = part[part[value] > 0].drop_duplicates(index)
        if len(known):
            about: dict[str, Any] = known.iloc[0].to_dict()
            about["run_in"] = about["setting" if settings[about["study"]] > 1 else "study"]
            gpus = int(about.get("gpus", about["world_size"]))
            windows = turns.of(about["study"], known["run_id"]) if turns else {}
            values = known.set_index(index)[value].astype(float)
            terms = on_terms(about, SPEED if keys is KEYS else LEARNING)
            found.append(Arm(about, gpus, values, windows, len(part) - len(known), terms))
    return found


def on_terms(run: Mapping[str, Any], terms: Mapping[str, Any]) -> bool:
    """Say whether a run was made under the conditions of the paper: `SPEED` or `LEARNING`."""
    same = all(run[name] == wanted for name, wanted in terms.items())
    return same and (terms is LEARNING or _reads_as_stated(run))


def _reads_as_stated(run: Mapping[str, Any]) -> bool:
    """Say whether a loader reads the format that it reads in the paper."""
    return bool(run["data_format"] == FORMATS.get(run["loader"]))


def _seen(part: Part, evidence: dict[str, Evidence], strict: bool) -> Iterator[Seen]:
    """Return what is known of a part: on the paper's own terms (strict), or wherever measured."""
    if own := evidence.get(part.quantity):
        fitting = [arm for arm in own.arms if _fits(arm, part, strict)]
        found = _compared(part, own, _pairs(part, own, fitting, strict), strict)
        yield from found if part.compared else _reached(part, own, fitting, strict)


def _fits(arm: Arm, part: Part, strict: bool) -> bool:
    """Say whether a part speaks of an arm.

    Elsewhere than on the paper's terms, hardware, data, batch, format and (unless compared) the
    network may be others, and the sizes too, unless a number is stated of them. Where loaders or
    networks are compared, one process without a framework tells of them too. What is said of small
    batches is looked for at a study's smallest, what is said of large ones at its largest.
    """
    about = arm.about
    stated = {name: getattr(part, name) for name in _NAMED if getattr(part, name)}
    sized = not part.world_size_max or part.compared == "world_size"
    sized = sized or part.world_size_min <= arm.gpus <= part.world_size_max
    if not strict and part.compared == "schedule":
        end = "smallest" if part.world_size_max <= LAST_SMALL_WORLD else "largest"
        return bool(about["global_batch_size"] == about[end])
    if not strict:
        stated.pop("model", None)
        if part.compared in ("loader", "model") and about["strategy"] == "single":
            stated.pop("strategy", None)
        # A stated accuracy is one of ImageNet, and means nothing for another task.
        sized = bool(part.compared) or (sized and part.quantity not in _ACCURACIES)
    named = all(covers(name, str(about[column])) for column, name in stated.items())
    return named and sized and (arm.on_terms or not strict)


def _pairs(
    part: Part, evidence: Evidence, arms: list[Arm], strict: bool
) -> Iterator[tuple[Arm, Arm]]:
    """Return the pairs of arms that differ in what is compared alone."""
    lefts, rights = ([arm for arm in arms if _is_side(arm, part, side, strict)] for side in "lr")
    free = {part.compared} | _FREE.get(part.compared, set())
    for one in lefts:
        for other in (arm for arm in evidence.same(one, free) if arm in rights):
            formats = {arm.about["data_format"] for arm in (one, other)}
            stated = all(_reads_as_stated(arm.about) for arm in (one, other))
            if part.compared != "loader" or len(formats) == 1 or stated:
                yield one, other


def _is_side(arm: Arm, part: Part, side: str, strict: bool) -> bool:
    about, name = arm.about, part.left if side == "l" else part.right
    if part.compared == "framework":  # "torch ddp", or a library, however it is distributed
        library, _, strategy = name.partition(" ")
        own = about["strategy"]
        return about["library"] == library and (own == strategy if strategy else own != "single")
    if part.compared == "global_batch_size" and not strict:
        return bool(about["global_batch_size"] == about["smallest" if side == "l" else "largest"])
    return covers(name, str(about[part.compared]))


def _compared(
    part: Part, evidence: Evidence, pairs: Iterator[tuple[Arm, Arm]], strict: bool
) -> Iterator[Seen]:
    """Compare pairs of arms: their values, or what these have become of each one's base."""
    for one, other in pairs:
        estimate, names, place = (
            evidence.ratio(one, other),
            _names(part, one, other),
            _place(one, part),
        )
        sizes = {one.gpus, other.gpus}
        if part.quantity in _ACCURACIES:
            lost = one.lost + other.lost
            text = f"{names}{f' ({lost} lost)' if lost else ''}: {points(estimate)} points"
        elif part.quantity != "parallel_efficiency":
            text = f"{names} {interval(estimate)}"
        else:
            bases = [base for arm in (one, other) if (base := evidence.base(arm, strict))]
            if len(bases) < 2 or bases[0].gpus != bases[1].gpus:
                continue
            windows = [
                relative(a.windows, b.windows) for a, b in zip((one, other), bases, strict=True)
            ]
            paired = relative(*windows)
            estimate = over_blocks(paired) if paired else (
                estimates.product(estimate, evidence.ratio(bases[1], bases[0])))  # fmt: skip
            sizes.add(bases[0].gpus)
            place += f", base {bases[0].gpus}"
            text = f"E of {names} {interval(estimate)}{_against_single(evidence, one, other)}"
        yield Seen(part, estimate, frozenset(sizes), place, text)


def _against_single(evidence: Evidence, *arms: Arm) -> str:
    """Return throughput per worker over that of one process: a slow base of its own flatters E."""
    values = []
    for arm in arms:
        same = evidence.same(arm, {"strategy", "world_size"})
        same = [one for one in same if (one.about["strategy"], one.gpus) == ("single", 1)]
        if not same:
            return ""
        values.append(f"{evidence.ratio(arm, same[0]).ratio / arm.gpus:.2f}")
    return f", against one process without a framework {' and '.join(values)}"


def _reached(part: Part, evidence: Evidence, arms: list[Arm], strict: bool) -> Iterator[Seen]:
    """Compare the quantity itself with the number that is stated of it."""
    for arm in arms:
        value, base = estimates.middle(arm.values.to_numpy()), None
        place, stated = _place(arm, part), float(part.stated or 1)
        if part.quantity in _ACCURACIES:
            text, stated = f"V of {_name(arm, 'schedule')} {points(value)} points", math.exp(stated)
        else:
            if part.quantity != "runtime":
                if not (base := evidence.base(arm, strict)):
                    continue
                place += f", base {base.gpus}"
                # A speed-up is of runtimes.
                pair = (base, arm) if part.quantity == "speedup" else (arm, base)
                ideal = arm.gpus / base.gpus if part.quantity == "parallel_efficiency" else 1.0
                value = estimates.scaled(evidence.ratio(*pair), 1 / ideal)
            name = f"{_name(arm, 'framework')} ({_name(arm, 'loader')})"
            text = f"{_SYMBOLS[part.quantity]} of {name} {interval(value)}"
        sizes = frozenset({arm.gpus, base.gpus} if base else {arm.gpus})
        yield Seen(part, estimates.scaled(value, 1 / stated), sizes, place, text)


# --- in words ---


def interval(value: Estimate) -> str:
    """Return e.g. "1.25 [1.16, 1.35]"; with one start there is no interval."""
    places = 2 if value.ratio < 100 else 0  # ratios; seconds
    middle, *ends = (f"{number:.{places}f}" for number in (value.ratio, value.low, value.high))
    return f"{middle} [{', '.join(ends)}]" if value.n > 1 else f"{middle} (one start)"


def points(value: Estimate) -> str:
    """Return e.g. "+1.8 [+0.4, +3.2]" percentage points; one repeat has no interval."""
    logs = (value.log_mean, *(math.log(end) for end in (value.low, value.high)))
    middle, *ends = (f"{100 * number:+.1f}" for number in logs)
    return f"{middle} [{', '.join(ends)}]" if value.n > 1 else f"{middle} (single run)"


def _here(seen: list[Seen], margin: float) -> str:
    """Return what is seen, by place, with what the interval says of two arms that are compared."""
    places: dict[str, list[str]] = {}
    for (place, text), one in {(one.place, one.text): one for one in seen}.items():
        known = one.part.compared and one.estimate.n > 1
        word = f", {estimates.decision(one.estimate, margin)}" if known else ""
        places.setdefault(place, []).append(text + word)
    return "; ".join(f"{place}: {'; '.join(shown)}" for place, shown in places.items())


def _place(arm: Arm, part: Part) -> str:
    """Return where an arm was measured, e.g. "laptop, 2 workers, 2 CPU cores, ResNet50"."""
    about = arm.about
    model = [] if part.compared == "model" else [style.model_name(about["model"])]
    if "alike" in about:  # of a study of accuracy
        batch = [f"batch {about['global_batch_size']:,}"]
        batch = batch if part.compared != "global_batch_size" else []
        return ", ".join([about["study"], style.dataset_name(about["dataset"]), *model, *batch])
    workers = f"{arm.gpus} worker{'s' if arm.gpus > 1 else ''}"
    machine = f"{about['cpu_cores']} CPU cores" if about["on_cpu"] else str(about["hardware"])
    single = ["one process"] if about["strategy"] == "single" else []
    return ", ".join([about["run_in"], workers, machine, *model, *single])


def _names(part: Part, one: Arm, other: Arm) -> str:
    between = " - " if part.quantity in _ACCURACIES else " / "
    names = between.join(_name(arm, part.compared) for arm in (one, other))
    if part.compared == "world_size":
        return f"{names} workers"
    if part.compared == "global_batch_size":
        return f"{_name(one, 'schedule')}: batch {names}"
    return f"{names} ({_name(one, 'loader')})" if part.compared in ("strategy", "model") else names


def _name(arm: Arm, column: str) -> str:
    about = arm.about
    if column == "loader":
        return style.loader_name(about["loader"], about["data_format"], formats=True)
    if column == "framework" and about["library"] != "torch":
        return called(about["library"], about["strategy"])
    column = "strategy" if column == "framework" else column
    known = column in ("strategy", "model", "schedule")
    return str(getattr(style, f"{column}_name")(about[column])) if known else f"{about[column]:,}"
