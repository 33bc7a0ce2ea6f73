"""Check a set of images or a TFRecord set: every problem named."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from ddl_core.datasets.bulk import stream
from ddl_core.datasets.folder import ImageList, class_folders, expected, scan
from ddl_core.datasets.image_file import JPEG_EXTENSIONS, FileFacts, inspect_bytes, inspect_file
from ddl_core.datasets.manifest import (
    SHARD_LOG,
    ConvertPlan,
    FileEntry,
    Manifest,
    ShardEntry,
    read_shard_log,
)
from ddl_core.datasets.report import SplitReport, VerifyReport
from ddl_core.datasets.sample import SPLITS
from ddl_core.datasets.shards import (
    PREFIXES,
    absent,
    is_record_folder,
    read_index,
    shard_name,
    shards_in,
)
from ddl_core.datasets.tfrecord import ENCODED, FILENAME, Example, Record, read_records
from ddl_core.errors import DataError

FILES_PER_BATCH = 32

# Path, bytes, SHA-256; the last two are None where there is nothing to compare with.
Item = tuple[str, int | None, str | None]

# Problems of which the labels are unknown.
HIDE_LABELS = ("missing", "broken_shard", "checksum", "bad_record", "label")


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
    lists = {split: scan(root / split, found[split], odd=True) for split in SPLITS}
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


class _Task(NamedTuple):
    shard: Path
    entry: ShardEntry | None  # what shards.jsonl says of it
    classes: int | None
    checksums: bool


@dataclass
class _Facts:
    """What is known of one shard."""

    name: str
    summary: SplitReport = field(default_factory=SplitReport)
    labels: set[int] = field(default_factory=set)
    problems: list[tuple[str, str, str]] = field(default_factory=list)  # kind, where, detail

    def add(self, kind: str, detail: object, record: str = "") -> None:
        self.problems.append((kind, f"{self.name} {record}".rstrip(), str(detail)))


def verify_shards(
    root: Path, *, progress: bool, processes: int | None, checksums: bool
) -> VerifyReport:
    """Read every record of a TFRecord set; arguments and errors are those of `verify`."""
    plan, entries = read_shard_log(root)
    known = {entry.file: entry for entry in entries}
    report = VerifyReport(str(root), checksums, has_manifest=plan is not None)
    classes = len(plan.classes) if plan else None
    names = {split: shards_in(root, split) for split in SPLITS}
    total = sum(map(len, names.values()))
    labels = {}
    with tqdm(total=total, desc="verify", unit="file", disable=not progress) as bar:
        for split in SPLITS:
            _check_names(report, split, names[split], plan, known)
            tasks = (_Task(root / n, known.get(n), classes, checksums) for n in names[split])
            summary = report.splits[split] = SplitReport()
            labels[split] = set[int]()
            for facts in stream(_check_shard, tasks, processes):
                for problem in facts.problems:
                    report.add(*problem)
                summary.merge(facts.summary)
                labels[split] |= facts.labels
                bar.update()
            summary.classes = len(labels[split])
    _check_labels(report, labels, plan)
    return report


def _check_names(
    report: VerifyReport,
    split: str,
    names: list[str],
    plan: ConvertPlan | None,
    known: dict[str, ShardEntry],
) -> None:
    if not names:
        report.add("missing", f"{PREFIXES[split]}-*", "no shard of this split")
    elif plan is None:
        for name in absent(split, names):
            report.add("missing", name)
    if plan is None:
        return
    wanted = plan.splits[split]
    expected = {shard_name(split, number, wanted.shards) for number in range(wanted.shards)}
    for name in sorted(expected - set(names)):
        report.add("missing", name)
    for name in sorted(set(names) - known.keys()):
        report.add("extra", name, f"no line in {SHARD_LOG}")
    recorded = sum(known[name].records for name in expected & known.keys())
    if expected <= known.keys() and recorded != wanted.images:
        report.add("changed", SHARD_LOG, f"{split}: {recorded} records of {wanted.images} images")


def _check_labels(
    report: VerifyReport, labels: dict[str, set[int]], plan: ConvertPlan | None
) -> None:
    train, val = (labels[split] for split in SPLITS)
    report.classes = len(train | val)
    if any(report.counts[kind] for kind in HIDE_LABELS):
        return  # what one split alone seems to have may be among what was not read
    for kind, only in (("train_only", train - val), ("val_only", val - train)):
        for label in sorted(only):
            name = plan.classes[label] if plan and label < len(plan.classes) else ""
            report.add(kind, f"label {label + 1}", name)


def _check_shard(task: _Task) -> _Facts:
    facts = _Facts(task.shard.name)
    places = []
    try:
        if task.entry:
            _compare(task, task.entry, facts)
        for number, record in enumerate(read_records(task.shard)):
            places.append(record.offset)
            _check_record(f"record {number}", record, task.classes, facts)
    except DataError as error:
        facts.add("broken_shard", error)
    except OSError as error:
        facts.add("broken_shard", error.strerror)
    if task.entry and len(places) != task.entry.records:
        facts.add("changed", f"{len(places)} records, {SHARD_LOG} says {task.entry.records}")
    try:
        if read_index(task.shard)[:, 0].tolist() != places:
            facts.add("index", "does not hold the offsets of the records")
    except DataError as error:
        facts.add("index", error)
    return facts


def _compare(task: _Task, entry: ShardEntry, facts: _Facts) -> None:
    size = task.shard.stat().st_size
    if size != entry.bytes:
        facts.add("changed", f"{size} bytes, {SHARD_LOG} says {entry.bytes}")
    elif task.checksums:
        with task.shard.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                facts.add("changed", f"the checksum differs from that of {SHARD_LOG}")


def _check_record(where: str, record: Record, classes: int | None, facts: _Facts) -> None:
    facts.summary.images += 1
    if not record.intact:
        facts.add("checksum", "", where)
        return
    try:
        features = Example(record.data)
        name = features.blob(FILENAME).decode(errors="replace") if FILENAME in features else ""
        content = features.blob(ENCODED)
    except ValueError as error:
        facts.add("bad_record", error, where)
        return
    where = f"{where} {name}".rstrip()
    _check_label(features, classes, facts, where)
    image = inspect_bytes(content, is_jpeg=not name or name.lower().endswith(JPEG_EXTENSIONS))
    facts.summary.add(image.bytes, image.width, image.height)
    for kind, detail in image.problems:
        facts.add(kind, detail, where)


def _check_label(features: Example, classes: int | None, facts: _Facts, where: str) -> None:
    try:
        label = features.label()
    except ValueError as error:
        facts.add("label", error, where)
        return
    facts.labels.add(label)
    if classes is not None and label >= classes:
        facts.add("label", f"label {label + 1} of {classes} classes", where)
