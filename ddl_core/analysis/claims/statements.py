"""What the paper states: one entry per statement, with all comparisons that it makes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ddl_core.analysis.paper import BASE_WORLD_SIZE, Paper
from ddl_core.analysis.plot import style

LOCAL_BATCH = 64  # images per GPU: data/paper/settings.csv, local_batch_size
EPOCHS = 90  # of its trainings: data/paper/settings.csv, epochs
MODELS = ("resnet50", "resnet101", "resnet152")
# It names no id for this one: data/paper/settings.csv, docs/reading_the_paper.md, C16.
DALI_WITH_DEEPSPEED = "dali_with_deepspeed"

KINDS = {
    "throughput": "throughput",
    "parallel_efficiency": "efficiency",
    "runtime": "runtime",
    "speedup": "runtime",
    "top1": "accuracy",
    "top1_early": "accuracy",
    "top1_late": "accuracy",
    "allreduce_percent": "kernel time",
    "io_percent": "kernel time",
    "cudnn_percent": "kernel time",
    "io_time": "kernel time",
    "possible": "compatibility",
    "quoted": "quoted",
}
# Of the curves of Fig. 9, not of their ends: the first 20 epochs, the last 70.
_CURVES = {"O22": "top1_early", "O23": "top1_late"}
_NAMED: dict[str, Callable[[str], str]] = {
    "strategy": style.strategy_name,
    "loader": style.loader_name,
    "model": style.model_name,
    "schedule": style.schedule_name,
}
_WORDS = {
    "parallel_efficiency": "parallel efficiency",
    "runtime": "runtime",
    "speedup": "speed-up against 4 GPUs",
    "io_time": "time for I/O",
    "top1": "accuracy",
}


@dataclass(frozen=True)
class Part:
    """One comparison of a statement, which holds at every number of GPUs from low to high.

    test is ``greater`` or ``similar``: `left` against `right` in the column `compared`. Or it is
    ``value``, ``lower`` or ``upper``: the quantity against the number `stated`.
    """

    quantity: str
    test: str
    where: dict[str, str] = field(hash=False)
    low: int
    high: int
    compared: str = ""
    left: str = ""
    right: str = ""
    stated: float = 1.0


@dataclass(frozen=True)
class Statement:
    """What is claimed and where; `open_reading`: its parts are what it may mean, not what it says.

    A statement without parts cannot be tested here, and `reason` says why.
    """

    name: str
    kind: str
    claim: str
    place: str
    parts: tuple[Part, ...]
    open_reading: bool = False
    reason: str = ""


def statements(paper: Paper) -> list[Statement]:
    """Return every statement of the paper, then what it quotes from others, in the files' order."""
    found = [_ordering(name, rows, paper) for name, rows in _rows(paper.orderings)]
    for table in (paper.efficiency, paper.runtime, paper.accuracy):
        found += [_number(name, rows) for name, rows in _rows(table)]
    order = {kind: number for number, kind in enumerate(dict.fromkeys(KINDS.values()))}
    found.sort(key=lambda statement: order[statement.kind])
    return [*found, _dali_with_deepspeed(paper), *map(_quoted, paper.quoted.to_dict("records"))]


def _rows(table: pd.DataFrame) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, rows in table.groupby("statement", sort=False):
        yield str(name), rows.to_dict("records")


def _ordering(name: str, rows: list[dict[str, Any]], paper: Paper) -> Statement:
    parts = tuple(part for row in rows for part in _parts(name, row, paper))
    return Statement(
        name=name,
        kind=KINDS[rows[0]["quantity"]],
        claim=rows[0]["summary"],
        place=_place(rows[0]),
        parts=_testable(parts),
        reason=_reason(parts),
    )


def _parts(name: str, row: dict[str, Any], paper: Paper) -> Iterator[Part]:
    """Return the comparisons of one row: of each network, where it speaks of all."""
    quantity, compared = _CURVES.get(name, row["quantity"]), row["compared"]
    low, high = _span(row, paper)
    where = _where(row, {compared})
    every = KINDS[quantity] == "kernel time" and compared != "model" and "model" not in where
    for model in MODELS if every else (None,):
        yield Part(
            quantity=quantity,
            test=row["relation"],
            where=where if model is None else where | {"model": model},
            low=low,
            high=high,
            compared=compared,
            left=row["left"],
            right=row["right"],
        )


