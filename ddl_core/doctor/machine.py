"""Cores, memory and GPUs of this machine, and the folders that runs read and write."""

import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from ddl_core.datasets.folder import class_folders
from ddl_core.datasets.record_index import index_path
from ddl_core.datasets.shard_names import absent, shards_in
from ddl_core.doctor.finding import Finding
from ddl_core.errors import DataError, DDLError
from ddl_core.launch.preflight import check_data, check_room, gpu_count
from ddl_core.records.paths import Tree, shards_folder
from ddl_core.records.provenance import available_cores, file_system
from ddl_core.spec.run import RunSpec


def examine(runs: list[RunSpec]) -> list[Finding]:
    """Return what this machine has, against what `runs` need of it."""
    cores, gpus = available_cores(), gpu_count()
    ranks = max(run.world_size for run in runs)
    memory = psutil.virtual_memory()
    return [
        Finding(
            "cores",
            "ok" if cores >= ranks else "bad",
            f"{cores}, the laptop study uses {ranks}",
            "another machine, or fewer gpus_per_node in a copy of studies/laptop.yaml",
        ),
        Finding(
            "memory", "ok", f"{memory.total / 1e9:.0f} GB, {memory.available / 1e9:.0f} GB free"
        ),
        Finding("gpus", "ok", str(gpus or "none, runs use the CPU")),
    ]


def results(tree: Tree) -> Finding:
    """Say whether records can be written."""

    def look() -> str:
        check_room(tree.root)
        place = next(one for one in (tree.root, *tree.root.parents) if one.exists())
        free = shutil.disk_usage(place).free / 1e9
        return f"{tree.root}, {free:.0f} GB free on {file_system(place)}"

    return _checked("results", look, "ddl ... --results DIR, or DDL_RESULTS=DIR")


def data(folder: Path, data_format: str) -> Finding:
    """Say whether a data folder has both splits, all classes, and for TFRecord all shards."""

    def look() -> str:
        check_data(folder, data_format)
        found = _shards(folder) if data_format == "tfrecord" else _classes(folder)
        return f"{folder}, {found}, on {file_system(folder)}"

    remedy = "ddl data sample, or --data DIR; which files are damaged: ddl data verify DIR"
    return _checked("data", look, remedy)


def _classes(folder: Path) -> str:
    train, val = (set(class_folders(folder / split)) for split in ("train", "val"))
    if unknown := sorted(val - train):
        raise DataError(f"{folder / 'val'} has classes that training does not know: {unknown[0]}")
    rest = f" ({len(train - val)} of them without validation images)" if train - val else ""
    return f"{len(train)} classes{rest}"


def _shards(folder: Path) -> str:
    place, counts = shards_folder(folder), []
    for split in ("train", "val"):
        names = shards_in(place, split)
        if gone := absent(split, names):
            raise DataError(f"{place} lacks {len(gone)} shards: {gone[0]}")
        if bare := [name for name in names if not index_path(place / name).exists()]:
            raise DataError(f"{place} lacks the index of {len(bare)} shards: {bare[0]}")
        counts.append(len(names))
    return f"{counts[0]} + {counts[1]} shards"


def _checked(subject: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(subject, "ok", look())
    except DDLError as error:
        return Finding(subject, "bad", str(error).splitlines()[0].split(";")[0], remedy)
