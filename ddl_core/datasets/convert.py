"""Convert an ImageNet-like folder to TFRecord shards, with the images' bytes as they are."""

import hashlib
import math
from pathlib import Path

import numpy as np

from ddl_core.datasets.conversion import Conversion
from ddl_core.datasets.folder import ImageList, list_images
from ddl_core.datasets.shard_log import ConvertPlan, SplitPlan, read_shard_log
from ddl_core.datasets.tasks import SPLITS
from ddl_core.errors import DataError
from ddl_core.records.paths import converted_folder

# Splits that are larger than this have shards of 64 to 128 MB: large files suit a parallel file
# system, and ImageNet's 148 GB come close to the 1024 shards that are usual for it.
LARGEST_SHARD = 128e6  # bytes
BYTES_PER_RECORD = 330  # besides the image: names, sizes, checksums, index
SIZES_SAMPLED = 1000  # files of a split whose sizes stand for all, instead of 1.3 million look-ups


def plan_conversion(
    source: str | Path,
    out: str | Path | None = None,
    *,
    train_shards: int | None = None,
    val_shards: int | None = None,
    seed: int = 0,
) -> Conversion:
    """List the images of a folder and divide them into shards; writes nothing.

    Parameters
    ----------
    source
        Holds ``train/<class>/*`` and ``val/<class>/*``.
    out
        Receives ``train-*-of-*``, ``validation-*-of-*``, ``index/*.idx`` and ``shards.jsonl``.
        Default: ``source/tfrecord``.
    train_shards, val_shards
        Default: as many as `out` has already, else so many that a shard is 64 to 128 MB.
    seed
        The same seed, shards and images give the same bytes.

    Raises
    ------
    DataError
        If the source is missing or no such folder, if there are fewer images than shards, or if
        what `out` says of itself is damaged.
    """
    root = Path(source).absolute()
    folder = Path(out).absolute() if out else converted_folder(root)
    train = list_images(root / "train")
    images = {"train": train, "val": list_images(root / "val", train.classes)}
    sizes = {split: _estimated_bytes(images[split]) for split in SPLITS}
    there, _ = read_shard_log(folder)
    splits = {}
    for split, asked in zip(SPLITS, (train_shards, val_shards), strict=True):
        present = there.splits[split].shards if there and split in there.splits else None
        shards = asked or present or math.ceil(sizes[split] / LARGEST_SHARD)
        splits[split] = SplitPlan(images=len(images[split]), shards=shards)
        if shards > len(images[split]):
            raise DataError(
                f"{split}: {shards} shards asked for {len(images[split])} images; each needs one"
            )
    plan = ConvertPlan(
        seed=seed, source=_fingerprint(images), splits=splits, classes=_utf8(train.classes)
    )
    return Conversion(root, folder, plan, images, sizes)


def _estimated_bytes(images: ImageList) -> float:
    chosen = np.linspace(0, len(images) - 1, min(len(images), SIZES_SAMPLED)).astype(int)
    try:
        sizes = [Path(images.path(index)).stat().st_size for index in chosen]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from None
    return len(images) * (float(np.mean(sizes)) + BYTES_PER_RECORD)


def _fingerprint(images: dict[str, ImageList]) -> str:
    prints = "".join(images[split].fingerprint() for split in SPLITS)
    return hashlib.sha256(prints.encode()).hexdigest()


def _utf8(classes: tuple[str, ...]) -> tuple[str, ...]:
    for name in classes:
        if not name.isprintable():
            raise DataError(f"class folder {name!r}: rename it, so that its name is plain text")
    return classes
