"""From result records to tables: a row per run, failed and damaged ones too, missing values empty.

`windows_table` has a row per warm training epoch, `profiles_table` one per profiled run, rank and
share of time.
"""

import io
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Union, get_args, get_origin

import numpy as np
import pandas as pd
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ddl_core.config import run_fields
from ddl_core.errors import RecordError
from ddl_core.timing import Spent
from ddl_tools.analysis import metrics
from ddl_tools.analysis.csv_file import read_csv, to_csv
from ddl_tools.names import plural
from ddl_tools.records import identity
from ddl_tools.records.damage import Examined, broken, examine
from ddl_tools.records.ledger import listed, study_folders
from ddl_tools.records.paths import Tree
from ddl_tools.records.profiling import read_profile
from ddl_tools.records.rounds import Round, round_of, rounds_left_out
from ddl_tools.records.run import EpochRecord, RunRecord, Slot
from ddl_tools.records.storage import require_ours, write_atomically
from ddl_tools.records.stored import has_profile

_DTYPES = {bool: "boolean", int: "Int64", float: "float64", str: "string"}

WINDOW = "window"
UNKNOWN = "unknown"  # status of a row of a record that names what is not installed here
DAMAGED = "damaged"  # status of a row that stands for a record of which nothing is believed
WITHDRAWN = "withdrawn"  # status of a row of a run whose numbers are not used any more
KERNELS = "kernel time"
DIGITS = 9  # of floats in a file: its bytes are stable
PROFILED = ("strategy", "loader", "data_format", "model", "world_size")
"""Columns of the run that a table of profiles has."""


def _dtype(annotation: Any) -> str:
    """Return the column type of a `RunSpec` field; ``X | None`` is a column of X with gaps."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    while get_args(annotation):  # Annotated[X, ...] and Literal["a", ...]
        annotation = get_args(annotation)[0]
    return _DTYPES[annotation if isinstance(annotation, type) else type(annotation)]


def _types(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    return _dtypes(model.model_fields, prefix)


def _dtypes(fields: Mapping[str, FieldInfo], prefix: str = "") -> dict[str, str]:
    return {prefix + name: _dtype(field.annotation) for name, field in fields.items()}


def _columns(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


COLUMNS: dict[str, str] = {
    **_columns("string", "study run_id configuration series status"),
    **_dtypes(run_fields()),
    **_columns("Int64", "world_size global_batch_size"),
    **_columns("string", "device_used accelerator machine"),
    **{"cpu_cores": "Int64", "cores_shared": "string", "memory_gib": "Int64"},
    **_columns("string", "software environment threads switches communication loader_software"),
    **dict.fromkeys(identity.DATA, "string"),
    **_columns("float64", "speed_mb_per_s load_average_1min"),
    **{"git_commit": "string", "git_dirty": "boolean"},
    "image_order": "string",
    **_columns(
        "Int64", "loader_version method_version attempts train_epochs_warm images_per_epoch"
    ),
    **_columns("float64", "throughput_samples_per_s throughput_samples_per_cpu_s"),
    **_columns("float64", "runtime_s runtime_warm_epoch_s data_share"),
    **_types(Spent, "spent_"),
    **_columns("float64", "evaluation_warm_epoch_s step_s_median"),
    **_columns("Int64", "max_memory_bytes parameters"),
    **_columns("float64", "train_loss eval_loss top1 top5 precise_bn_top1"),
    "diverged": "boolean",
    **_columns("string", "evaluated_epochs evaluated_top1 evaluated_train_s"),
    "corrupt_images": "Int64",
    **_columns("float64", "energy_j_per_image energy_kwh carbon_g_per_kwh kg_co2e"),
    **_columns("string", "energy_method error_kind error_category damage unfaithful"),
    "link_mbit_least": "float64",
}
WINDOW_COLUMNS = {
    **_columns("string", "study run_id"),
    "epoch": "Int64",
    **_types(Slot),
    "samples": "Int64",
    **_columns("float64", "wall_s cpu_s throughput_samples_per_s throughput_samples_per_cpu_s"),
    "left_out": "string",
}
PROFILE_COLUMNS = {
    **{name: COLUMNS[name] for name in ("study", "run_id", *PROFILED)},
    **{"device": "string", "rank": "Int64", "share": "string", "of": "string"},
    **{"value": "float64", "source": "string"},
}
_OF_RECORD = (
    *("study", "run_id", "status", "world_size", "global_batch_size"),
    "loader_version",
)
_OF_SYSTEM = ("speed_mb_per_s", "load_average_1min", "energy_method")
_ORDER = ["study", "strategy", "loader", "model", "world_size", "repeat", "run_id"]


def runs_table(
    tree: Tree,
    carbon_g_per_kwh: float = metrics.WORLD_G_PER_KWH,
    studies: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Read every record of a tree (`listed`), or of some studies, a row each: `COLUMNS`.

    A missing value is empty, never 0. Throughputs and shares are of warm training epochs;
    ``runtime_s`` sums all training epochs of a completed run, cold ones too; ``diverged`` says that
    a training loss was not finite. ``energy_kwh`` is of all windows of a completed run, ``kg_co2e``
    at `carbon_g_per_kwh`.

    A damaged record has the status `DAMAGED`, the reason as ``damage`` and, where that is whole,
    its specification. The numbers of a withdrawn run are left out too: its status is `WITHDRAWN`,
    and ``damage`` says why. `whole` leaves such rows out. Of emulated runs, ``unfaithful`` says
    which rules they broke and ``link_mbit_least`` how fast the slowest link was; `not_emulated`
    leaves all of them out.
    """
    return _runs_frame(_read(tree, studies), carbon_g_per_kwh)


