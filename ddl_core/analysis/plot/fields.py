"""What tells arms apart, in words: the fields in which they differ, each value with its unit.

Words follow from a field's name where nothing better is listed, so that a field which `RunSpec`
gets later has some as well.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_origin

import pandas as pd

from ddl_core.analysis.plot import style
from ddl_core.spec.registry import STRATEGIES
from ddl_core.spec.run import RunSpec

SIZE = "world_size"
"""Nodes and ranks per node, as one field: the number of workers, and where these lie."""

NAMES = ["strategy", "loader", "data_format", "model", "dataset", SIZE]
"""What a label says first, and always where it differs: not even a default goes without saying."""

_REPEATED = {"seed", "repeat"}  # what repeats of one arm differ in
SETTINGS = [
    name
    for name in RunSpec.model_fields
    if name not in {*NAMES, *_REPEATED, "nodes", "gpus_per_node"}
]
ARM = [*NAMES, "nodes", "gpus_per_node", *SETTINGS]
"""Every field of a run but what its repeats differ in: runs of one arm agree in all of them."""

ALL_DEFAULTS = "all defaults"

_UNITS = {"mb": "MiB", "ms": "ms"}  # the last word of a field's name
_NOUNS = {
    "base_lr": "learning rate",
    "compile": "torch.compile",
    "cpu_threads": "compute threads",
    "crop_min_area": "smallest crop",
    "deepspeed_overlap_comm": "overlap",
    "deepspeed_zero_stage": "ZeRO stage",
    "eval_images": "evaluation images",
    "local_batch_size": "batch",
    "loader_prefetch": "prefetched batches",
    "loader_workers": "loader workers",
    "pin_memory": "pinned memory",
    "train_images": "training images",
}
_VALUES = {
    "strategy": style.strategy_name,
    "loader": style.loader_name,
    "data_format": lambda name: style.FORMAT_NAMES.get(name, name),
    "model": style.model_name,
    "dataset": style.dataset_name,
    "optimizer": lambda name: style.OPTIMIZER_NAMES.get(name, name),
    "schedule": style.schedule_name,
    "precision": str,
    "image_size": "{} px".format,
    SIZE: lambda workers: f"{workers} worker{'s' if workers > 1 else ''}",
}


def words(field: str, value: Any) -> str:
    """Return a field's value in words, e.g. ``"bucket 25 MiB"`` or ``"no compression"``."""
    noun, unit = _noun(field)
    if pd.isna(value):
        return f"all {noun}"
    if field in _VALUES:
        return str(_VALUES[field](value))
    if pd.api.types.is_bool(value):
        return noun if value else f"no {noun}"
    if value == "none":
        return f"no {noun}"
    number = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{noun} {number} {unit}".rstrip()


def axis_label(field: str) -> str:
    """Return what stands at an axis of a field, e.g. ``"bucket (MiB)"``."""
    noun, unit = _noun(field)
    named = {SIZE: "workers", "image_size": "image size (px)"}
    return named.get(field, f"{noun} ({unit})" if unit else noun)


def _noun(field: str) -> tuple[str, str]:
    """Return what a field is called without its strategy and its unit, and the unit."""
    parts = field.split("_")
    unit = _UNITS.get(parts[-1], "")
    own = parts[1:] if _owner(field) else parts
    return _NOUNS.get(field, " ".join(own[:-1] if unit else own)), unit


def _owner(field: str) -> str:
    """Return the strategy that a field belongs to, empty if all have it."""
    first = field.split("_")[0]
    return first if first in STRATEGIES else ""


def is_number(field: str) -> bool:
    """Say whether the values of a field lie on an axis: no names, and no choices."""
    if field == SIZE:
        return True
    about = RunSpec.model_fields[field]
    return get_origin(about.annotation) is not Literal and (
        isinstance(about.default, int | float) and not isinstance(about.default, bool)
    )


def differing(arms: pd.DataFrame) -> list[str]:
    """Return the fields, `NAMES` first, in which arms differ; a strategy's own among its arms."""
    return [
        field
        for field in [*NAMES, *SETTINGS]
        if _with(arms, field)[_columns(field)].drop_duplicates().shape[0] > 1
    ]


def _columns(field: str) -> list[str]:
    return ["nodes", "gpus_per_node"] if field == SIZE else [field]


def _with(arms: pd.DataFrame, field: str) -> pd.DataFrame:
    """Return the arms that have a field: those of its strategy, if it has one."""
    owner = _owner(field)
    return arms[arms["strategy"] == owner] if owner else arms


def changes(arm: pd.Series, fields: Sequence[str]) -> int:
    """Return in how many of `fields` an arm has no default."""
    return sum(not _is_default(field, arm[field]) for field in fields)


def _is_default(field: str, value: Any) -> bool:
    default = 1 if field == SIZE else RunSpec.model_fields[field].default
    return default is None if pd.isna(value) else bool(value == default)


def labels(arms: pd.DataFrame, fields: Sequence[str]) -> list[str]:
    """Return what each arm is called: its values in `fields`, as far as it has these.

    Where the arms of a strategy change one setting at a time, a setting that has its default goes
    without saying, see `unsaid`; where they are a grid of settings, each is told.

    Parameters
    ----------
    arms
        A row per arm, with all columns of `ARM`.
    fields
        Fields in which they differ, see `differing`.
    """
    silent = _silent(arms, fields)
    nodes = arms["nodes"].nunique() > 1
    return [_label(arm, fields, silent[arm["strategy"]], nodes) for _, arm in arms.iterrows()]


def _label(arm: pd.Series, fields: Sequence[str], silent: Sequence[str], nodes: bool) -> str:
    told = [
        field
        for field in fields
        if _owner(field) in ("", arm["strategy"])
        and not (field in silent and _is_default(field, arm[field]))
    ]
    parts = [words(field, arm[field]) for field in told]
    if SIZE in told and nodes:
        place = told.index(SIZE)
        parts[place] += f" on {arm['nodes']} node{'s' if arm['nodes'] > 1 else ''}"
    quiet = silent and not set(told) & set(silent)
    return ", ".join([*parts, ALL_DEFAULTS] if quiet else parts)


def unsaid(arms: pd.DataFrame, fields: Sequence[str]) -> str:
    """Return the defaults that `labels` do not tell, by strategy where they are its own."""
    found: dict[str, dict[str, None]] = {}
    for silent in _silent(arms, fields).values():
        for field in silent:
            default = RunSpec.model_fields[field].default
            found.setdefault(_owner(field), {})[words(field, default)] = None
    parts = [
        (f"{style.strategy_name(owner)}: " if owner and len(found) > 1 else "") + ", ".join(texts)
        for owner, texts in found.items()
    ]
    return "; ".join(parts)


def _silent(arms: pd.DataFrame, fields: Sequence[str]) -> dict[str, list[str]]:
    """Return the settings of each strategy that go without saying at their defaults."""
    silent = {}
    for strategy, own in arms.groupby("strategy"):
        settings = [
            field for field in fields if field in SETTINGS and _owner(field) in ("", strategy)
        ]
        grid = 1
        for field in settings:
            grid *= own[field].nunique(dropna=False)
        points = len(own[settings].drop_duplicates()) if settings else grid
        silent[str(strategy)] = [] if points == grid else settings
    return silent


COMMON = ["strategy", "loader", SIZE, "model", "image_size", "local_batch_size", "precision"]


def common(arms: pd.DataFrame, fields: Sequence[str]) -> str:
    """Return what all arms have in common, as far as a reader looks for it."""
    first = arms.iloc[0]
    return ", ".join(words(field, first[field]) for field in COMMON if field not in fields)
