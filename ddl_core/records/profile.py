"""``profile.json``: where the time of the steps that a profiler watched went, rank by rank."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from ddl_core.records.kernel_names import Kind
from ddl_core.records.paths import RunFiles
from ddl_core.records.storage import Strict, read_versioned, write_atomically

Phase = Literal["data", "compute", "communication", "update"]
"""What a mark ends; an update also ends its step."""

PHASES: tuple[Phase, ...] = ("data", "compute", "communication", "update")


OURS = "ddl_core."
"""Before all names that this project gives in a profile."""

MARK = OURS + "mark."
"""Before the name of a phase: what a mark is called in a profile."""

WINDOW = OURS + "window"
"""What the range of the epoch that is looked at is called in a profile."""

PROFILE_VERSION = 1


class Shares(Strict):
    """Shares of a rank's window, 0 to 1; their sum is 1."""

    compute: float = Field(description="GPU: kernels of the training; CPU: operators")
    transfer: float = Field(
        description="exposed communication of the rank that came last in each step: no waiting"
    )
    waiting: float = Field(description="the rest of it: waiting for slower ranks")
    copies: float = Field(description="to, from and on the GPU; 0 on the CPU")
    data: float = Field(description="waiting for the next batch, nothing of the above going on")
    other: float = Field(description="the host in a call, nothing of the above going on")
    idle: float = Field(description="nothing that the profiler sees")


class RankProfile(Strict):
    """One rank."""

    rank: int
    window_s: float = Field(gt=0, description="from the first watched step to the end of the last")
    shares: Shares
    overlapped: float | None = Field(
        description="share of the window: communication during compute, part of compute's share"
    )
    exposed_s: list[float] = Field(description="exposed communication of each watched step")
    kernels: dict[Kind, float] | None = Field(
        description="shares of CUDA kernel time, the paper's Table 2; null on the CPU"
    )


class ProfileRecord(Strict):
    """``profile.json``."""

    profile_version: int = PROFILE_VERSION
    run_id: str
    device: Literal["cpu", "cuda"]
    epoch: int
    first_step: int = Field(description="of the watched steps, from 0")
    steps: int
    overlapped_missing: str | None = Field(description="why `overlapped` is null, if it is")
    ranks: list[RankProfile]


def write_profile(directory: Path, record: ProfileRecord) -> None:
    """Write ``profile.json`` of a run atomically."""
    text = record.model_dump_json(indent=1) + "\n"
    write_atomically(RunFiles(directory).profile, text)


def read_profile(directory: Path) -> ProfileRecord:
    """Read ``profile.json`` strictly.

    Raises
    ------
    RecordError
        If it is missing, not JSON, of another version, or has a wrong field.
    """
    return read_versioned(
        RunFiles(directory).profile,
        ProfileRecord,
        "profile",
        PROFILE_VERSION,
        "a run has one if profile_steps > 0",
    )
