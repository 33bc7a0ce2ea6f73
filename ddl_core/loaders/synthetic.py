"""Random batches that are already on the device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddl_core.data.sampling import made_up_images
from ddl_core.loaders.base import Loader
from ddl_core.schedules import derive_seed

POOL = 4  # batches, so that no cache makes a step too cheap
MOST_BYTES = 2_000_000_000  # of the pools of a rank: 12, of batches of 64 images of 224 pixels

Pool = list[tuple[Any, Any]]


class Synthetic(Loader):
    """Pools of normal-distributed images with random labels, made once per epoch.

    Each (virtual) worker has a pool, wherever it is; of more than fit into `MOST_BYTES`, several
    share one.
    """

    def _open(self, data_dir: Path | None) -> None:
        self.classes = self._spec.classes
        self.images = made_up_images(self._spec, self._split)

    def _prepare(self) -> None:
        spec = self._spec
        accumulation = spec.accumulation if self._split == "train" else 1
        first = self._rank * accumulation
        batch_bytes = 4 * 3 * spec.image_size**2 * spec.local_batch_size
        most = max(1, MOST_BYTES // (POOL * batch_bytes))
        # By worker and batch size only: the same for any spread of workers over ranks.
        self._workers = [worker % most for worker in range(first, first + accumulation)]
        self._pools: dict[int, Pool] = {}
        self._epoch: int | None = None  # of the pools
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Make the pools of an epoch for the virtual workers of this rank, unless they are there.

        All evaluations have the same ones. Old pools are freed before.
        """
        epoch = epoch if self._split == "train" else 0
        if epoch == self._epoch:
            return
        self._pools = {}
        spec, batches = self._spec, min(POOL, len(self))
        for worker in set(self._workers):
            place = (spec.seed, spec.repeat, epoch, worker)
            seed = derive_seed(f"synthetic {self._split}", *place)
            self._pools[worker] = self._draw(seed, batches)
        self._epoch = epoch

    def _draw(self, seed: int, batches: int) -> Pool:
        """Return batches drawn from a seed; other frameworks than torch replace this."""
        import torch

        spec = self._spec
        generator = torch.Generator(self._device)
        generator.manual_seed(seed)
        shape = (spec.local_batch_size, 3, spec.image_size, spec.image_size)
        on_device: dict[str, Any] = {"generator": generator, "device": self._device}
        return [
            (
                torch.randn(shape, **on_device),
                torch.randint(spec.classes, shape[:1], **on_device),
            )
            for _ in range(batches)
        ]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Walk round the pools; a last evaluation batch is cut to the images that are left."""
        own = len(range(self._rank, self.images, self._world_size))  # of an evaluation
        for number in range(len(self)):
            step, micro = divmod(number, len(self._workers))
            pool = self._pools[self._workers[micro]]
            images, labels = pool[step % len(pool)]
            if self._split == "eval":
                left = own - number * self.batch_size
                images, labels = images[:left], labels[:left]
            yield images, labels
