"""All records that were published up to commit 969ccf21: none may change or be lost.

`inventory.csv` has a row for each, made at that commit by `rows`.
"""

import csv
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ddl_tools.records.paths import PROJECT, RunFiles

DATA = PROJECT / "data"
TABLE = Path(__file__).with_name("inventory.csv")
TREES = {"runs": DATA / "runs", "second": DATA / "second" / "runs"}
COLUMNS = ["tree", "study", "run_id", "status", "record_sha256", "epochs_sha256"]


def digest(values: Any) -> str:
    """Return the SHA-256 of values as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


Values = tuple[dict[str, Any], list[dict[str, Any]]]  # of a record and of its epochs


def written(folder: Path) -> Values:
    """Return the values of a run as its files have them, or the lines of its study."""
    files = RunFiles(folder)
    if files.record.exists():
        return json.loads(files.record.read_bytes()), objects(files.epochs)
    return published(folder.parent)[folder.name]


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@cache
def published(study: Path) -> dict[str, Values]:
    """Return the runs in a published study, without a part of the package."""
    if not (study / "runs.jsonl").exists():
        return {path.parent.name: written(path.parent) for path in study.glob("*/run.json")}
    runs: dict[str, Values] = {one["run_id"]: (one, []) for one in objects(study / "runs.jsonl")}
    for row in objects(study / "epochs.jsonl"):
        runs[row.pop("run_id")][1].append(row)
    return runs


def place(row: dict[str, str]) -> Path:
    """Return the folder that names a run, which may have moved to ``data/old/`` once or twice."""
    root = TREES[row["tree"]].relative_to(DATA)
    places = [base / root / row["study"] for base in (DATA / "old" / "old", DATA / "old", DATA)]
    study = next(one for one in places if row["run_id"] in published(one))
    return study / row["run_id"]


def rows() -> Iterator[dict[str, str]]:
    """Yield the rows of the table from the records."""
    for tree, folder in TREES.items():
        for study in sorted(folder.iterdir()):
            for _, (record, epochs) in sorted(published(study).items()):
                yield {
                    "tree": tree,
                    "study": record["study"],
                    "run_id": record["run_id"],
                    "status": record["status"],
                    "record_sha256": digest(record),
                    "epochs_sha256": digest(epochs),
                }


def read() -> list[dict[str, str]]:
    """Return the rows of the committed table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
