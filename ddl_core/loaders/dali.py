"""NVIDIA DALI: decoding and resizing in a pipeline of its own threads, or on the GPU.

Threads read the files ahead and feed them with their crops. So DALI takes the same images in the
same order as every other loader, and a damaged file is found before it ends the pipeline.
"""

import io
import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from nvidia import dali
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import feed_ndarray
from PIL import Image
from torch import Tensor

from ddl_core.config import RunSpec
from ddl_core.data.dataset import Dataset, NamedOnce
from ddl_core.data.image import (
    MEAN,
    STD,
    UNREADABLE,
    CropSampler,
    check_pixels,
    evaluation_corner,
    evaluation_size,
    open_rgb,
)
from ddl_core.data.sampling import BatchSampler
from ddl_core.errors import DataError, SpecError
from ddl_core.loaders.base import Batch, FileLoader

log = logging.getLogger(__name__)

DECODED: dict[str, Any] = {"output_type": types.RGB}
if int(dali.__version__.split(".")[0]) >= 2:  # else it turns images by their EXIF data
    DECODED["adjust_orientation"] = False
PIXELS: dict[str, Any] = {"axis_names": "HW", "normalized_anchor": False, "normalized_shape": False}
# As Pillow resizes.
LINEAR: dict[str, Any] = {"interp_type": types.INTERP_LINEAR, "antialias": True}

END_OF_JPEG = b"\xff\xd9"  # inside the compressed data, ff is never followed by d9
TRAILER_BYTES = 4096  # some cameras write more behind the end

Array = npt.NDArray[np.generic]


class Item(NamedTuple):
    """One image; `rescued` if Pillow decoded it because DALI had failed."""

    content: Array
    geometry: tuple[tuple[int, ...], ...]
    label: int
    number: int
    corrupt: bool = False
    rescued: bool = False


