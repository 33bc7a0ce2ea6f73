"""Names of runs in plain words: the fields in which the runs of a list differ."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ddl_core.config import RunSpec
from ddl_core.registry import REGISTRIES, owner, title

IN_RUN_ID = ("framework", "strategy", "loader", "model", "nodes", "gpus_per_node", "repeat")
"""Fields in the readable part of a run's name."""

# What people call some values. The fields below, and the registered ones, need no word beside them.
NAMES: dict[str, dict[Any, str]] = {
    "work": {"train": "training", "load": "loading alone"},
    "dataset": {
        "fashion_mnist": "Fashion-MNIST",
        "cifar10": "CIFAR-10",
        "imagenet": "ImageNet",
        "sample": "sample set",
    },
    "data_format": {"folder": "folders", "tfrecord": "TFRecord"},
    "optimizer": {"sgd": "SGD", "lars": "LARS", "lamb": "LAMB"},
    "lr_scaling": {"linear": "linear scaling", "sqrt": "square-root scaling"},
    "dali_decode": {"gpu": "", "cpu": "decoding on the CPU"},  # of one loader alone
    "precision": {"torch": "TF32 in convolutions"},
    "prefix": {None: "no prefix"},
    "emulated": {True: "emulated", False: "measured"},
    "schedule": {
        "step": "step",
        "cosine": "cosine",
        "exponential": "exponential",
        "constant": "constant rate",
    },
}
# Where a field's own name, without underscores, says it worse.
_WORDS = {
    "gpus_per_node": "ranks per node",
    "local_batch_size": "batch",
    "base_lr": "learning rate",
    "warmup_epochs": "warm-up epochs",
    "crop_min_area": "smallest crop",
    "train_images": "training images",
    "eval_images": "evaluation images",
    "cpu_threads": "compute threads",
    "compile": "torch.compile",
    "precise_bn": "precise batch norm",
    "decay_norm_bias": "decay of norm and bias",
    "loader_prefetch": "prefetched batches",
    "pin_memory": "pinned memory",
    "deepspeed_zero_stage": "ZeRO stage",
    "deepspeed_overlap_comm": "overlap",
    "ddp_powersgd_rank": "PowerSGD rank",
    "ddp_powersgd_start": "PowerSGD start",
    "emu_link_mbit": "link",
    "emu_uplink_mbit": "uplink",
    "emu_step_ms": "compute",
    "emu_shrink": "gradients smaller by",
    "emu_straggler": "straggler",
    "emu_jitter": "jitter",
    "emu_draws": "GPUs per rank",
}
# By how a field's name ends.
_UNITS = {"mb": "MiB", "gib": "GiB", "ms": "ms", "mbit": "Mbit/s", "elements": "numbers"}
_DEFAULT = "default settings"


def labels(runs: Iterable[RunSpec | Mapping[str, Any]], without: Collection[str] = ()) -> list[str]:
    """Return of each run its values of the fields that vary, e.g. ``"batch 64, no pinned memory"``.

    Two labels are equal only if their runs differ in nothing but `without`. A
    setting of a strategy is named for runs of this strategy; if several vary, for runs that change
    it. What follows from the number of ranks of a node is left out beside it.
    """
    rows = [dict(run) for run in runs]
    names = varying(rows, without)
    if "gpus_per_node" in names:
        names = varying(rows, (*without, *following(rows)))
    return [", ".join(filter(None, _parts(row, names))) for row in rows]


class Names(dict[str, str]):
    """What runs are called, by `run_id`; one that is not of the list has its bare name."""

    def __missing__(self, run_id: str) -> str:
        return run_id


def named(runs: Iterable[RunSpec]) -> Names:
    """Return by `run_id` the name of each run of a list, and what it lacks in brackets."""
    specs = list(runs)
    pairs = zip(specs, labels(specs, (*IN_RUN_ID, *following(specs))), strict=True)
    return Names(
        (spec.run_id, spec.run_id + (f" ({label})" if label else "")) for spec, label in pairs
    )


