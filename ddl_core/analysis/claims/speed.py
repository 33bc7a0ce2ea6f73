"""What the records show of speed: throughput, efficiency, runtime, shares of kernel time."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis import arms as pooling
from ddl_core.analysis import estimates
from ddl_core.analysis.claims import terms
from ddl_core.analysis.claims.decide import Seen
from ddl_core.analysis.claims.statements import EPOCHS, Part
from ddl_core.analysis.estimates import Estimate
from ddl_core.analysis.paper import BASE_WORLD_SIZE, covers
from ddl_core.analysis.plot import style
from ddl_core.analysis.tables import KERNELS
from ddl_core.analysis.turns import Turns, Windows, over_blocks, relative

NO_TURNS = Turns(None)


@dataclass(frozen=True, eq=False)
class Arm:
    """Runs that may be pooled: a value of each, and the windows of those that took turns."""

    about: dict[str, Any]
    values: np.ndarray
    windows: Windows

    @property
    def workers(self) -> int:
        """Number of workers."""
        return int(self.about["world_size"])


def ratio(taken: Turns, one: Arm, other: Arm) -> Estimate:
    """Return the ratio of two arms: of windows that took turns, else of whole runs."""
    paired = taken.ratio(one.windows, other.windows)
    return paired or estimates.unpaired_ratio(one.values, other.values)


def efficiency_ratio(taken: Turns, one: tuple[Arm, Arm], other: tuple[Arm, Arm]) -> Estimate:
    """Return E of one arm / E of another, each given with its base: by rounds where all four are.

    Otherwise as if the two ratios were independent.
    """
    (arm, base), (second, its_base) = one, other
    paired = relative(
        relative(arm.windows, base.windows), relative(second.windows, its_base.windows)
    )
    if paired:
        return over_blocks(paired)
    return estimates.product(ratio(taken, arm, second), ratio(taken, its_base, base))


@dataclass(frozen=True)
class Evidence:
    """All arms of one quantity, and who took turns with whom."""

    arms: list[Arm]
    turns: Turns


def throughput(runs: pd.DataFrame, windows: pd.DataFrame | None) -> Evidence:
    """Return the arms that trained, by images per second of warm epochs."""
    taken = Turns(windows)
    return Evidence(_arms(pooling.made_runs(runs), "value", taken), taken)


def runtime(runs: pd.DataFrame) -> Evidence:
    """Return the arms that trained as long as the paper's, on its data, by seconds of training."""
    whole = (runs["epochs"] == EPOCHS) & (runs["dataset"] == "imagenet")
    done = runs[whole & (runs["work"] == "train") & (runs["status"] == "completed")]
    return Evidence(_of_settings(done, "runtime_s"), NO_TURNS)


def kernel_time(runs: pd.DataFrame, profiles: pd.DataFrame, share: str) -> Evidence:
    """Return the arms that were profiled on GPUs, by a share of kernel time, mean over ranks."""
    kernels = profiles[(profiles["of"] == KERNELS) & (profiles["share"] == share)]
    means = kernels.groupby(["study", "run_id"], as_index=False)["value"].mean()
    done = runs[runs["status"] == "completed"].merge(means, on=["study", "run_id"])
    return Evidence(_of_settings(done, "value"), NO_TURNS)


def _of_settings(runs: pd.DataFrame, value: str) -> list[Arm]:
    return [] if runs.empty else _arms(pooling.with_settings(runs), value)


def _arms(runs: pd.DataFrame, value: str, taken: Turns = NO_TURNS) -> list[Arm]:
    found = []
    settings = runs.groupby("study")["setting"].nunique()
    for _, part in runs[runs[value] > 0].groupby(pooling.KEYS, dropna=False, sort=True):
        about = part.iloc[0].to_dict()
        several = settings[about["study"]] > 1
        about["run_in"] = about["setting" if several else "study"]
        windows = taken.of(about["study"], part["run_id"])
        found.append(Arm(about, part[value].to_numpy(float), windows))
    return found


def seen(part: Part, evidence: Evidence, strict: bool) -> list[Seen]:
    """Return what is known of `part`: on the paper's own terms (strict), or wherever measured."""
    look = _compared if part.compared else _reached
    return list(look(part, evidence, strict))


def _compared(part: Part, evidence: Evidence, strict: bool) -> Iterator[Seen]:
    """Compare all pairs of arms: their values, or what these have become of each one's base."""
    of_base = part.quantity == "parallel_efficiency"
    for one, other in _pairs(part, evidence.arms, strict):
        estimate, place = ratio(evidence.turns, one, other), _place(one, part)
        sizes, names = {one.workers, other.workers}, _names(part, one, other)
        if of_base:
            bases = [_base(arm, evidence.arms, strict) for arm in (one, other)]
            if not bases[0] or not bases[1] or bases[0].workers != bases[1].workers:
                continue
            sizes.add(bases[0].workers)
            place += f", base {bases[0].workers}"
            names = f"E of {names}"
            estimate = efficiency_ratio(evidence.turns, (one, bases[0]), (other, bases[1]))
        text = f"{names} {interval(estimate)}"
        text += _against_single(evidence, one, other) if of_base else ""
        yield Seen(part, estimate, frozenset(sizes), place, text)


def _against_single(evidence: Evidence, *arms: Arm) -> str:
    """Return each arm's throughput per worker over that of one process without a framework.

    E is relative to an arm's own base, and a slow base flatters it.
    """
    free = ("strategy", "world_size")
    values = []
    for arm in arms:
        same = [
            other
            for other in evidence.arms
            if (other.about["strategy"], other.workers) == ("single", 1)
            and all(
                other.about[name] == arm.about[name] for name in pooling.KEYS if name not in free
            )
        ]
        if not same:
            return ""
        values.append(ratio(evidence.turns, arm, same[0]).ratio / arm.workers)
    return f", against one process without a framework {' and '.join(f'{v:.2f}' for v in values)}"


