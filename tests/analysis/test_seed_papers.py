"""The statements of the two other papers: rows that can be read, and found in the texts."""

import re

import pandas as pd
import pytest

from ddl_core.errors import DataError
from ddl_core.registry import LIBRARIES, MODELS, STRATEGIES
from ddl_tools.analysis.paper import read_paper
from ddl_tools.analysis.seed_papers import PAPERS, read_seeds
from ddl_tools.records.paths import PROJECT

SEEDS = read_seeds()
CLAIMS = read_paper().claims.query("paper != 'aach2023'").drop_duplicates(["paper", "statement"])
BOTH = pd.concat(
    [SEEDS.statements[SEEDS.statements["statement"] == "D01"], CLAIMS], ignore_index=True
)
PLACES = {"Abstract", "Introduction", "Conclusion", "derived from M01"}


def test_every_row_names_its_paper_and_a_place_there() -> None:
    assert set(BOTH["paper"]) == set(PAPERS)
    for places in BOTH["place"]:
        assert set(places.split(";")) <= PLACES
    assert BOTH["statement"].is_unique


def test_numbers_are_numbers() -> None:
    """An empty value is a statement without one; it is none that could not be read."""
    table = SEEDS.statements.set_index("statement")
    assert table["value"].isna().to_dict() == dict.fromkeys(table.index, False) | {"H01": True}
    assert table["world_size"].notna().all()
    assert set(table["bound"]) <= {"value", "lower", "upper"}
    for name, number in (("M01", "10.11"), ("M02", "56")):
        assert number in table.loc[name, "printed"]
        assert table.loc[name, "value"] == float(number)


def test_what_is_ours_follows_from_what_is_stated() -> None:
    stated, ours = SEEDS.stated("M01"), SEEDS.stated("D01")
    assert ours["value"] == pytest.approx(stated["value"] / stated["world_size"])


def test_names_are_those_of_the_project() -> None:
    assert set(SEEDS.statements["library"].dropna()) <= LIBRARIES.keys()
    assert set(SEEDS.statements["strategy"].dropna()) <= STRATEGIES.keys()
    for models in SEEDS.statements["model"]:
        assert set(models.split(";")) <= MODELS.keys()
    arms = CLAIMS[CLAIMS["compared"] == "framework"]
    for side in (*arms["left"], *arms["right"].str.split(";").explode()):
        library, _, strategy = side.partition(" ")
        assert library in LIBRARIES
        assert not strategy or library in STRATEGIES[strategy].libraries


def test_every_doubt_is_explained() -> None:
    guide = (PROJECT / "docs" / "reading_the_seeds.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| ([TM]\d+) \|", guide, flags=re.MULTILINE))
    named = set(BOTH["contradiction"].dropna().str.split(";").explode())
    assert named <= explained


def test_a_missing_file_says_what_to_do(tmp_path) -> None:
    with pytest.raises(DataError, match="git checkout data"):
        read_seeds(tmp_path)
