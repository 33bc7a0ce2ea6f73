"""Layouts and running variances, against what torch itself computes with them."""

import numpy as np
import pytest
import torch

from ddl_tools.frameworks.layouts import biased, to_nchw, to_nhwc, unbiased

UPDATES, SHAPE = 5, (4, 3, 2, 5)  # images, channels, height, width


def test_a_convolution_with_channels_last_is_the_same():
    rng = np.random.default_rng(0)
    images, weight = rng.standard_normal((2, 5, 3, 4)), rng.standard_normal((7, 5, 3, 4))
    (want,) = torch.conv2d(*map(torch.from_numpy, (images, weight))).reshape(1, 2, 7).numpy()
    found = np.einsum("nhwi,hwio->no", images.transpose(0, 2, 3, 1), to_nhwc(weight))
    np.testing.assert_allclose(found, want)


@pytest.mark.parametrize(
    ("shape", "other"), [((7, 5, 3, 4), (3, 4, 5, 7)), ((7, 5), (5, 7)), ((7,), (7,))]
)
def test_layouts_come_back(shape, other):
    array = np.random.default_rng(0).standard_normal(shape, "f")
    assert to_nhwc(array).shape == other
    np.testing.assert_array_equal(to_nchw(to_nhwc(array)), array)


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


def test_the_first_variance_is_left_as_it_is():
    ones = np.ones(3, np.float32)
    np.testing.assert_array_equal(unbiased(ones, 2, 0), ones)
    np.testing.assert_array_equal(biased(ones, 2, 0), ones)
