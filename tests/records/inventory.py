"""All records that were published up to commit 969ccf21: none may change or be lost.

`inventory.csv` has a row for each, made at that commit by `rows`.
"""

import csv
import hashlib
import json
from collections.abc import Iterator
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


def written(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the values of a record and of its epochs as their files have them."""
    files = RunFiles(folder)
    lines = files.epochs.read_text(encoding="utf-8").splitlines()
    return json.loads(files.record.read_bytes()), [json.loads(line) for line in lines]


def place(row: dict[str, str]) -> Path:
    """Return the folder of a run of the inventory, which may have moved to ``data/old/``."""
    inside = Path(row["study"]) / row["run_id"]
    moved = DATA / "old" / TREES[row["tree"]].relative_to(DATA) / inside
    return moved if moved.exists() else TREES[row["tree"]] / inside


def rows() -> Iterator[dict[str, str]]:
    """Yield the rows of the table from the records."""
    for tree, folder in TREES.items():
        for path in sorted(folder.glob("*/*/run.json")):
            record, epochs = written(path.parent)
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
