"""Where the time of profiled steps went, as a table: a row per run, rank and share."""

from pathlib import Path

import pandas as pd

from ddl_core.records.paths import RunFiles, Tree
from ddl_core.records.profile import ProfileRecord, RankProfile, read_profile
from ddl_core.records.run import RunRecord, read_record

WINDOW = "window"
KERNELS = "kernel time"

COLUMNS = {
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


def profiles_table(tree: Tree) -> pd.DataFrame:
    """Read the profiles of all completed runs in `tree`.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`. ``value`` is a share of what ``of`` says, 0 to 1. Of the ``window``, from the
        first watched step to the end of the last: ``compute``, ``transfer``, ``waiting``,
        ``copies``, ``data``, ``other`` and ``idle``, in this order, which sum to 1 in each rank;
        apart from them ``overlapped``, which lies within ``compute`` and is missing where it is
        not known. Of the ``kernel time``, only on GPUs: the kinds of `kernel_names`, which sum to 1
        as well. ``source`` is ``torch.profiler``.

    Raises
    ------
    RecordError
        If a record or a profile cannot be read.
    """
    rows = [row for path in sorted(tree.runs.glob("*/*/run.json")) for row in _rows(path.parent)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _rows(directory: Path) -> list[dict[str, object]]:
    if not RunFiles(directory).profile.exists():
        return []
    record = read_record(directory)
    if record.status != "completed":
        return []
    profile = read_profile(directory)
    about = _about(record, profile)
    return [
        {**about, "rank": one.rank, "share": share, "of": whole, "value": value}
        for one in profile.ranks
        for share, whole, value in _values(one)
    ]


def _about(record: RunRecord, profile: ProfileRecord) -> dict[str, object]:
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


def _values(one: RankProfile) -> list[tuple[str, str, float | None]]:
    shares = [(name, WINDOW, value) for name, value in one.shares.model_dump().items()]
    kernels = [(name, KERNELS, value) for name, value in (one.kernels or {}).items()]
    return [*shares, ("overlapped", WINDOW, one.overlapped), *kernels]
