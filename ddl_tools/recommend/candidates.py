"""What can be tried here: the machine, the data, and the settings that a search varies."""

import itertools
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from ddl_core import registry
from ddl_core.config import RunSpec
from ddl_core.data.dataset import Dataset
from ddl_core.errors import DataError, NotInstalledError, SpecError
from ddl_core.registry import title
from ddl_tools import gpus
from ddl_tools.labels import phrase, plural
from ddl_tools.launch.preflight import check_data
from ddl_tools.launch.slurm.site import Site
from ddl_tools.records.provenance import host

BATCH = {"cpu": 8, "cuda": 64}  # images per rank and step
MOST_LOADER_WORKERS = 8
EPOCH_S = {"cpu": 1.0, "cuda": 5.0}  # of the baseline
LEAST_STEPS = 2  # of an epoch
STEP_S = 0.2  # a guess for nodes on which nothing was measured yet
# `memory` keeps a small set decoded, for studies of accuracy: a part of a large set would fit.
NO_CANDIDATES = ("synthetic", "memory", "single")
GIB = 2**30
# Fields that a search varies. The threads of a rank follow from the number of ranks.
SEARCHED = (
    *("strategy", "loader", "gpus_per_node", "loader_workers"),
    *("precision", "channels_last", "compile"),
    "work",  # the loader alone
)

Level = Mapping[str, Any]
"""Fields of `RunSpec` that a change sets."""


@dataclass(frozen=True)
class Request:
    """What is asked of `ddl recommend`; `workers` and `batch` are by default chosen here."""

    model: str
    data_dir: Path
    minutes: float = 10.0
    workers: tuple[int, ...] = ()
    epochs: int = 90
    batch: int | None = None
    image_size: int = 224


@dataclass(frozen=True)
class Space:
    """Baseline of a search, single changes of it by factor, and what else is known.

    `images` are all training images of the data; `missing` names what is not tried, and why.
    """

    baseline: RunSpec
    factors: dict[str, list[Level]]
    images: int
    machine: str
    hardware: str  # the part of `machine` that does not change
    missing: list[str] = field(default_factory=list)

    def changed(self, *levels: Level) -> RunSpec | None:
        """Return the baseline with some changes; None where these cannot be combined."""
        changes = {name: value for level in levels for name, value in level.items()}
        try:
            spec = RunSpec.parse(self.baseline.model_dump() | changes)
        except SpecError:
            return None
        return spec if spec.strategy == "single" or spec.world_size > 1 else None

    def single_changes(self) -> list[RunSpec]:
        """Return the baseline and each single change of it."""
        changes = filter(None, map(self.changed, itertools.chain(*self.factors.values())))
        return list(dict.fromkeys([self.baseline, *changes]))

    def pilots(self) -> list[RunSpec]:
        """Return the baseline and what may run in its place: other strategies, fewer ranks."""
        levels = [*self.factors["strategy"], *self.factors["workers"]]
        return list(dict.fromkeys([self.baseline, *filter(None, map(self.changed, levels))]))

    def combinations(self, effects: Mapping[RunSpec, float]) -> list[RunSpec]:
        """Return the combinations of two and more changes, the most promising first.

        `effects` are log ratios of single changes to the baseline, which add up in the forecast.
        Left out are changes without an effect that is known, and those that slow the baseline down.
        """
        known: list[list[tuple[Level, float]]] = []
        for levels in self.factors.values():
            specs = [(level, self.changed(level)) for level in levels]
            helps = [(level, effects[spec]) for level, spec in specs
                     if spec and effects.get(spec, 0.0) > 0]  # fmt: skip
            known.append([({}, 0.0), *helps])
        found: dict[RunSpec, float] = {}
        for point in itertools.product(*known):
            changes = [level for level, _ in point if level]
            spec = self.changed(*changes) if len(changes) > 1 else None
            if spec is not None and spec not in effects:
                found[spec] = sum(effect for _, effect in point)
        return sorted(found, key=lambda spec: -found[spec])


def space(request: Request) -> Space:
    """Look at the machine and the data, and return what can be tried.

    `DataError` if the folder holds no data set, or too few images. `SpecError` if more ranks are
    asked for than this machine has cores or GPUs.
    """
    machine, listed = host(), gpus.listed()
    cores, device = machine["cpu_cores"], "cuda" if listed else "cpu"
    here = len(listed.names) if listed else cores
    if too_many := [one for one in request.workers if one > here]:
        raise SpecError(
            f"--workers {too_many[0]}: this machine has {here} {'GPUs' if listed else 'cores'}, "
            "and each rank needs one of its own"
        )
    workers = {*request.workers} or {*(2**power for power in range(here.bit_length())), here}
    hardware = f"{plural(cores, 'core')} ({machine['cpu']}), " + (
        f"{here} x {listed.names[0]}, driver {listed.driver}" if listed else "no GPU"
    )
    found = _space(request, device, cores, workers, hardware)
    memory, free = psutil.virtual_memory(), shutil.disk_usage(request.data_dir).free
    room = (
        f"{memory.total / GIB:.0f} GiB of memory ({memory.available / GIB:.0f} free), "
        f"{free / GIB:.0f} GiB of disk free"
    )
    return replace(found, machine=f"{hardware}, {room}")


def site_space(request: Request, site: Site, nodes: int) -> Space:
    """Return the strategies and loaders to try on some nodes of a site; errors as of `space`."""
    device = "cuda" if site.gpus_per_node else "cpu"
    ranks = max(request.workers, default=site.gpus_per_node or 1)
    found = _space(request, device, ranks * site.cpus_per_rank, {ranks}, site.description, nodes)
    loaders = [one for one in found.factors["loader"]
               if site.dali or not one["loader"].startswith("dali")]  # fmt: skip
    factors = {"strategy": found.factors["strategy"], "loader": loaders}
    _, size = epoch_size(found.baseline, STEP_S, found.images)
    return replace(found, baseline=found.baseline.model_copy(update=size), factors=factors)


