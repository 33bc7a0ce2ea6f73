"""From result records to tables: a row per run, failed and damaged ones too, missing values empty.

`windows_table` has a row per warm training epoch, `profiles_table` one per profiled run, rank and
share of time.
"""

import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import numpy as np
import pandas as pd

from ddl_core.analysis import configuration, metrics, run_report
from ddl_core.errors import RecordError
from ddl_core.records.damage import Examined, examine
from ddl_core.records.ledger import study_folders
from ddl_core.records.paths import RunFiles, Tree
from ddl_core.records.profile import ProfileRecord, RankProfile, read_profile
from ddl_core.records.run import EpochRecord, RunRecord, Spent
from ddl_core.records.storage import write_atomically
from ddl_core.spec.run import RunSpec

_DTYPES = {bool: "boolean", int: "Int64", float: "float64", str: "string"}

LEAST_CPU = 0.85
"""Of a run's median of CPU seconds over wall seconds: a window below it was disturbed."""
FIRST, DISTURBED = "first of a start", "disturbed"
"""Why the windows of a round do not count."""

WINDOW = "window"
UNKNOWN = "unknown"  # status of a row of a record that names what is not installed here
DAMAGED = "damaged"  # status of a row that stands for a record of which nothing is believed
KERNELS = "kernel time"

PROFILE_COLUMNS = {
    "study": "string",
    "run_id": "string",
    "strategy": "string",
    "loader": "string",
    "data_format": "string",
    "model": "string",
    "world_size": "Int64",
    "device": "string",
    "rank": "Int64",
    "share": "string",
    "of": "string",
    "value": "float64",
    "source": "string",
}


def _dtype(annotation: Any) -> str:
    """Return the column type of a `RunSpec` field; ``X | None`` is a column of X with gaps."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    while get_args(annotation):  # Annotated[X, ...] and Literal["a", ...]
        annotation = get_args(annotation)[0]
    return _DTYPES[annotation if isinstance(annotation, type) else type(annotation)]


COLUMNS: dict[str, str] = {
    "study": "string",
    "run_id": "string",
    "status": "string",
    **{name: _dtype(field.annotation) for name, field in RunSpec.model_fields.items()},
    "world_size": "Int64",
    "global_batch_size": "Int64",
    "device_used": "string",
    "accelerator": "string",
    "machine": "string",
    "cpu_cores": "Int64",
    "cores_shared": "string",
    "memory_gib": "Int64",
    "software": "string",
    "environment": "string",
    "threads": "string",
    "switches": "string",
    "communication": "string",
    "loader_software": "string",
    "load_average_1min": "float64",
    "git_commit": "string",
    "git_dirty": "boolean",
    "method_version": "Int64",
    "attempts": "Int64",
    "train_epochs_warm": "Int64",
    "images_per_epoch": "Int64",
    "throughput_samples_per_s": "float64",
    "throughput_samples_per_cpu_s": "float64",
    "runtime_s": "float64",
    "runtime_warm_epoch_s": "float64",
    "data_share": "float64",
    **{f"spent_{name}": "float64" for name in Spent.model_fields},
    "evaluation_warm_epoch_s": "float64",
    "step_s_median": "float64",
    "max_memory_bytes": "Int64",
    "parameters": "Int64",
    "train_loss": "float64",
    "eval_loss": "float64",
    "top1": "float64",
    "top5": "float64",
    "diverged": "boolean",
    "evaluated_epochs": "string",
    "evaluated_top1": "string",
    "evaluated_train_s": "string",
    "corrupt_images": "Int64",
    "energy_j_per_image": "float64",
    "energy_kwh": "float64",
    "carbon_g_per_kwh": "float64",
    "kg_co2e": "float64",
    "energy_method": "string",
    "error_kind": "string",
    "error_category": "string",
    "damage": "string",
    "unfaithful": "string",
}
WINDOW_COLUMNS = {
    "study": "string",
    "run_id": "string",
    "epoch": "Int64",
    "block": "string",
    "reference": "string",
    "round": "Int64",
    "place": "Int64",
    "samples": "Int64",
    "wall_s": "float64",
    "cpu_s": "float64",
    "throughput_samples_per_s": "float64",
    "throughput_samples_per_cpu_s": "float64",
    "left_out": "string",
}
_ORDER = ["study", "strategy", "loader", "model", "world_size", "repeat", "run_id"]


def runs_table(runs_dir: Path, carbon_g_per_kwh: float = metrics.WORLD_G_PER_KWH) -> pd.DataFrame:
    """Read every record below `runs_dir` (``<study>/<run_id>/``): a row each, damaged ones too.

    Columns are those of `COLUMNS`; a missing value is empty, never 0. Throughputs and shares are
    of warm training epochs (see `metrics`); ``runtime_s`` sums all training epochs of a completed
    run, cold ones too; ``diverged`` says that a training loss was not finite. ``energy_kwh`` is of
    all windows of a completed run, ``kg_co2e`` at `carbon_g_per_kwh`.

    Of a damaged record nothing is believed but, where that is whole, what was asked for: its
    status is `DAMAGED`, ``damage`` says why. `whole` leaves such rows out. Of emulated runs,
    ``unfaithful`` says which rules they broke; `not_emulated` leaves all of them out.
    """
    return _frame([_row(run) for run in _runs(runs_dir)], carbon_g_per_kwh)


def windows_table(runs_dir: Path) -> pd.DataFrame:
    """Read every warm training epoch below `runs_dir`, a row each: `WINDOW_COLUMNS`.

    block, reference, round and place are empty where arms did not take turns; only block is told
    where they shared the nodes of a job. Damaged records have none. left_out says why no window of
    a round counts: the round is the first one of a start (`FIRST`), or one of its trainings had
    less of the processor than the rest of its run (`DISTURBED`, see `LEAST_CPU`).
    """
    return _window_frame([row for run in _runs(runs_dir) for row in _windows(run)])


def write_table(tree: Tree, study: str, carbon_g_per_kwh: float = metrics.WORLD_G_PER_KWH) -> Path:
    """Write ``tables/<study>.csv`` from the study's records and return its path.

    And ``tables/windows/<study>.csv`` beside it. The same records give the same bytes. Energy
    becomes CO2e at `carbon_g_per_kwh`.

    Raises
    ------
    RecordError
        If the study has no runs here, or the table cannot be written.
    """
    # Each record is read once for both.
    read = [(_row(run), _windows(run)) for run in map(examine, study_folders(study, tree))]
    if not read:
        raise RecordError(
            f"study {study!r} has no runs in {tree.runs}; "
            f"run it with `ddl study run {study}`, or choose another place with --results DIR"
        )
    path = tree.tables / f"{study}.csv"
    windows = _window_frame([window for _, rows in read for window in rows])
    write_atomically(windows_path(path), to_csv(windows))
    write_atomically(path, to_csv(_frame([row for row, _ in read], carbon_g_per_kwh)))
    return path


def windows_path(table: Path) -> Path:
    """Return where the windows of a study lie, beside its table."""
    return table.parent / "windows" / table.name


def read_table(path: Path) -> pd.DataFrame:
    """Read a table that `write_table` wrote, with the same column types."""
    return pd.read_csv(path, dtype=COLUMNS, keep_default_na=False, na_values=[""])


def read_windows(path: Path) -> pd.DataFrame:
    """Read a table of windows that `write_table` wrote, with the same column types."""
    return pd.read_csv(path, dtype=WINDOW_COLUMNS, keep_default_na=False, na_values=[""])


def to_csv(table: pd.DataFrame) -> str:
    """Return `table` as CSV with nine significant digits, so that its bytes are stable."""
    return str(table.to_csv(index=False, float_format="%.9g", lineterminator="\n"))


def whole(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs whose records can be read: not damaged, nor of unknown names."""
    return runs[~runs["status"].isin((DAMAGED, UNKNOWN))]


