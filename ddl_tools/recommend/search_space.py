"""What can be tried here: the machine, the data, and the settings that a search varies."""

import hashlib
import math
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddl_core import registry
from ddl_core.config import RunSpec, run_fields
from ddl_core.data.dataset import Dataset
from ddl_core.data.formats import format_of
from ddl_core.errors import DataError, NotInstalledError, SpecError
from ddl_core.registry import title
from ddl_tools import gpus, limits
from ddl_tools.launch.preflight import check_data
from ddl_tools.launch.slurm.site import Site
from ddl_tools.names import describe, joined, label, plural
from ddl_tools.recommend.plan import NCHW, RECOMPUTATION, Level, Space, changed
from ddl_tools.records.provenance import host
from ddl_tools.scaling.candidate import NAMED, Machine

BATCH = {"cpu": 8, "cuda": 64}  # images per rank and step
MOST_LOADER_WORKERS = 8
EPOCH_S = {"cpu": 1.0, "cuda": 3.0}  # of the default's training
LEAST_STEPS = 2  # of an epoch
DOUBLINGS = 5  # of the batch
# `memory` keeps a small set decoded, for studies of accuracy: a part of a large set would fit.
NO_CANDIDATES = ("synthetic", "memory", "single")
GIB = 2**30
AMPERE = (8, 0)  # the first GPUs that compute with bfloat16
# Fields that save memory.
SAVING = ("ddp_bucket_view", "deepspeed_zero_stage", RECOMPUTATION)
# Fields that a search varies. The threads of a rank follow from the number of ranks, the learning
# rate from the batch.
SEARCHED = (
    *("strategy", "loader", "dali_decode", "gpus_per_node", "loader_workers", "local_batch_size"),
    *("precision", "channels_last", "compile"),
    "work",  # the loader alone
    "command",
    *SAVING,
)


@dataclass(frozen=True)
class Request:
    """What is asked of `ddl recommend`; what is empty is chosen here."""

    model: str
    data_dir: Path
    minutes: float = 10.0
    workers: tuple[int, ...] = ()
    epochs: int = 90
    batch: int | None = None
    image_size: int = 224
    precision: str | None = None
    max_batch: int | None = None
    uncached: bool = False

    def __post_init__(self) -> None:
        """Raise `SpecError` for numbers of ranks that are none, e.g. a text of papermill's."""
        if wrong := [one for one in self.workers if not isinstance(one, int) or one < 1]:
            raise SpecError(
                f"workers: {wrong[0]!r} is no number of ranks",
                remedy="give them as a list, e.g. papermill -y 'workers: [1, 2]'",
            )


def space(request: Request) -> Space:
    """Look at the machine and the data, and return what can be tried.

    `DataError` if the folder holds no data set, or too few images. `SpecError` if more ranks are
    asked for than this machine has cores or GPUs.
    """
    listed, here = gpus.listed(), Machine.here().ranks_per_node
    cores, device = host()["cpu_cores"], "cuda" if listed else "cpu"
    if too_many := [one for one in request.workers if one > here]:
        raise SpecError(
            f"--workers {too_many[0]}: this machine has {here} {'GPUs' if listed else 'cores'}, "
            "and each rank needs one of its own"
        )
    # With GPUs, all of them: fewer train no faster.
    counts = {*request.workers} or ({here} if listed else {*_powers(here), here})
    found = _space(request, device, cores, counts)
    if listed and listed.vendor != "NVIDIA":
        found = _without_dali(found)
    return on_this_machine(found, request.data_dir)


def on_this_machine(found: Space, folder: Path) -> Space:
    """Return what can be tried, with what this machine is and has; `folder` is on its disk."""
    machine, listed = host(), gpus.listed()
    hardware = f"{plural(machine['cpu_cores'], 'core')} ({machine['cpu']}), " + (
        f"{len(listed.names)} x {listed.names[0]}, driver {listed.driver}" if listed else "no GPU"
    )
    room = (
        f"{limits.memory_bytes() / GIB:.0f} GiB of memory "
        f"({limits.free_memory_bytes() / GIB:.0f} free), "
        f"{shutil.disk_usage(folder).free / GIB:.0f} GiB of disk free"
    )
    return replace(found, machine=f"{hardware}, {room}", hardware=hardware)


