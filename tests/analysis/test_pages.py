"""Generated blocks of pages: what the committed records give."""

import re
from pathlib import Path

from ddl_tools.analysis import pages
from ddl_tools.analysis.paper import AACH, read_paper
from ddl_tools.records.paths import README, Tree
from ddl_tools.records.run import read_record, write_record
from tests.analysis.conftest import GPU, MakeRun


def test_the_table_of_results_answers_each_question_with_a_number() -> None:
    after = README.read_text().partition("<!-- ddl figures: results -->")[2]
    table = after.partition("<!-- end -->")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 10
    for _, result, about, details in rows:
        assert re.search(r"\d", result)
        assert "NVIDIA" not in about or re.match(r"\w+, \d+ px, batch \d+(, \w+)?;", about)
        assert "](" in details


def test_without_records_only_statements_are_in_the_table(tmp_path: Path) -> None:
    text = pages.texts(Tree(tmp_path))["results"]
    assert text.startswith("No run is published.")
    assert "Does the paper hold?" in text
    assert "Can a formula predict" not in text
    assert "DDP, Horovod" not in text


def test_weights_that_differ_are_counted_where_no_bit_is_guaranteed(
    tree: Tree, make_run: MakeRun
) -> None:
    """Three strategies on a GPU, twice: all three hashes differ, then one is another."""
    assert pages.weights(tree) == "No such group is published."
    hashes = {"single": "aa", "ddp": "bc", "horovod": "cc"}
    for strategy, own in hashes.items():
        for repeat, hash_of_start in enumerate(own):
            folder = make_run(strategy=strategy, repeat=repeat, precision="bf16", system=GPU)
            record = read_record(folder)
            record.weights_sha256 = hash_of_start * 64
            write_record(folder, record)
    (row,) = pages.weights(tree).splitlines()[2:]
    assert row == "| `laptop` | PyTorch | Example GPU | bf16 | 2 | 0 | 3 of 3; 2 of 3 | 0 |"
    folder = make_run(strategy="single", second_start=True, precision="bf16", system=GPU)
    assert pages.weights(tree).endswith("| 1 |"), folder


def test_there_is_a_line_for_each_statement(tmp_path: Path) -> None:
    stated, texts = read_paper().claims, pages.texts(Tree(tmp_path))
    for paper, name in stated[["paper", "statement"]].to_numpy():
        start = f"\n| {name} | " if paper == AACH else f"\n| {paper} | {name} | "
        assert start in texts["statements" if paper == AACH else "related"]
    assert texts["statements"].startswith("0 of 63 statements are asked here")


def test_a_commit_that_looks_like_a_number_stays_a_text(tmp_path: Path) -> None:
    path = tmp_path / "comparison.csv"
    path.write_text("label,commit\nnative,73e28947\nDALI (CPU),12345678;73e28947\n")
    assert pages.read_points(path)["commit"].tolist() == ["73e28947", "12345678;73e28947"]
    path.write_text("label,commit\nnative,73e28947\n")
    assert pages.read_points(path)["commit"].str.split(";").tolist() == [["73e28947"]]
