"""Where the time goes, from files of Nsight Systems: a table as of torch.profiler's."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis import tables
from ddl_core.analysis.nsys_files import REPORTS, Recorded, read_csv, read_sqlite
from ddl_core.errors import DataError
from ddl_core.records.kernel_names import Kind
from ddl_core.records.paths import RunFiles
from ddl_core.records.run import read_record
from ddl_core.records.timeline import PARTS, Seconds, length, transfer_and_waiting

COLUMNS = {
    **tables.PROFILE_COLUMNS,
    "file": "string",
    "pid": "Int64",
    "gpu": "string",
    "note": "string",
}
ALONE = (
    "transfer and waiting are told apart by comparing all ranks: import the files of a run together"
)
_RANK = re.compile(r"\brank[._](\d+)\b")
_SQLITE_MAGIC = b"SQLite format 3\x00"


def table(paths: Iterable[Path]) -> pd.DataFrame:
    """Return the shares of several files.

    Parameters
    ----------
    paths
        Files that ``nsys export --type sqlite`` or ``nsys stats --format csv`` wrote; those of one
        folder are ranks of one run. Of one in a run's own folder of logs, the table says which run
        it is.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`, see `profiles.profiles_table`. Of the ``window``, there is ``communication`` for
        ``transfer`` and ``waiting`` unless all ranks of the run are there with marks, since one
        rank alone cannot tell them apart; a share that the file does not tell is missing, and
        ``note`` says why.

    Raises
    ------
    DataError
        If a file cannot be read, naming it and what is needed.
    """
    ranks = [_rank(path, one) for path in paths for one in read(path)]
    of_run = defaultdict(list)
    for rank in ranks:
        of_run[Path(rank.about["file"]).resolve().parent].append(rank)
    for together in of_run.values():
        _compare(together)
    rows = [row for rank in ranks for row in rank.rows()]
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


@dataclass
class _Rank:
    """What a file says of one process on one GPU.

    `exposed_s` (steps,) are the seconds of exposed communication, empty without marks of steps.
    """

    about: dict[str, Any]
    window: dict[str, float | None]
    kernels: dict[Kind, float]
    notes: list[str]
    window_s: float = 0.0
    exposed_s: Seconds = field(default_factory=lambda: np.empty(0))

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines of the table."""
        shares = [(name, tables.WINDOW, value) for name, value in self.window.items()]
        shares += [(name, tables.KERNELS, value) for name, value in self.kernels.items()]
        about = {**self.about, "note": "; ".join(self.notes)}
        return [{**about, "share": name, "of": of, "value": value} for name, of, value in shares]


def _rank(path: Path, one: Recorded) -> _Rank:
    number = _RANK.search(path.name)
    about = {
        **_run(path),
        "device": "cuda",
        "rank": int(number[1]) if number else None,
        "source": "nsys",
        "file": str(path),
        "pid": one.pid,
        "gpu": one.gpu,
    }
    window: dict[str, float | None] = dict.fromkeys([*PARTS, "overlapped"])
    rank = _Rank(about, window, one.kernel_shares(), _notes(one))
    if line := one.timeline():
        parts = line.parts()
        rank.window_s = line.steps[-1] - line.steps[0]
        window |= {part: length(spans) / rank.window_s for part, spans in parts.items()}
        window["overlapped"] = line.overlapped_s() / rank.window_s
        if one.marks:
            rank.exposed_s = line.by_step(parts["communication"])
        elif not (one.kinds == "data").any():
            window["data"] = None
    return rank


def _compare(ranks: list[_Rank]) -> None:
    """Divide the exposed communication of one run's ranks, if all are there."""
    ranks = [rank for rank in ranks if len(rank.exposed_s)]
    if not _complete(ranks):
        for rank in ranks:
            rank.notes.append(ALONE)
        return
    transfer, waiting = transfer_and_waiting(np.array([rank.exposed_s for rank in ranks]))
    for rank, waited in zip(ranks, waiting, strict=True):
        del rank.window["communication"]
        divided = {"transfer": transfer / rank.window_s, "waiting": waited / rank.window_s}
        rank.window = {"compute": rank.window.pop("compute"), **divided, **rank.window}


def _complete(ranks: list[_Rank]) -> bool:
    """Say whether these are all ranks of a run, each once, with the same steps."""
    world_size = {rank.about.get("world_size", max(len(ranks), 2)) for rank in ranks}
    numbers = {rank.about["rank"] for rank in ranks}
    steps = {len(rank.exposed_s) for rank in ranks}
    return world_size == {len(ranks)} and numbers == set(range(len(ranks))) and len(steps) == 1


def _run(path: Path) -> dict[str, Any]:
    """Return which run wrote a report to its ``logs/attempt_*/nsys/``; nothing of other files."""
    folder = path.resolve().parent
    if folder.name != "nsys" or not RunFiles(directory := folder.parents[2]).record.exists():
        return {}
    record = read_record(directory)
    named = ("strategy", "loader", "data_format", "model", "world_size")
    spec = {name: getattr(record.spec, name) for name in named}
    return {"study": record.study, "run_id": record.run_id, **spec}


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
