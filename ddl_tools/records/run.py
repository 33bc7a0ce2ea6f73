"""The record of a run: ``run.json``, replaced whole, and ``epochs.jsonl``, which only grows.

Runs that are published are read as well: see `ddl_tools.records.stored`.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, AllowInfNan, ConfigDict, Field, TypeAdapter, model_validator
from typing_extensions import TypedDict  # of Python 3.12, which pydantic asks for

from ddl_core import registry
from ddl_core.config import RunSpec, run_fields
from ddl_core.errors import Category, DDLError, RecordError
from ddl_core.files import cannot_write, open_to_append
from ddl_core.retired import SETTINGS, WITHDRAWN
from ddl_core.timing import Spent
from ddl_tools.records.failures import classify
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.provenance import PACKAGES
from ddl_tools.records.storage import (
    LONGEST_LINE,
    LONGEST_TEXT,
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
    validated,
    write_atomically,
)
from ddl_tools.records.stored import stored

SCHEMA_VERSION = 7  # 6 has no loader_version and no order, and rescued_images of each epoch
READABLE = (6, SCHEMA_VERSION)
# 1: all of DDP's buckets had the size of the spec. 2: the first one is small, as DDP has it by
# itself, unless the spec names a size; and epochs may be interleaved.
METHOD_VERSION = 2
_SAME = 1e-6  # relative: a quotient computed twice
EMULATION: Final = "emulation"  # key in the `system` of a record

Status = Literal["planned", "submitted", "running", "completed", "failed"]


class Slot(Strict):
    """Place of an epoch in an interleaved study."""

    block: Line = Field(description="name of the configurations that were alive together")
    reference: Line = Field(description="run_id of the baseline of the block")
    round: Index = Field(description="from 0; in each, every configuration has one epoch")
    place: Index = Field(description="position within the round, from 0")


class Failure(Strict):
    """Reason for the bad end of a run."""

    kind: Line = Field(description="class of the error, e.g. DataError, Killed, Timeout")
    message: Text = Field(description="what happened, and what to do")
    rank: Index | None = Field(None, description="rank that failed first; null if unknown")
    category: Category | None = Field(None, description="class of the failure")

    @classmethod
    def of(
        cls,
        kind: str,
        message: str,
        rank: int | None = None,
        exit_code: int | None = None,
        category: Category | None = None,
    ) -> "Failure":
        """Return a failure; its category is by default that of `classify`."""
        message = _encodable(message)[:LONGEST_TEXT]
        category = category or classify(kind, message, exit_code=exit_code)
        return cls(kind=kind, message=message, rank=rank, category=category)

    @classmethod
    def of_error(cls, error: DDLError) -> "Failure":
        """Return the failure of a run that ended with an error of this project."""
        return cls.of(type(error).__name__, str(error), category=error.category)

    def __str__(self) -> str:
        """Return its kind and message; the message of a rank's error may begin with the kind."""
        return f"{self.kind}: {self.message.removeprefix(f'{self.kind}: ')}"


class Attempt(Strict):
    """One start of a run; a resumed run has several."""

    started_utc: Line = Field(description="start")
    ended_utc: Line | None = Field(None, description="end; null while it runs")
    status: Status = Field("running", description="as of the run")
    error: Failure | None = Field(None, description="as of the run")
    block: Line | None = Field(
        None, description="start of a SLURM job that it shared with other runs; null otherwise"
    )
    place: Index | None = Field(None, description="position in the order of that block, from 0")


class Contents(Strict):
    """What the images of a split are recognised by."""

    version: Count = Field(description="how they were looked at")
    names: Line = Field(description="SHA-256 over the names of files, or places of records")
    bytes: Count = Field(description="size of all files")
    sample: Line = Field(
        description="SHA-256 over the size of each file, and over one image in a hundred"
    )


