"""Copies to a GPU on a stream of their own, while the step before computes.

A copy that is put on the stream that computes is asynchronous for the host only: the GPU does one
after the other.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

Sent = TypeVar("Sent")


def copied_ahead(
    batches: Iterator[Any], send: Callable[[Any], Sent], copying: torch.cuda.Stream
) -> Iterator[Sent]:
    """Yield what `send` makes of each batch, begun while the batch ahead of it is computed with.

    One batch more is on the device than without. The host waits for `batches`, never for the
    device.

    Parameters
    ----------
    batches
        In the memory of the host, pinned if the copies shall overlap.
    send
        Puts a batch on the device without waiting.
    copying
        The stream for it, always the same one: memory that one stream has freed is not for others.
    """

    def begin() -> Sent | None:
        batch = next(batches, None)
        if batch is None:
            return None
        # Memory of older batches is taken again: all that computes with them comes first. That
        # keeps it at three batches, which `record_stream` would not where the host runs ahead.
        copying.wait_stream(torch.cuda.current_stream(copying.device))
        with torch.cuda.stream(copying):
            return send(batch)

    coming = begin()
    while coming is not None:
        # For this batch alone: the copy of the next one is not begun yet.
        torch.cuda.current_stream(copying.device).wait_stream(copying)
        ready, coming = coming, begin()
        yield ready
