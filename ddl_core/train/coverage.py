"""Which images an epoch used: every one that it should have, and none twice, over all ranks."""

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from ddl_core.errors import DataError, broken
from ddl_core.spec.run import RunSpec
from ddl_core.train.loaders.order import epoch_order, steps_per_epoch
from ddl_core.train.protocols import Loader, Strategy

# A run goes on with a few unreadable images, but not with a broken data set.
MAX_CORRUPT_SHARE = 0.01


def check_epoch(spec: RunSpec, strategy: Strategy, loader: Loader, epoch: int) -> str | None:
    """Return the SHA-256 of the numbers of an epoch's images; None if made up. A collective.

    Raises
    ------
    FairnessError
        If they are not those of the epoch's order, each once, without its incomplete last step.
    """
    if loader.seen is None:
        return None
    used = steps_per_epoch(spec, loader.images) * spec.global_batch_size
    expected = epoch_order(spec, loader.images, epoch)[:used]
    return _check(strategy, loader, loader.seen, np.sort(expected))


def check_evaluation(strategy: Strategy, loader: Loader) -> str | None:
    """Do the same for an evaluation, which uses every image once. A collective."""
    if loader.seen is None:
        return None
    return _check(strategy, loader, loader.seen, np.arange(loader.images))


def _check(
    strategy: Strategy,
    loader: Loader,
    seen: list[npt.NDArray[np.int64]],
    expected: npt.NDArray[np.int64],
) -> str:
    own = np.concatenate([np.empty(0, np.int64), *seen])
    counts = torch.from_numpy(np.bincount(own, minlength=loader.images)).int()
    times = strategy.all_reduce(counts.to(strategy.device)).cpu().numpy()
    twice = np.flatnonzero(times > 1)
    if twice.size:
        raise broken(
            "each image once",
            f"{twice.size} images were used more than once, the first is number {twice[0]}",
        )
    used = np.flatnonzero(times)
    if not np.array_equal(used, expected):
        raise broken(
            "same images",
            f"{used.size} images were used, {expected.size} should have been, "
            f"and {np.setxor1d(used, expected).size} are in one set only",
        )
    return hashlib.sha256(used.astype("<i8").tobytes()).hexdigest()


def count_corrupt(strategy: Strategy, loader: Loader) -> int:
    """Return the unreadable images of all ranks since `set_epoch`. A collective."""
    own = torch.tensor([loader.corrupt_images], device=strategy.device)
    (corrupt,) = strategy.all_reduce(own).tolist()
    return int(corrupt)


def refuse_broken_data(corrupt: int, samples: int) -> None:
    """Check that few enough of an epoch's images were unreadable.

    Raises
    ------
    DataError
        If more than 1 % were, and more than one.
    """
    allowed = max(1, int(MAX_CORRUPT_SHARE * samples))
    if corrupt > allowed:
        raise DataError(
            f"{corrupt} of {samples} images of this epoch are unreadable, more than the {allowed} "
            "that a run tolerates; the log names them; check the folder with `ddl data verify DIR`"
        )
