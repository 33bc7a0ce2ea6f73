"""What a training script of your own tells `ddl`: how many images it has trained on.

It needs nothing of this package: a line ``{"images": 256}`` on the standard output says the same.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

FIRST_BATCH = "DDL_FIRST_BATCH"  # set where the run asks what training without loading takes
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def report(images: int | None = None, *, images_all: int | None = None) -> None:
    """Say how many images have been trained on since the last call; call it each step or epoch.

    Waits for the GPU first, if torch uses one, so that the line comes when the work is done.

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
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    found = {"images": images} if images_all is None else {"images_all": images_all}
    line = {**found, "rank": int(next((os.environ[one] for one in RANK if one in os.environ), 0))}
    print(json.dumps(line), flush=True)  # noqa: T201


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
