"""Probes: ``probe.json`` is the request, ``rank_<n>.json`` are the findings of each rank.

``run.json`` has the end of the run. `ddl_tools.doctor` judges the findings.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ddl_core.config import RunSpec
from ddl_tools.records.paths import ProbeFiles, RunFiles
from ddl_tools.records.run import Failure, Provenance, System, read_record
from ddl_tools.records.storage import (
    MOST,
    Count,
    Duration,
    Index,
    Line,
    Number,
    Strict,
    Text,
    now,
    parsed,
    read_json,
    validated,
    write_atomically,
)

PROBE_VERSION = 1

_Many = Field(max_length=10**6)
Lines = Annotated[list[Line], _Many]
Cores = Annotated[list[Count], _Many]
Variables = Annotated[dict[Line, Text], _Many]
Limit = Annotated[int, Field(ge=-1, le=MOST)]


class Interface(Strict):
    """A network interface of the rank's host."""

    name: Line
    addresses: Lines
    speed_mbit_per_s: Count | None = Field(description="of /sys/class/net; null if it has none")


class Folder(Strict):
    """A folder that libraries write their caches to."""

    variable: Line
    path: Text
    file_system: Line
    error: Text | None = Field(description="null if a file could be made there")


class Reading(Strict):
    """One rank's random sample of the training data, read while all ranks read."""

    images: Count
    bytes: Count
    threads: Count
    cold_s: Duration = Field(description="after the system was asked to forget the files")
    warm_s: Duration = Field(description="the same again")
    decode_s: Duration = Field(description="CPU time to decode `decoded` of them, one thread")
    decoded: Count
    shards: Count | None = Field(description="TFRecord files of the split; null for image files")


class Collective(Strict):
    """A collective of one message size. Times are of one operation, the slowest rank's."""

    bytes: Count
    operations: Count = Field(description="timed, all batches together")
    seconds: Duration = Field(gt=0, description="median over batches of operations")
    seconds_min: Duration
    seconds_max: Duration

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Size / time: "algbw" of NCCL-tests (its doc/PERFORMANCE.md)."""
        return self.bytes / self.seconds

    def bus_bytes_per_s(self, ranks: int, passes: int = 2) -> float:
        """Return algbw x passes x (n - 1) / n for n `ranks`: "busbw" of NCCL-tests (same place).

        An all-reduce passes its data twice, an all-gather and a reduce-scatter once. It is
        comparable between numbers of ranks, and with the hardware's bandwidth.
        """
        return self.algorithm_bytes_per_s * passes * (ranks - 1) / ranks


class Nccl(Strict):
    """What NCCL says of itself in its log."""

    version: Line | None = None
    network: Line | None = Field(None, description="IB, Socket or a plug-in's; null: not named")
    channels: Annotated[dict[Line, Count], _Many] = Field(
        description="channels of this rank by their way, e.g. NET/IB/GDRDMA"
    )


class Port(Strict):
    """An active port of an InfiniBand or RDMA adapter."""

    name: Line
    layer: Line = Field(description="InfiniBand or Ethernet")
    gbit_per_s: Duration


class Gpu(Strict):
    """State of a rank's GPU, as nvidia-smi tells it while the GPU multiplies matrices."""

    uncorrected_ecc: Count | None = Field(description="errors since the driver was loaded")
    pending_rows: bool | None = Field(description="rows of memory to be replaced by a reset")
    clock_mhz: Count | None
    clock_max_mhz: Count | None
    nvlink_bytes_per_s: Number | None = Field(description="all links together, one direction")


