"""What a user hands in: refused by name, with its value and what is allowed."""

import os
from pathlib import Path

import pytest

from ddl_core.errors import SpecError
from ddl_core.spec import gate


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--name is empty"),
        ("x" * 5_000, "5,000 characters, allowed are 4,000"),
        ("a\nb", "newline"),
        ("a\x1b[2J", "control character"),
        ("na\udcefve", r"'na\\udcefve': not UTF-8"),
    ],
)
def test_a_text_that_no_file_can_hold(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        gate.check_text("--name", text)


@pytest.mark.parametrize("text", ["a", "two words", "na\u00efve", "\u65e5\u672c", "a;b|$(c)", "~"])
def test_a_text_of_any_language(text: str) -> None:
    gate.check_text("--name", text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2**63, 1e300])
def test_a_number_that_is_none(value: float) -> None:
    with pytest.raises(SpecError, match="--wait = "):
        gate.check_number("--wait", value)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "0", "", "soon"])
def test_seconds_are_positive(text: str) -> None:
    with pytest.raises(SpecError, match=r"DDL_X = .*: a positive number of seconds"):
        gate.seconds("DDL_X", text)
    assert gate.seconds("DDL_X", "2.5") == 2.5


def test_places(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(tmp_path)
    for good in (tmp_path, tmp_path / "new", tmp_path / "link", tmp_path / "new" / "below"):
        gate.check_place("--results", good, (gate.FOLDER,))
    for name, words in (
        ("fifo", "a fifo, but a folder is meant"),
        ("circle", "Too many levels of symbolic links; name another place"),
        ("dangling", "a link to nowhere, which does not exist"),
        ("x" * 256, "a name of 256 bytes, allowed are 255"),
    ):
        with pytest.raises(SpecError, match=f"^--results = .*{words}"):
            gate.check_place("--results", tmp_path / name, (gate.FOLDER,))
    with pytest.raises(SpecError, match="a device"):
        gate.check_place("--csv", Path("/dev/null"))


def test_a_long_value_is_shown_in_part() -> None:
    assert gate.shown("resnet51") == "'resnet51'"
    assert len(gate.shown("x" * 10_000)) <= 100
    assert len(gate.shown([["x"] * 1000] * 1000)) < 1000


@pytest.mark.parametrize(
    ("value", "example", "words"),
    [
        (3, "laptop", "study = 3: str is meant, as its default 'laptop' is"),
        (True, 1, "study = True: int is meant"),
        (1, False, "study = 1: bool is meant"),
        (float("nan"), 1.0, "study = nan: a finite number"),
        (["a\nb"], [8], "newline"),
        ("a\x00b", "", "control character"),
        (None, [8], "list is meant"),
    ],
)
def test_a_parameter_is_of_the_kind_of_its_default(value, example, words) -> None:
    with pytest.raises(SpecError, match=words):
        gate.check_like("study", value, example)


@pytest.mark.parametrize(("value", "example"), [("", "x"), (2, 1.0), ([], [8]), (True, False)])
def test_a_parameter_that_fits(value, example) -> None:
    gate.check_like("study", value, example)
