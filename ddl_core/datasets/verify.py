"""Check an image folder or a TFRecord set: decode every image, name every problem."""

import io
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from ddl_core.datasets.folder import class_folders, expected, scan
from ddl_core.datasets.image import MAX_PIXELS, why
from ddl_core.datasets.output import parallel
from ddl_core.datasets.sample import JPEG_END, read_manifest
from ddl_core.datasets.shards import (
    PREFIXES,
    absent,
    is_record_folder,
    read_description,
    read_index,
    shard_name,
    shards_in,
)
from ddl_core.datasets.tfrecord import ENCODED, FILENAME, Example, Record, read_records
from ddl_core.errors import DataError
from ddl_core.spec.gate import require_file

# Kind -> its meaning. Errors make a set unfit for a measurement.
ERRORS = {
    "unreadable": "cannot be read or decoded",
    "truncated": "ends too early",
    "zero_byte": "empty file",
    "too_large": "more pixels than loaders accept",
    "empty_class": "class folder without images",
    "train_only": "class in train/ but not in val/",
    "val_only": "class in val/ but not in train/",
    "missing": "file or record that the set should have",
    "extra": "in the folder but not in the manifest",
    "changed": "checksum differs from the manifest",
    "broken_shard": "file of records that cannot be read to its end",
    "checksum": "record whose data do not fit their checksum",
    "bad_record": "record without an image",
    "label": "record without a label, or with one out of range",
    "index": "index that is missing or does not fit its shard",
}
# ImageNet itself has all of these; loaders convert them to RGB.
WARNINGS = {
    "grey": "one channel instead of RGB",
    "cmyk": "CMYK instead of RGB",
    "not_rgb": "palette, transparency or another mode instead of RGB",
    "not_jpeg": "content is not what the .JPEG in the name says",
}
MODE_KINDS = {"L": "grey", "CMYK": "cmyk"}  # all others that are not RGB: not_rgb
JPEG_START = b"\xff\xd8\xff"
JPEG_EXTENSIONS = (".jpg", ".jpeg")

# With these problems, the labels of some images are unknown.
HIDE_LABELS = ("missing", "broken_shard", "checksum", "bad_record", "label")
MAX_NAMED = 20  # problems in the text


class Problem(NamedTuple):
    """One problem: its kind (a key of `ERRORS` or `WARNINGS`), where, and details."""

    kind: str
    path: str
    detail: str = ""


@dataclass
class Part:
    """The findings in one file of a split: an image, or a shard of records."""

    images: int = 0
    bytes: int = 0
    labels: set[int] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)


@dataclass
class Report:
    """All findings; `images`, `bytes` and `classes` count by split."""

    folder: str
    images: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """Number of problems of each kind."""
        return Counter(problem.kind for problem in self.problems)

    @property
    def ok(self) -> bool:
        """True without errors; warnings are allowed."""
        return not ERRORS.keys() & self.counts.keys()

    def add(self, kind: str, path: str, detail: str = "") -> None:
        """Add a problem."""
        self.problems.append(Problem(kind, path, detail))

    def add_part(self, split: str, part: Part) -> None:
        """Add the findings in a file."""
        self.images[split] += part.images
        self.bytes[split] += part.bytes
        self.problems += part.problems

    def text(self) -> str:
        """Return a summary that names the first `MAX_NAMED` problems."""
        lines = [f"{self.folder}:"]
        lines += [
            f"  {split}: {self.images[split]:,} images in {self.classes[split]:,} classes, "
            f"{self.bytes[split] / 1e6:,.1f} MB"
            for split in PREFIXES
        ]
        kinds = {**ERRORS, **WARNINGS}
        counts = self.counts
        for kind, meaning in kinds.items():
            if counts[kind]:
                level = "error" if kind in ERRORS else "warning"
                lines.append(f"  {level}: {counts[kind]:,} x {kind} ({meaning})")
        ranked = sorted(self.problems, key=lambda problem: list(kinds).index(problem.kind))
        lines += [f"    {p.kind}: {p.path} {p.detail}".rstrip() for p in ranked[:MAX_NAMED]]
        if len(ranked) > MAX_NAMED:
            lines.append(f"    ... and {len(ranked) - MAX_NAMED:,} more")
        lines.append("ok" if self.ok else "NOT OK: repair or remove what is named as an error")
        return "\n".join(lines)


def verify(folder: str | Path, *, progress: bool = True, processes: int | None = None) -> Report:
    """Decode every image of both splits; compare checksums with those of a sample set or TFRecord.

    Parameters
    ----------
    folder
        A sample set, ImageNet, any folder of that layout, or a TFRecord set.
    progress
        Show a progress bar on stderr.
    processes
        Default: one per usable core.

    Raises
    ------
    DataError
        If the folder, a split or its class folders are missing or not readable, or if the manifest
        is damaged. Problems of single files are in the report instead.
    """
    root = Path(folder).absolute()
    if not root.is_dir():
        raise DataError(f"{root} is not a folder\n{expected(root)}")
    check = _check_shards if is_record_folder(root) else _check_images
    return check(root, progress, processes)


def _check_images(root: Path, progress: bool, processes: int | None) -> Report:
    report = Report(str(root))
    manifest = read_manifest(root)
    files = manifest.get("files", []) if manifest else []
    known = {one["path"]: one["sha256"] for one in files}
    found = {split: class_folders(root / split) for split in PREFIXES}
    _check_classes(report, {split: set(names) for split, names in found.items()})
    for split, classes in found.items():
        images = scan(root / split, classes, only_files=False)
        names = [f"{split}/{images.name(index)}" for index in range(len(images))]
        for name in sorted(set(classes) - set(images.present())):
            report.add("empty_class", f"{split}/{name}")
        for name in names if manifest else ():
            if name not in known:
                report.add("extra", name)
        tasks = [(root, name, known.pop(name, None)) for name in names]
        for part in parallel(
            _check_file, tasks, split, processes=processes, progress=progress, chunk=32
        ):
            report.add_part(split, part)
    for name in known:
        report.add("missing", name)
    return report


