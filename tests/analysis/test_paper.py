"""The numbers of the two related papers can be read, and name what the project knows."""

import re
from pathlib import Path

import pytest

from ddl_core.errors import DataError
from ddl_core.registry import FRAMEWORKS, MODELS, STRATEGIES
from ddl_tools.analysis.paper import RELATED, in_table_2, read_paper
from ddl_tools.records.paths import PROJECT

PAPER = read_paper()
CLAIMS = PAPER.claims.query("paper != 'aach2023'")


def test_numbers_are_numbers() -> None:
    """Every statement but one has a value; the derived one follows from the stated one."""
    table = PAPER.related.set_index("statement")
    assert table["value"].isna().to_dict() == dict.fromkeys(table.index, False) | {"H01": True}
    assert table["world_size"].notna().all()
    for name in ("M01", "M02"):
        assert float(re.findall(r"[\d.]+", table.loc[name, "printed"])[0]) == table["value"][name]
    stated = table.loc["M01"]
    assert table["value"]["D01"] == pytest.approx(stated["value"] / stated["world_size"])


def test_names_are_those_of_the_project() -> None:
    for table in (PAPER.related, CLAIMS):
        assert set(table["paper"]) == set(RELATED)
    assert set(PAPER.related["framework"].dropna()) <= FRAMEWORKS.keys()
    assert set(PAPER.related["strategy"].dropna()) <= STRATEGIES.keys()
    assert set(PAPER.related["model"].str.split(";").explode()) <= MODELS.keys()


def test_every_doubt_is_explained() -> None:
    guide = (PROJECT / "docs" / "results" / "related-papers.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| ([TM]\d+) \|", guide, flags=re.MULTILINE))
    assert set(CLAIMS["contradiction"].dropna().str.split(";").explode()) <= explained


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    for folder in ("directory", "published", "related"):
        with pytest.raises(DataError, match="git checkout data"):
            read_paper(**{folder: tmp_path})


def test_table_2_confirms_some_statements_about_it_and_not_others() -> None:
    found = in_table_2(PAPER)
    counts = {name: (sum(one.agrees for one in all_), len(all_)) for name, all_ in found.items()}
    assert counts == {
        "O26": (42, 45), "O27": (81, 90), "O28": (0, 3), "O29": (3, 3), "O30": (24, 24),
        "O31": (8, 24), "O33": (17, 34), "O34": (30, 34),
    }  # fmt: skip
    against = [one for one in found["O26"] if not one.agrees]
    assert ("greater", 36.29, 37.17, "DALI, ResNet101, 64 to 128 GPUs") in against
    falling = [one.place for one in found["O27"] if not one.agrees]
    assert falling.count("native, ResNet152, 128 to 256 GPUs") == 2  # I/O and computation
