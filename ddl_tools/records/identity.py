"""Identity of runs: which of their settings, and which facts, must agree for them to be the same.

There are several kinds of sameness. Each is the set of names that it leaves free: two runs are the
same if their descriptions agree in all other names. A field that `RunSpec` may get later divides
runs of each kind until it is listed here: no runs are pooled by oversight.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ddl_core.config import run_fields
from ddl_core.registry import owner
from ddl_tools.names import ITEMS, plural
from ddl_tools.records import software
from ddl_tools.records.run import Contents, RunRecord

log = logging.getLogger(__name__)

MACHINE = ("device_used", "accelerator", "machine", "cpu_cores", "memory_gib", "cores_shared")
SOFTWARE = ("software", "environment", "threads", "switches", "communication", "loader_software")
DATA = ("data", "eval_data")
FACTS = (*MACHINE, *SOFTWARE, *DATA, "method_version")
"""Names of a description besides the fields of a run."""
NAMES = (*run_fields(), *FACTS)

# Parts of the kinds of sameness.
REPEATS = frozenset({"seed", "repeat"})
SIZE = frozenset({"nodes", "gpus_per_node"})
BATCH = SIZE | {"local_batch_size", "accumulation", "micro_batches_per_pass"}
STRATEGY = frozenset({"strategy", "communication", *filter(owner, run_fields())})
LOADER = frozenset({"loader", "data_format", "loader_software", "data"})
# How well is learnt: the same arithmetic in other numbers.
LEARNING = frozenset(
    {
        *("schedule", "base_lr", "lr_scaling", "warmup_epochs"),
        *("label_smoothing", "momentum", "weight_decay"),
        *("adam_beta1", "adam_beta2", "adam_eps"),
    }
)
# What is done beside the steps that count.
BESIDES = frozenset({"eval_images", "eval_data", "eval_every", "precise_bn", "checkpoint_every"})
# How many steps count.
LENGTH = frozenset({"epochs", "train_images", "discard_steps", "min_steps_per_epoch"})
# How a strategy cuts and times its messages.
MESSAGES = frozenset(
    {
        *("ddp_bucket_mb", "ddp_first_bucket_mb", "ddp_bucket_view"),
        *("horovod_fusion_mb", "horovod_cycle_ms"),
    }
)
_READING = {"loader_workers", "loader_prefetch", "pin_memory", "persistent_workers"}
_READING |= {"uncached", "dali_decode"}
_ARITHMETIC = {"precision", "channels_last", "compile", "optimizer", "clip_grad_norm", "switches"}
_ARITHMETIC |= {"activation_checkpointing"}

# Kinds of sameness.
CONFIGURATION = REPEATS
"""Starts of one configuration, which are pooled."""
SERIES = REPEATS | SIZE | {"cores_shared"}
"""One configuration on several numbers of ranks."""
SHARED_BATCH = SERIES | {"local_batch_size"}
"""The same on several numbers of ranks that share a global batch: its size has to agree as well."""
SPEED = SERIES | LEARNING | BESIDES | LENGTH
"""The same throughput to be expected of a number of ranks, whatever is learnt."""
SINGLE = SERIES | STRATEGY
"""The same work done by any strategy of a framework."""
# A loader does not know what is done with its batches, and loads more images in a window as long.
LOADING = (REPEATS | STRATEGY | LEARNING | BESIDES | _ARITHMETIC) | {
    "device",
    "work",
    "model",
    "classes",
    "accumulation",
    "train_images",
    "discard_steps",
}
"""The same loading, of trainings and of loaders by themselves."""
# Training on synthetic data does not depend on how data would be read.
TRAINING = (REPEATS | LOADER | LEARNING | BESIDES | _READING) | {
    "device",
    "dataset",
    "train_images",
    "discard_steps",
}
"""The same training on synthetic data."""
WEIGHTS = MESSAGES | {"strategy", "communication", *MACHINE, *SOFTWARE}
"""The same final weights on one machine with one software: see `agreement`."""


def description(record: RunRecord) -> dict[str, Any]:
    """Return all that identifies a run, by name: `NAMES`; facts are missing before its start."""
    system = record.system or {}
    return {
        **dict(record.spec),
        **dict.fromkeys(FACTS),
        **{name: system.get(name) for name in ("accelerator", "cpu_cores")},
        **software.columns(record),
        **_data(record),
        "device_used": system.get("device"),
        "machine": system.get("cpu"),
        "method_version": record.method_version,
    }


def _data(record: RunRecord) -> dict[str, str | None]:
    """Return what the images are recognised by: of older records, their names alone."""
    if not (found := record.data) or not found.fingerprint:
        return {}
    evaluation = found.eval
    return {
        "data": _images(found.fingerprint, found.train),
        "eval_data": _images(evaluation.names, evaluation) if evaluation else None,
    }


def _images(names: str, found: Contents | None) -> str:
    items = [f"names {names[:8]}"]
    if found:
        items += [f"{found.bytes} bytes", f"sample {found.sample[:8]} (v{found.version})"]
    return ITEMS.join(items)


def complete(abouts: Iterable[dict[str, Any]]) -> None:
    """Fill in the data of which only names are known, where one set alone has these names.

    Compared are descriptions that agree in all else, and in their ``study`` if they have one. The
    log says of how many the names alone were compared.
    """
    alike: dict[tuple[Any, str], list[dict[str, Any]]] = {}
    for about in abouts:
        if about.get("data"):
            place = about.get("study"), key(about, REPEATS.union(DATA))
            alike.setdefault(place, []).append(about)
    filled = 0
    for group in alike.values():
        for name in DATA:
            wholes = {text for about in group if ITEMS in (text := about.get(name) or "")}
            for about in group:
                begun = f"{about[name]}{ITEMS}" if about.get(name) else ""
                whole = [text for text in wholes if text.startswith(begun)]
                if len(whole) == 1:
                    about[name] = whole[0]
                    filled += name == "data"
    if filled:
        log.warning(
            "of %s, the data were compared by the names of files alone", plural(filled, "run")
        )


def dividing(free: Iterable[str]) -> list[str]:
    """Return the names in which runs of a kind of sameness agree."""
    left = set(free)
    return [name for name in NAMES if name not in left]


def key(about: Mapping[str, Any], free: Iterable[str]) -> str:
    """Return 12 hexadecimal digits, the same for descriptions that agree in all but `free`.

    Missing names and values at their default do not enter: a field that is added later changes no
    key.
    """
    found = {name: _plain(about.get(name)) for name in dividing(free)}
    told = {name: value for name, value in found.items() if value not in (None, _DEFAULTS[name])}
    text = json.dumps(told, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def columns(about: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that a table of runs has, by column."""
    return {"configuration": key(about, CONFIGURATION), "series": key(about, SERIES)}


def _plain(value: Any) -> Any:
    """Return a value as JSON knows it; a number has the digits that a table keeps."""
    if isinstance(value, str | bool | None):
        return value
    return f"{value:.9g}"


_DEFAULTS = {name: _plain(field.default) for name, field in run_fields().items()}
_DEFAULTS |= dict.fromkeys(FACTS)
