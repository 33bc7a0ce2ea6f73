"""Settings that an emulated run may have, and settings that only an emulated run may have."""

from typing import TYPE_CHECKING, Any

from ddl_core.spec.registry import MODELS

if TYPE_CHECKING:
    from ddl_core.spec.run import RunSpec

PREFIX = "box_"
# Compute sleeps and data are free. Nothing is learnt, and there is no device to profile.
_ALLOWED: dict[str, Any] = {
    "library": "torch",
    "loader": "synthetic",
    "device": "cpu",
    "work": "train",
    "accumulation": 1,
    "precision": "fp32",
    "compile": False,
    "nsys": False,
    "profile_steps": 0,
    "eval_every": 0,
}


def check(run: "RunSpec") -> None:
    """Raise ValueError if a setting cannot be emulated, or needs an emulated run."""
    paced = [name for name, entry in MODELS.items() if entry.paced]
    if run.emulated != (run.model in paced):
        others = ", ".join(paced) if run.emulated else "another one"
        raise ValueError(
            f"model = {run.model!r}, but emulated = {str(run.emulated).lower()}: only compute of a "
            f"paced model is emulated; choose model {others}, or change emulated"
        )
    if not run.emulated:
        asked = [name for name in run.model_dump(exclude_defaults=True) if name.startswith(PREFIX)]
        if asked:
            raise ValueError(
                f"{asked[0]} = {getattr(run, asked[0])} is of emulated runs alone; set emulated to "
                "true, or leave it out"
            )
        return
    for name, value in _ALLOWED.items():
        if getattr(run, name) != value:
            raise ValueError(
                f"{name} = {getattr(run, name)!r}, but emulated = true, which needs {value!r}"
            )
    if run.box_uplink_mbit and run.nodes < 2:
        raise ValueError(
            f"box_uplink_mbit = {run.box_uplink_mbit} lies between two halves of the nodes, but "
            f"nodes = {run.nodes}; use 2 at least, or 0"
        )
    for unchecked, setting, remedy in (
        (
            run.deepspeed_zero_stage > 1,
            f"deepspeed_zero_stage = {run.deepspeed_zero_stage}",
            "use 0 or 1",
        ),
        (run.strategy == "fsdp", "strategy = 'fsdp'", "use another strategy"),
        (
            run.ddp_compression == "powersgd",
            "ddp_compression = 'powersgd'",
            "use 'fp16' or 'none'",
        ),
    ):
        if unchecked:
            raise ValueError(f"{setting}: what it sends on these links was never checked; {remedy}")
