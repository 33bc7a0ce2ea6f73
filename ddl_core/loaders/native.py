"""The paper's native path: JPEG folders, Pillow, torchvision transforms, DataLoader workers."""

import logging
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ddl_core.datasets.folder import ImageList, class_folders, list_images
from ddl_core.errors import DataError, SpecError
from ddl_core.loaders.order import (
    Indices,
    count_eval_batches,
    eval_batches,
    spread,
    steps_per_epoch,
    train_batches,
)
from ddl_core.parent import die_with_parent
from ddl_core.protocols import Split
from ddl_core.seeds import derive_seed
from ddl_core.spec import RunSpec
from ddl_core.vision import transforms

log = logging.getLogger(__name__)

FOLDERS = {"train": "train", "eval": "val"}
# Of the ImageNet training images, as used with torchvision's models.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)

Sample = tuple[Tensor, int, int, bool]


class Native:
    """A torchvision-style folder dataset behind torch's DataLoader.

    On a GPU the loader's processes come from a fork server: a forked copy of a process that talks
    to InfiniBand may corrupt its memory. On the CPU they are forked, which starts faster.
    """

    def __init__(
        self,
        spec: RunSpec,
        data_dir: Path | None,
        split: Split,
        rank: int,
        world_size: int,
        device: torch.device,
    ) -> None:
        if data_dir is None:
            raise DataError("loader 'native' reads an image folder; name it with --data DIR")
        # Labels count the training classes: one without validation images must not shift the rest.
        classes = class_folders(data_dir / FOLDERS["train"])
        listing = list_images(data_dir / FOLDERS[split], classes)
        limit = spec.train_images if split == "train" else spec.eval_images
        self.images = _limited(len(listing), limit, split)
        self.classes = len(listing.classes)
        if self.classes > spec.classes:
            raise SpecError(
                f"classes = {spec.classes}, but {data_dir} has {self.classes} class folders; "
                f"set classes to at least {self.classes}"
            )
        self.fingerprint = listing.fingerprint()
        self.corrupt_images = 0
        self.seen: list[Indices] | None = []
        self._device = device
        self._batches = _Batches(spec, split, self.images, rank, world_size)
        chosen = spread(self.images, len(listing))
        dataset = _ImageDataset(listing, chosen, _transform(spec, split), spec, split)
        self._loader = DataLoader(
            dataset,
            batch_sampler=self._batches,
            num_workers=spec.loader_workers,
            pin_memory=device.type == "cuda",
            # Evaluation is rare: its workers need not sit in memory during training.
            persistent_workers=split == "train" and spec.loader_workers > 0,
            multiprocessing_context=_start_method(spec, device),
            worker_init_fn=_leave_with_rank,
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose order and augmentation."""
        self._batches.epoch = epoch
        self.corrupt_images = 0
        self.seen = []

    def __len__(self) -> int:
        """Return the micro-batches per epoch."""
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches on the device; from pinned memory the copy overlaps with computing."""
        seen = self.seen = []
        for images, labels, indices, corrupt in self._loader:
            self.corrupt_images += int(corrupt.sum())
            seen.append(indices.numpy().copy())  # pinned memory is not for keeping
            yield (
                images.to(self._device, non_blocking=True),
                labels.to(self._device, non_blocking=True),
            )


def _limited(found: int, limit: int | None, split: Split) -> int:
    if limit is not None and limit > found:
        raise SpecError(
            f"{split}_images = {limit}, but the folder has only {found}; lower it or leave it out"
        )
    return limit or found


def _start_method(spec: RunSpec, device: torch.device) -> str | None:
    if spec.loader_workers == 0:
        return None
    return "forkserver" if device.type == "cuda" else "fork"


def _leave_with_rank(_worker: int) -> None:
    # torch's own watch does not end a process that is writing into a full pipe.
    die_with_parent()


def _transform(spec: RunSpec, split: Split) -> transforms.Compose:
    size = spec.image_size
    if split == "train":
        geometry = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    else:  # the field's habit: 256 pixels for a crop of 224, in proportion for other sizes
        geometry = [transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)]
    return transforms.Compose(
        [*geometry, transforms.ToTensor(), transforms.Normalize(MEAN, STD, inplace=True)]
    )


class _Batches:
    """Batch sampler: names each image with its epoch, which persistent workers cannot know."""

    def __init__(
        self, spec: RunSpec, split: Split, images: int, rank: int, world_size: int
    ) -> None:
        self.epoch = 0
        self._spec, self._split = spec, split
        self._images, self._rank, self._world_size = images, rank, world_size
        if split == "train":
            self._count = steps_per_epoch(spec, images) * spec.accumulation
        else:
            self._count = count_eval_batches(spec, images, rank, world_size)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        if self._split == "train":
            batches = train_batches(self._spec, self._images, self.epoch, self._rank)
        else:
            batches = eval_batches(self._spec, self._images, self._rank, self._world_size)
        for indices in batches:
            yield [(self.epoch, index) for index in indices.tolist()]


class _ImageDataset(Dataset[Sample]):
    """Decode and augment one image; runs in the loader's processes."""

    def __init__(
        self,
        listing: ImageList,
        chosen: Indices,
        transform: transforms.Compose,
        spec: RunSpec,
        split: Split,
    ) -> None:
        self._listing, self._chosen, self._transform = listing, chosen, transform
        self._augments = split == "train"
        self._seeds = (spec.seed, spec.repeat)
        self._size = spec.image_size
        self._named: set[str] = set()

    def __getitem__(self, place: tuple[int, int]) -> Sample:
        epoch, index = place
        path, label = self._listing[int(self._chosen[index])]
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except FileNotFoundError as error:
            raise DataError(f"{path} was there when the run began and is gone now") from error
        except UNREADABLE as error:
            self._name_once(path, error)
            # Zeros are the mean colour after normalising.
            return torch.zeros(3, self._size, self._size), label, index, True
        return self._augment(image, epoch, index), label, index, False

    def _name_once(self, path: str, error: Exception) -> None:
        if path not in self._named:
            self._named.add(path)
            log.warning("%s is unreadable (%s); a mean-coloured image replaces it", path, error)

    def _augment(self, image: Image.Image, epoch: int, index: int) -> Tensor:
        if not self._augments:
            return self._transform(image)  # type: ignore[no-any-return]
        # A pure function of run, epoch and image, whatever the rank, the worker and the history.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed("augment", *self._seeds, epoch, index))
            return self._transform(image)  # type: ignore[no-any-return]
