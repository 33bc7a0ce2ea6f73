"""Shares of kernel time from reports of Nsight Systems, the measure of the paper's Table 2."""

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from ddl_core.errors import DataError
from ddl_tools.analysis import tables
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.profiling import KINDS, kind
from ddl_tools.records.run import read_record

COLUMNS = {**tables.PROFILE_COLUMNS, "file": "string", "note": "string"}
WANTED = "needed is what `nsys stats --report cuda_gpu_kern_sum --format csv REPORT` prints"
SEND_RECV = "NCCL's kernels, but none named all-reduce: some versions name all kernels SendRecv"
_RANK = re.compile(r"\brank[._](\d+)")
_HEADER = {"Total Time (ns)", "Instances", "Name"}


def table(paths: Iterable[Path]) -> pd.DataFrame:
    """Return the shares of kernel time in several reports, a line for each kind: `COLUMNS`.

    Each of `paths` has what ``nsys stats --report cuda_gpu_kern_sum --format csv`` printed for a
    rank. Of one in a run's own folder, the table says which run it is. `DataError` if a
    file cannot be read, naming it and what is needed.
    """
    rows = [row for path in paths for row in _rows(path)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _rows(path: Path) -> list[dict[str, Any]]:
    kernels = _read(path)
    seconds = kernels["Total Time (ns)"].groupby(kernels["Name"].map(kind)).sum()
    shares = (seconds / seconds.sum()).reindex(KINDS, fill_value=0.0)
    rank = _RANK.search(path.name)
    nameless = shares["communication"] > 0 and shares["allreduce"] == 0
    about = _run(path) | {
        "device": "cuda",
        "rank": int(rank[1]) if rank else None,
        "of": tables.KERNELS,
        "source": "nsys",
        "file": str(path),
        "note": SEND_RECV if nameless else "",
    }
    return [about | {"share": name, "value": value} for name, value in shares.items()]


def _read(path: Path) -> pd.DataFrame:
    """Return the summary of kernels; messages may stand above it, and other reports below."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text; {WANTED}") from None
    columns = [{word.strip().strip('"') for word in line.split(",")} for line in lines]
    start = next((number for number, names in enumerate(columns) if names >= _HEADER), None)
    if start is None:
        raise DataError(f"{path} has no summary of kernels; {WANTED}")
    end = next((n for n, line in enumerate(lines) if n > start and not line.strip()), len(lines))
    try:
        kernels = pd.read_csv(io.StringIO("\n".join(lines[start:end])))
        kernels = kernels.astype({"Total Time (ns)": "float64", "Name": "string"})
    except (pd.errors.ParserError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}; write the report again") from None
    if kernels.empty:
        raise DataError(f"{path} lists no kernel: nothing was traced; profile with --trace=cuda")
    return kernels


def _run(path: Path) -> dict[str, Any]:
    """Return in which run's folder a report is; nothing of other files."""
    above = (one for one in path.resolve().parents if RunFiles(one).record.exists())
    if (directory := next(above, None)) is None:
        return {}
    record = read_record(directory)
    spec = {name: getattr(record.spec, name) for name in tables.PROFILED}
    return {"study": record.study, "run_id": record.run_id, **spec}
