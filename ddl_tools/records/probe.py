"""Probes: ``probe.json`` is the request, ``rank_<n>.json`` are the findings of each rank.

``run.json`` has the end of the run. `ddl_tools.doctor` judges the findings.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_tools.records.paths import ProbeFiles, RunFiles
from ddl_tools.records.run import Failure, read_record
from ddl_tools.records.storage import Strict, now, read_json, validated, write_atomically

PROBE_VERSION = 1


class Interface(Strict):
    """A network interface of the rank's host."""

    name: str
    addresses: list[str]
    speed_mbit_per_s: int | None = Field(description="of /sys/class/net; null if it has none")


class Folder(Strict):
    """A folder that libraries write their caches to."""

    variable: str
    path: str
    file_system: str
    error: str | None = Field(description="null if a file could be made there")


class Reading(Strict):
    """One rank's random sample of the training data, read while all ranks read."""

    images: int
    bytes: int
    threads: int
    cold_s: float = Field(description="after the system was asked to forget the files")
    warm_s: float = Field(description="the same again")
    decode_s: float = Field(description="CPU time to decode `decoded` of them, one thread")
    decoded: int
    shards: int | None = Field(description="TFRecord files of the split; null for image files")


class AllReduce(Strict):
    """One message size. Times are of one operation, the slowest rank's."""

    bytes: int
    operations: int = Field(description="timed, all batches together")
    seconds: float = Field(description="median over batches of operations")
    seconds_min: float
    seconds_max: float

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Size / time: "algbw" of NCCL-tests (its doc/PERFORMANCE.md)."""
        return self.bytes / self.seconds

    def bus_bytes_per_s(self, ranks: int) -> float:
        """Return algbw x 2 (n - 1) / n for n `ranks`: "busbw" of NCCL-tests (same place).

        It is comparable between numbers of ranks, and with the hardware's bandwidth.
        """
        return self.algorithm_bytes_per_s * 2 * (ranks - 1) / ranks


class Answer(Strict):
    """Findings of one rank; written anew after each step, so that a silent rank is known."""

    rank: int
    local_rank: int
    host: str
    step: str = Field("start", description="what it was doing last; 'done' at its end")
    cores: list[int]
    loader_cores: list[list[int]] = Field(default_factory=list, description="per loader process")
    visible: dict[str, str] = Field(description="variables that hide devices")
    device: dict[str, Any] = Field(default_factory=dict)
    device_id: str | None = Field(None, description="UUID of its GPU; null on the CPU")
    wanted_interfaces: dict[str, str] = Field(description="variables that choose interfaces")
    interfaces: list[Interface]
    used_interfaces: list[str] = Field(
        default_factory=list, description="of its TCP connections to other ranks"
    )
    shared_memory_bytes: int = Field(description="free in /dev/shm")
    open_files: tuple[int, int] = Field(description="soft and hard limit; -1 is none")
    caches: list[Folder]
    reading: Reading | None = None
    reading_error: str | None = None
    all_reduce: list[AllReduce] = Field(default_factory=list, description="rank 0 only")
    sum_is_right: bool | None = Field(None, description="null if it was not computed")
    omitted_bytes: list[int] = Field(
        default_factory=list, description="message sizes left out: the time limit"
    )


class ProbeRecord(Strict):
    """``probe.json``."""

    probe_version: int = PROBE_VERSION
    name: str
    site: str | None = Field(description="of slurm/, null for the machine that asks")
    spec: RunSpec = Field(description="nodes, ranks, loader processes, device, data format")
    cores_per_rank: int | None = Field(None, description="that the site grants a rank")
    data_dir: str | None = None
    collective_limit_s: float = Field(60.0, gt=0, description="for all message sizes together")
    reading_limit_s: float = Field(20.0, gt=0)
    status: Literal["planned", "completed", "failed"] = "planned"
    error: Failure | None = None
    job_id: str | None = None
    created_utc: str = Field(default_factory=now)
    ended_utc: str | None = None
    provenance: dict[str, Any] | None = None
    system: dict[str, Any] | None = None
    answers: list[Answer] = Field(default_factory=list)


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
    found = []
    for path in ProbeFiles(directory).answers():
        try:
            found.append(Answer.model_validate_json(path.read_text(encoding="utf-8")))
        except (OSError, ValidationError) as error:
            raise RecordError(f"cannot read {path}: {error}") from None
    return sorted(found, key=lambda answer: answer.rank)