def _reached(part: Part, evidence: Evidence, strict: bool) -> Iterator[Seen]:
    """Compare the quantity itself with the number that is stated of it."""
    for arm in (arm for arm in evidence.arms if _fits(arm, part, strict)):
        base, place, sizes = _base(arm, evidence.arms, strict), _place(arm, part), {arm.workers}
        if part.quantity == "runtime":
            value = estimates.middle(arm.values)
        elif base is None:
            continue
        else:
            value = _against(part.quantity, evidence.turns, arm, base)
            place += f", base {base.workers}"
            sizes.add(base.workers)
        text = f"{_SYMBOLS[part.quantity]} of {_title(arm)} {interval(value)}"
        relative = estimates.scaled(value, 1 / part.stated)
        yield Seen(part, relative, frozenset(sizes), place, text)


_SYMBOLS = {"runtime": "T", "speedup": "speed-up", "parallel_efficiency": "E"}


def _against(quantity: str, taken: Turns, arm: Arm, base: Arm) -> Estimate:
    if quantity == "speedup":
        return ratio(taken, base, arm)  # of runtimes
    return estimates.scaled(ratio(taken, arm, base), base.workers / arm.workers)


def interval(value: Estimate) -> str:
    """Return e.g. "1.25 [1.16, 1.35]"; with one start there is no interval."""
    places = 2 if value.ratio < 100 else 0  # ratios; seconds
    middle, *ends = (f"{number:.{places}f}" for number in (value.ratio, value.low, value.high))
    return f"{middle} [{', '.join(ends)}]" if value.n > 1 else f"{middle} (one start)"


def _pairs(part: Part, arms: Sequence[Arm], strict: bool) -> Iterator[tuple[Arm, Arm]]:
    """Return the pairs that differ in what is compared alone; a loader may bring its own format."""
    lefts, rights = (
        [arm for arm in arms if _is_side(arm, part, side) and _fits(arm, part, strict)]
        for side in (part.left, part.right)
    )
    free = {part.compared} | ({"data_format"} if part.compared == "loader" else set())
    same = [name for name in pooling.KEYS if name not in free]
    for one, other in itertools.product(lefts, rights):
        alike = all(one.about[name] == other.about[name] for name in same)
        if alike and (part.compared != "loader" or _formats_compare(one, other)):
            yield one, other


def _is_side(arm: Arm, part: Part, side: str) -> bool:
    return covers(side, str(arm.about[part.compared]))


def _formats_compare(one: Arm, other: Arm) -> bool:
    """Say whether two loaders read the same format, or each the one that it has in the paper."""
    same = one.about["data_format"] == other.about["data_format"]
    return same or all(terms.reads_as_stated(arm.about) for arm in (one, other))


def _fits(arm: Arm, part: Part, strict: bool) -> bool:
    """Say whether `part` speaks of `arm`.

    Elsewhere than on the paper's terms, hardware, data, batch, format and (unless compared) the
    network may be others, and the sizes too, unless a number is stated of them; and where loaders
    or networks are compared, one process without a framework tells of them too.
    """
    about, where = arm.about, part.where
    sized = part.compared == "world_size" or part.low <= arm.workers <= part.high
    if not (part.compared or sized):
        return False
    if not strict:
        strategies = {where.get("strategy", about["strategy"])}
        strategies |= {"single"} if part.compared in ("loader", "model") else set()
        return about["strategy"] in strategies and _covered(where, "loader", about)
    return (
        all(_covered(where, name, about) for name in ("strategy", "loader", "model"))
        and sized
        and not about["on_cpu"]
        and terms.of_speed(about)
    )


def _covered(where: dict[str, str], name: str, about: dict[str, Any]) -> bool:
    return name not in where or covers(where[name], str(about[name]))


def _base(arm: Arm, arms: Sequence[Arm], strict: bool) -> Arm | None:
    """Return the same arm at the paper's base or (elsewhere) at its fewest workers, if fewer."""
    same = [
        other
        for other in arms
        if other.workers < arm.workers
        and all(other.about[name] == arm.about[name] for name in pooling.KEYS[:-1])
        and (other.workers == BASE_WORLD_SIZE or not strict)
    ]
    return min(same, key=lambda other: other.workers, default=None)


def _place(arm: Arm, part: Part) -> str:
    """Return where `arm` was measured, e.g. "laptop, 2 workers, 2 CPU cores, ResNet50"."""
    about = arm.about
    workers = f"{arm.workers} worker{'s' if arm.workers > 1 else ''}"
    machine = f"{about['cpu_cores']} CPU cores" if about["on_cpu"] else str(about["hardware"])
    model = [] if part.compared == "model" else [style.model_name(about["model"])]
    single = ["one process"] if about["strategy"] == "single" else []
    return ", ".join([about["run_in"], workers, machine, *model, *single])


def _names(part: Part, one: Arm, other: Arm) -> str:
    if part.compared == "world_size":
        return f"{one.workers} / {other.workers} workers"
    if part.compared == "loader":
        return f"{_loader(one)} / {_loader(other)}"
    words = style.strategy_name if part.compared == "strategy" else style.model_name
    names = " / ".join(words(arm.about[part.compared]) for arm in (one, other))
    return f"{names} ({_loader(one)})"


def _title(arm: Arm) -> str:
    return f"{style.strategy_name(arm.about['strategy'])} ({_loader(arm)})"


def _loader(arm: Arm) -> str:
    return style.loader_name(arm.about["loader"], arm.about["data_format"], formats=True)
