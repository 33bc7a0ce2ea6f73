"""Parameters of notebooks: their form, values given as text, and the settings of a run."""

import logging
import re
import shlex
from pathlib import Path
from typing import Any

import nbformat
import pytest
from papermill import inspect_notebook
from papermill.translators import PythonTranslator

from ddl_core.config import RunSpec, run_fields
from ddl_core.errors import SpecError
from ddl_tools.launch.parameters import NAMED, convert, given_fields, of_run, require_same
from ddl_tools.launch.study import plan_single
from ddl_tools.records.paths import NOTEBOOKS, PROJECT, results
from ddl_tools.records.run import RunRecord, read_record, write_record
from tests.analysis.hostile import EVIL
from tests.fields import changed
from tests.launch.running import TINY, planned

FUTURE = "from __future__ import annotations\n"
EACH = pytest.mark.parametrize(
    "path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem
)


def cells_of(path: Path) -> list[nbformat.NotebookNode]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def parameters_of(path: Path) -> tuple[dict[str, Any], str]:
    """Return the names that a notebook has once its parameters are set, and the cell after."""
    imports, parameters, after, *_ = cells_of(path)
    assert parameters.metadata.tags == ["parameters"]
    namespace: dict[str, Any] = {}
    source = f"{imports.source}\n{parameters.source}".replace("%matplotlib inline", "")
    # A kernel executes statement by statement.
    exec(FUTURE + source.replace(FUTURE, ""), namespace)
    return namespace, after.source


@EACH
def test_papermill_knows_type_default_and_help_of_each_parameter(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        known = inspect_notebook(path)
    assert caplog.messages == []
    namespace, _ = parameters_of(path)
    assert known.keys() == namespace["__annotations__"].keys()
    for name, about in known.items():
        assert about["inferred_type_name"] == namespace["__annotations__"][name]
        assert eval(about["default"]) == namespace[name]
        assert len(about["help"]) > 5


@EACH
def test_every_parameter_may_be_given_as_text(path: Path) -> None:
    namespace, after = parameters_of(path)
    names = namespace["__annotations__"]
    before = {name: namespace[name] for name in names}
    for name, value in before.items():
        if value is not None:
            namespace[name] = str(value)
    exec(after.partition("\n")[0], namespace)
    assert {name: namespace[name] for name in names} == before


PAGE = PROJECT / "docs" / "how-to" / "run-notebooks.md"


@EACH
def test_the_page_on_papermill_lists_the_parameters(path: Path) -> None:
    (row,) = re.findall(rf"^\|.*\[{path.stem}\].*\| (.*) \|$", PAGE.read_text(), re.M)
    assert set(re.findall(r"`(\w+)`", row)) == inspect_notebook(path).keys()


def test_pages_give_papermill_parameters_that_exist() -> None:
    lines = [
        line
        for page in PROJECT.glob("docs/*/*.md")
        for line in re.findall(r"papermill notebooks/[^`#\n]+", page.read_text())
    ]
    assert len(lines) > 4
    for _, notebook, _, *options in map(shlex.split, lines):
        namespace, _ = parameters_of(PROJECT / notebook)
        assert {*options[::3]} == {"-p"}
        given = dict(zip(options[1::3], options[2::3], strict=True))
        assert given.keys() <= namespace["__annotations__"].keys()
        convert(namespace | given)


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (list[int], "(1, 2)", [1, 2]),
        (list[int], "[1, 2]", [1, 2]),
        (list[int], "1,2", [1, 2]),
        (list[int], "()", []),
        (list[int], (1, 2), [1, 2]),
        (list[int], 8, [8]),
        (list, "fp32, bf16", ["fp32", "bf16"]),
        (list, "8", [8]),
        (int, "32", 32),
        (float, "1e3", 1000.0),
        (float, 3, 3.0),
        (bool, "true", True),
        (str, 2020, "2020"),
        (str, "[1, 2]", "[1, 2]"),
        (int | None, "32", 32),
        (int | None, None, None),
        (str | None, "null", "null"),
        (dict[str, Any], '{"epochs": 3, "prefix": null}', {"epochs": 3, "prefix": None}),
        (dict[str, Any], "epochs: 3, compile: true", {"epochs": 3, "compile": True}),
    ],
)
def test_a_value_has_its_type(kind: Any, given: Any, meant: Any) -> None:
    namespace = {"__annotations__": {"one": kind}, "one": given}
    convert(namespace)
    assert namespace["one"] == meant
    assert type(namespace["one"]) is type(meant)


