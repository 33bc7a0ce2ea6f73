"""Measured configurations by the quantity that statements of papers are about."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.config import RunSpec
from ddl_tools.analysis import estimates
from ddl_tools.analysis import tables as records
from ddl_tools.analysis.configurations import CONFIGURATION, commits, ended_runs, with_settings
from ddl_tools.analysis.estimates import Estimate
from ddl_tools.analysis.figures import accuracy_runs
from ddl_tools.analysis.interleaving import Interleaved, Sample
from ddl_tools.analysis.paper import BASE_WORLD_SIZE, FORMATS
from ddl_tools.records.identity import BATCH, REPEATS
from ddl_tools.scaling.paper import BATCH_SIZE, EPOCHS

# The conditions of the paper: data/paper/settings.csv. Accumulation may stand for GPUs in accuracy.
_TASK = {"dataset": "imagenet", "classes": 1000, "image_size": 224, "local_batch_size": BATCH_SIZE}
SPEED = _TASK | {"accumulation": 1, "gpus_per_node": BASE_WORLD_SIZE, "on_cpu": False}
LEARNING = _TASK | {"model": "resnet50", "epochs": EPOCHS, "optimizer": "sgd"}
LEARNING |= {"base_lr": 0.025, "lr_scaling": "linear"}
EARLY = 20 / EPOCHS  # of a training: the epochs in which the curves of Fig. 9 are called alike
ACCURACIES = ("top1", "top1_early", "top1_late")
SHARES = {"allreduce_percent": "allreduce", "cudnn_percent": "cudnn"}

KEYS = ["setting", "hardware", *CONFIGURATION, "world_size"]


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


def paper_evidence(
    runs: pd.DataFrame, windows: pd.DataFrame | None, profiles: pd.DataFrame | None
) -> dict[str, Evidence]:
    """Return what was measured of each quantity that Aach et al. state."""
    done = runs[runs["status"] == "completed"]
    long = (done["epochs"] == EPOCHS) & (done["dataset"] == "imagenet") & (done["work"] == "train")
    times = Evidence(_pooled(with_settings(done[long]), "runtime_s"))
    found = _throughput(runs, windows) | {"runtime": times, "speedup": times} | _accuracy(runs)
    profiles = records.empty_table(records.PROFILE_COLUMNS) if profiles is None else profiles
    for quantity, share in SHARES.items():
        rows = profiles[(profiles["of"] == records.KERNELS) & (profiles["share"] == share)]
        means = rows.groupby(["study", "run_id"], as_index=False)["value"].mean()
        profiled = with_settings(done.merge(means, on=["study", "run_id"]))
        found[quantity] = Evidence(_pooled(profiled, "value"))
    return found


def library_evidence(runs: pd.DataFrame, windows: pd.DataFrame | None) -> dict[str, Evidence]:
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
    free = (*REPEATS, *BATCH, "schedule")
    alike = ["study", "hardware", "differs", *(n for n in RunSpec.model_fields if n not in free)]
    good = (runs["status"] == "completed") & ~runs["diverged"] & runs["top1"].notna()
    batches = runs.groupby("study")["global_batch_size"]
    values = [[run["top1"], *_early_late(run)] for run in runs.to_dict("records")]
    table = pd.DataFrame(values, runs.index, ACCURACIES, dtype=float)
    runs = runs.assign(
        alike=runs.groupby(alike, dropna=False).ngroup(),
        shape=runs.groupby([*BATCH]).ngroup(),
        smallest=batches.transform("min"),
        largest=batches.transform("max"),
        gpus=runs["global_batch_size"] // BATCH_SIZE,
        **{name: np.exp(table[name].where(good)) for name in ACCURACIES},
    )
    keys = ["alike", "schedule", "global_batch_size", "shape"]
    return {name: Evidence(_pooled(runs, name, keys, "repeat"), keys) for name in ACCURACIES}


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
            on_terms = on_terms and (terms is LEARNING or reads_as_stated(about))
            gpus = int(about.get("gpus", about["world_size"]))
            values, lost = known.set_index(index)[value].astype(float), len(part) - len(known)
            sample = Sample(values.to_numpy(), windows, list(commits(known)))
            found.append(Configuration(about, gpus, values, sample, lost, on_terms))
    return found


def reads_as_stated(about: dict[str, Any]) -> bool:
    """Say whether a loader reads the format that it reads in the paper."""
    return bool(about["data_format"] == FORMATS.get(about["loader"]))
