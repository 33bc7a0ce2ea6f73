"""Feeds DALI: file contents read ahead by threads, each with the view that its epoch shows.

DALI's own readers shuffle in a buffer and give the last batch to some ranks only. Fed this way, it
takes the same images in the same order as every other loader, and one that it could not decode is
found before it ends the pipeline.
"""

import io
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from ddl_core.rank.images import Batches, Images, NamedOnce
from ddl_core.rank.views import (
    MEAN,
    UNREADABLE,
    Training,
    check_pixels,
    evaluation_corner,
    evaluation_size,
    open_rgb,
)
from ddl_core.spec.run import RunSpec

END_OF_JPEG = b"\xff\xd9"  # inside the compressed data, ff is never followed by d9
TRAILER_BYTES = 4096  # some cameras write a little behind the end

Array = npt.NDArray[np.generic]


class Item(NamedTuple):
    """One image: what the pipeline gets, and what is kept back.

    `rescued`: Pillow decoded it because DALI had failed, not because DALI is known to be unable to.
    """

    content: Array
    geometry: tuple[tuple[int, ...], ...]
    label: int
    number: int
    corrupt: bool = False
    rescued: bool = False


class Feed:
    """Each call returns the inputs of the next batch of the epoch that `begin` began.

    It raises StopIteration at the epoch's end, as DALI expects. `taken` holds the batches that were
    returned and not yet confirmed by `delivered`.
    """

    def __init__(self, spec: RunSpec, files: Images, plan: Batches, training: bool) -> None:
        self._spec, self._files, self._plan = spec, files, plan
        self._views = Training(spec) if training else None
        self._name = NamedOnce()
        self._threads = spec.loader_workers
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="read")
        self._batches: Iterator[list[tuple[int, int]]] = iter(())
        self._ahead: deque[list[Future[list[Item]]]] = deque()
        self.taken: deque[list[Item]] = deque()

    def begin(self) -> None:
        """Begin the plan's epoch."""
        self._forget()
        self._batches = iter(self._plan)

    def __call__(self) -> list[list[Array] | Array]:
        """Return the inputs of the pipeline: the files, then each geometry as one array."""
        while len(self._ahead) <= self._spec.loader_prefetch and self._submit():
            pass
        if not self._ahead:
            raise StopIteration
        items = [item for part in self._ahead.popleft() for item in part.result()]
        self.taken.append(items)
        geometry = zip(*(item.geometry for item in items), strict=True)
        return [[item.content for item in items], *(np.array(one, np.int32) for one in geometry)]

    def delivered(self) -> list[Item]:
        """Return the oldest batch that the pipeline has finished."""
        return self.taken.popleft()

    def go_back(self) -> None:
        """Have the batches that the pipeline lost decoded by Pillow and fed again, first of all."""
        epoch = self._plan.epoch
        while self.taken:
            lost = [(epoch, item.number) for item in self.taken.pop()]
            self._ahead.appendleft(self._submitted(lost, careful=True))

    def _forget(self) -> None:
        for parts in self._ahead:
            for part in parts:
                part.cancel()
        self._ahead.clear()
        self.taken.clear()

    def _submit(self) -> bool:
        """Start reading the next batch, if there is one."""
        batch = next(self._batches, None)
        if batch is None:
            return False
        self._ahead.append(self._submitted(batch, careful=False))
        return True

    def _submitted(self, batch: list[tuple[int, int]], careful: bool) -> list[Future[list[Item]]]:
        """Start reading a batch, in as many parts as there are threads."""
        size = -(-len(batch) // self._threads)
        return [
            self._pool.submit(self._read, batch[start : start + size], careful)
            for start in range(0, len(batch), size)
        ]

    def _read(self, places: list[tuple[int, int]], careful: bool) -> list[Item]:
        return [self._item(epoch, number, careful) for epoch, number in places]

    def _item(self, epoch: int, number: int, careful: bool) -> Item:
        content, label = self._files.read(number)
        try:
            given, height, width = _decodable(content)
            rescued = careful and given is content
            if rescued:
                given, height, width = _raw(content)
        except UNREADABLE as error:
            self._name(self._files.name(number), error)
            blank = self._geometry(epoch, number, 1, 1)
            return Item(_bytes(BLANK), blank, label, number, corrupt=True)
        geometry = self._geometry(epoch, number, height, width)
        return Item(_bytes(given), geometry, label, number, rescued=rescued)

    def _geometry(
        self, epoch: int, number: int, height: int, width: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return top-left, height-width and mirror, or resized height-width and top-left."""
        if self._views:
            view = self._views.view(epoch, number, height, width)
            return (view.top, view.left), (view.height, view.width), (int(view.flip),)
        size = self._spec.image_size
        resized = evaluation_size(size, height, width)
        return resized, evaluation_corner(size, *resized)


def _bytes(content: bytes) -> Array:
    return np.frombuffer(content, np.uint8)


def _decodable(content: bytes) -> tuple[bytes, int, int]:
    """Return what DALI can decode to RGB, and its height and width."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return _raw(content)
    if colours not in ("YCbCr", "Gray") or END_OF_JPEG not in content[-TRAILER_BYTES:]:
        return _raw(content)
    check_pixels(height, width)
    return content, height, width


def _raw(content: bytes) -> tuple[bytes, int, int]:
    """Return the image uncompressed, as Pillow decodes it: slow, and the last word on damage."""
    image = open_rgb(content)
    return _uncompressed(image), image.height, image.width


def _uncompressed(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PPM")
    return buffer.getvalue()


BLANK = _uncompressed(Image.new("RGB", (1, 1), tuple(round(255 * value) for value in MEAN)))