def site_space(request: Request, site: Site) -> Space:
    """Return what a node of a site may try, as far as a login node knows; errors as of `space`."""
    device = "cuda" if site.gpus_per_node else "cpu"
    ranks = max(request.workers, default=site.gpus_per_node or 1)
    found = _space(request, device, ranks * site.cpus_per_rank, {ranks})
    found = found if site.dali else _without_dali(found)
    return replace(found, machine=site.description, hardware=site.description)


def _without_dali(found: Space) -> Space:
    """Return what can be tried on GPUs that are not NVIDIA's."""
    loaders = [one for one in found.loaders if not one["loader"].startswith("dali")]
    return replace(found, loaders=loaders)


def search_name(model: str, text: str) -> str:
    """Return the name of the study of a search, by its network and a text that tells it apart."""
    word = re.sub(r"\W", "_", model.lower(), flags=re.ASCII)
    # A study's name has at most LONGEST_NAME characters; the hash tells long ones apart.
    return f"recommend_{word[:64]}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _powers(most: int) -> set[int]:
    return {2**power for power in range(most.bit_length())}


def _space(request: Request, device: str, cores: int, counts: set[int]) -> Space:
    images, data = _data(request)
    most = max(counts)
    if images < most:
        raise DataError(
            f"{request.data_dir} has {plural(images, 'training image')} for {plural(most, 'rank')}"
        )
    batch = min(request.batch or BATCH[device], images // most)
    default = RunSpec.parse(
        {
            **data,
            "model": request.model,
            "image_size": request.image_size,
            "device": device,
            "precision": request.precision or ("torch" if device == "cuda" else "fp32"),
            "local_batch_size": batch,
            "loader_workers": max(1, min(MOST_LOADER_WORKERS, cores // most)),
            "epochs": 4,  # a cold one, the first of a start, and two that count
            "discard_steps": 1,
            "eval_every": 0,
            "checkpoint_every": 0,
            "uncached": request.uncached,
            **_ranks(most, cores),
        }
    )
    missing: list[str] = []
    fewer = [one for one in sorted(counts, reverse=True) if one < most and most * batch % one == 0]
    largest = request.max_batch or (batch * 2**DOUBLINGS if device == "cuda" else batch)
    doubled = [batch * 2**power for power in range(1, DOUBLINGS + 1)]
    strategies = _installed("strategy", missing) * (most > 1)
    return Space(
        default,
        settings=_settings(request, device),
        ranks=[_ranks(one, cores) | {"local_batch_size": most * batch // one} for one in fewer],
        strategies=[one for one in strategies if one != "ddp"],
        savings=_savings(strategies),
        loaders=_loaders(device, _installed("loader", missing)),
        larger=[one for one in doubled if one <= min(largest, images // most)],
        compiles=device == "cuda",
        images=images,
        missing=missing,
    )


def _settings(request: Request, device: str) -> list[Level]:
    """Return the arithmetic to try: what helps together is one level."""
    if request.precision or device == "cpu":
        return [{"channels_last": True}]
    older = (least := gpus.capability()) is not None and least < AMPERE
    half = "fp16" if older else "bf16"
    return [{"precision": half, "channels_last": True}]


def _savings(strategies: list[str]) -> list[Level]:
    """Return what needs less memory than the default, in the order of its usual cost."""
    sharded: list[Level] = [
        {"strategy": "ddp", "ddp_bucket_view": True},
        *({"strategy": "deepspeed", "deepspeed_zero_stage": stage, **NCHW} for stage in (1, 2)),
        {"strategy": "fsdp", **NCHW},
        {"strategy": "deepspeed", "deepspeed_zero_stage": 3, **NCHW},
    ]
    alone = [one for one in sharded if one["strategy"] in strategies]
    return [*alone, *({**one, RECOMPUTATION: True} for one in ({}, *alone))]


def _loaders(device: str, names: list[str]) -> list[Level]:
    levels: list[Level] = [
        {"loader": name} for name in names if device == "cuda" or name != "dali_gpu"
    ]
    if {"loader": "dali_gpu"} in levels:
        levels.append({"loader": "dali_gpu", "dali_decode": "cpu"})
    return levels


def _ranks(count: int, cores: int) -> dict[str, Any]:
    """Return the fields of a number of ranks, which share the cores."""
    strategy = "ddp" if count > 1 else "single"
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
    data_format = format_of(folder)
    check_data(folder, data_format)
    spec = RunSpec.parse({"classes": 10**6, "data_format": data_format})
    listing = Dataset(spec, folder, "train")
    name = re.sub(r"\W", "_", folder.name.lower(), flags=re.ASCII) or "data"
    classes = len(listing.listing.classes) or 1000
    return len(listing), {"dataset": name, "data_format": data_format, "classes": classes}


def settings(spec: RunSpec) -> str:
    """Return what the name of a configuration has beside strategy and loader."""
    shown = ["loader_workers", *(["precision"] if spec.device == "cuda" else [])]
    switches = ("channels_last", "compile", *SAVING)
    shown += [name for name in switches if getattr(spec, name)]
    return describe({name: getattr(spec, name) for name in shown})


def named(spec: RunSpec) -> str:
    """Return a configuration in words."""
    both = {name: getattr(spec, name) for name in NAMED}
    return joined(describe(both), settings(spec), plural(spec.world_size, "rank"))


def change(spec: RunSpec, other: RunSpec) -> str:
    """Return a configuration by what it changes of another one."""
    # Beside another strategy, a setting has no name: one without it stands for its default.
    plain = spec.model_copy(update={name: run_fields()[name].default for name in SAVING})
    return label([other, plain, spec], run_fields().keys() - {*SEARCHED, "nodes"})[2]


def savings_text(found: Space) -> str:
    """Return what would be tried where the default runs out of memory."""
    alone = [one for one in found.savings if RECOMPUTATION not in one]
    names = [change(one, found.default) for one in changed(found.default, *alone)]
    again = "each again with activation checkpointing" if names else "activation checkpointing"
    return f"if the default runs out of memory: {'; '.join([*names, again])}"


def epoch_size(spec: RunSpec, step_s: float, images: int) -> dict[str, Any]:
    """Return the fields of a short epoch, of at least two steps at any batch."""
    steps = max(LEAST_STEPS, math.ceil(EPOCH_S[spec.device] / step_s))
    wanted = steps * spec.global_batch_size
    if wanted > images:
        return {"min_steps_per_epoch": steps}
    return {"train_images": wanted, "min_steps_per_epoch": LEAST_STEPS}


def plan_text(request: Request, found: Space) -> str:
    """Return what was found on this machine, and what will be done."""
    default = found.default
    levels = [*found.settings, *({"strategy": one} for one in found.strategies), *found.ranks]
    levels += [{"compile": True}] if found.compiles else []
    training = ["the default", *(change(one, default) for one in changed(default, *levels))]
    training += [f"batches up to {max(found.larger)}"] if found.larger else []
    lines = [
        f"here: {found.machine}",
        f"data: {found.images:,} training images in {request.data_dir}",
        f"default (what PyTorch does by itself): {named(default)}, "
        f"{default.local_batch_size} images per rank and step",
        f"1. training alone: {'; '.join(training)}",
        f"2. loading alone: {'; '.join(map(describe, found.loaders))}",
        f"3. the best pairs of both and the default, interleaved, in the rest of "
        f"{request.minutes:g} min",
        savings_text(found),
        "Ctrl-C ends with what is known; the same command goes on",
    ]
    return "\n".join([*lines, *(f"not tried: {one}" for one in found.missing)])