def _span(row: dict[str, Any], paper: Paper) -> tuple[int, int]:
    """Return the numbers of GPUs that are surely meant: where one end is open, the other.

    Where both are, those of Table 2 that both loaders have.
    """
    ends = [int(row[name]) for name in ("world_size_min", "world_size_max") if _given(row[name])]
    if not ends:
        sizes = paper.profile.groupby("loader")["world_size"].agg(["min", "max"])
        ends = [int(sizes["min"].max()), int(sizes["max"].min())]
    return min(ends), max(ends)


def _number(name: str, rows: list[dict[str, Any]]) -> Statement:
    inferred = str(rows[0]["inferred"]).split(";")
    unnamed = [column for column in _NAMED if column in inferred]
    parts = tuple(
        Part(
            quantity=row["quantity"],
            test=row["bound"],
            where=_where(row, set()),
            low=int(row.get("world_size_min", row["world_size"])),
            high=int(row["world_size"]),
            stated=row["value"] / (100 if row["unit"] == "percent" else 1),
        )
        for row in rows
    )
    return Statement(
        name=name,
        kind=KINDS[rows[0]["quantity"]],
        claim=_claim(rows, parts, unnamed),
        place=_place(rows[0]),
        parts=_testable(parts),
        open_reading=bool(unnamed),
        reason=_reason(parts),
    )


def _claim(rows: list[dict[str, Any]], parts: tuple[Part, ...], unnamed: list[str]) -> str:
    about = []
    for column, words in _NAMED.items():
        names = dict.fromkeys(words(part.where[column]) for part in parts if column in part.where)
        if names:
            about.append(f"{column} not named" if column in unnamed else " or ".join(names))
    about.append(_at(parts[0]))
    return f"{_WORDS[rows[0]['quantity']]} {rows[0]['printed']} ({', '.join(about)})"


def _at(part: Part) -> str:
    if part.quantity == "top1":
        return f"batch {LOCAL_BATCH * part.high:,}"
    return f"{part.high} GPUs" if part.low == part.high else f"{part.low} to {part.high} GPUs"


def _dali_with_deepspeed(paper: Paper) -> Statement:
    settings = paper.settings.set_index("name")
    row = settings.loc[DALI_WITH_DEEPSPEED]
    return Statement(
        name=DALI_WITH_DEEPSPEED,
        kind=KINDS["possible"],
        claim="DeepSpeed cannot use the DALI loader, so the two were not measured together",
        place=row["place"],
        parts=(Part("possible", "value", {"strategy": "deepspeed", "loader": "dali"}, 1, 1),),
    )


def _quoted(row: dict[str, Any]) -> Statement:
    about = [row["model"].replace(";", ",")] if _given(row["model"]) else []
    machine = f"{row['world_size']} x " if _given(row["world_size"]) else ""
    machine += row["hardware"]
    quantity = row["quantity"].replace("_", " ")
    return Statement(
        name=row["statement"],
        kind=KINDS["quoted"],
        claim=f"{quantity} {row['printed']} ({', '.join([*about, machine])})",
        place=f"{row['place']} ({row['quoted_in']}: {row['source']})",
        parts=(),
        reason=f"another's number, not tested here: needs {machine}",
    )


def _where(row: dict[str, Any], without: set[str]) -> dict[str, str]:
    return {
        name: row[name] for name in _NAMED if name not in without and _given(row.get(name, pd.NA))
    }


def _given(cell: Any) -> bool:
    return not pd.isna(cell)


def _place(row: dict[str, Any]) -> str:
    return ", ".join(str(row[name]) for name in ("figure", "place") if _given(row[name]))


_UNTESTABLE = {
    "io_percent": "what its I/O column holds is not known, and is no loading of data (C7)",
    "io_time": "seconds as a share of a total that it does not state (C10)",
}


def _testable(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(part for part in parts if part.quantity not in _UNTESTABLE)


def _reason(parts: tuple[Part, ...]) -> str:
    """Return why some parts have no counterpart in a record, if any has none."""
    return "; ".join(
        dict.fromkeys(_UNTESTABLE[part.quantity] for part in parts if part.quantity in _UNTESTABLE)
    )


def sizes_needed(part: Part) -> set[int]:
    """Return the numbers of GPUs without which the range of a part is not covered."""
    if part.compared == "world_size":
        return {int(part.left), int(part.right)}
    if part.compared == "global_batch_size":
        return set()
    ends = {part.low, part.high}
    return ends | {BASE_WORLD_SIZE} if part.quantity in ("parallel_efficiency", "speedup") else ends
