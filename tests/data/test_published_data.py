"""Every committed reference table is plain CSV, described beside it; published rows are sourced."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("paper", "published")
    for path in (ROOT / "data" / folder).glob("*.csv")
)
PUBLISHED = [path for path in FILES if path.startswith("data/published/")]
TRAIN_IMAGES = 1281167


def read(path: str) -> list[dict[str, str]]:
    with (ROOT / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_are_there() -> None:
    assert len(FILES) == 10
    assert len(PUBLISHED) == 2


@pytest.mark.parametrize("path", FILES)
def test_file_is_plain_csv(path: str) -> None:
    raw = (ROOT / path).read_bytes()
    assert b"\r" not in raw
    assert raw.endswith(b"\n")
    assert not raw.startswith(b"\xef\xbb\xbf")
    header, *lines = list(csv.reader(raw.decode("utf-8").splitlines()))
    assert len(set(header)) == len(header)
    assert all(len(line) == len(header) for line in lines)
    assert all(cell == cell.strip() for line in lines for cell in line)
    assert len({tuple(line) for line in lines}) == len(lines), "a row stands twice"


@pytest.mark.parametrize("path", FILES)
def test_readme_names_every_column_and_the_row_count(path: str) -> None:
    readme = (ROOT / path).parent.joinpath("README.md").read_text(encoding="utf-8")
    rows = read(path)
    assert re.search(rf"^\| `{Path(path).name}` \|.*\| {len(rows)} \|$", readme, re.M), len(rows)
    assert [column for column in rows[0] if f"`{column}`" not in readme] == []


def test_published_rows_say_how_they_are_known() -> None:
    kinds = {"source_read", "logs_read", "abstract_read", "quoted", "doubtful", "unconfirmed"}
    units = {"throughput": "images/s", "runtime": "s", "time_to_accuracy": "s", "top1": "percent",
             "parallel_efficiency": "1", "node_power": "W", "energy": "kWh"}  # fmt: skip
    for path in PUBLISHED:
        for row in read(path):
            assert row["source"]
            assert row["place"]
            assert row["evidence"] in kinds
            assert row["unit"] == units[row["quantity"]]
            assert float(row["value"]) > 0
            assert row["checked"] in {"true", "false"}
            assert row["approx"] in {"true", "false"}
            if row["evidence"] in {"doubtful", "unconfirmed"}:
                assert row["checked"] == "false"
                assert row["note"]


def test_published_log_throughput_agrees_with_the_time_to_accuracy() -> None:
    rows = [r for r in read("data/published/performance.csv") if r["evidence"] == "logs_read"]
    runs: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        run = runs.setdefault((row["source"], row["place"]), {"epochs": float(row["epochs"])})
        run[row["quantity"]] = float(row["value"])
    pairs = [run for run in runs.values() if "throughput" in run]
    assert len(pairs) >= 7
    for run in pairs:
        expected = run["epochs"] * TRAIN_IMAGES / run["throughput"]
        assert run["time_to_accuracy"] == pytest.approx(expected, rel=0.05)
