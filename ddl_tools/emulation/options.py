"""Options of emulated runs: what the plug-in declares, and what it cannot combine."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from ddl_core.combinations import Dependent, Refused, refused, shown, without_effect
from ddl_core.config import Options, RunSpec

MODEL = "paced_resnet50"
YES = (True,)
# What an emulated run needs: its compute sleeps, and nothing is learnt.
NEEDED: dict[str, Any] = {
    "framework": "torch",
    "loader": "synthetic",
    "device": "cpu",
    "work": "train",
    "accumulation": 1,
    "precision": "fp32",
    "compile": False,
    "prefix": None,
    "profile_steps": 0,
    "eval_every": 0,
}
DEPENDENT: Dependent = (("emu_", "emulated", YES),)
_UNCHECKED = "what it sends on emulated links was never checked"
REFUSED: Refused = (
    ({"emulated": YES, "deepspeed_zero_stage": [2, 3]}, _UNCHECKED, "use stage 0 or 1"),
    ({"emulated": YES, "strategy": ["fsdp"]}, _UNCHECKED, "use another strategy"),
    ({"emulated": YES, "ddp_compression": ["powersgd"]}, _UNCHECKED, "use 'fp16' or 'none'"),
)


class Emulated(Options):
    """Whether a run is emulated, and the links and the compute of its nodes."""

    words: ClassVar[Mapping[str, str | dict[Any, str]]] = {
        "emulated": {True: "emulated", False: "measured"},
        "emu_link_mbit": "link",
        "emu_uplink_mbit": "uplink",
        "emu_step_ms": "compute",
        "emu_shrink": "gradients smaller by",
        "emu_straggler": "straggler",
        "emu_jitter": "jitter",
        "emu_draws": "GPUs per rank",
    }

    emulated: bool = Field(
        False, description="emulated cluster: nodes are made on this machine, and compute sleeps"
    )
    emu_link_mbit: float = Field(
        100, ge=0.1, le=10**5, description="emulation: rate of each node's link, each way (Mbit/s)"
    )
    emu_uplink_mbit: float = Field(
        0,
        ge=0,
        le=10**5,
        description="emulation: rate of the link between two halves of the nodes (Mbit/s; "
        "0: one switch)",
    )
    emu_step_ms: float = Field(
        1000, ge=1, le=10**6, description="emulation: compute time of a rank in each step (ms)"
    )
    emu_shrink: float = Field(
        64, ge=1, le=10**4, description="emulation: factor by which gradients are smaller"
    )
    emu_straggler: float = Field(
        1, ge=1, le=100, description="emulation: factor by which the last rank computes longer"
    )
    emu_jitter: float = Field(
        0, ge=0, le=1, description="emulation: relative standard deviation of the compute time"
    )
    emu_draws: int = Field(
        1,
        gt=0,
        le=10**6,
        description="emulation: GPUs that a rank represents; the slowest one counts",
    )

    def refusals(self, run: RunSpec) -> Iterator[str]:
        """Yield why a run cannot be emulated, or has options of emulated runs."""
        if self.emulated != (run.model == MODEL):
            other = MODEL if self.emulated else "another one"
            yield (
                f"model = {run.model!r}, but emulated = {shown(self.emulated)}: only compute of a "
                f"paced model is emulated; choose model {other}, or change emulated"
            )
        for name, value in NEEDED.items():
            if self.emulated and getattr(run, name) != value:
                yield f"{name} = {getattr(run, name)!r}, but emulated = true, which needs {value!r}"
        if self.emulated and self.emu_uplink_mbit and run.nodes < 2:
            yield (
                f"emu_uplink_mbit = {self.emu_uplink_mbit} lies between two halves of the nodes, "
                f"but nodes = {run.nodes}; use 2 at least, or 0"
            )
        yield from without_effect(run, DEPENDENT)
        yield from refused(run, REFUSED)

    def launcher(self, run: RunSpec) -> Any:
        """Return the nodes of an emulated run, with their links."""
        if not self.emulated:
            return None
        from ddl_tools.emulation.launcher import EmulatedNodes

        return EmulatedNodes(run)