class DataInfo(Strict):
    """Data that a run read."""

    train_images: Count = Field(description="available per epoch, before the last batch is dropped")
    eval_images: Count | None = Field(description="available; null if nothing is evaluated")
    classes: Count = Field(description="number of classes")
    fingerprint: Line | None = Field(
        description="SHA-256 over names of files, or places of records; null if synthetic"
    )
    order: Literal["plan", "loader"] | None = Field(
        None,
        description="order of training images: plan, the same for every loader, or the loader's "
        "own; null if synthetic or not recorded",
    )
    train: Contents | None = Field(
        None,
        description="training images: hash of `names`, `bytes`, hash of a `sample` (sizes, 1 % of "
        "contents); null as `order`",
    )
    eval: Contents | None = Field(None, description="the same of validation images")
    postponed: bool = Field(False, description="whether `DDL_CONTENTS` left both out")


class Emulation(Strict):
    """Facts of the measured epochs of an emulated run, and the rules that they break.

    In `RunRecord.system`, under `EMULATION`.
    """

    cores: Count = Field(description="cores that all ranks share")
    link_mbit_least: Number | None = Field(
        description="rate of the slowest link before the run (Mbit/s); null with one node"
    )
    link_mbit_most: Number | None = Field(description="rate of the fastest link (Mbit/s)")
    steps: Count = Field(description="measured steps")
    gradient_bytes: Count = Field(description="gradients of a rank in a step (bytes)")
    sent_bytes_least: Number = Field(
        description="bytes sent by a node's link in a step, with headers: smallest"
    )
    sent_bytes_most: Number = Field(description="the same: largest")
    own_cpu_share: Number = Field(description="share of the cores that the ranks used")
    other_cpu_share: Number = Field(description="share of the cores that other programs used")
    late_share: Number = Field(description="delay of the end of a step on the latest rank (share)")
    slowest_factor: Number = Field(
        description="compute of the slowest rank relative to `emu_step_ms`, mean over steps"
    )
    unfaithful: list[Line] = Field(
        default_factory=list,
        max_length=100,
        description="validity rules broken when it was measured; readers apply today's",
    )


_FACTS = ConfigDict(extra="allow", strict=True)
_Whole = Annotated[int, Field(ge=-MOST, le=MOST)]
_Short = Field(max_length=1_000)
Fact = (
    _Whole
    | bool
    | Number
    | Line
    | Annotated[list[Any], _Short]
    | Annotated[dict[str, Any], _Short]
    | None
)
Facts = Annotated[dict[Line, Fact], _Short]


def _check_emulation(facts: dict[str, Any] | None) -> dict[str, Any] | None:
    if facts:
        Emulation.model_validate(facts)
    return facts


class Affinity(TypedDict):
    """Cores of the ranks."""

    __pydantic_config__ = _FACTS  # type: ignore[misc]
    cores_least: Count
    cores_most: Count
    shared: bool | None


class Network(TypedDict, total=False):
    """Network that was trained."""

    __pydantic_config__ = _FACTS  # type: ignore[misc]
    parameters: Count | None


class System(TypedDict, total=False):
    """Facts of a machine that analysis reads; a record may have others, and lack any."""

    __pydantic_config__ = _FACTS  # type: ignore[misc]
    device: Line | None
    accelerator: Line | None
    architecture: Line | None
    cpu: Line | None
    cpu_cores: Count | None
    speed_mb_per_s: Number | None
    memory_bytes: Count | None
    load_average_1min: Number | None
    os: Line
    cuda: Line | None
    cudnn: Count | Line | None
    affinity: Affinity | None
    throttled_s: Duration | None
    environment: Annotated[dict[Line, Line], Field(max_length=10_000)]
    threads: Facts | None
    settings: Facts | None
    communication: Facts | None
    network: Network | None
    energy_method: Line | None
    energy_missing: Line | None
    emulation: Annotated[dict[str, Any] | None, AfterValidator(_check_emulation)]
    reporting: Count | None


class Provenance(TypedDict, total=False):
    """Facts of the code that analysis reads; a record may have others, and lack any."""

    __pydantic_config__ = _FACTS  # type: ignore[misc]
    git_commit: Line | None
    git_dirty: bool | None
    git_missing: Line | None
    began_with: Annotated[list[Line], Field(max_length=1000)]
    python: Line
    packages: Annotated[dict[Line, Line], Field(max_length=10_000)]


_SYSTEM, _PROVENANCE = TypeAdapter(System), TypeAdapter(Provenance)


