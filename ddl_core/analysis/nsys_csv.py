"""Reads what ``nsys stats --format csv`` prints: the summary of kernels, or the GPU's trace."""

import io
from pathlib import Path

import numpy as np
import pandas as pd

from ddl_core.analysis.recorded import Recorded
from ddl_core.errors import DataError

# Until Nsight Systems 2022 they were called gpukernsum and gputrace.
REPORTS = "cuda_gpu_kern_sum or cuda_gpu_trace"
_SUMMARY = {"Total Time (ns)", "Instances", "Name"}
_TRACE = {"Start (ns)", "Duration (ns)", "Name"}
_MEMORY = r"^\[CUDA mem(?:cpy|set)"


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
        return pd.read_csv(io.StringIO("\n".join(rows[:end])), na_values=["None"])
    except pd.errors.ParserError as error:
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
    moves = table["name"].str.contains(_MEMORY)
    found = []
    for device, kernels in table[~moves].groupby("device"):
        copies = table[moves & (table["device"] == device)][["start", "end"]]
        found.append(Recorded(kernels, str(device) or None, copies=copies.to_numpy(np.int64)))
    return found


def _wanted() -> str:
    return f"needed is what `nsys stats --format csv --report REPORT` prints of {REPORTS}"
