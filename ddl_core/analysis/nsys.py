"""Where the time goes, from files of Nsight Systems: a table as of torch.profiler's."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from ddl_core.analysis import profiles
from ddl_core.analysis.nsys_csv import REPORTS, read_csv
from ddl_core.analysis.nsys_sqlite import read_sqlite
from ddl_core.analysis.recorded import Recorded
from ddl_core.errors import DataError
from ddl_core.intervals import length
from ddl_core.paths import RunFiles
from ddl_core.records import read_record
from ddl_core.time_shares import PARTS

COLUMNS = {**profiles.COLUMNS, "file": "string", "pid": "Int64", "gpu": "string", "note": "string"}
_RANK = re.compile(r"\brank[._](\d+)\b")
_SQLITE_MAGIC = b"SQLite format 3\x00"


def table(paths: Iterable[Path]) -> pd.DataFrame:
    """Return the shares of several files.

    Parameters
    ----------
    paths
        Files that ``nsys export --type sqlite`` or ``nsys stats --format csv`` wrote. Of one in a
        run's own folder of logs, the table says which run it is.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`, see `profiles.profiles_table`. Of the ``window``, there is ``communication`` for
        ``transfer`` and ``waiting``, which one rank alone cannot tell apart; a share that the file
        does not tell is missing, and ``note`` says why.

    Raises
    ------
    DataError
        If a file cannot be read, naming it and what is needed.
    """
    rows = [row for path in paths for one in read(path) for row in _rows(path, one)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def read(path: Path) -> list[Recorded]:
    """Return what a file says, by process and GPU; what kind it is, its content tells.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    if path.suffix in (".nsys-rep", ".qdrep", ".qdstrm"):
        raise DataError(
            f"{path} is Nsight Systems' own format; write it as a database first: "
            f"nsys export --type sqlite {path}"
        )
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if start == _SQLITE_MAGIC:
        return read_sqlite(path)
    if path.suffix == ".sqlite":
        raise DataError(
            f"{path} is not an SQLite file; needed is what `nsys export --type sqlite` writes, or "
            f"`nsys stats --format csv` of {REPORTS}"
        )
    return read_csv(path)


def _rows(path: Path, one: Recorded) -> list[dict[str, Any]]:
    rank = _RANK.search(path.name)
    about = {
        **_run(path),
        "device": "cuda",
        "rank": int(rank[1]) if rank else None,
        "source": "nsys",
        "file": str(path),
        "pid": one.pid,
        "gpu": one.gpu,
        "note": "; ".join(_notes(one)),
    }
    shares = [(name, profiles.KERNELS, value) for name, value in one.kernel_shares().items()]
    values = [*_window_shares(one), *shares]
    return [{**about, "share": name, "of": whole, "value": value} for name, whole, value in values]


def _run(path: Path) -> dict[str, Any]:
    """Return which run wrote a report to its ``logs/attempt_*/nsys/``; nothing of other files."""
    folder = path.resolve().parent
    if folder.name != "nsys" or not RunFiles(directory := folder.parents[2]).record.exists():
        return {}
    record = read_record(directory)
    named = ("strategy", "loader", "data_format", "model", "world_size")
    spec = {name: getattr(record.spec, name) for name in named}
    return {"study": record.study, "run_id": record.run_id, **spec}


def _window_shares(one: Recorded) -> list[tuple[str, str, float | None]]:
    names = [*PARTS, "overlapped"]
    found: dict[str, float | None] = dict.fromkeys(names)
    if line := one.timeline():
        whole = line.steps[-1] - line.steps[0]
        found |= {part: length(spans) / whole for part, spans in line.parts().items()}
        found["overlapped"] = line.overlapped_s() / whole
        if one.marks is None and not (one.kinds == "data").any():
            found["data"] = None
    return [(name, profiles.WINDOW, found[name]) for name in names]


def _notes(one: Recorded) -> list[str]:
    kinds = set(one.kinds)
    timed = "start" in one.kernels
    notes = []
    if not timed:
        notes.append("a sum of kernels has no times: no share of the window can be told")
    elif one.marks is None:
        notes.append(
            "no marks of the training loop: waiting for data counts as other or idle, and the "
            "window is from the first work on the GPU to the last"
        )
    if "communication" in kinds and "allreduce" not in kinds:
        notes.append(
            "NCCL's kernels, but none named all-reduce: some versions name all kernels SendRecv"
        )
    return notes