class Feed:
    """Each call returns the inputs of the next batch of an epoch, and StopIteration at its end.

    `taken` holds the batches that were returned and that the pipeline has not finished.
    """

    def __init__(self, spec: RunSpec, files: Dataset, plan: BatchSampler, training: bool) -> None:
        self._spec, self._files, self._plan = spec, files, plan
        self._crops = CropSampler(spec) if training else None
        self._name = NamedOnce()
        self._threads = spec.loader_workers
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="read")
        self._batches: Iterator[list[tuple[int, int]]] = iter(())
        self._ahead: deque[Iterator[list[Item]]] = deque()
        self.taken: deque[list[Item]] = deque()

    def begin(self) -> None:
        """Begin the plan's epoch."""
        self._ahead.clear()
        self.taken.clear()
        self._batches = iter(self._plan)

    def __call__(self) -> list[list[Array] | Array]:
        """Return the inputs of the pipeline: the files, then each geometry as one array."""
        room = max(0, self._spec.loader_prefetch + 1 - len(self._ahead))
        for batch in islice(self._batches, room):
            self._ahead.append(self._begun(batch, careful=False))
        if not self._ahead:
            raise StopIteration
        items = list(chain.from_iterable(self._ahead.popleft()))
        self.taken.append(items)
        geometry = zip(*(item.geometry for item in items), strict=True)
        return [[item.content for item in items], *(np.array(one, np.int32) for one in geometry)]

    def go_back(self) -> None:
        """Decode the batches that the pipeline lost by Pillow, and feed them again."""
        epoch = self._plan.epoch
        while self.taken:
            lost = [(epoch, item.number) for item in self.taken.pop()]
            self._ahead.appendleft(self._begun(lost, careful=True))

    def _begun(self, batch: list[tuple[int, int]], careful: bool) -> Iterator[list[Item]]:
        """Begin to read a batch, in as many parts as there are threads."""
        size = -(-len(batch) // self._threads)
        parts = [batch[start : start + size] for start in range(0, len(batch), size)]
        return self._pool.map(partial(self._read, careful), parts)

    def _read(self, careful: bool, places: list[tuple[int, int]]) -> list[Item]:
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
        if self._crops:
            view = self._crops.draw(epoch, number, height, width)
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
    """Return the image uncompressed, as Pillow decodes it."""
    image = open_rgb(content)
    return _uncompressed(image), image.height, image.width


def _uncompressed(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PPM")
    return buffer.getvalue()


BLANK = _uncompressed(Image.new("RGB", (1, 1), tuple(round(255 * value) for value in MEAN)))


class Dali(FileLoader):
    """Both DALI loaders, which decode and resize on the CPU or on the GPU; a GPU normalises."""

    decoder: ClassVar[str]
    rescued_images: int = 0
    seed = 0  # crops come with the images

    def _prepare(self) -> None:
        spec = self._spec
        if self.decoder == "mixed" and self._device.type != "cuda":
            instead = spec.loader.replace("gpu", "cpu")
            raise SpecError(
                f"loader {spec.loader!r} needs a GPU, and this rank has none; use {instead!r}"
            )
        self._feed = Feed(spec, self._files, self._plan, self._split == "train")
        self._pipeline: Pipeline | None = None
        self._failed = False

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation, and build the pipeline, which reads no image yet."""
        super().set_epoch(epoch)
        self.rescued_images = 0
        self._pipeline = self._pipeline or self._build()

    def _batches(self) -> Iterator[Batch]:
        self._feed.begin()
        pipeline, self._pipeline = self._pipeline, None  # one that is left half-way is not reused
        if pipeline is None:
            pipeline = self._build()
        else:
            pipeline.reset()
        done = failed_at = 0
        while done < len(self):
            try:
                images = self._pixels(pipeline.run()[0])
            except RuntimeError as error:
                if done + 1 == failed_at:
                    raise DataError(f"DALI fails on images that Pillow can read: {error}") from None
                failed_at = done + 1
                if not self._failed:  # a decoder that always fails says the same of every batch
                    self._failed = True
                    log.warning("DALI failed on images, which Pillow decodes instead: %s", error)
                self._feed.go_back()
                pipeline = self._build()
                continue
            done += 1
            items = self._feed.taken.popleft()
            self.rescued_images += sum(item.rescued for item in items)
            if done == len(self) and self._spec.persistent_workers:
                self._pipeline = pipeline
            yield (
                images,
                torch.tensor([item.label for item in items]).to(self._device, non_blocking=True),
                np.array([item.number for item in items], np.int64),
                sum(item.corrupt for item in items),
            )

    def _pixels(self, decoded: Any) -> Tensor:
        """Return a batch of DALI's as a tensor on the device."""
        output = decoded.as_tensor()
        if self._device.type == "cuda":
            shape = torch.Size(output.shape())
            images = torch.empty(shape, dtype=torch.float32, device=self._device)
            feed_ndarray(output, images, torch.cuda.current_stream())
            return images
        # DALI's own memory, which may be filled again with the next batch: a copy costs time.
        return torch.from_numpy(np.asarray(output))

    def _build(self) -> Pipeline:
        spec = self._spec
        pipeline = Pipeline(
            batch_size=spec.local_batch_size,
            num_threads=spec.loader_workers,
            device_id=self._device.index or 0 if self._device.type == "cuda" else None,
            prefetch_queue_depth=spec.loader_prefetch,
            seed=self.seed,
        )
        with pipeline:
            outputs = self._training() if self._split == "train" else self._evaluation()
            pipeline.set_outputs(*outputs)
        pipeline.build()
        return pipeline

    def _training(self) -> tuple[Any, ...]:
        size = self._spec.image_size
        files, corner, extent, mirror = fn.external_source(
            source=self._feed,
            num_outputs=4,
            dtype=[types.UINT8, types.INT32, types.INT32, types.INT32],
            ndim=[1, 1, 1, 1],
        )
        images = self._decoded_part(files, corner, extent)
        images = fn.resize(images, resize_x=size, resize_y=size, **LINEAR)
        return (self._normalised(images, mirror=fn.squeeze(mirror, axes=[0])),)

    def _decoded_part(self, files: Any, corner: Any, extent: Any) -> Any:
        """Return a part of each image; the rest need not be decoded."""
        return fn.decoders.image_slice(
            files, corner, extent, device=self.decoder, **DECODED, **PIXELS
        )

    def _evaluation(self) -> tuple[Any, ...]:
        size = self._spec.image_size
        files, resized, corner = fn.external_source(
            source=self._feed,
            num_outputs=3,
            dtype=[types.UINT8, types.INT32, types.INT32],
            ndim=[1, 1, 1],
        )
        images = fn.decoders.image(files, device=self.decoder, **DECODED)
        images = fn.resize(images, size=fn.cast(resized, dtype=types.FLOAT), **LINEAR)
        # By name: a constant among the inputs would lie on the GPU, and each batch wait for it.
        images = fn.slice(images, start=corner, shape=[size, size], axis_names="HW")
        return (self._normalised(images),)

    def _normalised(self, images: Any, **mirror: Any) -> Any:
        return fn.crop_mirror_normalize(
            images.gpu() if self._device.type == "cuda" else images,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            **mirror,
        )


class DaliCPU(Dali):
    """Decode and resize on the CPU."""

    decoder = "cpu"


class DaliGPU(Dali):
    """Decode (partly) and resize on the GPU."""

    decoder = "mixed"

    def _decoded_part(self, files: Any, corner: Any, extent: Any) -> Any:
        # A GPU's JPEG units decode whole images, and nvImageCodec 0.9.0 fails on parts (issue 55).
        images = fn.decoders.image(files, device=self.decoder, **DECODED)
        return fn.slice(images, start=corner, shape=extent, axis_names="HW")
