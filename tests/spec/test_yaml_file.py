"""YAML is read as people mean it, and never as more than was written."""

from pathlib import Path

import pytest

from ddl_core.errors import SpecError
from ddl_core.records.paths import STUDIES
from ddl_core.spec import yaml_file
from ddl_core.spec.yaml_file import read
from tests.cli.bad_world import BOMB


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "some.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1_000", {"a": 1000}),
        ("a: 5.0e-4", {"a": 5e-4}),
        ("a: -3", {"a": -3}),
        ("a: 2026-01-01", {"a": "2026-01-01"}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}", {"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}}),
        ("", None),
    ],
)
def test_what_is_written_is_read(tmp_path: Path, text: str, value: object) -> None:
    assert read(written(tmp_path, text), "study") == value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: 1\na: 2", "field 'a' is there twice"),
        ("a: {b: 1, 'b': 2}", "field 'b' is there twice"),
        ("a: 010", "'010': write it as a decimal number"),
        ("a: 1:30", "'1:30': write it as a decimal number"),
        ("a: 1:30.5", "'1:30.5': write it as a decimal number"),
        (f"a: {'9' * 5000}", "some.yaml is not valid YAML"),
        (BOMB, "values with its aliases"),
        ("a: &x [*x]", "leads back to itself"),
        ("[" * 3000, "too deep"),
        (f"a: {'b' * yaml_file.MOST_BYTES}", "more than the allowed 100,000 bytes"),
        ("a: caf\u00e9".encode("latin-1"), "not UTF-8 text .byte 6 is not.*LATIN1"),
        ("a: b".encode("utf-16"), "looks like UTF-16.*iconv -f UTF-16"),
        ("a: [", 'in "some.yaml", line 1'),
    ],
)
def test_what_would_be_lost_or_blown_up_is_refused(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        read(written(tmp_path, content), "study")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert read(written(tmp_path, "a: 1".encode("utf-8-sig")), "study") == {"a": 1}


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_our_own_studies_are_read_as_by_the_library(path: Path) -> None:
    import yaml

    assert read(path, "study") == yaml.safe_load(path.read_text(encoding="utf-8"))
