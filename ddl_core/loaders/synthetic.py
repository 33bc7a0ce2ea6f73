"""Random batches that are already on the device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddl_core.config import RunSpec
from ddl_core.data.dataset import POOL, MadeUpSource
from ddl_core.data.sampling import Split
from ddl_core.schedules import derive_seed

MOST_BYTES = 2_000_000_000  # of the pools of a rank: 12, of batches of 64 images of 224 pixels

Pool = list[tuple[Tensor, Tensor]]


class Synthetic(MadeUpSource):
    """Pools of normal-distributed images with random labels, made once per epoch.

    Each (virtual) worker has a pool, wherever it is; of more than fit into `MOST_BYTES`, several
    share one.
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
        super().__init__(spec, split, rank, world_size)
        self._device = device
        accumulation = spec.accumulation if split == "train" else 1
        first = rank * accumulation
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
        self._pools = {worker: self._make_pool(epoch, worker) for worker in set(self._workers)}
        self._epoch = epoch

    def _make_pool(self, epoch: int, worker: int) -> Pool:
        spec = self._spec
        place = (spec.seed, spec.repeat, epoch, worker)
        generator = torch.Generator(self._device)
        generator.manual_seed(derive_seed(f"synthetic {self._split}", *place))
        shape = (spec.local_batch_size, 3, spec.image_size, spec.image_size)
        on_device: dict[str, Any] = {"generator": generator, "device": self._device}
        return [
            (
                torch.randn(shape, **on_device),
                torch.randint(spec.classes, (spec.local_batch_size,), **on_device),
            )
            for _ in range(min(POOL, self._batches))
        ]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Walk round the pools; a last evaluation batch is cut to the images that are left."""
        return self._cut(map(self._batch, range(self._batches)))

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        step, micro = divmod(number, len(self._workers))
        pool = self._pools[self._workers[micro]]
        return pool[step % len(pool)]
