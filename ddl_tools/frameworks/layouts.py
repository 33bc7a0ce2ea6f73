"""Between torch's arrays and those of a library: layouts, and how variances are kept.

A convolution is (out, in, height, width) in torch and MXNet, (height, width, in, out) in TensorFlow
and Keras; a linear layer (out, in) or (in, out). A momentum buffer goes the way of its weight.
"""

import numpy as np

from ddl_tools.frameworks.weights import Floats

NEW_SHARE = 0.1  # of a batch's statistics in the running ones: torch's momentum of BatchNorm


def to_nhwc(array: Floats) -> Floats:
    """Return a parameter of torch's layout in that of a library with channels last."""
    return np.ascontiguousarray(array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T)


def to_nchw(array: Floats) -> Floats:
    """Undo `to_nhwc`."""
    return np.ascontiguousarray(array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T)


def unbiased(variance: Floats, count: int, updates: int) -> Floats:
    """Return a running variance as torch keeps it, from one that was fed with biased variances.

    Exact, as long as every update since the variance was 1 saw `count` values: then
    u = a + (b - a) n / (n - 1) with a = 0.9^updates, what is left of that 1.

    Parameters
    ----------
    variance
        Of each channel.
    count
        Values of a channel in a batch: images x height x width, more than one.
    updates
        Of the variance, since it was 1.
    """
    left = (1 - NEW_SHARE) ** updates
    return (left + (variance.astype(np.float64) - left) * (count / (count - 1))).astype(np.float32)


def biased(variance: Floats, count: int, updates: int) -> Floats:
    """Undo `unbiased`."""
    left = (1 - NEW_SHARE) ** updates
    return (left + (variance.astype(np.float64) - left) * ((count - 1) / count)).astype(np.float32)
