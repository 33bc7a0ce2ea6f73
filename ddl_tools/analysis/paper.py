"""Numbers that the papers state, as points of figures; their CSVs are in data/."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ddl_tools.analysis.estimates import MARGIN
from ddl_tools.analysis.plot import style
from ddl_tools.records.paths import PAPER, PUBLISHED, SEEDS
from ddl_tools.scaling.paper import BASE, read_rows

BASE_WORLD_SIZE = BASE  # Aach et al. 2023, eq. 4
SYSTEM = "the paper (JUWELS Booster)"
AACH = "aach2023"  # its name in claims.csv
RELATED = {"malik2018": "Malik et al. 2018", "mahon2020": "Mahon et al. 2020"}

# What its loaders read (data/paper/settings.csv): its comparison changes both at once.
_DALI = ("dali", "dali_cpu", "dali_gpu")
FORMATS = {"native": "folder", **dict.fromkeys(_DALI, "tfrecord")}

_COLUMNS = [
    *["source", "statement", "strategy", "loader", "model", "world_size_min", "world_size"],
    *["value", "bound", "approx", "printed", "place", "contradiction"],
]
_WHOLE = ("world_size_min", "world_size_max", "world_size", "global_batch_size")
_REAL = ("value", "allreduce_percent", "io_percent", "cudnn_percent")
_TYPES = dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(_REAL, "float64")


@dataclass(frozen=True)
class Paper:
    """Numbers that Aach et al. 2023 state and quote, what follows from them, and others' numbers.

    ``claims`` are its statements and those of the two related papers, ``measured_here`` the ratios
    of our studies that ask the same, ``table_2`` the comparisons that statements make in its Table
    2. ``related`` are the numbers that these two state. ``published`` are accuracies of others,
    ``performance`` their throughputs, times and energies.
    """

    efficiency: pd.DataFrame
    runtime: pd.DataFrame
    claims: pd.DataFrame
    measured_here: pd.DataFrame
    table_2: pd.DataFrame
    derived: pd.DataFrame
    accuracy: pd.DataFrame
    profile: pd.DataFrame
    quoted: pd.DataFrame
    related: pd.DataFrame
    published: pd.DataFrame
    performance: pd.DataFrame


def read_paper(
    directory: Path = PAPER, published: Path = PUBLISHED, related: Path = SEEDS
) -> Paper:
    """Read the numbers of the three papers, and of other publications.

    `DataError` if a file is missing.
    """
    paths = {name: directory / f"{name}.csv" for name in Paper.__annotations__}
    paths |= {
        "related": related / "statements.csv",
        "published": published / "accuracy.csv",
        "performance": published / "performance.csv",
    }
    return Paper(**{name: _table(path) for name, path in paths.items()})


def _table(path: Path) -> pd.DataFrame:
    table = pd.DataFrame(read_rows(path), dtype="string").replace("", pd.NA)
    return table.astype({name: kind for name, kind in _TYPES.items() if name in table})


def efficiency_points(paper: Paper) -> pd.DataFrame:
    """Return every stated E_G, and those that follow from the stated runtimes.

    data/paper/ spells a statement out for each strategy and model that it may mean. Where the paper
    names none, the cell is empty here, and the statement is one row.
    """
    stated = paper.efficiency.assign(source="stated")
    inferred = stated["inferred"].fillna("").str.split(";")
    for column in ("strategy", "model"):
        unnamed = inferred.map(lambda names, column=column: column in names).astype(bool)
        stated[column] = stated[column].mask(unnamed)
    derived = paper.derived
    # Rows without a loader evaluate the printed equations, which omit G0: not for comparison.
    comparable = (derived["quantity"] == "parallel_efficiency") & derived["loader"].notna()
    derived = derived[comparable].assign(
        source="derived",
        world_size_min=derived["world_size"],
        approx="true",
        printed=derived["formula"],
        place=derived["inputs"],
    )
    parts = (stated[_COLUMNS].drop_duplicates(), derived[_COLUMNS])
    table = pd.concat(parts, ignore_index=True)
    return table.assign(
        framework="torch",
        data_format=table["loader"].map(FORMATS),
        base_world_size=BASE_WORLD_SIZE,
        hardware=SYSTEM,
    )


class Pair(NamedTuple):
    """Two shares of Table 2 that a statement compares, in percent, and where they stand."""

    relation: str
    left: float
    right: float
    place: str

    @property
    def agrees(self) -> bool:
        """Say whether the statement is true of these two; similar means within `MARGIN`."""
        ratio = self.left / self.right
        return ratio > 1 if self.relation == "greater" else 1 / (1 + MARGIN) < ratio < 1 + MARGIN


def in_table_2(paper: Paper) -> dict[str, list[Pair]]:
    """Return what each statement about the shares in the paper's Table 2 compares in that table.

    Numbers of GPUs are compared with the next larger one, loaders and networks at each number.
    """
    return {
        str(name): [pair for _, row in parts.iterrows() for pair in _pairs(row, paper.profile)]
        for name, parts in paper.table_2.groupby("statement", sort=False)
    }


def _pairs(part: "pd.Series[str]", table: pd.DataFrame) -> Iterator[Pair]:
    compared, others = part["compared"], ["loader", "model", "world_size"]
    others.remove(compared)
    table = table[table["world_size"].between(part["world_size_min"], part["world_size_max"])]
    wide = table.pivot(index=others, columns=compared, values=part["quantity"])
    sides = [(part["left"], part["right"])]
    if compared == "world_size":
        grows = int(part["left"]) > int(part["right"])
        steps = pairwise(wide.columns)
        sides = [(large, small) if grows else (small, large) for small, large in steps]
    for left, right in sides:
        for where, row in wide.dropna(subset=[left, right]).iterrows():
            about = dict(zip(others, where, strict=True))
            gpus = about.pop("world_size", f"{min(left, right)} to {max(left, right)}")
            names = [getattr(style, f"{name}_name")(value) for name, value in about.items()]
            place = ", ".join([*names, f"{gpus} GPUs"])
            yield Pair(part["relation"], float(row[left]), float(row[right]), place)


READ = ["source_read", "logs_read", "quoted"]  # data/published/README.md


def published_beside(measured: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """Return a row per published throughput and own configuration with this network on such a GPU.

    per_gpu is images per second and GPU. A published number without one of ours keeps its row.
    Precision, loader and batch differ from row to row: a check of plausibility, and no ranking.
    """
    table = paper.performance
    table = table[(table["quantity"] == "throughput") & table["evidence"].isin(READ)]
    per_gpu = table["value"] / table["world_size"].astype(float)
    table = table.assign(kind=_gpu_kind(table), per_gpu=per_gpu)
    ours = measured[~measured["on_cpu"].astype(bool) & measured["value"].notna()]
    names = [ours[name].astype("string") for name in ("setting", "framework", "strategy", "loader")]
    ours = ours.assign(
        kind=_gpu_kind(ours),
        ours=names[0].str.cat(names[1:], sep=", "),
        ours_per_gpu=(ours["value"] / ours["world_size"]).astype(float),
    ).dropna(subset="kind")
    columns = ["kind", "model", "ours", "ours_per_gpu"]
    both = table.merge(ours[columns], on=["kind", "model"], how="left")
    about = ["source", "place", "framework", "model", "hardware", "world_size", "precision"]
    both = both[[*about, "loader", "per_gpu", "ours", "ours_per_gpu"]]
    return both.assign(ratio=both["ours_per_gpu"] / both["per_gpu"])


def _gpu_kind(table: pd.DataFrame) -> "pd.Series[str]":
    """Return the kind of GPU that each machine's description names, e.g. "A100"."""
    return table["hardware"].astype("string").str.extract(r"\b([A-Z]{1,2}\d{2,3})\b")[0]