class Answer(Strict):
    """Findings of one rank; written anew after each step, so that a silent rank is known."""

    rank: Index
    local_rank: Index
    host: Line
    step: Line = Field("start", description="what it was doing last; 'done' at its end")
    cores: Cores
    loader_cores: list[Cores] = Field(
        default_factory=list, max_length=10**6, description="per loader process"
    )
    visible: Variables = Field(description="variables that hide devices")
    device: System = Field(default_factory=lambda: System())
    device_id: Line | None = Field(None, description="UUID of its GPU; null on the CPU")
    wanted_interfaces: Variables = Field(description="variables that choose interfaces")
    interfaces: list[Interface] = _Many
    used_interfaces: Lines = Field(
        default_factory=list, description="of its TCP connections to other ranks"
    )
    shared_memory_bytes: Count = Field(description="free in /dev/shm")
    open_files: tuple[Limit, Limit] = Field(description="soft and hard limit; -1 is none")
    caches: list[Folder] = _Many
    reading: Reading | None = None
    reading_error: Text | None = None
    all_reduce: list[Collective] = Field(
        default_factory=list, max_length=1_000, description="rank 0 only"
    )
    all_gather: list[Collective] = Field(
        default_factory=list, max_length=1_000, description="rank 0 only"
    )
    reduce_scatter: list[Collective] = Field(
        default_factory=list, max_length=1_000, description="rank 0 only"
    )
    nccl: Nccl | None = Field(None, description="null over Gloo, or if its log says nothing")
    ports: list[Port] = Field(default_factory=list, max_length=10**4)
    gpu: Gpu | None = None
    sum_is_right: bool | None = Field(None, description="null if it was not computed")
    omitted_bytes: Cores = Field(
        default_factory=list, description="message sizes left out: the time limit"
    )


class ProbeRecord(Strict):
    """``probe.json``."""

    probe_version: Index = PROBE_VERSION
    name: Line
    site: Text | None = Field(description="of slurm/, null for the machine that asks")
    spec: RunSpec = Field(description="nodes, ranks, loader processes, device, data format")
    cores_per_rank: Count | None = Field(None, description="that the site grants a rank")
    data_dir: Text | None = None
    collective_limit_s: Duration = Field(
        60.0, gt=0, description="for all message sizes of a collective together"
    )
    reading_limit_s: Duration = Field(20.0, gt=0)
    status: Literal["planned", "completed", "failed"] = "planned"
    error: Failure | None = None
    job_id: Line | None = None
    created_utc: Line = Field(default_factory=now)
    ended_utc: Line | None = None
    provenance: Provenance | None = None
    system: System | None = None
    answers: list[Answer] = Field(default_factory=list, max_length=10**6)


def size_text(number: float) -> str:
    """Return the size of a message of `number` bytes, e.g. ``"64 KiB"``."""
    for power, unit in ((20, "MiB"), (10, "KiB")):
        if number >= 2**power:
            return f"{number / 2**power:g} {unit}"
    return f"{number:g} B"


def write_probe(directory: Path, record: ProbeRecord) -> None:
    """Write ``probe.json`` atomically."""
    write_atomically(ProbeFiles(directory).record, record.model_dump_json(indent=1) + "\n")


def read_probe(directory: Path) -> ProbeRecord:
    """Read a probe strictly: the request, the state of its run, and the answers of its ranks."""
    path = ProbeFiles(directory).record
    content = read_json(path, "name a probe's folder")
    record = validated(path, content, ProbeRecord, "probe", PROBE_VERSION)
    if record.status != "planned" or not RunFiles(directory).record.exists():
        return record  # whole in itself, as it was written until probes became runs
    run = read_record(directory)
    ended = run.status in ("completed", "failed")
    return record.model_copy(
        update={
            "status": run.status if ended else "planned",
            "error": run.error,
            "job_id": run.job_id,
            "ended_utc": run.attempts[-1].ended_utc if run.attempts else None,
            "provenance": run.provenance,
            "system": run.system,
            "answers": read_answers(directory),
        }
    )


def write_answer(directory: Path, answer: Answer) -> None:
    """Write what a rank knows so far."""
    path = ProbeFiles(directory).answer(answer.rank)
    write_atomically(path, answer.model_dump_json(indent=1) + "\n")


def read_answers(directory: Path) -> list[Answer]:
    """Return the answers of the ranks that have begun, by rank."""
    found = [parsed(path, read_json(path), Answer) for path in ProbeFiles(directory).answers()]
    return sorted(found, key=lambda answer: answer.rank)
