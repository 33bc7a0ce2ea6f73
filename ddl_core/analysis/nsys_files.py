"""Reads the files of Nsight Systems: what one says of one process on one GPU.

``nsys stats --format csv`` prints the summary of kernels, or the GPU's trace; ``nsys export --type
sqlite`` writes every kernel, copy and range with its times. Its tables are described in the
exporter's manual; they are made only where something was traced.
"""

import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddl_core.errors import DataError
from ddl_core.records.kernel_names import KINDS, Kind, kind
from ddl_core.records.profile import MARK, OURS, WINDOW
from ddl_core.records.timeline import Spans, Timeline, device_steps

NS_PER_S = 1e9

# Until Nsight Systems 2022 they were called gpukernsum and gputrace.
REPORTS = "cuda_gpu_kern_sum or cuda_gpu_trace"
_SUMMARY = {"Total Time (ns)", "Instances", "Name"}
_TRACE = {"Start (ns)", "Duration (ns)", "Name"}
_MEMORY_NAMES = r"^\[CUDA mem(?:cpy|set)"

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


def nothing() -> Spans:
    """Return no spans."""
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Marks:
    """What the training loop said of itself; spans in nanoseconds.

    `data` and `waits` are as in `ddl_core.records.timeline.Timeline`; `window` (1, 2) is the epoch
    that is looked at, or empty; `updates` (n,) are the times at which the host ended each step.
    """

    data: Spans
    waits: Spans
    window: Spans
    updates: NDArray[np.int64]


@dataclass(frozen=True)
class Recorded:
    """One process on one GPU.

    Parameters
    ----------
    kernels : pandas.DataFrame
        ``name`` and ``total_ns``; with a timeline a row per launch, with ``start`` and ``end``, and
        where marks are, ``launched``, when the host called for it, NaN if unknown.
    gpu, pid
        Its number or name, and the process, where the file tells.
    copies, calls
        Copies of memory, and calls of CUDA by the host; spans in nanoseconds.
    marks
        None if none were recorded.
    """

    kernels: pd.DataFrame
    gpu: str | None = None
    pid: int | None = None
    copies: Spans = field(default_factory=nothing)
    calls: Spans = field(default_factory=nothing)
    marks: Marks | None = None

    @cached_property
    def kinds(self) -> "pd.Series":
        """What each kernel does."""
        return self.kernels["name"].map(kind)

    def kernel_shares(self) -> dict[Kind, float]:
        """Return the paper's shares: of the sum of all kernels' durations, overlapping or not.

        Of those that begin in the window, where the file has times.
        """
        counted = self.kernels
        if "start" in counted:
            counted = counted[counted["start"].between(*self._window(), inclusive="left")]
        sums = counted["total_ns"].groupby(self.kinds).sum()
        return {name: float(sums.get(name, 0) / sums.sum()) for name in KINDS}

    def timeline(self) -> Timeline | None:
        """Return what went on when, in seconds; None if the file has no times."""
        if "start" not in self.kernels:
            return None
        window = self._window()
        marks = self.marks or Marks(nothing(), nothing(), nothing(), np.empty(0, np.int64))
        spans = {
            "compute": self._of("cudnn", "other"),
            "collectives": self._of("allreduce", "communication"),
            "copies": self.copies,
            "waits": marks.waits,
            "data": np.concatenate([marks.data, self._of("data")]),
            "calls": self.calls,
        }
        zero = window[0]
        return Timeline(
            steps=(self._steps(window, marks.updates) - zero) / NS_PER_S,
            **{name: (part - zero) / NS_PER_S for name, part in spans.items()},
        )

    def _steps(self, window: Spans, updates: NDArray[np.int64]) -> NDArray[Any]:
        """Return the edges of the steps on the device; all together they are the window."""
        inner = updates[(window[0] < updates) & (updates < window[1])][:-1]
        if not len(inner):
            return window
        launched = self.kernels["launched"].fillna(-np.inf).to_numpy(np.float64)
        ends = self.kernels["end"].to_numpy(np.float64)
        on_device = device_steps(inner.astype(np.float64), launched, ends)
        return np.concatenate([window[:1], np.minimum(on_device, window[1]), window[1:]])

    def _of(self, *kinds: Kind) -> Spans:
        return self.kernels[self.kinds.isin(kinds)][["start", "end"]].to_numpy(np.int64)

    def _window(self) -> Spans:
        """Return start and end of what is looked at: without marks, of all work on the GPU."""
        if self.marks is not None and len(self.marks.window):
            return self.marks.window[-1]
        work = np.concatenate([self.kernels[["start", "end"]].to_numpy(np.int64), self.copies])
        return np.array([work[:, 0].min(), work[:, 1].max()])


def read_csv(path: Path) -> list[Recorded]:
    """Return what a report says: all in one for a summary, one by one per GPU for a trace.

    Raises
    ------
    DataError
        If it is another report, or empty.
    """
    table = _table(path)
    if _TRACE.issubset(table):
        found = _by_device(table)
    else:
        kernels = table.rename(columns={"Name": "name", "Total Time (ns)": "total_ns"})
        found = [Recorded(kernels[["name", "total_ns"]])]
    if not found or not len(table):
        raise DataError(f"{path} lists no kernel: nothing was traced; profile with --trace=cuda")
    return found


def _table(path: Path) -> pd.DataFrame:
    """Return the first table; messages may stand above it, and other reports below."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text; {_wanted()}") from None
    header = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if header is None:
        shown = next((line for line in lines if line.count(",") > 1), "no table")
        raise DataError(f"{path} has other columns: {shown[:200]}; {_wanted()}")
    rows = lines[header:]
    end = next((i for i, row in enumerate(rows) if not row.strip()), len(rows))
    try:
        found = pd.read_csv(io.StringIO("\n".join(rows[:end])), na_values=["None"])
        for name in (_SUMMARY | _TRACE) - {"Name"}:
            if name in found:
                found[name] = pd.to_numeric(found[name])
        return found
    except (pd.errors.ParserError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}; write the report again") from None


def _is_header(line: str) -> bool:
    columns = {word.strip().strip('"') for word in line.split(",")}
    return columns >= _SUMMARY or columns >= _TRACE


def _by_device(table: pd.DataFrame) -> list[Recorded]:
    start, duration = table["Start (ns)"], table["Duration (ns)"]
    table = pd.DataFrame(
        {
            "name": table["Name"],
            "device": table["Device"].astype(str) if "Device" in table else "",
            "start": start,
            "end": start + duration,
            "total_ns": duration,
        }
    )
    moves = table["name"].str.contains(_MEMORY_NAMES)
    found = []
    for device, kernels in table[~moves].groupby("device"):
        copies = table[moves & (table["device"] == device)][["start", "end"]]
        found.append(Recorded(kernels, str(device) or None, copies=copies.to_numpy(np.int64)))
    return found


def _wanted() -> str:
    return f"needed is what `nsys stats --format csv --report REPORT` prints of {REPORTS}"


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
