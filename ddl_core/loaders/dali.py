"""NVIDIA DALI: reading, decoding and resizing in a pipeline of its own threads, or on the GPU.

Of folders DALI reads the files that the plan names: the images of a step are those of every other
loader. Of TFRecord it reads shards in sequence and shuffles in a buffer, an order of its own.
Crops and mirroring are DALI's, of torchvision's distribution; evaluation shows the pixels that
other loaders show. The first image that DALI cannot read, or that other loaders refuse by its size,
ends the run.
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from nvidia import dali
from nvidia.dali import fn, tfrecord, types
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import feed_ndarray
from torch import Tensor

from ddl_core.data.dataset import Dataset
from ddl_core.data.folder import ImageList
from ddl_core.data.image import (
    CROP,
    FLIP_PROBABILITY,
    MAX_PIXELS,
    MAX_SIDES,
    MEAN,
    RATIO,
    RESIZE,
    STD,
    TRIES,
    UNREADABLE,
    describe,
    open_rgb,
)
from ddl_core.data.sampling import BatchSampler, Indices, eval_indices
from ddl_core.data.tfrecord import ENCODED, LABEL, Places, RecordList, index_path
from ddl_core.errors import DataError, SpecError
from ddl_core.loaders.base import Batch, Loader
from ddl_core.schedules import derive_seed

DECODED: dict[str, Any] = {"output_type": types.RGB}
if int(dali.__version__.split(".")[0]) >= 2:  # else it turns images by their EXIF data
    DECODED["adjust_orientation"] = False
# As Pillow resizes.
LINEAR: dict[str, Any] = {"interp_type": types.INTERP_LINEAR, "antialias": True}

BUFFER = 1024  # records from which DALI draws the next one: its default
MOST_SEED = 2**31  # DALI's seeds have 32 bits and a sign
OF_RECORD = " at index "  # DALI names a record by "FILE at index OFFSET"
SEARCH_S = 30.0  # for the image that ended a pipeline
CHECK = "check the data with `ddl data verify DIR`"

Array = npt.NDArray[np.generic]


class Reader(Protocol):
    """One rank's images of one epoch, read by DALI in batches."""

    def read(self, folder: Path) -> tuple[Any, ...]:
        """Put the reader into a pipeline; return encoded images, then what `named` takes.

        `folder` is for files that DALI needs until the pipeline is built.
        """

    def named(self, *outputs: Any) -> tuple[Indices, Indices]:
        """Return the labels and numbers of the next batch; `DataError` for a wrong label."""

    def at_work(self) -> Iterator[int]:
        """Yield the numbers of the images that were begun and not returned, in their order."""


class Files:
    """Images of class folders, in the plan's order: Python gives names, and DALI reads."""

    def __init__(self, images: Dataset, plan: BatchSampler) -> None:
        assert isinstance(images.listing, ImageList)
        self._images, self._listing, self._plan = images, images.listing, plan
        self._begun: deque[Indices] = deque()
        self.begin()

    def begin(self) -> None:
        """Begin the plan's epoch."""
        self._batches = iter(self._plan)
        self._begun.clear()

    def read(self, _folder: Path) -> tuple[Any, ...]:
        """Put the reader into a pipeline."""
        names = fn.external_source(source=self._names, dtype=types.UINT8, ndim=1)
        return (fn.io.file.read(names),)

    def _names(self) -> list[Array]:
        """Return the paths of the next batch; StopIteration at the end of the epoch."""
        numbers = np.array([number for _, number in next(self._batches)], np.int64)
        self._begun.append(numbers)
        paths = map(self._listing.path, self._places(numbers).tolist())
        return [np.frombuffer(os.fsencode(path), np.uint8) for path in paths]

    def named(self) -> tuple[Indices, Indices]:
        """Return the labels and numbers of the next batch."""
        numbers = self._begun.popleft()
        return self._listing.labels[self._places(numbers)].astype(np.int64), numbers

    def _places(self, numbers: Indices) -> Indices:
        return self._images.chosen[numbers % len(self._images.chosen)]

    def at_work(self) -> Iterator[int]:
        """Yield the numbers of the images that were begun and not returned."""
        for numbers in self._begun:
            yield from numbers.tolist()


