"""What a training script of your own tells `ddl`: how many images it has trained on.

It needs nothing of this package: a line ``{"images": 256}`` on the standard output says the same.
"""

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

FIRST_BATCH = "DDL_FIRST_BATCH"  # set where the run asks what training without loading takes
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
EVERY_S = 0.5  # between two lines: each waits for the GPU, which would slow short steps


class _Lines:
    """What this process has not printed yet."""

    def __init__(self) -> None:
        self.images, self.printed = 0, -math.inf

    def add(self, key: str, images: int) -> None:
        """Add images, and print a line if the last one was long ago."""
        self.images += images
        if time.monotonic() - self.printed < EVERY_S:
            return
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        rank = int(next((os.environ[one] for one in RANK if one in os.environ), 0))
        print(json.dumps({key: self.images, "rank": rank}), flush=True)  # noqa: T201
        self.images, self.printed = 0, time.monotonic()


_lines = _Lines()


def report(images: int | None = None, *, images_all: int | None = None) -> None:
    """Say how many images have been trained on since the last call; call it each step or epoch.

    It prints every half second at most, and first waits for the GPU, if torch uses one: so a line
    comes when the work is done, and few steps wait for it.

    Parameters
    ----------
    images
        Of this process.
    images_all
        Of all processes together, where one of several calls this.

    Raises
    ------
    ValueError
        If not one of both is given.
    """
    if (images is None) == (images_all is None):
        raise ValueError("give images or images_all, not both")
    if images is not None:
        _lines.add("images", images)
    elif images_all is not None:
        _lines.add("images_all", images_all)


def first_batch(batches: Iterable[Any]) -> Iterable[Any]:
    """Return batches; where the run asks for it, the first one as often as there are batches.

    Wrap your loader in it, to learn whether the loader limits the training.
    """
    return _Repeated(batches) if os.environ.get(FIRST_BATCH) else batches


class _Repeated:
    """The first batch of each epoch, in place of all."""

    def __init__(self, batches: Any) -> None:
        self._batches, self._first = batches, None

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        if self._first is None:
            self._first = next(iter(self._batches))
        for _ in range(len(self._batches)):
            yield self._first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
