"""States in files and their hash; layouts and variances against those of torch."""

import os

import numpy as np
import pytest
import torch

from ddl_core.errors import RecordError
from ddl_tools.frameworks.weights import State, biased, load, save, to_nchw, to_nhwc, unbiased
from ddl_tools.rank.weights import state_sha256

UPDATES, SHAPE = 5, (4, 3, 2, 5)  # images, channels, height, width
RUN = "tensorflow-single-native-resnet8-1x1-r0-00000000"


def state(seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    weight, bias = rng.standard_normal((3, 2), "f"), rng.standard_normal(3, "f")
    values = {"fc.weight": weight, "fc.bias": bias}
    momentum, squares = (
        {name: factor * array for name, array in values.items()} for factor in (2, 3)
    )
    return State(values, momentum, updates=7, squares=squares)


def test_values_moments_and_counts_come_back_in_their_order(tmp_path):
    path, want = tmp_path / "checkpoint.npz", state()
    save(path, RUN, want, epochs_done=3)
    found, epochs_done = load(path, RUN)
    assert (epochs_done, found.updates) == (3, 7)
    for part in ("values", "momentum", "squares"):
        old, new = getattr(want, part), getattr(found, part)
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


def test_a_convolution_with_channels_last_is_the_same():
    rng = np.random.default_rng(0)
    images, weight = rng.standard_normal((2, 5, 3, 4)), rng.standard_normal((7, 5, 3, 4))
    (want,) = torch.conv2d(*map(torch.from_numpy, (images, weight))).reshape(1, 2, 7).numpy()
    found = np.einsum("nhwi,hwio->no", images.transpose(0, 2, 3, 1), to_nhwc(weight))
    np.testing.assert_allclose(found, want)
    np.testing.assert_array_equal(to_nchw(to_nhwc(weight)), weight)


def test_variances_fed_with_biased_ones_become_those_of_torch():
    images = torch.randn(UPDATES, *SHAPE, generator=torch.Generator().manual_seed(0))
    norm = torch.nn.BatchNorm2d(SHAPE[1])
    own = np.ones(SHAPE[1], np.float32)
    for batch in images:
        norm(batch)
        own = 0.9 * own + 0.1 * batch.numpy().var(axis=(0, 2, 3))
    want = norm.running_var.numpy()
    count = images[0].numel() // SHAPE[1]
    np.testing.assert_allclose(unbiased(own, count, UPDATES), want, rtol=1e-5)
    np.testing.assert_allclose(biased(want, count, UPDATES), own, rtol=1e-5)
    assert np.abs(own / want - 1).max() > 1e-3  # else this test would show nothing
    ones = np.ones(3, np.float32)  # before the first update
    np.testing.assert_array_equal(unbiased(ones, 2, 0), ones)
    np.testing.assert_array_equal(biased(ones, 2, 0), ones)
