"""Weights, statistics and moments in torch's names and layouts, and their npz file.

The file of initial weights, drawn in the environment of torch, is read in those of all frameworks,
and checkpoints of two frameworks can be compared.

A convolution is (out, in, height, width) in torch and MXNet, (height, width, in, out) in TensorFlow
and Keras; a linear layer (out, in) or (in, out). A momentum buffer goes the way of its weight.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core.errors import RecordError
from ddl_core.files import cannot_write, replacing

Floats = npt.NDArray[np.float32]

VALUES, MOMENTUM, SQUARES = "values/", "momentum/", "squares/"  # beginnings of names in the file
NEW_SHARE = 0.1  # of a batch's statistics in the running ones: torch's momentum of BatchNorm


@dataclass
class State:
    """What is trained, in torch's names, order and layouts.

    Attributes
    ----------
    values
        Parameters and running statistics by the names of torch's ``state_dict``, without its
        counters of batches. Running variances are unbiased, as torch's are.
    momentum
        Torch's momentum buffer of each parameter, v of v = mu v + g + wd w, or AdamW's first
        moment; empty before the first update.
    updates
        Updates so far: AdamW and a framework that keeps biased variances need their number.
    squares
        AdamW's second moment of each parameter; empty for other optimisers.
    """

    values: dict[str, Floats]
    momentum: dict[str, Floats] = field(default_factory=dict)
    updates: int = 0
    squares: dict[str, Floats] = field(default_factory=dict)


def save(path: Path, run_id: str, state: State, epochs_done: int = 0) -> None:
    """Replace the file at `path`; a crash leaves the old one.

    `RecordError` if it cannot be written.
    """
    content: dict[str, Any] = {
        "run_id": np.array(run_id),
        "epochs_done": np.array(epochs_done),
        "updates": np.array(state.updates),
        **{VALUES + name: array for name, array in state.values.items()},
        **{MOMENTUM + name: array for name, array in state.momentum.items()},
        **{SQUARES + name: array for name, array in state.squares.items()},
    }
    try:
        with replacing(path) as file:
            np.savez(file, **content)
    except OSError as error:
        raise cannot_write(path, error) from error


def load(path: Path, run_id: str) -> tuple[State, int]:
    """Return what `save` has written, and the number of epochs already done.

    `RecordError` if the file is missing, damaged or of another run.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            content = {name: file[name] for name in file.files}  # compared with its checksums
        found, epochs_done = str(content["run_id"]), int(content["epochs_done"])
        values, momentum, squares = (_of(content, kind) for kind in (VALUES, MOMENTUM, SQUARES))
        state = State(values, momentum, int(content["updates"]), squares)
    except Exception as error:
        raise RecordError(
            f"cannot read {path} ({error}); delete it, if it is there, to start the run again"
        ) from error
    if found != run_id:
        raise RecordError(
            f"{path} belongs to run {found}; delete it to start {run_id} from its beginning"
        )
    return state, epochs_done


def _of(content: dict[str, Any], kind: str) -> dict[str, Floats]:
    return {
        name.removeprefix(kind): array for name, array in content.items() if name.startswith(kind)
    }


def is_statistic(name: str) -> bool:
    """Say whether a value is a running statistic and no parameter."""
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def to_nhwc(array: Floats) -> Floats:
    """Return a parameter of torch's layout in that of a framework with channels last."""
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
