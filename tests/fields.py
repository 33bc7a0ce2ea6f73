"""Two runs that differ in one field, for every field: one that is added later is walked too."""

from typing import Any, Literal, get_args, get_origin

from ddl_core.config import RunSpec, run_fields
from ddl_core.registry import REGISTRIES, STRATEGIES

Fields = dict[str, Any]

# What a field needs beside it, to be another than its default.
_BESIDE: dict[str, Fields] = {"profile_steps": {"epochs": 3}, "emu_uplink_mbit": {"nodes": 2}}

# What every emulated run has.
EMULATED: Fields = {
    "emulated": True,
    "model": "paced_resnet50",
    "strategy": "ddp",
    "loader": "synthetic",
    "device": "cpu",
    "eval_every": 0,
}
# Whether a run is emulated goes with its model: no two runs differ in that alone.
ALONE = [name for name in run_fields() if name != "emulated"]


def is_of_emulation(field: str) -> bool:
    """Say whether a field is of emulated runs alone, which no figure of measured ones shows."""
    return field.startswith("emu_")


def another(field: str) -> Any:
    """Return a value of a field that is not its default."""
    about = run_fields()[field]
    kind, default = about.annotation, about.default
    if field in REGISTRIES:
        return next(
            name
            for name in ("tensorflow", "ddp", "turbo", "tfrecord", "resnet18")
            if name in REGISTRIES[field]
        )
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return f"{default}x"
    if default is None:
        return "env" if field in ("prefix", "command") else 640
    if field == "emu_jitter":
        return 0.5
    return default / 2 if default and isinstance(default, float) else default + 8


def owner(field: str) -> Fields:
    """Return the strategy whose setting a field is, or what else the field cannot be without."""
    if field == "min_steps_per_epoch":
        return {"eval_every": 0}
    if is_of_emulation(field):
        return EMULATED
    if field == "command":
        return {"framework": "command", "command": "true"}
    if field.startswith("ddp_powersgd"):
        return {"strategy": "ddp", "ddp_compression": "powersgd", "checkpoint_every": 0}
    if field.startswith("adam_"):
        return {"optimizer": "adamw"}
    name = field.split("_")[0]
    return {"strategy": name} if name in STRATEGIES else {}


def changed(field: str, **shared: Any) -> tuple[RunSpec, RunSpec]:
    """Return two runs with `shared` fields that differ in `field` alone."""
    # `single` is one process, and the others stand for it.
    several = {"strategy": "ddp"} if field in ("nodes", "gpus_per_node") else {}
    one = RunSpec(**{**several, **shared, **owner(field), **_BESIDE.get(field, {})})
    value = another(field)
    if value == getattr(one, field):
        value = run_fields()[field].default
    return one, RunSpec(**{**one.model_dump(), field: value})
