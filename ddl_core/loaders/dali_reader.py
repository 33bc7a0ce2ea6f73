"""DALI's own readers, shuffling and random crops, as the paper ran it.

Images and crops are not those of other loaders: an epoch has as many on every rank, each at most
once. The first file that DALI cannot decode ends the run.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, tfrecord

from ddl_core.data.dataset import Dataset
from ddl_core.data.folder import ImageList
from ddl_core.data.image import FLIP_PROBABILITY, RATIO, TRIES
from ddl_core.data.sampling import Indices
from ddl_core.data.tfrecord import ENCODED, LABEL, RecordList, index_path
from ddl_core.errors import DataError, SpecError
from ddl_core.loaders.base import Batch
from ddl_core.loaders.dali import DECODED, LINEAR, Dali
from ddl_core.schedules import derive_seed

MOST_SEED = 2**31  # DALI's seeds have 32 bits and a sign
OF_RECORD = " at index "  # DALI names a record by "FILE at index OFFSET"


class Files:
    """The chosen images of a class folder, read by DALI."""

    def __init__(self, images: Dataset) -> None:
        listing = images.listing
        assert isinstance(listing, ImageList)
        chosen = np.tile(images.chosen, images.passes)
        self._root = str(listing.root)
        self._names = [listing.name(index) for index in chosen.tolist()]
        self._labels = listing.labels[chosen].astype(np.int64)

    def read(self, **shard: Any) -> tuple[Any, ...]:
        """Put the reader into the pipeline; return encoded images and what `named` takes."""
        # Without labels, DALI gives places in the list: the numbers of the images.
        encoded, numbers = fn.readers.file(file_root=self._root, files=self._names, **shard)
        return encoded, numbers

    def named(self, numbers: Any) -> tuple[Indices, Indices]:
        """Return the labels and numbers of a batch."""
        found = _numbers(numbers)
        return self._labels[found], found


class Records:
    """The records of a TFRecord set, read by DALI; `SpecError` for a part: it reads whole files."""

    def __init__(self, images: Dataset, classes: int) -> None:
        listing = images.listing
        assert isinstance(listing, RecordList)
        if len(images.chosen) < len(listing):
            raise SpecError(
                f"train_images = {len(images.chosen)}, but DALI's own reader takes all "
                f"{len(listing)} records of a TFRecord set; leave train_images out"
            )
        self._classes = classes
        paths = [listing.folder / name for name in listing.shards]
        # As many names of each file as an epoch has passes, so that DALI names the pass.
        self._paths = [
            f"{path.parent}{'/.' * again}/{path.name}"
            for again in range(images.passes)
            for path in paths
        ]
        self._indices = [str(index_path(path)) for path in paths] * images.passes
        places = [listing.places(shard) for shard in range(len(paths))] * images.passes
        sizes = [int(own[-1].sum()) if len(own) else 0 for own in places]
        starts = np.concatenate(([0], np.cumsum(sizes)))[:-1].tolist()
        # Offsets of files and records, as if all files were one.
        self._starts = dict(zip(self._paths, starts, strict=True))
        self._offsets = np.concatenate(
            [start + own[:, 0] for start, own in zip(starts, places, strict=True)]
        )

    def read(self, **shard: Any) -> tuple[Any, ...]:
        """Put the reader into the pipeline; return encoded images and what `named` takes."""
        features = {
            ENCODED: tfrecord.FixedLenFeature([], tfrecord.string, ""),
            LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        }
        record: Any = fn.readers.tfrecord(
            path=self._paths, index_path=self._indices, features=features, **shard
        )
        place = fn.get_property(record[LABEL], key="source_info")
        return record[ENCODED], record[LABEL], place

    def named(self, labels: Any, places: Any) -> tuple[Indices, Indices]:
        """Return the labels and numbers of a batch; `DataError` for a label without a class."""
        found = _numbers(labels) - 1  # from 1 in the published ImageNet
        if found.min() < 0 or found.max() >= self._classes:
            raise DataError(
                f"the records have labels from {found.min()} to {found.max()} (from 0), but the "
                f"run has classes = {self._classes}; set classes to at least {found.max() + 1}"
            )
        offsets = [self._offset(bytes(places.at(one)).decode()) for one in range(len(found))]
        return found, np.searchsorted(self._offsets, offsets)

    def _offset(self, name: str) -> int:
        path, _, offset = name.rpartition(OF_RECORD)
        return int(self._starts[path]) + int(offset)


def _numbers(batch: Any) -> Indices:
    return np.array(batch.as_tensor()).ravel().astype(np.int64)


class DaliReader(Dali):
    """Both loaders with DALI's own readers; evaluation is that of `Dali`.

    A pipeline serves one epoch, so a resumed run repeats an undisturbed one.
    """

    own_order = True

    def _prepare(self) -> None:
        super()._prepare()
        if self._split == "train":
            records = self._spec.data_format == "tfrecord"
            self._source = (
                Records(self._files, self._spec.classes) if records else Files(self._files)
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation: in training by a new pipeline."""
        if self._split == "train":
            place = (self._spec.seed, self._spec.repeat, epoch, self._rank)
            self.seed = derive_seed("dali reader", *place) % MOST_SEED
            self._pipeline = None
        super().set_epoch(epoch)

    def _batches(self) -> Iterator[Batch]:
        if self._split == "eval":
            yield from super()._batches()
            return
        pipeline, self._pipeline = self._pipeline or self._build(), None
        for _ in range(len(self)):
            try:
                pixels, *names = pipeline.run()
            except RuntimeError as error:
                raise DataError(
                    "DALI's own reader cannot go on; `ddl data verify DIR` names damaged files, "
                    f"which loader {self._spec.loader.replace('_reader', '')!r} survives; DALI "
                    f"says: {error}"
                ) from None
            images = self._pixels(pixels)
            labels, numbers = self._source.named(*names)
            yield images, torch.from_numpy(labels).to(self._device, non_blocking=True), numbers, 0

    def _training(self) -> tuple[Any, ...]:
        encoded, *names = self._source.read(
            name="reader",
            random_shuffle=True,
            num_shards=self._world_size,
            # The next part in each epoch, as in a pipeline that goes on.
            shard_id=(self._rank + self._plan.epoch) % self._world_size,
        )
        images = self._cropped(encoded)
        mirror = fn.random.coin_flip(probability=FLIP_PROBABILITY)
        return self._normalised(images, mirror=mirror), *names

    def _cropped(self, encoded: Any) -> Any:
        """Return a random crop of each image; the rest need not be decoded."""
        size = self._spec.image_size
        images = fn.decoders.image_random_crop(
            encoded, device=self.decoder, **DECODED, **self._crop()
        )
        return fn.resize(images, resize_x=size, resize_y=size, **LINEAR)

    def _crop(self) -> dict[str, Any]:
        """Return torchvision's distribution of crops."""
        return {
            "random_area": [self._spec.crop_min_area, 1.0],
            "random_aspect_ratio": list(RATIO),
            "num_attempts": TRIES,
        }


class DaliReaderCPU(DaliReader):
    """Decode and crop on the CPU."""

    decoder = "cpu"


class DaliReaderGPU(DaliReader):
    """Decode (partly) and crop on the GPU: whole images, see `DaliGPU`."""

    decoder = "mixed"

    def _cropped(self, encoded: Any) -> Any:
        images = fn.decoders.image(encoded, device=self.decoder, **DECODED)
        size = [self._spec.image_size, self._spec.image_size]
        return fn.random_resized_crop(images, size=size, **LINEAR, **self._crop())