def not_emulated(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that were measured: emulated ones never stand beside them."""
    return runs[~is_emulated(runs)]


def is_emulated(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Say of each run whether it was emulated; of one that nobody can tell, that it was not."""
    return runs["emulated"].fillna(False).astype(bool)


def counts(runs: pd.DataFrame) -> str:
    """Return e.g. ``"18 runs: 17 completed, 1 failed"``."""
    parts = [f"{number} {status}" for status, number in runs["status"].value_counts().items()]
    return f"{len(runs)} runs: {', '.join(sorted(parts, key=lambda part: part.split()[1]))}"


def empty_table() -> pd.DataFrame:
    """Return a table of no runs, with all columns and their types."""
    return _frame([])


def empty_windows() -> pd.DataFrame:
    """Return a table of no windows, with all columns and their types."""
    return _window_frame([])


def empty_profiles() -> pd.DataFrame:
    """Return a table of no profiles, with all columns and their types."""
    return _profile_frame([])


def _frame(
    rows: list[dict[str, Any]], carbon_g_per_kwh: float = metrics.WORLD_G_PER_KWH
) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    measured = table["energy_kwh"].notna()
    table.loc[measured, "carbon_g_per_kwh"] = carbon_g_per_kwh
    table["kg_co2e"] = metrics.kg_co2e(table["energy_kwh"], carbon_g_per_kwh)
    return table.sort_values(_ORDER, ignore_index=True, kind="stable")


def _runs(runs_dir: Path) -> Iterator[Examined]:
    tree = Tree(runs_dir.parent)
    for study in tree.studies():
        yield from map(examine, study_folders(study, tree))


def _row(run: Examined) -> dict[str, Any]:
    place = {"study": run.directory.parent.name, "run_id": run.directory.name}
    asked = {**run.record.spec.model_dump(), **_about(run.record)} if run.record else place
    if run.damages:
        status = UNKNOWN if run.is_unknown else DAMAGED
        return asked | {"status": status, "damage": "; ".join(run.damages)}
    assert run.record is not None
    return asked | _measured(run.record, run.rows)


def _windows(run: Examined) -> list[dict[str, Any]]:
    record = run.record
    if record is None:
        return []
    job = {"block": record.attempts[-1].block} if record.attempts else {}
    warm = [row for row in run.rows if row.phase == "train" and not row.cold]
    why = _left_out(warm, record.spec.work)
    return [
        {
            "study": record.study,
            "run_id": record.run_id,
            "epoch": row.epoch,
            **(row.turn.model_dump() if row.turn else job),
            "samples": row.samples,
            "wall_s": row.wall_s,
            "cpu_s": row.cpu_s,
            "throughput_samples_per_s": metrics.throughput(row.samples, row.wall_s),
            "throughput_samples_per_cpu_s": metrics.throughput(row.samples, row.cpu_s),
            "left_out": why.get(row.epoch),
        }
        for row in warm
    ]


def _left_out(warm: list[EpochRecord], work: str) -> dict[int, str]:
    """Return by epoch why a window of one run does not count, of windows that took turns."""
    in_turns = [row for row in warm if row.turn and row.wall_s > 0]
    if not in_turns:
        return {}
    cores = [row.cpu_s / row.wall_s for row in in_turns]
    # Loading alone takes a tenth of a second, ten ticks of the CPU's clock: these tell nothing.
    least = LEAST_CPU * float(np.median(cores)) if work == "train" else 0.0
    why = {row.epoch: DISTURBED for row, own in zip(in_turns, cores, strict=True) if own < least}
    first = {row.turn.block: row.epoch for row in reversed(in_turns) if row.turn}
    return why | dict.fromkeys(first.values(), FIRST)


def _window_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(WINDOW_COLUMNS)).astype(WINDOW_COLUMNS)
    # Whole rounds: what is left has a partner from the same seconds. FIRST comes after DISTURBED.
    rounds = table[table["round"].notna()].groupby(["study", "block", "round"])["left_out"]
    table["left_out"] = rounds.transform("max").reindex(table.index).astype("string")
    return table.sort_values(["study", "run_id", "epoch"], ignore_index=True, kind="stable")


