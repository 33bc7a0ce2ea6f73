"""Reads what ``nsys export --type sqlite`` writes: every kernel, copy and range, with its times.

The tables are described in the exporter's manual; they are made only where something was traced.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd

from ddl_core.analysis.recorded import Marks, Recorded, nothing
from ddl_core.errors import DataError
from ddl_core.records.intervals import Spans
from ddl_core.records.spent import MARK, OURS, WINDOW

# A thread's id is its process's, with the thread's own number in the lowest 24 bits.
_PID_BITS = 24
_THREAD = f"globalTid AS thread, (globalTid >> {_PID_BITS}) << {_PID_BITS} AS process"
_KERNELS = """
    SELECT k.start, k.end, k.deviceId AS gpu, k.globalPid AS process, s.value AS name,
        k.correlationId AS launch
    FROM CUPTI_ACTIVITY_KIND_KERNEL AS k LEFT JOIN StringIds AS s ON s.id = k.demangledName
"""
_COPIES = "SELECT start, end, deviceId AS gpu, globalPid AS process FROM "
_MEMORY = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_CALLS = f"SELECT start, end, correlationId AS launch, {_THREAD} FROM CUPTI_ACTIVITY_KIND_RUNTIME"
# Text of a range stands beside it, or among the strings.
_RANGES = f"""
    SELECT start, end, {_THREAD}, coalesce(text, value) AS text
    FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId
    WHERE coalesce(text, value) IS NOT NULL ORDER BY start
"""


def read_sqlite(path: Path) -> list[Recorded]:
    """Return one for each process and GPU that kernels ran on.

    Raises
    ------
    DataError
        If it is no such file, or without kernels.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            return list(_read(path, base))
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        reason = str(error).splitlines()[-1].removeprefix("': ")
        raise DataError(
            f"{path}: {reason}; needed is what `nsys export --type sqlite REPORT.nsys-rep` writes"
        ) from None


def _read(path: Path, base: sqlite3.Connection) -> Iterator[Recorded]:
    tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
    if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
        raise DataError(
            f"{path} has no table CUPTI_ACTIVITY_KIND_KERNEL: no kernel was traced; profile a run "
            "on a GPU, with --trace=cuda"
        )
    kernels = pd.read_sql_query(_KERNELS, base)
    if kernels.empty:
        raise DataError(f"{path}: its table of kernels is empty; profile a run on a GPU")
    kernels["name"] = kernels["name"].fillna("")
    kernels["total_ns"] = kernels["end"] - kernels["start"]
    copies = [pd.read_sql_query(_COPIES + table, base) for table in _MEMORY if table in tables]
    calls = _rows_of(_CALLS, base, "CUPTI_ACTIVITY_KIND_RUNTIME" in tables)
    ranges = _rows_of(_RANGES, base, "NVTX_EVENTS" in tables)
    for (process, gpu), own in kernels.groupby(["process", "gpu"]):
        own_calls = calls[calls["process"] == process]
        called = own_calls.drop_duplicates("launch").set_index("launch")["start"]
        moved = [one[(one["process"] == process) & (one["gpu"] == gpu)] for one in copies]
        own_ranges = ranges[ranges["process"] == process]
        yield Recorded(
            own.assign(launched=own["launch"].map(called)),
            gpu=str(gpu),
            pid=(int(process) >> _PID_BITS) & (2**_PID_BITS - 1),
            copies=_spans(*moved),
            calls=_calls(own_calls, own_ranges),
            marks=_marks(own_ranges),
        )


def _rows_of(query: str, base: sqlite3.Connection, there: bool) -> pd.DataFrame:
    if not there:
        return pd.DataFrame(columns=["start", "end", "thread", "process", "text", "launch"])
    return pd.read_sql_query(query, base)


def _calls(calls: pd.DataFrame, ranges: pd.DataFrame) -> Spans:
    """Return when the training was in a call of CUDA or in an operator, which torch shows as range.

    The threads that train are those with marks; without marks, calls of all threads count.
    """
    marked = ranges["text"].str.startswith(MARK)
    if not marked.any():
        return _spans(calls)
    threads = ranges["thread"][marked].unique()
    operators = ranges[ranges["end"].notna() & ~ranges["text"].str.startswith(OURS)]
    return _spans(*(one[one["thread"].isin(threads)] for one in (calls, operators)))


def _marks(ranges: pd.DataFrame) -> Marks | None:
    """Return the intervals that end with the marks of a phase, and the window."""
    names = ranges["text"].astype(str).str.replace(",.*", "", regex=True)  # torch: ", op_id = 1"
    marks = ranges[names.str.startswith(MARK)]
    if marks.empty:
        return None
    phases = names[marks.index].str.removeprefix(MARK)
    spans = np.column_stack([marks["start"].shift(), marks["start"]])[1:]
    found = {name: spans[(phases == name).to_numpy()[1:]] for name in ("data", "communication")}
    return Marks(
        data=found["data"].astype(np.int64),
        waits=found["communication"].astype(np.int64),
        window=_spans(ranges[(names == WINDOW) & ranges["end"].notna()]),
        updates=marks["start"][phases == "update"].to_numpy(np.int64),
    )


def _spans(*rows: pd.DataFrame) -> Spans:
    spans = [one[["start", "end"]].to_numpy(np.int64) for one in rows]
    return np.concatenate([nothing(), *spans])
