"""A conversion that has been planned: what it makes, and the making."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ddl_core.datasets.folder import ImageList
from ddl_core.datasets.making import alone, explained, require_space
from ddl_core.datasets.parallel import stream
from ddl_core.datasets.record_index import index_fits
from ddl_core.datasets.shard_file import ShardTask, make_shard
from ddl_core.datasets.shard_log import ConvertPlan, ShardEntry, read_shard_log, start_shard_log
from ddl_core.datasets.shard_names import shard_name
from ddl_core.datasets.tasks import SPLITS
from ddl_core.errors import DataError

LOCK = ".converting.lock"


@dataclass(frozen=True)
class Conversion:
    """Images of a folder, and the shards that they become; `bytes` estimates each split's size."""

    source: Path
    folder: Path
    plan: ConvertPlan
    images: dict[str, ImageList]
    bytes: dict[str, float]

    def text(self) -> str:
        """Return for people what is made, and where."""
        lines = [f"{self.folder}, from {self.source}:"]
        for split, plan in self.plan.splits.items():
            size = self.bytes[split]
            lines.append(
                f"  {split}: {plan.images:,} images, about {size / 1e9:,.3f} GB; "
                f"shards: {plan.shards:,} of {size / plan.shards / 1e6:,.0f} MB each"
            )
        disk = next(path for path in (self.folder, *self.folder.parents) if path.is_dir())
        lines.append(f"  {shutil.disk_usage(disk).free / 1e9:,.1f} GB are free there")
        return "\n".join(lines)

    def run(self, *, progress: bool = True, processes: int | None = None) -> list[ShardEntry]:
        """Make the shards, complete them, or do nothing when all are there.

        Parameters
        ----------
        progress
            Show a progress bar on stderr.
        processes
            Default: one per usable core. The bytes do not depend on it.

        Raises
        ------
        DataError
            If an image cannot be read, or if the folder is not writable, too full, or holds
            something else.
        """
        with explained(f"convert into {self.folder}", sum(self.bytes.values())):
            # Before the lock, so that a finished set may lie on a read-only disk.
            done = self._finished()
            if len(done) < sum(plan.shards for plan in self.plan.splits.values()):
                self.folder.mkdir(parents=True, exist_ok=True)
                with alone(self.folder / LOCK):
                    done = self._make(progress, processes)
            return list(done.values())

    def _finished(self) -> dict[str, ShardEntry]:
        """Return what need not be made again; refuse a folder that holds anything else."""
        plan, entries = read_shard_log(self.folder)
        if plan is not None:
            self._require_same(plan)
        elif self._is_foreign():
            raise DataError(
                f"{self.folder} is not empty and was not made by `ddl data convert`; choose "
                "another folder"
            )
        whole = [entry for entry in entries if _is_whole(self.folder, entry)]
        return {entry.file: entry for entry in whole}

    def _is_foreign(self) -> bool:
        ours = (self.folder / LOCK).exists()  # another process may have begun just now
        return not ours and self.folder.exists() and any(self.folder.iterdir())

    def _require_same(self, there: ConvertPlan) -> None:
        if there.source != self.plan.source:
            raise DataError(
                f"{self.folder} was made from other images than {self.source} holds now; choose "
                "another folder, or delete this one"
            )
        if there != self.plan:
            raise DataError(
                f"{self.folder} was made with other settings ({there.request}); asked for: "
                f"{self.plan.request}. Ask for the same settings, choose another folder, or "
                "delete this one"
            )

    def _make(self, progress: bool, processes: int | None) -> dict[str, ShardEntry]:
        for part in self.folder.glob(".*.part"):  # of a process that was killed
            part.unlink()
        done = self._finished()
        require_space(self.folder, sum(self.bytes.values()) - sum(e.bytes for e in done.values()))
        bar = tqdm(
            desc="convert",
            unit="img",
            total=sum(plan.images for plan in self.plan.splits.values()),
            initial=sum(entry.records for entry in done.values()),
            disable=not progress,
        )
        tasks = self._tasks(set(done))
        with bar, start_shard_log(self.folder, self.plan, done.values()) as log:
            for entry in stream(make_shard, tasks, processes):
                log.write(entry.model_dump_json() + "\n")
                done[entry.file] = entry
                bar.update(entry.records)
        return done

    def _tasks(self, done: set[str]) -> Iterator[ShardTask]:
        for split, plan in self.plan.splits.items():
            images, order = self.images[split], shuffled(self.plan.seed, split, plan.images)
            for number, part in enumerate(np.array_split(order, plan.shards)):
                name = shard_name(split, number, plan.shards)
                if name not in done:
                    chosen = [(images.name(index), images.label(index)) for index in part.tolist()]
                    yield ShardTask(self.folder / name, split, images.root, chosen)


def shuffled(seed: int, split: str, count: int) -> NDArray[np.int64]:
    """Return the order in which images go into shards, the same with every release of NumPy.

    Readers shuffle within a window only, so that neighbours in a shard remain near each other.
    """
    key = np.random.SeedSequence(seed, spawn_key=(SPLITS.index(split),))
    # The raw numbers are fixed for ever; the algorithm of `Generator.permutation` is not.
    return np.argsort(np.random.PCG64(key).random_raw(count), kind="stable")


def _is_whole(folder: Path, entry: ShardEntry) -> bool:
    path = folder / entry.file
    return path.is_file() and path.stat().st_size == entry.bytes and index_fits(path)