def _about(record: RunRecord) -> dict[str, Any]:
    system, provenance = record.system or {}, record.provenance or {}
    return {
        "study": record.study,
        "run_id": record.run_id,
        "status": record.status,
        "world_size": record.world_size,
        "global_batch_size": record.global_batch_size,
        "device_used": system.get("device"),
        "accelerator": system.get("accelerator"),
        "machine": system.get("cpu"),
        "cpu_cores": system.get("cpu_cores"),
        **configuration.columns(record),
        "load_average_1min": system.get("load_average_1min"),
        "git_commit": provenance.get("git_commit"),
        "git_dirty": provenance.get("git_dirty"),
        "method_version": record.method_version,
        "parameters": (system.get("network") or {}).get("parameters"),
        "attempts": len(record.attempts),
        "energy_method": run_report.told(record)[0],
        "error_kind": record.error.kind if record.error else None,
        "error_category": record.error.told if record.error else None,
        "unfaithful": _unfaithful(record),
    }


def _unfaithful(record: RunRecord) -> str | None:
    """Return the rules that an emulated run has broken; None if none, or if it is measured."""
    if not record.spec.emulated or record.status != "completed":
        return None
    found = record.emulation
    return "; ".join(found.unfaithful) or None if found else "no epoch counts"


def _measured(record: RunRecord, epochs: list[EpochRecord]) -> dict[str, Any]:
    spec, completed = record.spec, record.status == "completed"
    train = [row for row in epochs if row.phase == "train"]
    evaluations = [row for row in epochs if row.phase == "eval"]
    if not train:
        return {}
    last = evaluations[-1] if evaluations else None
    losses = [row.loss for row in train if row.loss is not None]
    return {
        "train_epochs_warm": sum(not row.cold for row in train),
        "images_per_epoch": train[-1].samples,
        "runtime_s": metrics.runtime([row.wall_s for row in train]) if completed else None,
        **_rates([row for row in train if not row.cold]),
        **({} if spec.waits_in_backward else _spent(train, evaluations)),
        "train_loss": train[-1].loss,
        "eval_loss": last.loss if last else None,
        "top1": last.top1 if last else None,
        "top5": last.top5 if last else None,
        "diverged": not np.isfinite(losses).all() if losses else None,
        **_curve(train, evaluations),
        "corrupt_images": sum(row.corrupt_images for row in epochs),
        "energy_kwh": metrics.kwh(epochs) if completed else None,
    }


