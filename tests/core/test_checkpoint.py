"""Checkpoints: whole or not at all, and never those of another run."""

import os

import pytest
import torch
from torch import nn

from ddl_core import checkpoint
from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_core.optim import make_optimizer
from ddl_core.step import TrainState
from ddl_core.strategies.base import Single


def trainee(**fields) -> TrainState:
    spec = RunSpec(**fields)
    model = nn.Linear(3, 2)
    return TrainState(spec, Single(spec), model, make_optimizer(spec, model))


def test_a_crash_while_saving_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, trainee(), epochs_done=1)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match="No space left"):
        checkpoint.save(path, trainee(), epochs_done=2)
    assert checkpoint.load(path, trainee()) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_or_one_of_another_run_is_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, trainee(), epochs_done=1)
    with pytest.raises(RecordError, match="belongs to run single-native"):
        checkpoint.load(path, trainee(epochs=3))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RecordError, match="delete it to start the run again"):
        checkpoint.load(path, trainee())


def test_flipped_bytes_of_weights_are_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    state = trainee()
    checkpoint.save(path, state, epochs_done=1)
    content = path.read_bytes()
    weights = state.network.weight.detach().numpy().tobytes()
    assert content.count(weights) == 1
    path.write_bytes(content.replace(weights, bytes(len(weights))))
    with pytest.raises(RecordError, match="delete it to start the run again"):
        checkpoint.load(path, trainee())


def test_the_hash_sees_every_bit_and_every_name():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    two.load_state_dict(one.state_dict())
    assert checkpoint.weights_sha256(one) == checkpoint.weights_sha256(two)
    with torch.no_grad():
        two.bias[0] = torch.nextafter(two.bias[0], torch.tensor(9.0))
    assert checkpoint.weights_sha256(one) != checkpoint.weights_sha256(two)
    assert checkpoint.weights_sha256(nn.Sequential(one)) != checkpoint.weights_sha256(one)
