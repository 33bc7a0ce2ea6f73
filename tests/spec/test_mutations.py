"""Whatever is in a study or site file, a command answers with one sentence or reads it."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddl_core.errors import SpecError
from ddl_tools.launch.slurm.site import Site
from ddl_tools.records.paths import SITES, STUDIES
from ddl_tools.study import Study, YamlLoader
from tests.mutations import mutated, steady, text_of, torn, values

FILES = {
    Study: sorted(STUDIES.glob("*.yaml")),
    Site: sorted(SITES.glob("*.toml")),
}


def read(kind: type[Study] | type[Site], path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refusals: list[str] = []
    try:
        kind.load(path)
    except SpecError as error:
        refusals.append(str(error))
    assert all(str(path) in one for one in refusals)


@given(data=st.data())
@steady(60)
@pytest.mark.parametrize("kind", FILES)
def test_bytes_of_a_file(
    kind: type[Study] | type[Site], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.getbasetemp() / f"torn{FILES[kind][0].suffix}"
    content = data.draw(st.sampled_from(FILES[kind])).read_bytes()
    read(kind, place, data.draw(torn(content)))


@given(data=st.data())
@steady(60)
def test_fields_of_a_study(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.getbasetemp() / "mutated.yaml"
    text = data.draw(st.sampled_from(FILES[Study])).read_text(encoding="utf-8")
    content = data.draw(mutated(yaml.load(text, YamlLoader), most=3))
    read(Study, place, yaml.safe_dump(content).encode(errors="surrogatepass"))


@given(data=st.data())
@steady(60)
def test_fields_of_a_site(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.getbasetemp() / "mutated.toml"
    lines = data.draw(st.sampled_from(FILES[Site])).read_text(encoding="utf-8").splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.integers(0, len(lines) - 1))
        name = data.draw(st.sampled_from([*Site.model_fields, "no_such"]))
        lines[number] = f"{name} = {text_of(data.draw(values))}"
    read(Site, place, "\n".join(lines).encode())