class Records:
    """Records of TFRecord files, read in the order of their files, or shuffled by DALI.

    Parameters
    ----------
    images
        The data set.
    numbers
        The images to read, ascending.
    batches
        After so many, DALI begins no further one.
    options
        Of DALI's reader: how it shares records among ranks, and how it shuffles.
    """

    def __init__(
        self, images: Dataset, numbers: Indices, batches: int, batch_size: int, **options: Any
    ) -> None:
        self._images, self._options = images, options
        self._batches, self._batch_size = batches, batch_size
        self._left, self._given = batches, 0
        self._paths: list[str] = []
        self._indices: list[tuple[Path, Places | None]] = []  # with the places of a part
        self._starts: dict[str, int] = {}  # of each path, as if all files were one
        self._numbers, self._offsets = numbers, self._add(numbers)

    def _add(self, numbers: Indices) -> Indices:
        """Note the files of some images and their indices; return the offset of each record."""
        listing = self._images.listing
        assert isinstance(listing, RecordList)
        found, start = [np.empty(0, np.int64)], 0
        for again in range(self._images.passes):
            chosen = self._images.of_pass(numbers, again)
            for shard, name in enumerate(listing.shards):
                own = listing.places_of(chosen, shard)
                if not len(own):
                    continue
                # Another name of the file in each pass, so that DALI names the pass.
                path = f"{listing.folder}{'/.' * again}/{name}"
                part = own if len(own) < len(listing.places(shard)) else None
                self._paths.append(path)
                self._indices.append((index_path(listing.folder / name), part))
                self._starts[path] = start
                found.append(start + own[:, 0])
                start += int(own[-1].sum())
        return np.concatenate(found)

    def read(self, folder: Path) -> tuple[Any, ...]:
        """Put the reader into a pipeline; write indices of parts into `folder`."""
        indices = []
        for number, (index, part) in enumerate(self._indices):
            if part is not None:
                index = folder / f"{number}.idx"
                np.savetxt(index, part, fmt="%d")
            indices.append(str(index))
        features = {
            ENCODED: tfrecord.FixedLenFeature([], tfrecord.string, ""),
            LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        }
        record: Any = fn.readers.tfrecord(
            path=self._paths, index_path=indices, features=features, **self._options
        )
        place = fn.get_property(record[LABEL], key="source_info")
        # DALI's reader never ends; a source that has ended keeps DALI from beginning a batch.
        turn = fn.external_source(source=self._turn, dtype=types.UINT8, ndim=1)
        return record[ENCODED], record[LABEL], place, turn

    def _turn(self) -> list[Array]:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return [np.zeros(1, np.uint8)] * self._batch_size

    def named(self, labels: Any, places: Any, _turn: Any) -> tuple[Indices, Indices]:
        """Return the labels and numbers of the next batch; `DataError` for a wrong label."""
        self._given += 1
        found = np.array(labels.as_tensor()).ravel().astype(np.int64) - 1  # from 1
        offsets = [self._offset(bytes(places.at(one)).decode()) for one in range(len(found))]
        numbers = self._numbers[np.searchsorted(self._offsets, offsets)]
        wrong = numbers[(found < 0) | (found >= self._images.most_classes)].tolist()
        if wrong:
            self._images.read(wrong[0])  # which says what is wrong with the label
            raise DataError(f"DALI reads a wrong label of {self._images.name(wrong[0])}; {CHECK}")
        return found, numbers

    def _offset(self, name: str) -> int:
        path, _, offset = name.rpartition(OF_RECORD)
        return self._starts[path] + int(offset)

    def at_work(self) -> Iterator[int]:
        """Yield the numbers of the images that may have ended the pipeline: it reads once more."""
        pipeline = Pipeline(batch_size=self._batch_size, num_threads=1, device_id=None)
        given, self._given, self._left = self._given, 0, self._batches
        with TemporaryDirectory(prefix="ddl-index-") as folder:
            with pipeline:
                _, *names = self.read(Path(folder))
                pipeline.set_outputs(*names)
            pipeline.build()
        for batch in range(self._batches):
            numbers = self.named(*pipeline.run())[1]
            if batch >= given:
                yield from numbers.tolist()


