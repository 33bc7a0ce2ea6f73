"""What fits a run in a cluster in a box: nodes made on this machine, and compute that sleeps.

Apart from `run`, because it is of emulated runs alone.
"""

from typing import TYPE_CHECKING, Any

from ddl_core.spec.registry import MODELS

if TYPE_CHECKING:
    from ddl_core.spec.run import RunSpec

PREFIX = "box_"
MTU = 9000  # of the links
# Of a packet of MTU bytes, 20 of IP, 20 of TCP and its 12 of time stamps carry nothing; the link
# also carries 14 of Ethernet, and counts them.
ON_THE_WIRE = (MTU + 14) / (MTU - 52)

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
    """Check that an emulated run asks for what can be emulated, and another one for none of it.

    Raises
    ------
    ValueError
        Naming the field, its value and what is allowed.
    """
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
    unchecked = "what it sends on these links was never checked"
    if run.deepspeed_zero_stage > 1:
        raise ValueError(
            f"deepspeed_zero_stage = {run.deepspeed_zero_stage}: {unchecked}; use 0 or 1"
        )
    if run.strategy == "fsdp":
        raise ValueError(f"strategy = 'fsdp': {unchecked}; use another strategy")
    if run.ddp_compression == "powersgd":
        raise ValueError(f"ddp_compression = 'powersgd': {unchecked}; use 'fp16' or 'none'")