def _spent(train: list[EpochRecord], evaluations: list[EpochRecord]) -> dict[str, float]:
    """Return the seconds of a warm epoch by cause; nothing where one row does not tell."""
    warm = [row for row in train if not row.cold]
    known = [row.spent for row in warm if row.spent is not None]
    if not warm or len(known) < len(warm):
        return {}
    first = min(row.epoch for row in warm)
    evaluation_s = sum(row.wall_s for row in evaluations if row.epoch >= first)
    parts = {
        f"spent_{name}": sum(getattr(spent, name) for spent in known) / len(warm)
        for name in Spent.model_fields
    }
    return {**parts, "evaluation_warm_epoch_s": evaluation_s / len(warm)}


def _curve(train: list[EpochRecord], evaluations: list[EpochRecord]) -> dict[str, str]:
    """Return accuracy over epochs done and over seconds of training, as lists with semicolons."""
    if not evaluations:
        return {}
    seconds = np.cumsum([row.wall_s for row in train])
    numbers = [row.epoch for row in train]
    lists: dict[str, list[Any]] = {
        "evaluated_epochs": [row.epoch + 1 for row in evaluations],
        "evaluated_top1": [row.top1 for row in evaluations],
        "evaluated_train_s": [seconds[numbers.index(row.epoch)] for row in evaluations],
    }
    return {name: ";".join(f"{value:.6g}" for value in values) for name, values in lists.items()}


def _rates(warm: list[EpochRecord]) -> dict[str, Any]:
    """Return what only warm epochs may tell; nothing where there is none."""
    if not warm:
        return {}
    samples = sum(row.samples for row in warm)
    wall_s = sum(row.wall_s for row in warm)
    steps = [row.step_s_median for row in warm if row.step_s_median is not None]
    memory = [row.max_memory_bytes for row in warm if row.max_memory_bytes is not None]
    return {
        "throughput_samples_per_s": metrics.throughput(samples, wall_s),
        "throughput_samples_per_cpu_s": metrics.throughput(samples, sum(row.cpu_s for row in warm)),
        "runtime_warm_epoch_s": wall_s / len(warm),
        "data_share": sum(row.data_s for row in warm) / wall_s if wall_s > 0 else None,
        "step_s_median": float(np.median(steps)) if steps else None,
        "max_memory_bytes": max(memory, default=None),
        "energy_j_per_image": metrics.joules_per_image(warm),
    }


def profiles_table(tree: Tree, studies: Sequence[str] | None = None) -> pd.DataFrame:
    """Read the profiles of all completed runs in `tree`, or of some studies.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`. ``value`` is a share of what ``of`` says, 0 to 1. Of the ``window``, from the
        first watched step to the end of the last: ``compute``, ``transfer``, ``waiting``,
        ``copies``, ``data``, ``other`` and ``idle``, in this order, which sum to 1 in each rank;
        apart from them ``overlapped``, which lies within ``compute`` and is missing where it is
        not known. Of the ``kernel time``, only on GPUs: the kinds of `kernel_names`, which sum to 1
        as well. ``source`` is ``torch.profiler``. Damaged runs have no rows.
    """
    names = tree.studies() if studies is None else studies
    folders = [folder for name in names for folder in study_folders(name, tree)]
    profiled = [folder for folder in folders if RunFiles(folder).profile.exists()]
    rows = [row for run in map(examine, profiled) for row in _profile_rows(run)]
    return _profile_frame(rows)


def _profile_frame(rows: list[dict[str, object]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(PROFILE_COLUMNS)).astype(PROFILE_COLUMNS)


def _profile_rows(run: Examined) -> list[dict[str, object]]:
    record = run.record
    if record is None or run.damages or record.status != "completed":
        return []
    profile = read_profile(run.directory)
    about = _about_profile(record, profile)
    return [
        {**about, "rank": one.rank, "share": share, "of": of, "value": value}
        for one in profile.ranks
        for share, of, value in _profile_values(one)
    ]


def _about_profile(record: RunRecord, profile: ProfileRecord) -> dict[str, object]:
    spec = record.spec
    return {
        "study": record.study,
        "run_id": record.run_id,
        "strategy": spec.strategy,
        "loader": spec.loader,
        "data_format": spec.data_format,
        "model": spec.model,
        "world_size": record.world_size,
        "device": profile.device,
        "source": "torch.profiler",
    }


def _profile_values(one: RankProfile) -> list[tuple[str, str, float | None]]:
    shares = [(name, WINDOW, value) for name, value in one.shares.model_dump().items()]
    kernels = [(name, KERNELS, value) for name, value in (one.kernels or {}).items()]
    return [*shares, ("overlapped", WINDOW, one.overlapped), *kernels]
