"""Check a set of images: every image is decoded, and every problem named."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from ddl_core.datasets.folder import ImageList, class_folders, expected, scan
from ddl_core.datasets.image_file import FileFacts, inspect_file
from ddl_core.datasets.manifest import FileEntry, Manifest
from ddl_core.datasets.parallel import stream
from ddl_core.datasets.report import SplitReport, VerifyReport
from ddl_core.datasets.shards import is_record_folder
from ddl_core.datasets.tasks import SPLITS
from ddl_core.datasets.verify_shards import verify_shards
from ddl_core.errors import DataError

FILES_PER_BATCH = 32

# Path, bytes, SHA-256; the last two are None where there is nothing to compare with.
Item = tuple[str, int | None, str | None]


def verify(
    folder: str | Path,
    *,
    progress: bool = True,
    processes: int | None = None,
    checksums: bool = False,
) -> VerifyReport:
    """Decode every image of both splits and compare with the manifest, if there is one.

    The manifest is ``manifest.json`` of an image folder, ``shards.jsonl`` of a TFRecord set; of the
    latter all records' checksums are compared, too.

    Parameters
    ----------
    folder
        A sample set, ImageNet, any folder of that layout, or a TFRecord set.
    progress
        Show a progress bar on stderr.
    processes
        Default: one per usable core. Memory does not grow with the number of images beyond their
        names (about 40 MB for ImageNet).
    checksums
        Compare contents with the manifest's SHA-256, not only sizes.

    Raises
    ------
    DataError
        If the folder, a split or its class folders are missing or not readable, or if the manifest
        is damaged. Whatever is wrong with single files is in the report instead.
    """
    root = Path(folder).absolute()
    if not root.is_dir():
        raise DataError(f"{root} is not a folder\n{expected(root)}")
    if is_record_folder(root):
        return verify_shards(root, progress=progress, processes=processes, checksums=checksums)
    manifest = Manifest.read(root)
    report = VerifyReport(str(root), checksums, has_manifest=manifest is not None)
    found = {split: class_folders(root / split) for split in SPLITS}
    lists = {split: scan(root / split, found[split]) for split in SPLITS}
    _check_classes(report, found, lists)
    known = {entry.path: entry for entry in manifest.files} if manifest else None
    total = sum(map(len, lists.values()))
    with tqdm(total=total, desc="verify", unit="img", disable=not progress) as bar:
        for split, images in lists.items():
            report.splits[split] = SplitReport(classes=len(found[split]))
            _check_files(report, split, images, known, checksums, processes, bar)
    for path in known or ():
        report.add("missing", path)
    return report


def _check_classes(
    report: VerifyReport, found: dict[str, list[str]], lists: dict[str, ImageList]
) -> None:
    train, val = (set(found[split]) for split in SPLITS)
    report.classes = len(train | val)
    for name in sorted(train - val):
        report.add("train_only", f"train/{name}")
    for name in sorted(val - train):
        report.add("val_only", f"val/{name}")
    for split, images in lists.items():
        for name in sorted(set(found[split]) - set(images.present())):
            report.add("empty_class", f"{split}/{name}")


def _check_files(
    report: VerifyReport,
    split: str,
    images: ImageList,
    known: dict[str, FileEntry] | None,
    checksums: bool,
    processes: int | None,
    bar: "tqdm[None]",
) -> None:
    """Decode the images of one split; what is left in `known` at the end is missing."""
    summary = report.splits[split]

    def items() -> Iterator[Item]:
        for index in range(len(images)):
            entry = known.pop(f"{split}/{images.name(index)}", None) if known is not None else None
            if known is not None and entry is None:
                report.add("extra", f"{split}/{images.name(index)}")
            size, digest = (entry.bytes, entry.sha256) if entry else (None, None)
            yield images.path(index), size, digest if checksums else None

    queue = items()
    batches = iter(lambda: list(islice(queue, FILES_PER_BATCH)), [])
    index = 0
    for batch in stream(_inspect_files, batches, processes):
        for facts in batch:
            _add(report, summary, f"{split}/{images.name(index)}", facts)
            index += 1
        bar.update(len(batch))


def _inspect_files(batch: list[Item]) -> list[FileFacts]:
    return [inspect_file(*item) for item in batch]


def _add(report: VerifyReport, summary: SplitReport, path: str, facts: FileFacts) -> None:
    summary.images += 1
    summary.add(facts.bytes, facts.width, facts.height)
    for kind, detail in facts.problems:
        report.add(kind, path, detail)