def _space(
    request: Request, device: str, cores: int, workers: set[int], hardware: str, nodes: int = 1
) -> Space:
    images, data = _data(request)
    most = max(workers)
    if images < (ranks := nodes * most):
        raise DataError(f"{request.data_dir} has {images} training images for {ranks} ranks")
    loading = max(1, min(MOST_LOADER_WORKERS, cores // most))
    baseline = RunSpec.parse(
        {
            **data,
            "model": request.model,
            "image_size": request.image_size,
            "device": device,
            "local_batch_size": min(request.batch or BATCH[device], images // ranks),
            "loader_workers": loading,
            "epochs": 4,  # a cold one, the first of a start, and two that count
            "discard_steps": 1,
            "eval_every": 0,
            "checkpoint_every": 0,
            "nodes": nodes,
            **_ranks(most, cores, nodes),
        }
    )
    missing: list[str] = []
    factors: dict[str, list[Level]] = {
        "workers": [_ranks(one, cores) for one in sorted(workers, reverse=True) if one < most],
        "loader": [{"loader": one} for one in _installed("loader", missing)],
        "strategy": [{"strategy": one} for one in _installed("strategy", missing)],
        "loading": [{"loader_workers": 2 * loading}],
    }
    if device == "cuda":
        factors |= {
            "precision": [{"precision": "bf16"}],
            "layout": [{"channels_last": True}],
            "compile": [{"compile": True}],
        }
    return Space(baseline, factors, images, hardware, hardware, missing)


def _ranks(count: int, cores: int, nodes: int = 1) -> dict[str, Any]:
    """Return the fields of a number of ranks on each node, which share its cores."""
    strategy = "ddp" if nodes * count > 1 else "single"
    return {"gpus_per_node": count, "strategy": strategy, "cpu_threads": max(1, cores // count)}


def _installed(kind: str, missing: list[str]) -> list[str]:
    """Return the names for PyTorch whose packages are here; add the others to `missing`."""
    found = []
    for name, entry in registry.REGISTRIES[kind].items():
        if "torch" in entry.frameworks and name not in NO_CANDIDATES:
            try:
                registry.require(kind, name)
                found.append(name)
            except NotInstalledError as error:
                missing.append(f"{title(kind, name)}: {str(error).partition('; ')[0]}")
    return found


def _data(request: Request) -> tuple[int, dict[str, Any]]:
    """Return the number of training images, and the fields that describe the data."""
    folder = request.data_dir
    data_format = "folder" if (folder / "train").is_dir() else "tfrecord"
    if data_format == "tfrecord" and not any(folder.glob("**/train-*-of-*")):
        data_format = "folder"  # whose message explains what is expected
    check_data(folder, data_format)
    spec = RunSpec.parse({"classes": 10**6, "data_format": data_format})
    listing = Dataset(spec, folder, "train")
    name = re.sub(r"\W", "_", folder.name.lower(), flags=re.ASCII) or "data"
    classes = len(listing.listing.classes) or 1000
    return len(listing), {"dataset": name, "data_format": data_format, "classes": classes}


def describe(spec: RunSpec) -> str:
    """Return a configuration in words."""
    parts = [
        f"{title('strategy', spec.strategy)} with the loader {title('loader', spec.loader)}",
        plural(spec.world_size, "rank"),
        f"{plural(spec.loader_workers, 'loader process')} each",
    ]
    parts += [phrase("precision", spec.precision)] if spec.device == "cuda" else []
    parts += [name for name in ("channels_last", "compile") if getattr(spec, name)]
    return ", ".join(parts)


def difference(spec: RunSpec, other: RunSpec) -> str:
    """Return a configuration by its differences from another one."""
    parts = []
    for name in SEARCHED:
        value = getattr(spec, name)
        if value == getattr(other, name) or (name == "strategy" and spec.world_size == 1):
            continue
        counted = {"gpus_per_node": "rank", "loader_workers": "loader process"}
        text = plural(value, counted[name]) if name in counted else phrase(name, value)
        parts.append(f"loader {text}" if name == "loader" else text)
    return " + ".join(parts)


def epoch_size(spec: RunSpec, step_s: float, images: int) -> tuple[int, dict[str, Any]]:
    """Return the steps of a short epoch, and the fields that make it so short."""
    steps = max(LEAST_STEPS, math.ceil(EPOCH_S[spec.device] / step_s))
    wanted = steps * spec.global_batch_size
    fields = {"train_images": wanted} if wanted <= images else {"min_steps_per_epoch": steps}
    return steps, fields


def plan_text(request: Request, found: Space) -> str:
    """Return what was found on this machine or site, and what will be done."""
    where, after = "here", "then the best combinations"
    limit = (
        f"time: {request.minutes:g} min; Ctrl-C ends with what is known, the same command goes on"
    )
    if found.baseline.nodes > 1:
        where, after = "site", "as many as --max-node-hours allows"
        limit = "packages: those of this login node; a run that lacks one on its nodes fails"
    changes = [difference(one, found.baseline) for one in found.single_changes()[1:]]
    lines = [
        f"{where}: {found.machine}",
        f"data: {found.images:,} training images in {request.data_dir}",
        f"baseline: {describe(found.baseline)}, {found.baseline.local_batch_size} images each",
        f"to try in its place: {'; '.join(changes)}; {after}",
        limit,
    ]
    return "\n".join([*lines, *(f"not tried: {one}" for one in found.missing)])