def as_asked(run: RunSpec) -> str:
    """Return in words what the end of a run's name is a hash of: all that is not at its default."""
    fields = run.model_dump(exclude_defaults=True)
    return ", ".join(phrase(name, fields[name]) for name in fields if name not in IN_RUN_ID)


def varying(rows: Sequence[Mapping[str, Any]], without: Collection[str] = ()) -> list[str]:
    """Return the fields of `RunSpec` in which rows differ, in its order.

    A setting of a strategy varies if the runs of this strategy differ in it.
    """
    found = []
    for name in RunSpec.model_fields:
        if name in without or not rows or name not in rows[0]:
            continue
        own = owner(name)
        values = {row[name] for row in rows if own in (None, row.get("strategy"))}
        if len(values) > 1:
            found.append(name)
    return found


def following(runs: Iterable[RunSpec | Mapping[str, Any]]) -> list[str]:
    """Return the fields whose values follow from the number of ranks of a node, in these runs.

    Ranks share the cores of a node: where each number of ranks has one number of threads, a name
    with the first need not have the second.
    """
    rows = [dict(run) for run in runs]
    pairs = {(row["gpus_per_node"], row["cpu_threads"]) for row in rows}
    return ["cpu_threads"] if len(pairs) == len({ranks for ranks, _ in pairs}) else []


def called(library: str, strategy: str) -> str:
    """Return what a strategy of a library is called: PyTorch-DDP, but ``"PyTorch, Horovod"``."""
    names = title("framework", library), title("strategy", strategy)
    return names[1] if names[1].startswith(names[0]) else ", ".join(names)


def configuration(run: RunSpec) -> str:
    """Return what runs of all sizes have in common, e.g. ``"PyTorch-DDP, native, ResNet50"``."""
    return ", ".join(_parts(dict(run), ["framework", "strategy", "loader", "model"]))


def phrase(field: str, value: Any) -> str:
    """Return a field and its value in plain words, e.g. ``"bucket 25 MiB"``."""
    if field in REGISTRIES:
        return title(field, value)
    if field in NAMES:
        return NAMES[field].get(value, str(value))
    word, unit = _word(field)
    if value is None:
        return f"all {word}" if field.endswith("_images") else f"default {word}"
    if isinstance(value, bool):
        return word if value else f"no {word}"
    return f"no {word}" if value == "none" else f"{word} {_text(value)}{unit}"


def plural(number: int, word: str) -> str:
    """Return a number with its word, e.g. ``"1 rank"``, ``"2 ranks"`` or ``"2 processes"``."""
    end = "es" if word.endswith("s") else "s"
    return f"{number} {word}" if number == 1 else f"{number} {word}{end}"


def _parts(row: Mapping[str, Any], names: list[str]) -> list[str]:
    own = [name for name in names if owner(name) == row.get("strategy", "")]
    shown = own
    if len(own) > 1:
        shown = [name for name in own if row[name] != RunSpec.model_fields[name].default]
    parts = []
    both = {"framework", "strategy"} <= set(names)
    for name in names:
        if both and name in ("framework", "strategy"):
            parts += [called(row["framework"], row["strategy"])] if name == "strategy" else []
        elif name == "data_format" and row.get("loader") == "synthetic":
            continue  # it reads no files
        elif name == "second_start" and not row[name] and len(names) > 1:
            continue  # as every other run
        elif name in shown or not owner(name):
            parts.append(phrase(name, row[name]))
        elif own and not shown and name == own[0]:
            parts.append(_DEFAULT)
    return parts


def _word(field: str) -> tuple[str, str]:
    """Return what stands before and after a value."""
    own = field.removeprefix(f"{owner(field)}_")
    stem, _, ending = own.rpartition("_")
    unit = f" {_UNITS[ending]}" if stem and ending in _UNITS else ""
    return _WORDS.get(field, (stem if unit else own).replace("_", " ")), unit


def _text(value: Any) -> str:
    """Return a number as short as it can be, without losing a digit."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
