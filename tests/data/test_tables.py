"""The tables of data/paper and data/published agree with themselves, their pages and arithmetic."""

import csv
import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for folder in ("paper", "published") for path in (ROOT / "data" / folder).glob("*.csv")
)
RESULTS = ROOT / "docs" / "results"
GUIDE = "".join((RESULTS / f"{name}.md").read_text("utf-8") for name in ("paper", "paper-notes"))
PAPER = {path.stem: path for path in FILES if path.parent.name == "paper"}
STATED = ["efficiency", "runtime", "accuracy"]
TRAIN_IMAGES = 1281167
ALLOWED = {
    "approx": {"true", "false"},
    "checked": {"true", "false"},
    "evidence": {
        "source_read", "logs_read", "abstract_read", "quoted", "doubtful", "unconfirmed",
    },
}  # fmt: skip
UNITS = {
    "parallel_efficiency": "1", "speedup": "1", "runtime": "s", "io_time": "s", "top1": "percent",
    "throughput": "images/s", "time_to_accuracy": "s", "node_power": "W", "energy": "kWh",
}  # fmt: skip


def table(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def paper(name: str) -> pd.DataFrame:
    return table(PAPER[name])


def stated() -> pd.DataFrame:
    return pd.concat(map(paper, STATED), keys=STATED).fillna("")


def of_this_paper(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame.paper == "aach2023"] if "paper" in frame else frame


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_plain_csv_that_its_readme_describes(path: Path) -> None:
    raw = path.read_bytes()
    assert b"\r" not in raw
    assert raw.endswith(b"\n")
    header, *lines = csv.reader(raw.decode("utf-8").splitlines())
    assert len(set(header)) == len(header)
    assert all(len(line) == len(header) for line in lines)
    assert all(cell == cell.strip() for line in lines for cell in line)
    assert len({tuple(line) for line in lines}) == len(lines), "a row stands twice"
    readme = path.with_name("README.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{path.name}` \|.*\| {len(lines)} \|$", readme, re.MULTILINE)
    assert [column for column in header if f"`{column}`" not in readme] == []


def test_stated_rows_are_complete_and_as_printed() -> None:
    scale = {"h": 3600.0}
    signs = {">": "lower", "<": "upper"}
    for (name, _), row in stated().iterrows():
        needed = ["place", "model", "bound", "approx"]
        needed += ["schedule"] if name == "accuracy" else ["strategy", "loader"]
        assert all(row[needed])
        assert row.unit == UNITS[row.quantity]
        assert int(row.global_batch_size) == 64 * int(row.world_size)
        assert name == "accuracy" or 4 <= int(row.world_size_min) <= int(row.world_size) <= 1024
        assert set(filter(None, row.inferred.split(";"))) <= set(row.index)
        match = re.fullmatch(r"([<>≈]?)([\d.]+) ?(h|s|%|times)?", row.printed)
        assert match, row.printed
        assert float(row.value) == pytest.approx(float(match[2]) * scale.get(match[3], 1.0))
        assert row.bound == signs.get(match[1], "value")
        assert row.approx == ("true" if match[1] == "≈" else "false")


@pytest.mark.parametrize("model", ["resnet50", "resnet101", "resnet152"])
def test_table_2_is_whole(model: str) -> None:
    rows = paper("profile")
    rows = rows[rows.model == model].astype({"world_size": int, "profiled_epochs": int})
    sizes = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert rows[rows.loader == "dali"].world_size.tolist() == sizes
    assert rows[rows.loader == "native"].world_size.tolist() == sizes[:-1]
    shares = rows[["allreduce_percent", "io_percent", "cudnn_percent"]].astype(float)
    assert ((shares > 0).all(axis=1) & (shares.sum(axis=1) < 100)).all()
    assert set(rows.strategy) == {"ddp"}
    assert (rows.profiled_epochs == rows.world_size.map(lambda size: 5 if size == 4 else 10)).all()


def test_the_stated_speedups_come_from_the_rounded_runtimes() -> None:
    values = stated().astype({"value": float}).groupby("statement").value
    assert (values.nunique().loc[["R03", "R04", "R05", "R06", "R07", "R08", "E02"]] == 1).all()
    first = values.first()
    assert first["R03"] / first["R04"] == first["R05"] == 234
    assert first["R06"] / first["R07"] == first["R08"] == 204
    assert 4 * first["R05"] / 1024 == pytest.approx(0.9140625)
    assert first["E02"] == 0.76  # what the text says instead


def test_derived_values_follow_from_their_formulas() -> None:
    for row in paper("derived").itertuples():
        assert re.fullmatch(r"[\d.e+*/() -]+", row.formula), "not arithmetic"
        found = pd.eval(row.formula, engine="python")
        assert float(row.value) == pytest.approx(float(found), rel=1e-5)


@pytest.mark.parametrize("name", ["performance", "accuracy"])
def test_published_rows_say_how_they_are_known(name: str) -> None:
    rows = table(ROOT / "data" / "published" / f"{name}.csv")
    assert rows[["source", "place"]].ne("").all(axis=None)
    assert (rows.value.astype(float) > 0).all()
    assert (rows.unit == rows.quantity.map(UNITS)).all()
    for column in ("evidence", "checked", "approx"):
        assert set(rows[column]) <= ALLOWED[column]
    unsure = rows[rows.evidence.isin({"doubtful", "unconfirmed"})]
    assert (unsure.checked.eq("false") & unsure.note.ne("")).all()


def test_published_log_throughput_agrees_with_the_time_to_accuracy() -> None:
    rows = table(ROOT / "data" / "published" / "performance.csv").query("evidence == 'logs_read'")
    rows = rows.astype({"value": float, "epochs": float})
    runs = rows.pivot(index=["source", "place", "epochs"], columns="quantity", values="value")
    runs = runs.dropna(subset="throughput").reset_index("epochs")
    assert len(runs) >= 7
    expected = runs.epochs * TRAIN_IMAGES / runs.throughput
    assert runs.time_to_accuracy.tolist() == pytest.approx(expected.tolist(), rel=0.05)


def test_every_mark_has_its_section_in_the_guide_and_every_section_a_number() -> None:
    sections = re.findall(r"^### (C\d+)\.", GUIDE, re.MULTILINE)
    assert sections == [f"C{number}" for number in range(1, len(sections) + 1)]
    marks = [mark for name in PAPER for mark in of_this_paper(paper(name)).get("contradiction", ())]
    used = {mark for text in marks for mark in text.split(";") if mark}
    assert set(sections) - used == {"C14"}  # about a sentence, not about a number
    assert used <= set(sections)


def test_guide_names_only_statements_and_notes_that_exist() -> None:
    statements = {one for name in PAPER for one in paper(name).get("statement", ())}
    assert set(re.findall(r"\b[EROAQD]\d\d\b", GUIDE)) <= statements
    notes = set(re.findall(r"^\| (N\d+) \|", GUIDE, re.MULTILINE))
    texts = [path.read_text(encoding="utf-8") for path in PAPER.values()]
    assert set(re.findall(r"\bN\d+\b", " ".join([GUIDE, *texts]))) <= notes
