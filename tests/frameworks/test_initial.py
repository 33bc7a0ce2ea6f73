"""Initial weights: the file for other frameworks has those that a rank of torch begins with."""

import sys
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_tools.frameworks.initial import main
from ddl_tools.frameworks.weights import load
from ddl_tools.rank.weights import state_sha256, values
from ddl_tools.rank.worker import Run
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import RunRecord, write_record
from tests.commands import output

SETTINGS = {"model": "resnet8", "classes": 10, "device": "cpu", "seed": 3, "repeat": 1}
SETTINGS |= {"loader": "synthetic", "local_batch_size": 2}


def planned(directory: Path, **fields) -> Path:
    write_record(directory, RunRecord.plan("test", RunSpec(**{**SETTINGS, **fields}), None))
    return directory


def written(directory: Path, **fields) -> str:
    """Return the hash of what is written for a run of another framework."""
    folder = planned(directory, framework="tensorflow", **fields)
    assert main([str(folder)]) == 0
    run_id = RunSpec(**{**SETTINGS, "framework": "tensorflow", **fields}).run_id
    state, epochs_done = load(RunFiles(folder).initial, run_id)
    assert (epochs_done, state.updates, state.momentum) == (0, 0, {})
    return state_sha256(state.values)


@pytest.mark.parametrize("model", ["resnet8", "googlenet"])
def test_weights_are_those_that_torch_begins_with(model, tmp_path):
    run = Run(planned(tmp_path / "torch", model=model, channels_last=True))
    network = run.trainer.state.network
    assert state_sha256(values(network.state_dict())) == written(tmp_path / "other", model=model)


def test_they_are_other_ones_for_another_seed_and_repetition(tmp_path):
    first = written(tmp_path / "first")
    assert written(tmp_path / "same") == first
    assert written(tmp_path / "seed", seed=4) != first
    assert written(tmp_path / "repeat", repeat=2) != first


def test_it_is_a_program(tmp_path):
    folder = planned(tmp_path / "run", framework="mxnet")
    output(sys.executable, "-m", "ddl_tools.frameworks.initial", folder)
    with pytest.raises(RecordError, match="belongs to run mxnet-single"):
        load(RunFiles(folder).initial, "another")
