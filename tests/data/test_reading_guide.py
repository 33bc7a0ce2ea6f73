"""The pages on the paper and the tables of data/paper refer to each other correctly."""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
GUIDE = "".join((RESULTS / f"{name}.md").read_text("utf-8") for name in ("paper", "paper-notes"))
PAPER = sorted(path.stem for path in (ROOT / "data" / "paper").glob("*.csv"))
STATEMENTS = [name for name in PAPER if name not in {"profile", "settings"}]


def paper(name: str) -> list[dict[str, str]]:
    with (ROOT / "data" / "paper" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_mark_has_its_section_in_the_guide_and_every_section_a_number() -> None:
    sections = re.findall(r"^### (C\d+)\.", GUIDE, re.M)
    assert sections == [f"C{i}" for i in range(1, len(sections) + 1)]
    used = {
        mark
        for name in PAPER
        for row in paper(name)
        if row.get("paper", "aach2023") == "aach2023"
        for mark in row.get("contradiction", "").split(";")
        if mark
    }
    assert used <= set(sections)
    assert set(sections) - used == {"C14"}  # about a sentence, not about a number


def test_guide_names_only_statements_and_notes_that_exist() -> None:
    stated = {r["statement"] for n in STATEMENTS for r in paper(n)}
    assert set(re.findall(r"\b[EROAQD]\d\d\b", GUIDE)) <= stated
    notes = set(re.findall(r"^\| (N\d+) \|", GUIDE, re.M))
    data = " ".join(cell for name in PAPER for row in paper(name) for cell in row.values())
    assert set(re.findall(r"\bN\d+\b", GUIDE + " " + data)) <= notes