@pytest.mark.parametrize(
    ("kind", "given", "wrong"),
    [
        (int, "two", "'two'"),
        (int, 2.5, "2.5"),
        (int, True, "True"),
        (bool, 1, "1"),
        (list[int], "1, two", "'two'"),
        (list[int], "(1, [2", "as in a study file"),
        (dict[str, Any], "epochs: [3", "as in a study file"),
        (str, None, "None"),
        (int | None, "9" * 5000, "999"),
        (list, "a" + "[" * 10**5, "as in a study file"),
    ],
)
def test_a_value_of_another_type_is_an_error_of_one_line(kind: Any, given: Any, wrong: str) -> None:
    with pytest.raises(SpecError) as caught:
        convert({"__annotations__": {"workers": kind}, "workers": given})
    text = str(caught.value)
    assert text.startswith("parameter workers = ")
    assert wrong in text
    assert "\n" not in text
    assert len(text) < 300


def injected(record: RunRecord) -> dict[str, Any]:
    """Return the names of notebook 01 once papermill has set the settings of a run."""
    namespace, after = parameters_of(NOTEBOOKS / "01_run.ipynb")
    exec(PythonTranslator.codify(of_run(Path("/a"), record)), namespace)
    exec(after, namespace)
    return namespace


SPECS = [changed(field)[1] for field in run_fields()]


@pytest.mark.parametrize("spec", [RunSpec(), *SPECS], ids=lambda spec: spec.run_id)
def test_all_settings_of_a_run_are_parameters_and_none_differs(spec: RunSpec) -> None:
    record = read_record(planned()).model_copy(update={"spec": spec})
    found = injected(record)
    assert RunSpec(**found["fields"]) == spec
    require_same(record, found["fields"], found["data"])


def test_texts_of_a_record_stay_texts(tmp_path: Path) -> None:
    folder = planned(prefix='"; import os; x = "\\" #')
    record = read_record(folder).model_copy(update={"data_dir": f"/{EVIL}\\"})
    found = injected(record)
    assert Path(found["data"]) == Path(record.data_dir)
    assert found["fields"]["prefix"] == record.spec.prefix
    require_same(record, found["fields"], found["data"])


@pytest.mark.parametrize("field", [name for name in run_fields() if name != "emulated"])
def test_a_difference_from_the_record_is_named(field: str) -> None:
    mine, other = changed(field)
    record = read_record(planned()).model_copy(update={"spec": mine})
    with pytest.raises(SpecError, match=f"^{field} = .* the record of run .* has "):
        require_same(record, {field: getattr(other, field)}, None)


def test_data_are_those_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = planned()
    record = read_record(folder).model_copy(update={"data_dir": str(tmp_path / "images")})
    write_record(folder, record)
    monkeypatch.chdir(tmp_path)
    for same in (None, "", "images", str(tmp_path / "images")):
        require_same(record, {}, same)
    (tmp_path / "images").symlink_to(tmp_path / "elsewhere")  # since the run was planned
    require_same(record, {}, of_run(folder, record)["data"])
    for other in ("others", str(tmp_path)):
        with pytest.raises(SpecError, match="data = "):
            require_same(record, {}, other)


def test_a_field_is_given_once() -> None:
    none: dict[str, Any] = dict.fromkeys(NAMED)
    assert given_fields(none, {}) == {}
    assert given_fields({**none, "nodes": 1}, {"seed": 3}) == {"nodes": 1, "seed": 3}
    with pytest.raises(SpecError, match="epochs"):
        given_fields(none, {"epochs": 3})


def test_a_single_run_that_cannot_start_is_not_planned() -> None:
    spec = RunSpec(**{**TINY, "strategy": "ddp", "nodes": 2})
    with pytest.raises(SpecError, match=r"nodes = 2: .*ddl study submit"):
        plan_single(spec, "example", results())
    assert not results().study("example").exists()