def _check_classes(report: Report, classes: dict[str, set[str]]) -> None:
    for kind, split, other in (("train_only", "train", "val"), ("val_only", "val", "train")):
        report.classes[split] = len(classes[split])
        for name in sorted(classes[split] - classes[other]):
            report.add(kind, f"{split}/{name}")


def _check_file(task: tuple[Path, str, str | None]) -> Part:
    """Read and decode an image file; compare it with its SHA-256, if that is known.

    Damage inside the compressed data that keeps the file's length is not seen by any JPEG decoder:
    only a checksum finds it.
    """
    root, name, digest = task
    try:
        require_file(root / name)
        content = (root / name).read_bytes()
    except OSError as error:
        return Part(1, problems=[Problem("unreadable", name, str(error.strerror))])
    found = inspect_image(content, is_jpeg=name.lower().endswith(JPEG_EXTENSIONS))
    if digest is not None and sha256(content).hexdigest() != digest:
        found.append(("changed", ""))
    return Part(1, len(content), problems=[Problem(kind, name, why) for kind, why in found])


def inspect_image(content: bytes, *, is_jpeg: bool) -> list[tuple[str, str]]:
    """Decode an encoded image; return kind and detail of its problems.

    `is_jpeg` tells what its name says of it.
    """
    if not content:
        return [("zero_byte", "")]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata
            with Image.open(io.BytesIO(content)) as image:
                return list(_inspect(image, is_jpeg))
    except Image.DecompressionBombError as error:
        return [("too_large", str(error))]
    except Exception as error:  # damaged files make Pillow raise many types
        if content.startswith(JPEG_START) and not content.rstrip(b"\0").endswith(JPEG_END):
            return [("truncated", f"{len(content)} bytes, without a JPEG's end")]
        return [("unreadable", why(error))]


def _inspect(image: Image.Image, is_jpeg: bool) -> Iterator[tuple[str, str]]:
    if is_jpeg and image.format not in ("JPEG", "MPO"):
        yield "not_jpeg", f"the content is {image.format}"
    width, height = image.size
    if width * height > MAX_PIXELS:
        yield "too_large", f"{width} x {height} pixels, not decoded"
        return
    image.load()
    if image.mode != "RGB":
        yield MODE_KINDS.get(image.mode, "not_rgb"), f"mode {image.mode}"


def _check_shards(root: Path, progress: bool, processes: int | None) -> Report:
    report = Report(str(root))
    description = read_description(root)
    labels: dict[str, set[int]] = {}
    for split in PREFIXES:
        names = shards_in(root, split)
        if description:
            count = description.shards[split]
            wanted = {shard_name(split, number, count) for number in range(count)}
            missing = sorted(wanted - set(names))
        else:
            missing = absent(split, names) if names else [f"{PREFIXES[split]}-*"]
        for name in missing:
            report.add("missing", name)
        classes = len(description.classes) if description else None
        tasks = [(root / name, classes) for name in names]
        labels[split] = set()
        for part in parallel(_check_shard, tasks, split, processes=processes, progress=progress):
            report.add_part(split, part)
            labels[split] |= part.labels
        if description and not missing and report.images[split] != description.images[split]:
            wrong = f"{report.images[split]} records of {description.images[split]} images"
            report.add("missing", split, wrong)
    if any(report.counts[kind] for kind in HIDE_LABELS):
        labels = dict.fromkeys(labels, labels["train"] | labels["val"])
    named = {split: {f"label {label + 1}" for label in labels[split]} for split in labels}
    _check_classes(report, named)
    return report


def _check_shard(task: tuple[Path, int | None]) -> Part:
    shard, classes = task
    part = Part()
    offsets = []
    try:
        for number, record in enumerate(read_records(shard)):
            offsets.append(record.offset)
            _check_record(f"{shard.name} record {number}", record, classes, part)
    except DataError as error:
        part.problems.append(Problem("broken_shard", shard.name, str(error)))
    except OSError as error:
        part.problems.append(Problem("broken_shard", shard.name, str(error.strerror)))
    try:
        if read_index(shard)[:, 0].tolist() != offsets:
            raise DataError("does not hold the offsets of the records")
    except DataError as error:
        part.problems.append(Problem("index", shard.name, str(error)))
    return part


def _check_record(where: str, record: Record, classes: int | None, part: Part) -> None:
    part.images += 1
    if not record.intact:
        part.problems.append(Problem("checksum", where))
        return
    try:
        features = Example(record.data)
        name = features.blob(FILENAME).decode(errors="replace") if FILENAME in features else ""
        content = features.blob(ENCODED)
    except ValueError as error:
        part.problems.append(Problem("bad_record", where, str(error)))
        return
    where = f"{where} {name}".rstrip()
    part.bytes += len(content)
    try:
        label = features.label()
        part.labels.add(label)
        if classes is not None and label >= classes:
            raise ValueError(f"label {label + 1} of {classes} classes")
    except ValueError as error:
        part.problems.append(Problem("label", where, str(error)))
    is_jpeg = not name or name.lower().endswith(JPEG_EXTENSIONS)
    found = inspect_image(content, is_jpeg=is_jpeg)
    part.problems += [Problem(kind, where, detail) for kind, detail in found]
