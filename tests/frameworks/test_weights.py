"""States in files: whole or not at all, never those of another run; and their hash."""

import os

import numpy as np
import pytest

from ddl_core.errors import RecordError
from ddl_core.fairness import state_sha256
from ddl_tools.frameworks.weights import State, load, save

RUN = "tensorflow-single-native-resnet8-1x1-r0-00000000"


def state(seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    weight, bias = rng.standard_normal((3, 2), "f"), rng.standard_normal(3, "f")
    values = {"fc.weight": weight, "fc.bias": bias}
    return State(values, {name: 2 * array for name, array in values.items()}, updates=7)


def test_values_momentum_and_counts_come_back_in_their_order(tmp_path):
    path, want = tmp_path / "checkpoint.npz", state()
    save(path, RUN, want, epochs_done=3)
    found, epochs_done = load(path, RUN)
    assert (epochs_done, found.updates) == (3, 7)
    for old, new in ((want.values, found.values), (want.momentum, found.momentum)):
        assert list(old) == list(new)
        for name, array in old.items():
            assert new[name].dtype == np.float32
            np.testing.assert_array_equal(array, new[name])


def test_a_full_disk_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.npz"
    save(path, RUN, state(), epochs_done=1)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match="No space left"):
        save(path, RUN, state(1), epochs_done=2)
    assert load(path, RUN)[1] == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["nothing there", "cut off", "one bit", "no file of this kind"])
def test_a_damaged_or_missing_file_is_refused(damage, tmp_path):
    path = tmp_path / "checkpoint.npz"
    values = np.ones((300, 300), np.float32)
    save(path, RUN, State({"weight": values}))
    content = bytearray(path.read_bytes())
    if damage == "cut off":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "one bit":
        content[content.index(values.tobytes()) + 1000] ^= 1
        path.write_bytes(content)
    elif damage == "no file of this kind":
        path.write_text("weights")
    else:
        path.unlink()
    with pytest.raises(RecordError, match="to start the run again"):
        load(path, RUN)


def test_the_file_of_another_run_is_refused(tmp_path):
    path = tmp_path / "initial.npz"
    save(path, RUN, state())
    with pytest.raises(RecordError, match=f"belongs to run {RUN}; delete it to start another"):
        load(path, "another")


def test_the_hash_sees_every_bit_and_name_and_no_order():
    one = state().values
    same = {name: np.asfortranarray(one[name]) for name in reversed(one)}
    assert state_sha256(same) == state_sha256(one)
    other = dict(one, **{"fc.bias": np.nextafter(one["fc.bias"], np.float32(9))})
    named = {name.replace("fc", "head"): array for name, array in one.items()}
    assert len({state_sha256(values) for values in (one, other, named)}) == 3
