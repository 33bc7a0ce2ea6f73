"""No record is pooled with one of another machine, other software or other settings: each field."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddl_core.registry import STRATEGIES
from ddl_tools.analysis.figures import loader_bound
from ddl_tools.analysis.tables import COLUMNS, runs_table, write_tables
from ddl_tools.records.paths import RunFiles, Tree
from tests.analysis.conftest import CODE, MACHINE, MakeRun
from tests.analysis.drawn import configurations
from tests.fields import ALONE, another, is_of_emulation, owner

PACKAGES = {"torch": "2.13.0", "torchvision": "0.28.0", "timm": "1.0", "numpy": "2.4.6",
            "pillow": "13.0.0", "horovod": "0.28.1", "deepspeed": "0.19.8",
            "nvidia-dali-cuda130": "2.4.0", "papermill": "2.7.0"}  # fmt: skip
PROVENANCE = {**CODE, "python": "3.11.7", "packages": PACKAGES}
SYSTEM = {
    **MACHINE,
    "os": "Linux 6.1",
    "accelerator": None,
    "memory_bytes": 25_276_514_304,
    "threads": {"compute": 1, "interop": 2},
    "affinity": {"cores_least": 2, "cores_most": 2, "shared": True},
    "environment": {"OMP_NUM_THREADS": "1", "HOROVOD_CACHE_CAPACITY": "1024", "DALI_X": "1"},
    "settings": {"cudnn_benchmark": True, "cpu_capability": "AVX512"},
    "communication": {"library": "gloo", "bucket_bytes": 26_214_400},
}
Changes = dict[str, Any]


def package(name: str) -> Changes:
    return {"provenance": {"packages": {**PACKAGES, name: "99"}}}


def variable(name: str, value: str) -> Changes:
    return {"system": {"environment": {**SYSTEM["environment"], name: value}}}


def read_data(train: str = "b", evaluation: str = "b") -> dict[str, Any]:
    """Return what a record says of images whose names are the same, and whose contents are not."""
    whole = {"train_images": 64, "eval_images": 16, "classes": 4, "fingerprint": "a"}
    return whole | {
        split: {"version": 2, "names": "a", "bytes": 9, "sample": sample}
        for split, sample in (("train", train), ("eval", evaluation))
    }


OLDER = ("threads", "affinity", "environment", "settings", "communication")
# What is changed in the record of the second run: keys of `system` and `provenance`, or of these.
RECORDS: dict[str, Changes] = {
    "machine": {"system": {"cpu": "Another CPU"}},
    "cpu_cores": {"system": {"cpu_cores": 4}},
    "memory": {"system": {"memory_bytes": 50_000_000_000}},
    "accelerator": {"system": {"accelerator": "Example GPU"}},
    "device_used": {"system": {"device": "cuda"}},
    "kernel": {"system": {"os": "Linux 6.2"}},
    "cuda": {"system": {"cuda": "13.0"}},
    "cudnn": {"system": {"cudnn": 91000}},
    "python": {"provenance": {"python": "3.12.1"}},
    **{name: package(name) for name in ("torch", "torchvision", "timm", "numpy", "pillow")},
    "environment": variable("NCCL_ALGO", "Ring"),
    "value in it": variable("OMP_NUM_THREADS", "2"),
    "threads": {"system": {"threads": {"compute": 1, "interop": 4}}},
    "cores not shared": {"system": {"affinity": {**SYSTEM["affinity"], "shared": False}}},
    "cores uneven": {"system": {"affinity": {**SYSTEM["affinity"], "cores_least": 1}}},
    "switches": {"system": {"settings": {"cudnn_benchmark": False, "cpu_capability": "AVX512"}}},
    "communication": {"system": {"communication": {"library": "nccl", "nccl": "2.27.3"}}},
    "bucket": {"system": {"communication": {"library": "gloo", "bucket_bytes": 1}}},
    "method_version": {"method_version": 99},
    "data": {"data": read_data("c")},
    "validation data": {"data": read_data("b", "c")},
    **{f"older, no {name}": {"system": {name: ...}} for name in ("memory_bytes", *OLDER)},
    "older, none of it": {"system": dict.fromkeys(OLDER, ...)},
}
OWN: dict[str, tuple[Changes, Changes]] = {
    "horovod": (package("horovod"), {"strategy": "horovod"}),
    "deepspeed": (package("deepspeed"), {"strategy": "deepspeed"}),
    "HOROVOD_CACHE_CAPACITY": (variable("HOROVOD_CACHE_CAPACITY", "1"), {"strategy": "horovod"}),
    "dali": (package("nvidia-dali-cuda130"), {"loader": "dali_cpu"}),
    "DALI_X": (variable("DALI_X", "2"), {"loader": "dali_cpu"}),
}
CHANGES = {field: (changes, {}) for field, changes in RECORDS.items()} | OWN

# Every setting but its configuration, its number of ranks, and what neither half of a training
# depends on. That no field is pooled at all: test_never_one.
FREE = {"framework", "strategy", "loader", "data_format", "model", "nodes", "gpus_per_node",
        "device", "work", "eval_images", "momentum", "weight_decay", "schedule", "base_lr",
        "lr_scaling", "precise_bn", "warmup_epochs", "label_smoothing", "eval_every",
        "checkpoint_every", "discard_steps", "seed", "repeat", "optimizer",
        "adam_beta1", "adam_beta2", "adam_eps"}  # fmt: skip
FIELDS = [name for name in ALONE if name not in FREE and not is_of_emulation(name)]
# What one half of a training does not depend on.
NOT_OF_LOADING = {"train_images", "classes", "accumulation", "precision", "channels_last",
                  "compile", "clip_grad_norm", "activation_checkpointing", "switches",
                  "communication", "bucket",
                  "older, no settings", "older, no communication", "horovod", "deepspeed",
                  "HOROVOD_CACHE_CAPACITY", "validation data"}  # fmt: skip
NOT_OF_TRAINING = {"dataset", "train_images", "loader_workers", "loader_prefetch", "pin_memory",
                   "persistent_workers", "uncached", "dali_decode", "dali",
                   "DALI_X", "data", "validation data"}  # fmt: skip

Write = Any


def named(field: str) -> str:
    """Return the study of the runs that differ in a field."""
    return re.sub(r"\W+", "_", field).lower()


@pytest.fixture
def write(make_run: MakeRun) -> Write:
    """Return a function that writes a run of two DDP ranks, with changes to its record."""

    def make(repeat: int = 0, changes: Changes | None = None, **fields: Any) -> Path:
        shared = {"gpus_per_node": 2} if "nodes" not in fields else {}
        about = {"strategy": "ddp", **shared, **fields}
        directory = make_run(repeat=repeat, system=SYSTEM, **about)
        path = RunFiles(directory).record
        record = json.loads(path.read_text())
        record["provenance"] = PROVENANCE
        record["data"] = read_data()
        for key, change in (changes or {}).items():
            whole = {**record[key], **change} if isinstance(change, dict) else change
            if isinstance(whole, dict):
                whole = {name: value for name, value in whole.items() if value is not ...}
            record[key] = whole
        path.write_text(json.dumps(record))
        return directory

    return make


def test_repeats_of_one_machine_are_pooled(tree: Tree, write: Write) -> None:
    """Whatever differs in frameworks that they do not use, or measures nothing."""
    unused = {field: changes for field, (changes, _) in OWN.items()}
    unused["papermill"] = package("papermill") | {"system": {"load_average_1min": 9.0}}
    for field, changes in unused.items():
        write(0, study=named(field))
        write(1, changes, study=named(field))
    assert configurations(tree)["n"].tolist() == [2] * len(unused)


def test_another_record_is_not_pooled(tree: Tree, write: Write) -> None:
    for field, (changes, about) in CHANGES.items():
        write(0, study=named(field), **about)
        write(1, changes, study=named(field), **about)
    table = configurations(tree)
    assert table["n"].tolist() == [1] * 2 * len(CHANGES)
    names = table[["study", "setting", "hardware"]].drop_duplicates()
    assert names["study"].value_counts().to_dict() == dict.fromkeys(map(named, CHANGES), 2)


def test_nodes_that_fill_up_are_one_series(tree: Tree, write: Write) -> None:
    """1x1, 1x2 and 2x2; one rank on each of two nodes is another."""
    sizes = [(1, 1), (1, 2), (2, 2), (2, 1)]
    for nodes, each in sizes:
        write(nodes=nodes, gpus_per_node=each)
    table = configurations(tree)
    series = table.groupby("setting")["world_size"].agg(list).to_dict()
    name = "laptop: 96 px, batch 16, fp32, ranks per node"
    assert series == {f"{name} 2": [1, 2, 4], f"{name} 1": [2]}


def test_one_rank_begins_the_series_of_many(tree: Tree, write: Write) -> None:
    """It shares its cores with no other rank, which is the same setting."""
    alone = {"system": {"affinity": {"cores_least": 2, "cores_most": 2, "shared": None}}}
    write(0, alone, gpus_per_node=1)
    write(0)
    table = configurations(tree)
    assert table["setting"].tolist() == ["laptop: 96 px, batch 16, fp32"] * 2
    assert table["base_world_size"].tolist() == [1, 1]


def test_frameworks_share_a_setting_however_they_communicate(tree: Tree, write: Write) -> None:
    write(0)
    write(0, {"system": {"communication": {"fusion_bytes": 1}}}, strategy="horovod")
    write(0, loader="dali_cpu")
    assert configurations(tree)["setting"].nunique() == 1


def test_names_tell_what_differs_in_short(tree: Tree, write: Write) -> None:
    for repeat in (0, 1):
        write(repeat)
    write(2, {"provenance": {"packages": {**PACKAGES, "torch": "2.14.0"}}})
    write(3, RECORDS["bucket"])
    write(4, RECORDS["older, none of it"])
    name = "laptop: 96 px, batch 16, fp32"
    settings = set(configurations(tree)["setting"])
    usual = f"{name}, torch 2.13.0"
    assert settings == {
        usual,
        f"{name}, torch 2.14.0",
        f"{usual}, PyTorch-DDP: bucket_bytes=1",
        f"{usual}, unknown environment, threads, switches, cores shared",
    }


def test_a_run_that_failed_early_has_what_its_study_has(tree: Tree, write: Write) -> None:
    write(0)
    lost = write(1, {"status": "failed", "provenance": None, "system": None})
    RunFiles(lost).epochs.unlink()
    (row,) = configurations(tree).to_dict("records")
    assert (row["n"], row["failed"]) == (1, 1)


def test_what_differs_is_no_half(tree: Tree, write: Write) -> None:
    """A study for each field: runs and their halves, each half once more with the field changed."""
    settings = [name for name in FIELDS if name not in ("prefix", "profile_steps")]
    cases = {field: (changes, about, {}) for field, (changes, about) in CHANGES.items()}
    cases |= {field: ({}, owner(field), {field: another(field)}) for field in settings}
    cases["nodes"] = ({}, {}, {"nodes": 2, "gpus_per_node": 1})  # as many ranks
    assert len(cases) == len(CHANGES) + len(settings) + 1
    wanted = {}
    for field, (changes, about, fields) in cases.items():
        study = named(field)
        free = {name: value for name, value in about.items() if name != "loader"}
        write(0, study=study, **about)
        write(0, study=study, **about, work="load")
        write(0, study=study, **free, loader="synthetic")
        write(1, changes, study=study, **{**about, "work": "load", **fields})
        write(1, changes, study=study, **{**free, "loader": "synthetic", **fields})
        owned = field.split("_")[0] in STRATEGIES
        loading = 2 if field in NOT_OF_LOADING or owned else 1
        wanted[study] = (loading, 2 if field in NOT_OF_TRAINING else 1)
    rows = loader_bound.points(runs_table(tree))
    assert len(rows) == len(wanted)
    counts = zip(rows["loading_n"], rows["training_n"], strict=True)
    assert dict(zip(rows["study"], counts, strict=True)) == wanted


def test_a_table_keeps_what_divides(tree: Tree, write: Write) -> None:
    """An empty cell would be what an older record has."""
    write(0, {"system": {"environment": {}, "communication": {}}}, strategy="single",
          gpus_per_node=1)  # fmt: skip
    table = write_tables(tree, "laptop")[0]
    texts = ["cores_shared", "software", "environment", "threads", "switches", "communication",
             "loader_software"]  # fmt: skip
    assert set(texts) < set(COLUMNS)
    assert table[texts].notna().all(axis=None)
    pd.testing.assert_frame_equal(table[texts], runs_table(tree)[texts])