class Dali(Loader):
    """Both DALI loaders. The clock starts when a pipeline is built, and then it reads.

    A pipeline of files lives on, so that its memory is not filled anew in each epoch. One of
    records serves one epoch, as does one of a run that may be resumed: its random numbers begin
    with the epoch, so that a resumed run repeats an undisturbed one.
    """

    on_gpu: ClassVar[bool]  # resizes there, and decodes there unless `dali_decode` says otherwise

    def _prepare(self) -> None:
        spec = self._spec
        if self.on_gpu and self._device.type != "cuda":
            instead = spec.loader.replace("gpu", "cpu")
            raise SpecError(
                f"loader {spec.loader!r} needs a GPU, and this rank has none; use {instead!r}"
            )
        self.decoder = "mixed" if self.on_gpu and spec.dali_decode == "gpu" else "cpu"
        self._half = self._device.type == "cuda" and spec.precision == "fp16"
        self._training = self._split == "train"
        self._of_records = spec.data_format == "tfrecord"
        self.own_order = self._training and self._of_records
        self._lives_on = not self._of_records and not (self._training and spec.checkpoint_every)
        self._built: tuple[Reader, Pipeline] | None = None
        if self._of_records and len(self._files):
            self._files.read(0)  # names a record without a label, before any is trained on

    def set_epoch(self, epoch: int) -> None:
        """Choose order and crops, and make the pipeline ready, which reads no image yet."""
        super().set_epoch(epoch)
        if self._built and isinstance(self._built[0], Files) and self._lives_on:
            self._built[0].begin()
            self._built[1].reset()
            return
        self._built = None  # its memory is free before the next one takes some
        self._built = self._build(epoch) if len(self) else None

    def _batches(self) -> Iterator[Batch]:
        if not len(self):  # of an evaluation with more ranks than images
            return
        reader, pipeline = self._built or self._build(self._plan.epoch)
        self._built = None  # one that is left half-way is not used again
        left = None if self._training else len(self._own())
        for last in range(len(self) - 1, -1, -1):
            try:
                pixels, *names = pipeline.run()
            except RuntimeError as error:
                raise self._fault(reader, error) from None
            images = self._pixels(pixels)
            labels, numbers = reader.named(*names)
            if left is not None:  # DALI fills a last batch with images of the beginning
                images, labels, numbers = images[:left], labels[:left], numbers[:left]
                left -= len(numbers)
            if last == 0 and self._lives_on:
                self._built = reader, pipeline
            yield images, torch.from_numpy(labels).to(self._device, non_blocking=True), numbers, 0

    def _fault(self, reader: Reader, error: RuntimeError) -> DataError:
        """Return the image that ended a pipeline: the first that DALI cannot decode by itself."""
        until = time.monotonic() + SEARCH_S
        with suppress(RuntimeError):  # the reader itself may fail, whose error names the file
            for number in reader.at_work():
                content, _ = self._files.read(number)  # which names a file that is gone
                if why := self._undecodable(content):
                    return DataError(
                        f"DALI cannot decode {self._files.name(number)}: {why}; replace it, or use "
                        "loader 'native', which replaces damaged images and counts them",
                        remedy="find all damaged files with `ddl data verify DIR`",
                    )
                if time.monotonic() > until:
                    break
        return DataError(f"DALI cannot go on: {_short(error)}", remedy=CHECK)

    def _undecodable(self, content: bytes) -> str:
        """Return why DALI cannot decode an image, empty if it can."""
        pipeline = Pipeline(batch_size=1, num_threads=1, device_id=self._device_id)
        with pipeline:
            encoded = fn.external_source(
                source=lambda: [np.frombuffer(content, np.uint8)], dtype=types.UINT8, ndim=1
            )
            encoded = _within_limits(encoded)
            pipeline.set_outputs(fn.decoders.image(encoded, device=self.decoder, **DECODED))
        try:
            pipeline.run()
        except RuntimeError as error:
            try:
                open_rgb(content)
            except UNREADABLE as damage:
                return describe(damage)
            return f"{_short(error)}, but Pillow can"
        return ""

    def _pixels(self, decoded: Any) -> Tensor:
        """Return a batch of DALI's as a tensor (n, 3, size, size) on the device."""
        output = decoded.as_tensor()
        if self._device.type == "cuda":
            kind = torch.float16 if self._half else torch.float32
            images = torch.empty(torch.Size(output.shape()), dtype=kind, device=self._device)
            feed_ndarray(output, images, torch.cuda.current_stream())
        else:
            # DALI's own memory, which may be filled again with the next batch: a copy costs time.
            images = torch.from_numpy(np.asarray(output))
        return images.permute(0, 3, 1, 2) if self._spec.channels_last else images

    @property
    def _device_id(self) -> int | None:
        return self._device.index or 0 if self._device.type == "cuda" else None

    def _build(self, epoch: int) -> tuple[Reader, Pipeline]:
        spec = self._spec
        place = (spec.seed, spec.repeat, epoch, self._rank)
        seed = derive_seed("dali", *place) % MOST_SEED
        reader = self._reader(epoch, seed)
        pipeline = Pipeline(
            batch_size=spec.local_batch_size,
            num_threads=spec.loader_workers,
            device_id=self._device_id,
            prefetch_queue_depth=spec.loader_prefetch,
            seed=seed,
        )
        with TemporaryDirectory(prefix="ddl-index-") as folder:
            with pipeline:
                encoded, *names = reader.read(Path(folder))
                encoded = _within_limits(encoded)
                images = self._training_view(encoded) if self._training else self._middle(encoded)
                pipeline.set_outputs(images, *names)
            pipeline.build()
        return reader, pipeline

    def _reader(self, epoch: int, seed: int) -> Reader:
        """Return what reads the images of an epoch."""
        if not self._of_records:
            return Files(self._files, self._plan)
        size = self._spec.local_batch_size
        if not self._training:
            return Records(self._files, self._own(), len(self), size)
        return Records(
            self._files,
            np.arange(self.images),
            len(self),
            size,
            random_shuffle=True,
            seed=seed,
            initial_fill=min(BUFFER, max(1, self.images // self._world_size)),
            num_shards=self._world_size,
            # The next part in each epoch, as in a pipeline that goes on.
            shard_id=(self._rank + epoch) % self._world_size,
        )

    def _own(self) -> Indices:
        """Return the images that this rank evaluates."""
        return eval_indices(self.images, self._rank, self._world_size)

    def _training_view(self, encoded: Any) -> Any:
        """Return a random crop of each image, mirrored or not."""
        size = self._spec.image_size
        crop: dict[str, Any] = {
            "random_area": [self._spec.crop_min_area, 1.0],
            "random_aspect_ratio": list(RATIO),
            "num_attempts": TRIES,
        }
        if self.decoder == "mixed":
            # A GPU's JPEG units decode whole images, and nvImageCodec 0.9.0 fails on parts
            # (https://github.com/NVIDIA/nvImageCodec/issues/55).
            images = fn.decoders.image(encoded, device="mixed", **DECODED)
            images = fn.random_resized_crop(images, size=[size, size], **LINEAR, **crop)
        else:  # the rest of an image need not be decoded
            images = fn.decoders.image_random_crop(encoded, device="cpu", **DECODED, **crop)
            images = fn.resize(self._moved(images), resize_x=size, resize_y=size, **LINEAR)
        mirror = fn.random.coin_flip(probability=FLIP_PROBABILITY)
        return self._normalised(images, mirror=mirror)

    def _middle(self, encoded: Any) -> Any:
        """Return the middle of each image: `evaluation_size` and `evaluation_corner` in a graph."""
        size = self._spec.image_size
        images = fn.decoders.image(encoded, device=self.decoder, **DECODED)
        shape = images.shape(dtype=types.INT32)
        height, width = shape[0], shape[1]
        short = size * RESIZE // CROP
        # The longer side is at least as long, so this is `short` for the other one.
        resized = [
            dali.math.max(short, short * height // width),
            dali.math.max(short, short * width // height),
        ]
        images = fn.resize(
            self._moved(images), size=fn.cast(fn.stack(*resized), dtype=types.FLOAT), **LINEAR
        )
        # Python rounds a half to the even number.
        spare = [side - size for side in resized]
        corner = [one // 2 + (one & (one // 2) & 1) for one in spare]
        # By name: a constant among the inputs would lie on the GPU, and each batch wait for it.
        images = fn.slice(images, start=fn.stack(*corner), shape=[size, size], axis_names="HW")
        return self._normalised(images)

    def _moved(self, images: Any) -> Any:
        """Return decoded images where they are resized."""
        return images.gpu() if self.on_gpu and self.decoder == "cpu" else images

    def _normalised(self, images: Any, **mirror: Any) -> Any:
        """Return finished images in the memory format of the run, on its device."""
        return fn.crop_mirror_normalize(
            images.gpu() if self._device.type == "cuda" else images,
            dtype=types.FLOAT16 if self._half else types.FLOAT,
            output_layout="HWC" if self._spec.channels_last else "CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            **mirror,
        )


def _within_limits(encoded: Any) -> Any:
    """Let an image that `check_pixels` refuses end the pipeline before it is decoded."""
    size = fn.peek_image_shape(encoded)[:2]
    shorter, longer = fn.reductions.min(size), fn.reductions.max(size)
    allowed = (shorter * longer <= MAX_PIXELS) & (longer <= MAX_SIDES * shorter)
    # DALI copies nothing, and refuses to make a file of length 0.
    return fn.reshape(encoded, shape=encoded.shape(dtype=types.INT32) * allowed)


def _short(error: RuntimeError) -> str:
    """Return the reason in an error of DALI, which also quotes the graph and its own code."""
    reason = str(error).rpartition("encountered:")[2]
    for end in ("C++ context", "Current pipeline object", "Stacktrace"):
        reason = reason.partition(end)[0]
    return " ".join(reason.split())[:300]


class DaliCPU(Dali):
    """Decode and resize on the CPU."""

    on_gpu = False


class DaliGPU(Dali):
    """Decode and resize on the GPU."""

    on_gpu = True
