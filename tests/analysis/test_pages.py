"""Generated blocks of pages: what the committed records give."""

import re
from pathlib import Path

from ddl_tools.analysis import pages
from ddl_tools.analysis.findings import read_points
from ddl_tools.analysis.paper import AACH, read_paper
from ddl_tools.records.paths import README, Tree, committed
from ddl_tools.records.run import read_record, write_record
from tests.analysis.conftest import GPU, MakeRun


def block(name: str) -> list[str]:
    after = README.read_text().partition(f"<!-- ddl figures: {name} -->")[2]
    return after.partition("<!-- end -->")[0].strip().splitlines()


def test_the_table_of_results_answers_each_question_with_a_number() -> None:
    rows = [line.strip("| ").split(" | ") for line in block("results") if line.startswith("| ")]
    head, _, *rows = rows
    assert head == ["Question", "Finding", "Repeated?", "Holds for"]
    assert len(rows) == 11
    for question, text, again, holds in rows:
        assert "](" in question
        assert re.search(r"\d", text)
        assert re.match("yes|tried: |not tried|\N{EN DASH}|\\d+ ", again)
        assert holds


def test_the_readme_begins_with_few_findings_that_one_can_use() -> None:
    lines = block("found")
    assert 4 <= len(lines) <= 6
    for line in lines:
        assert re.fullmatch(r"- \*\*\[[^]]+\]\([^)]+\)\*\*: .*\d.*\. \*[^*]+\.\*", line), line
        assert not re.match(r".*\*\*: synthetic", line)


def test_a_ratio_is_confirmed_only_by_a_second_one_that_agrees() -> None:
    """Horovod is slower twice; DALI is faster once, and not decided the second time."""
    rows = [line.split(" | ") for line in block("results")]
    again = {row[0].partition("]")[0].strip("| ["): row[2] for row in rows if len(row) == 4}
    assert again["Horovod or DeepSpeed instead of DDP?"] == "yes"
    assert again["DALI instead of the native loader?"].startswith("tried: ")
    assert again["Which loader feeds one GPU?"] == "not tried"


def test_without_records_only_statements_are_in_the_table(tmp_path: Path) -> None:
    texts = pages.texts(Tree(tmp_path))
    assert texts["results"].startswith("No run is published.")
    assert "Does the paper hold?" in texts["results"]
    assert "Can a formula predict" not in texts["results"]
    assert "DDP, Horovod" not in texts["results"]
    (line,) = texts["found"].splitlines()
    assert line.startswith("- **[Aach et al.")


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
        name = name.replace("_", " ")
        start = f"\n| {name} | " if paper == AACH else f"\n| {paper} | {name} | "
        assert start in texts["statements" if paper == AACH else "related"]
    assert " 0 are asked here at a small size" in texts["statements"]


def test_statements_that_the_paper_contradicts_come_first() -> None:
    lines = [
        line for line in pages.texts(committed())["statements"].splitlines() if line[:2] == "| "
    ]
    kinds = ["other direction here", "same direction here", "inconclusive here", "not tested"]
    order = []
    for line in lines[2:]:
        _, _, _, here, against, _ = re.split(r" ?\| ?", line)
        mostly = 1 if against.startswith("with exceptions") else 0
        place = next(i for i, one in enumerate(kinds) if one in here)
        order.append(mostly if against else 2 + place)
    assert order == sorted(order)
    assert {0, 1, 2, 3, 5} <= set(order)


def test_a_commit_that_looks_like_a_number_stays_a_text(tmp_path: Path) -> None:
    path = tmp_path / "comparison.csv"
    path.write_text("label,commit\nnative,73e28947\nDALI (CPU),12345678;73e28947\n")
    assert read_points(path)["commit"].tolist() == ["73e28947", "12345678;73e28947"]
    path.write_text("label,commit\nnative,73e28947\n")
    assert read_points(path)["commit"].str.split(";").tolist() == [["73e28947"]]
