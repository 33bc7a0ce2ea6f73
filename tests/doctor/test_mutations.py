"""Whatever is in the record of a probe, `ddl doctor` and the figure name it or read it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_core.errors import RecordError
from ddl_tools.analysis.figures import all_reduce
from ddl_tools.doctor.judge import judge
from ddl_tools.records.paths import ProbeFiles, Tree
from ddl_tools.records.probe import read_probe
from tests.doctor.made import answer, record
from tests.mutations import mutated, steady, text_of, torn

GOOD = record(answer(0), answer(1))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ProbeFiles:
    tree = Tree(tmp_path_factory.mktemp("probes"))
    for name in ("whole", "changed"):
        directory = ProbeFiles(tree.probes / name).directory
        directory.mkdir(parents=True)
        ProbeFiles(directory).record.write_text(GOOD.model_dump_json())
    return ProbeFiles(directory)


@given(data=st.data())
@steady(15)
def test_a_probe(files: ProbeFiles, data: st.DataObject) -> None:
    content = json.loads(GOOD.model_dump_json())
    if data.draw(st.booleans()):
        part = data.draw(st.sampled_from([content, content["answers"], content["answers"][0]]))
        text = (
            text_of(content).replace(text_of(part), text_of(data.draw(mutated(part, 3)))).encode()
        )
    else:
        text = data.draw(torn(text_of(content).encode()))
    files.record.write_bytes(text)
    tree = Tree(Path(files.directory).parents[1])
    refusals: list[str] = []
    try:
        judge(read_probe(files.directory), files.directory)
    except RecordError as error:
        refusals.append(str(error))
    assert all(str(files.directory) in one for one in refusals)
    assert len(all_reduce.damaged(tree)) == len(refusals)
    points = all_reduce.points(tree)
    assert len(points) >= 2
    all_reduce.draw(points)