def windows_table(tree: Tree, studies: Sequence[str] | None = None) -> pd.DataFrame:
    """Read every warm training epoch of the same records, a row each: `WINDOW_COLUMNS`.

    block, reference, round and place are empty where runs were not interleaved; runs that shared
    the nodes of a job have a block alone. Damaged records have no rows. left_out says why no window
    of a round counts: the round is the first one of a start (`FIRST`), or one of its trainings had
    less of the processor than the rest of its run (`DISTURBED`, see `rounds_left_out`).
    """
    return _windows_frame(_read(tree, studies))


def write_tables(
    tree: Tree, study: str, carbon_g_per_kwh: float = metrics.WORLD_G_PER_KWH
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write ``tables/<study>.csv`` and ``tables/windows/<study>.csv``; return them as read again.

    The same records give the same bytes. Energy becomes CO2e at `carbon_g_per_kwh`. `RecordError`
    if the study has no runs here, or the table cannot be written.
    """
    read = _read(tree, [study])
    if not read:
        raise RecordError(
            f"study {study!r} has no runs in {tree.runs}; "
            f"run it with `ddl study run {study}`, or choose another place with --results DIR"
        )
    path, windows = tree.tables / f"{study}.csv", tree.tables / "windows" / f"{study}.csv"
    for table in (path, windows):
        require_ours(table, "study,run_id,")
    write_atomically(windows, to_csv(_windows_frame(read), DIGITS))
    write_atomically(path, to_csv(_runs_frame(read, carbon_g_per_kwh), DIGITS))
    return read_table(path), read_table(windows, WINDOW_COLUMNS)


def read_table(path: Path | IO[str], columns: Mapping[str, str] = COLUMNS) -> pd.DataFrame:
    """Read a table that `write_tables` wrote, with the same column types."""
    return read_csv(path, dtype=dict(columns), keep_default_na=False, na_values=[""])


def as_read(table: pd.DataFrame, columns: Mapping[str, str] = COLUMNS) -> pd.DataFrame:
    """Return a table as `write_tables` would have written and read it: figures show its digits."""
    return read_table(io.StringIO(to_csv(table, DIGITS)), columns)


def whole(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs whose records can be read and used."""
    return runs[~runs["status"].isin((DAMAGED, UNKNOWN, WITHDRAWN))]


def not_emulated(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that were measured: emulated ones never stand beside them."""
    return runs[~is_emulated(runs)]


def is_emulated(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Say of each run whether it was emulated; where this is not known, that it was not."""
    return runs["emulated"].fillna(False).astype(bool)


def counts(runs: pd.DataFrame) -> str:
    """Return e.g. ``"18 runs: 17 completed, 1 failed"``."""
    parts = [f"{number} {status}" for status, number in runs["status"].value_counts().items()]
    by_state = ", ".join(sorted(parts, key=lambda part: part.split()[1]))
    return f"{plural(len(runs), 'run')}: {by_state}"


def empty_table(columns: Mapping[str, str] = COLUMNS) -> pd.DataFrame:
    """Return a table without rows, with all columns and their types; by default one of runs."""
    return _frame([], columns)


def _frame(rows: Sequence[dict[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns)).astype(dict(columns))


def _read(tree: Tree, studies: Iterable[str] | None) -> list[Examined]:
    return [used(examine(folder)) for folder in _folders(tree, studies)]


def _folders(tree: Tree, studies: Iterable[str] | None) -> list[Path]:
    names = listed(tree) if studies is None else studies
    return [folder for name in names for folder in study_folders(name, tree)]


def _runs_frame(runs: Sequence[Examined], carbon_g_per_kwh: float) -> pd.DataFrame:
    rows = list(map(_row, runs))
    identity.complete(rows)
    # A damaged record may not say what it was of.
    keys = (identity.columns(row) if "strategy" in row else {} for row in rows)
    table = _frame([row | key for row, key in zip(rows, keys, strict=True)], COLUMNS)
    measured = table["energy_kwh"].notna()
    table.loc[measured, "carbon_g_per_kwh"] = carbon_g_per_kwh
    table["kg_co2e"] = metrics.kg_co2e(table["energy_kwh"], carbon_g_per_kwh)
    return table.sort_values(_ORDER, ignore_index=True, kind="stable")


def used(run: Examined) -> Examined:
    """Return a run, or the same as damaged if no row of a table can be made of it."""
    try:
        _row(run)
    except Exception as error:
        return broken(run.directory, error)
    return run


def _row(run: Examined) -> dict[str, Any]:
    name = {"study": run.directory.parent.name, "run_id": run.directory.name}
    known = _about(run.record) if run.record else name
    if run.damages:
        status = UNKNOWN if run.is_unknown else DAMAGED
        return known | {"status": status, "damage": run.reason}
    assert run.record is not None
    if run.record.withdrawn:
        return known | {"status": WITHDRAWN, "damage": run.record.withdrawn}
    return known | _measured(run.record, run.rows)


def _windows(run: Examined, why: Mapping[Round, str]) -> list[dict[str, Any]]:
    record = run.record
    if record is None or record.withdrawn:
        return []
    job = {"block": record.attempts[-1].block} if record.attempts else {}
    return [
        {
            "study": record.study,
            "run_id": record.run_id,
            **(slot.model_dump() if (slot := row.interleave) else job),
            **{name: getattr(row, name) for name in ("epoch", "samples", "wall_s", "cpu_s")},
            "throughput_samples_per_s": metrics.throughput(row.samples, row.wall_s),
            "throughput_samples_per_cpu_s": metrics.throughput(row.samples, row.cpu_s),
            "left_out": why.get(round_of(record.study, slot)) if slot else None,
        }
        for row in run.rows
        if row.phase == "train" and not row.cold
    ]


def _windows_frame(runs: Sequence[Examined]) -> pd.DataFrame:
    why = rounds_left_out(runs)
    table = _frame([row for run in runs for row in _windows(run, why)], WINDOW_COLUMNS)
    return table.sort_values(["study", "run_id", "epoch"], ignore_index=True, kind="stable")


def _about(record: RunRecord) -> dict[str, Any]:
    system, provenance = record.system or {}, record.provenance or {}
    description = identity.description(record)
    error = {f"error_{name}": getattr(record.error, name, None) for name in ("kind", "category")}
    return {
        **description,
        **{name: getattr(record, name) for name in _OF_RECORD},
        **{name: system.get(name) for name in _OF_SYSTEM},
        **{name: provenance.get(name) for name in ("git_commit", "git_dirty")},
        **error,
        "parameters": (system.get("network") or {}).get("parameters"),
        "image_order": getattr(record.data, "order", None),
        "attempts": len(record.attempts),
        "unfaithful": "; ".join(record.rejected) or None,
        "link_mbit_least": getattr(record.emulation, "link_mbit_least", None),
    }


def _measured(record: RunRecord, epochs: list[EpochRecord]) -> dict[str, Any]:
    spec, completed = record.spec, record.status == "completed"
    train = [row for row in epochs if row.phase == "train"]
    evaluations = [row for row in epochs if row.phase == "eval"]
    if not train:
        return {}
    warm = [row for row in train if not row.cold]
    last = evaluations[-1] if evaluations else None
    losses = [row.loss for row in train if row.loss is not None]
    return {
        "train_epochs_warm": len(warm),
        "images_per_epoch": train[-1].samples,
        "runtime_s": metrics.runtime([row.wall_s for row in train]) if completed else None,
        **(_rates(warm) if warm else {}),
        **({} if spec.waits_in_backward else _spent(warm, evaluations)),
        "train_loss": train[-1].loss,
        "eval_loss": last.loss if last else None,
        **{name: getattr(last, name, None) for name in ("top1", "top5", "precise_bn_top1")},
        "diverged": not np.isfinite(losses).all() if losses else None,
        **(_curve(train, evaluations) if evaluations else {}),
        "corrupt_images": sum(row.corrupt_images for row in epochs),
        "energy_kwh": metrics.kwh(epochs) if completed else None,
    }


def _spent(warm: list[EpochRecord], evaluations: list[EpochRecord]) -> dict[str, float]:
    """Return the seconds of a warm epoch by cause; nothing where one row lacks them."""
    known = [row.spent for row in warm if row.spent is not None]
    if not warm or len(known) < len(warm):
        return {}
    first = min(row.epoch for row in warm)
    evaluation_s = sum(row.wall_s for row in evaluations if row.epoch >= first)
    sums = {name: sum(getattr(spent, name) for spent in known) for name in Spent.model_fields}
    parts = {f"spent_{name}": seconds / len(warm) for name, seconds in sums.items()}
    return parts | {"evaluation_warm_epoch_s": evaluation_s / len(warm)}


def _curve(train: list[EpochRecord], evaluations: list[EpochRecord]) -> dict[str, str]:
    """Return accuracy over epochs done and over seconds of training, as lists with semicolons."""
    seconds = np.cumsum([row.wall_s for row in train])
    numbers = [row.epoch for row in train]
    lists: dict[str, list[Any]] = {
        "evaluated_epochs": [row.epoch + 1 for row in evaluations],
        "evaluated_top1": [row.top1 for row in evaluations],
        "evaluated_train_s": [seconds[numbers.index(row.epoch)] for row in evaluations],
    }
    return {name: ";".join(f"{value:.6g}" for value in values) for name, values in lists.items()}


def _rates(warm: list[EpochRecord]) -> dict[str, Any]:
    """Return the rates, which are of warm epochs alone."""
    samples, wall_s, cpu_s, data_s = (
        sum(getattr(row, name) for row in warm) for name in ("samples", "wall_s", "cpu_s", "data_s")
    )
    steps = [row.step_s_median for row in warm if row.step_s_median is not None]
    memory = [row.max_memory_bytes for row in warm if row.max_memory_bytes is not None]
    return {
        "throughput_samples_per_s": metrics.throughput(samples, wall_s),
        "throughput_samples_per_cpu_s": metrics.throughput(samples, cpu_s),
        "runtime_warm_epoch_s": wall_s / len(warm),
        "data_share": data_s / wall_s if wall_s > 0 else None,
        "step_s_median": float(np.median(steps)) if steps else None,
        "max_memory_bytes": max(memory, default=None),
        "energy_j_per_image": metrics.joules_per_image(warm),
    }


def profiles_table(tree: Tree, studies: Sequence[str] | None = None) -> pd.DataFrame:
    """Read the profiles of all completed runs in `tree`, or of some studies: `PROFILE_COLUMNS`.

    ``value`` is a share of what ``of`` says, 0 to 1. Of the ``window``, from the first watched step
    to the end of the last: the `Shares`, which sum to 1 in each rank, and ``overlapped``, a part of
    ``compute``, missing where it is not known. Of the ``kernel time``, only on GPUs: the `KINDS`,
    which sum to 1 as well. Damaged and withdrawn runs have no rows.
    """
    profiled = [one for one in _folders(tree, studies) if has_profile(one)]
    rows = [row for run in map(examine, profiled) for row in _profile_rows(used(run))]
    return _frame(rows, PROFILE_COLUMNS)


def _profile_rows(run: Examined) -> Iterator[dict[str, Any]]:
    record = run.record
    if record is None or run.damages or record.withdrawn or record.status != "completed":
        return
    profile = read_profile(run.directory)
    about = {"study": record.study, "run_id": record.run_id, "device": profile.device}
    about |= {name: getattr(record.spec, name) for name in PROFILED} | {"source": "torch.profiler"}
    for one in profile.ranks:
        shares = [(name, WINDOW, value) for name, value in one.shares.model_dump().items()]
        shares.append(("overlapped", WINDOW, one.overlapped))
        shares += [(name, KERNELS, value) for name, value in (one.kernels or {}).items()]
        for share, of, value in shares:
            yield about | {"rank": one.rank, "share": share, "of": of, "value": value}
