"""Fairness rules for all frameworks: every image of an epoch, none twice, over all ranks.

`ddl_core/monitor.py` has the rules of PyTorch.
"""

import hashlib

import numpy as np

from ddl_core.config import RunSpec
from ddl_core.data.sampling import Indices, epoch_order, steps_per_epoch
from ddl_core.errors import DataError, broken
from ddl_core.loaders.base import Loader
from ddl_core.strategies import Group

MAX_CORRUPT_SHARE = 0.01  # of unreadable images


def check_agreement(group: Group, digest: str, rule: str) -> None:
    """Check that all ranks hold the same hexadecimal `digest`. A collective."""
    own = int(digest[:12], 16)
    high, minus_low = group.reduce(np.array([own, -own], np.int64), "max").tolist()
    if high != -minus_low:
        raise broken(rule, f"the ranks hold different values (rank {group.rank}: {digest[:12]})")


def check_epoch(spec: RunSpec, group: Group, loader: Loader, epoch: int) -> str | None:
    """Check the images of an epoch; return the SHA-256 of their numbers. A collective.

    They must be those of the epoch's order, each once, without its incomplete last step; with an
    order of its own, as many. None for synthetic images.
    """
    if loader.seen is None:
        return None
    wanted = steps_per_epoch(spec, loader.images) * spec.global_batch_size
    used = _used_once(group, loader, loader.seen)
    if not loader.own_order:
        _check_same(used, np.sort(epoch_order(spec, loader.images, epoch)[:wanted]))
    elif used.size != wanted:
        raise broken("each image once", f"{used.size} images were used, {wanted} should have been")
    return _digest(used)


def check_evaluation(group: Group, loader: Loader) -> str | None:
    """Do the same for an evaluation, which uses every image once. A collective."""
    if loader.seen is None:
        return None
    used = _used_once(group, loader, loader.seen)
    _check_same(used, np.arange(loader.images))
    return _digest(used)


def _used_once(group: Group, loader: Loader, seen: list[Indices]) -> Indices:
    """Return the numbers of the images of all ranks in ascending order. A collective."""
    own = np.concatenate([np.empty(0, np.int64), *seen])
    times = group.reduce(np.bincount(own, minlength=loader.images).astype(np.int32))
    twice = np.flatnonzero(times > 1)
    if twice.size:
        raise broken(
            "each image once",
            f"{twice.size} images were used more than once, the first is number {twice[0]}",
        )
    return np.flatnonzero(times)


def _check_same(used: Indices, expected: Indices) -> None:
    if not np.array_equal(used, expected):
        raise broken(
            "same images",
            f"{used.size} images were used, {expected.size} should have been, "
            f"and {np.setxor1d(used, expected).size} are in one set only",
        )


def _digest(used: Indices) -> str:
    return hashlib.sha256(used.astype("<i8").tobytes()).hexdigest()


def count_corrupt(group: Group, loader: Loader) -> int:
    """Return the unreadable images of an epoch on all ranks. A collective."""
    return int(group.reduce([loader.corrupt_images])[0])


def refuse_broken_data(corrupt: int, samples: int) -> None:
    """Raise `DataError` if over 1 % of an epoch's images, and more than one, were unreadable."""
    allowed = max(1, int(MAX_CORRUPT_SHARE * samples))
    if corrupt > allowed:
        raise DataError(
            f"{corrupt} of {samples} images of this epoch are unreadable, more than the "
            f"{allowed} allowed; the ranks' stderr.log names them",
            remedy="check the data with `ddl data verify DIR`",
        )