def system_of(facts: Mapping[str, Any]) -> System:
    """Return facts of a machine as a record holds them, its texts each in one line."""
    return _SYSTEM.validate_python(_recordable(facts))


def provenance_of(facts: Mapping[str, Any]) -> Provenance:
    """Return facts of the code as a record holds them, its texts each in one line."""
    return _PROVENANCE.validate_python(_recordable(facts))


def _recordable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _recordable(one) for name, one in value.items()}
    return _encodable(value)[:LONGEST_LINE] if isinstance(value, str) else value


def _encodable(text: str) -> str:
    """Return a text as a file can hold it."""
    return text.encode(errors="backslashreplace").decode()


class RunRecord(Strict):
    """``run.json``."""

    schema_version: Index = Field(SCHEMA_VERSION, description="version of these files")
    method_version: Index = Field(
        METHOD_VERSION, description="version of the method; never compare numbers of two versions"
    )
    loader_version: Index = Field(
        1, description="version of the loader; runs of two versions are never compared"
    )
    study: Line = Field(description="name of the study")
    run_id: Line = Field(description="name of the run, also its folder")
    spec: RunSpec = Field(description="all settings of the run")
    world_size: Count = Field(description="number of ranks")
    global_batch_size: Count = Field(description="images per optimiser step")
    status: Status = Field("planned", description="state of the run")
    error: Failure | None = Field(None, description="why it failed; null otherwise")
    created_utc: Line = Field(description="when it was planned")
    attempts: list[Attempt] = Field(
        default_factory=list, max_length=10**6, description="starts, in order"
    )
    job_id: Line | None = Field(None, description="its last job of the batch system")
    data_dir: Text | None = Field(
        None, description="folder of the data, relative to the project if possible; null: synthetic"
    )
    data: DataInfo | None = Field(None, description="data that were found; null before the start")
    provenance: Provenance | None = Field(
        None, description="code and packages; null before the start"
    )
    system: System | None = Field(
        None, description="machine and settings in effect; null before the start"
    )
    initial_sha256: Line | None = Field(
        None,
        description="hash of the initial weights and statistics, the same in every framework; "
        "null without training",
    )
    weights_sha256: Line | None = Field(
        None,
        description="hash of the final ones, equal on all ranks; null without training",
    )

    @model_validator(mode="after")
    def _is_of_its_spec(self) -> Self:
        if self.spec.run_id != self.run_id:
            raise ValueError(f"its spec is not that of its run_id, but of {self.spec.run_id}")
        for name in ("world_size", "global_batch_size"):
            if getattr(self, name) != getattr(self.spec, name):
                given = getattr(self.spec, name)
                raise ValueError(f"{name} = {getattr(self, name)}, but its spec gives {given}")
        return self

    @property
    def emulation(self) -> Emulation | None:
        """Facts of an emulated run; None where there are none."""
        facts = (self.system or {}).get(EMULATION)
        return Emulation.model_validate(facts) if facts else None

    @property
    def rejected(self) -> list[str]:
        """Why a run on simulated nodes does not count though it has completed."""
        nodes = self.spec.launcher
        if nodes is None or self.status != "completed":
            return []
        rules: list[str] = nodes.broken_rules(self.emulation)
        return rules

    @property
    def withdrawn(self) -> str | None:
        """Why no figure, table or advice uses the numbers of this run; None if they may."""
        return WITHDRAWN.get((self.spec.loader, self.loader_version))

    @property
    def outdated(self) -> str:
        """What has changed since this run was first started; empty where nothing has."""
        loader = self.spec.loader
        versions = {
            "method": (self.method_version, METHOD_VERSION),
            f"loader {loader!r}": (self.loader_version, loader_version(loader)),
        }
        return ", ".join(
            f"{what} has version {now} now, the run has {then}"
            for what, (then, now) in versions.items()
            if self.attempts and then != now
        )

    def begin_attempt(self, attempt: Attempt) -> None:
        """Open a start, the first by the method and loader of today; `RecordError` if outdated."""
        if self.outdated:
            raise RecordError(
                f"run {self.run_id} was begun by older code: {self.outdated}; "
                f"`ddl study run {self.study}` moves it aside and begins anew"
            )
        self.method_version = METHOD_VERSION
        self.loader_version = loader_version(self.spec.loader)
        self.attempts.append(attempt)

    def close_attempts(self, cause: Failure, ended_utc: str | None) -> None:
        """End the starts whose status is still ``running``."""
        for attempt in self.attempts:
            if attempt.status == "running":
                attempt.status, attempt.error, attempt.ended_utc = "failed", cause, ended_utc

    @classmethod
    def plan(cls, study: str, spec: RunSpec, data_dir: str | None = None) -> "RunRecord":
        """Return the record of a run that has not started."""
        return cls(
            loader_version=loader_version(spec.loader),
            study=study,
            run_id=spec.run_id,
            spec=spec,
            world_size=spec.world_size,
            global_batch_size=spec.global_batch_size,
            created_utc=now(),
            data_dir=data_dir,
        )


def loader_version(loader: str) -> int:
    """Return the version of a loader as it is here."""
    entry = registry.known("loader", loader)
    return entry.version if entry else 1


class EpochRecord(Strict):
    """One line of ``epochs.jsonl``: one epoch of one phase. Missing is null, never 0."""

    # A loss that diverged is kept as it is; no other number can be none.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    attempt: Index = Field(description="index into RunRecord.attempts")
    epoch: Index = Field(description="number of the epoch, from 0")
    phase: Literal["train", "eval"] = Field(
        description="training (with `work: load`, loading) or evaluation"
    )
    cold: bool = Field(description="warm-up: does not count for throughput")
    steps: Count = Field(
        gt=0, description="optimiser steps (train) or batches of the busiest rank (eval)"
    )
    samples: Count = Field(gt=0, description="images used by all ranks")
    corrupt_images: Count = Field(description="of these, unreadable and replaced")
    wall_s: Duration = Field(gt=1e-9, description="barrier to barrier, maximum over ranks")
    cpu_s: Duration = Field(description="CPU time of all ranks and their loader processes")
    data_s: Duration = Field(
        description="waiting for the next batch, maximum over ranks; on a GPU in device time"
    )
    rank_wall_s_min: Duration = Field(
        description="time of the fastest rank, before the closing barrier"
    )
    rank_wall_s_max: Duration = Field(description="the same of the slowest rank")
    step_s_median: Duration | None = Field(description="median of the steps, slowest rank")
    step_s_p95: Duration | None = Field(description="95th percentile of the steps, slowest rank")
    throughput_samples_per_s: Number = Field(description="`samples` / `wall_s`")
    loss: Annotated[float, AllowInfNan(True)] | None = Field(
        description="mean loss, in evaluation without smoothing; NaN if it diverged; null if "
        "nothing was trained"
    )
    top1: float | None = Field(ge=0, le=1, description="share of images, 0 to 1; null in training")
    top5: float | None = Field(ge=0, le=1, description="the same for the five best classes")
    precise_bn_loss: Annotated[float, AllowInfNan(True)] | None = Field(
        None, description="`loss` of the second evaluation (`precise_bn`); null without"
    )
    precise_bn_top1: float | None = Field(
        None, ge=0, le=1, description="`top1` of the second evaluation; null without"
    )
    lr: Number | None = Field(description="learning rate of the last update; null in evaluation")
    max_memory_bytes: Count | None = Field(
        description="peak of a rank: on a GPU torch's tensors (command: all), else main memory; "
        "null if unknown"
    )
    device_waits: Count | None = Field(
        None,
        description="calls of torch's synchronize (device, stream, event) in the steps, rank 0; "
        "null if not counted",
    )
    ids_sha256: Line | None = Field(
        None, description="SHA-256 over the sorted numbers of the images used; null if synthetic"
    )
    spent: Spent | None = Field(
        None,
        description="parts of `wall_s`, mean over ranks; null if nothing was trained, the "
        "framework does not tell, or backward waits for communication",
    )
    energy_j: Number | None = Field(
        None, description="energy of the epoch, all ranks; null if not measured"
    )
    interleave: Slot | None = Field(
        None, description="place in an interleaved study; null otherwise"
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.corrupt_images > self.samples:
            raise ValueError(f"corrupt_images = {self.corrupt_images} of samples = {self.samples}")
        rate = self.samples / self.wall_s
        if not math.isclose(self.throughput_samples_per_s, rate, rel_tol=_SAME):
            raise ValueError(
                f"throughput_samples_per_s = {self.throughput_samples_per_s:g}, but samples / "
                f"wall_s = {rate:g}"
            )
        if self.top1 is not None and self.top5 is not None and self.top1 > self.top5:
            raise ValueError(f"top1 = {self.top1:g} is more than top5 = {self.top5:g}")
        return self


def write_record(directory: Path, record: RunRecord) -> None:
    """Write ``run.json`` of a run atomically."""
    write_atomically(RunFiles(directory).record, record.model_dump_json(indent=1) + "\n")


class UnknownNameError(RecordError):
    """A whole record names a strategy, loader or network of a package that is not installed."""


def read_record(directory: Path) -> RunRecord:
    """Read the record of a run strictly.

    `UnknownNameError` if it names what a package brings that is not installed here. `RecordError`
    if it is missing, not JSON, has a wrong field, or is of another version.
    """
    return parse_record(*stored(directory).record())


def parse_record(path: Path, content: dict[str, Any]) -> RunRecord:
    """Return the record in the `content` of a file; errors as of `read_record`."""
    _check_names(path, content)
    return validated(path, content, RunRecord, "schema", *READABLE)


def _check_names(path: Path, content: dict[str, Any]) -> None:
    spec, origin = content.get("spec"), content.get("provenance")
    names = spec if isinstance(spec, dict) else {}
    unknown = [
        f"spec.{kind} = {names[kind]!r}"
        for kind in registry.REGISTRIES
        if isinstance(names.get(kind), str) and registry.known(kind, names[kind]) is None
    ]
    packages = origin.get("packages") if isinstance(origin, dict) else None
    known = {*PACKAGES, *(name for kind in registry.REGISTRIES for name in registry.packages(kind))}
    versions = packages.items() if isinstance(packages, dict) else ()
    brought = [f"{name}=={version}" for name, version in versions if name not in known]
    if brought:  # whose options may be missing here
        own = run_fields().keys() | SETTINGS.keys()
        unknown += [f"spec.{name}" for name in sorted(names.keys() - own)]
    if not unknown:
        return
    raise UnknownNameError(
        f"{path}: {', '.join(unknown)} is not known here; the record is whole",
        remedy=f"install {' '.join(brought) or 'the package'} with which it was measured",
    )


def append_epoch(directory: Path, row: EpochRecord) -> None:
    """Add one line to ``epochs.jsonl``, in the place of one that was left unfinished.

    Where the line cannot be written, `RecordError`, and the file stays as it was.
    """
    path = RunFiles(directory).epochs
    try:
        with open_to_append(path) as file:
            file.seek(0)
            end = file.read().rfind(b"\n") + 1
            file.truncate(end)
        try:
            with open_to_append(path) as file:
                file.write(f"{row.model_dump_json()}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # once it is closed, which writes what is left
            os.truncate(path, end)
            raise
    except OSError as error:
        raise cannot_write(path, error) from error


def read_rows(directory: Path) -> list[EpochRecord]:
    """Return the finished lines of the epochs of a run in their order; none where there are none.

    An unfinished last line (its writer was killed) is not a row. A wrong line: `RecordError`.
    """
    return [parse_epoch(*one) for one in stored(directory).epochs()]


def parse_epoch(path: Path, content: dict[str, Any]) -> EpochRecord:
    """Return the row in the `content` of a line; `RecordError` if that is wrong."""
    return parsed(path, content, EpochRecord)


def newest(rows: list[EpochRecord]) -> list[EpochRecord]:
    """Return the rows that count, in order of epoch and phase.

    Where a resumed run measured an epoch again, the newest attempt counts.
    """
    found = {(row.epoch, row.phase): row for row in rows}
    return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1] != "train"))]


def read_epochs(directory: Path) -> list[EpochRecord]:
    """Return the rows of a run that count: `newest` of `read_rows`."""
    return newest(read_rows(directory))
