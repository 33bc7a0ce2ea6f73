"""Check a set: decode every image, name every problem."""

import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from ddl_core.data import tfrecord
from ddl_core.data.folder import SPLITS, class_folders, expected, is_hidden, is_image, scan
from ddl_core.data.formats import format_of, open_format
from ddl_core.data.image import check_pixels, describe
from ddl_core.errors import DataError
from ddl_core.files import require_file, some
from ddl_core.registry import load
from ddl_tools.datasets.convert import read_description
from ddl_tools.datasets.output import parallel
from ddl_tools.datasets.records import FILENAME, Record, read_records
from ddl_tools.datasets.sample import read_manifest

# Kind -> its meaning. Errors make a set unfit for a measurement.
ERRORS = {
    "unreadable": "cannot be read or decoded",
    "truncated": "ends too early",
    "zero_byte": "empty file",
    "too_large": "more pixels, or a longer side, than loaders accept",
    "empty_class": "class folder without images",
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
# Loaders accept all of these; ImageNet itself has those of single images.
WARNINGS = {
    "train_only": "class in train/ but not in val/",
    "grey": "one channel instead of RGB",
    "cmyk": "CMYK instead of RGB",
    "not_rgb": "palette, transparency or another mode instead of RGB",
    "not_jpeg": "content is not what the .JPEG in the name says",
    "hidden": "hidden folder, which no loader reads",
    "no_folder": "file beside the class folders, which no loader reads",
    "no_image": "file without an image's ending, which no loader reads",
}
COUNTED = {"grey"}  # all loaders show them alike, and in some sets all are: no need to name them
MODE_KINDS = {"L": "grey", "CMYK": "cmyk"}  # all others that are not RGB: not_rgb
JPEG_START, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
JPEG_EXTENSIONS = (".jpg", ".jpeg")

Parallel = Callable[..., Iterable["Findings"]]  # `parallel` of a number of processes

# With these problems, the labels of some records are unknown.
HIDE_LABELS = {"missing", "broken_shard", "checksum", "bad_record", "label"}
MAX_NAMED = 20  # problems in the text


class Problem(NamedTuple):
    """One problem: its kind (a key of `ERRORS` or `WARNINGS`), where, and details."""

    kind: str
    path: str
    detail: str = ""


@dataclass
class Findings:
    """The findings in a file, or in all files of a split."""

    images: int = 0
    bytes: int = 0
    classes: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def add(self, kind: str, path: str, detail: object = "") -> None:
        """Add a problem."""
        self.problems.append(Problem(kind, path, str(detail)))

    def merge(self, others: "Iterable[Findings]") -> None:
        """Add the findings in other files."""
        for other in others:
            self.images += other.images
            self.bytes += other.bytes
            self.classes |= other.classes
            self.problems += other.problems


@dataclass
class Report:
    """The findings in both splits of a set."""

    folder: Path
    splits: dict[str, Findings]

    @property
    def problems(self) -> list[Problem]:
        """The problems of both splits, errors first."""
        order = [*ERRORS, *WARNINGS]
        found = chain.from_iterable(split.problems for split in self.splits.values())
        return sorted(found, key=lambda problem: order.index(problem.kind))

    @property
    def counts(self) -> Counter[str]:
        """Number of problems of each kind."""
        return Counter(problem.kind for problem in self.problems)

    @property
    def ok(self) -> bool:
        """True without errors; warnings are allowed."""
        return not ERRORS.keys() & self.counts.keys()

    def text(self) -> str:
        """Return a summary that names the first `MAX_NAMED` problems."""
        lines = [f"{self.folder}:"]
        for name, split in self.splits.items():
            lines.append(
                f"  {name}: {split.images:,} images in {len(split.classes):,} classes, "
                f"{split.bytes / 1e6:,.1f} MB"
            )
        for kind, count in self.counts.items():
            level = "error" if kind in ERRORS else "warning"
            lines.append(f"  {level}: {count:,} x {kind} ({(ERRORS | WARNINGS)[kind]})")
        problems = [one for one in self.problems if one.kind not in COUNTED]
        named = problems[:MAX_NAMED]
        lines += [f"    {one.kind}: {one.path} {one.detail}".rstrip() for one in named]
        if left := len(problems) - len(named):
            lines.append(f"    ... and {left:,} more")
        lines.append("ok" if self.ok else "NOT OK: repair or remove what is named as an error")
        return "\n".join(lines)


def verify(
    folder: str | Path, *, data_format: str | None = None, processes: int | None = None
) -> Report:
    """Decode all images of a set; `data_format` is by default the one that is found.

    The images of a sample set and of TFRecord are compared with their checksums. A JPEG decoder
    does not find damage inside the compressed data that keeps a file's length. `DataError` if the
    folder, a split or its class folders cannot be read, or the manifest is damaged. Problems of
    single files are in the report.
    """
    root = Path(folder).absolute()
    if not root.is_dir():
        raise DataError(f"{root} is not a folder\n{expected(root)}")
    form = data_format or format_of(root)
    place = open_format(form, root)
    if not place.verifier:
        raise DataError(
            f"{root} is data_format {form!r}, which `ddl data verify` cannot read: it has no "
            "verifier; a run names each file that it cannot read"
        )
    check = load(f"the verifier of data_format {form!r}", place.verifier)
    report = Report(place.folder, check(place.folder, partial(parallel, processes=processes)))
    if not report.counts.keys() & HIDE_LABELS:
        train, val = report.splits.values()
        for name in sorted(train.classes ^ val.classes):
            split, found = ("train", train) if name in train.classes else ("val", val)
            found.add(f"{split}_only", f"{split}/{name}")
    return report


def check_images(root: Path, checked: Parallel) -> dict[str, Findings]:
    """Return the findings in both splits of an image folder."""
    manifest = read_manifest(root)
    known = {one["path"]: one["sha256"] for one in (manifest or {}).get("files", ())}
    splits = {split: Findings(classes={*class_folders(root / split)}) for split in SPLITS}
    for split, findings in splits.items():
        images = scan(root / split, sorted(findings.classes))
        for name in sorted(findings.classes - {*images.present()}):
            findings.add("empty_class", f"{split}/{name}", _others(root / split / name))
        for kind, path in _left_out(root / split):
            findings.add(kind, path.relative_to(root).as_posix())
        names = [f"{split}/{images.name(index)}" for index in range(len(images))]
        for name in sorted(set(names) - known.keys()) if manifest else ():
            findings.add("extra", name)
        tasks = [(root, name, known.pop(name, None)) for name in names]
        findings.merge(checked(_check_file, tasks, split, chunk=32))
    for name in known:
        splits[name.partition("/")[0]].add("missing", name)
    return splits


def _left_out(split: Path) -> Iterator[tuple[str, Path]]:
    """Yield what a split holds that is no part of the set: the kind of problem, and where."""
    for top, folders, files in os.walk(split, followlinks=True):
        here = Path(top)
        folders.sort()
        yield from (("hidden", here / name) for name in folders if is_hidden(name))
        folders[:] = (name for name in folders if not is_hidden(name))
        kind = "no_folder" if here == split else "no_image"
        for name in sorted(files):
            if kind == "no_folder" or not is_image(name):
                yield kind, here / name


def _others(folder: Path) -> str:
    """Return what a class folder without images holds instead, if anything."""
    kinds = sorted({path.suffix or "no suffix" for path in folder.rglob("*") if path.is_file()})
    return f"other files ({some(kinds)}), which verify cannot read" if kinds else ""


def _check_file(task: tuple[Path, str, str | None]) -> Findings:
    root, name, digest = task
    found = Findings(images=1)
    try:
        require_file(root / name)
        content = (root / name).read_bytes()
    except OSError as error:
        found.add("unreadable", name, error.strerror)
        return found
    found.bytes = len(content)
    for kind, detail in inspect_image(content, name):
        found.add(kind, name, detail)
    if digest is not None and sha256(content).hexdigest() != digest:
        found.add("changed", name)
    return found


def inspect_image(content: bytes, name: str) -> Iterator[tuple[str, str]]:
    """Decode an encoded image of this file name; yield kind and detail of its problems."""
    if not content:
        yield "zero_byte", ""
        return
    try:
        # Ignored are warnings of damaged metadata.
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content)) as image:
            is_jpeg = image.format in ("JPEG", "MPO")
            if name.lower().endswith(JPEG_EXTENSIONS) and not is_jpeg:
                yield "not_jpeg", f"the content is {image.format}"
            try:
                check_pixels(image.height, image.width)
            except ValueError as error:
                yield "too_large", str(error)
                return
            image.load()
            if image.mode != "RGB":
                yield MODE_KINDS.get(image.mode, "not_rgb"), f"mode {image.mode}"
    except Image.DecompressionBombError as error:
        yield "too_large", str(error)
    except Exception as error:  # damaged files make Pillow raise many types
        if content.startswith(JPEG_START) and not content.rstrip(b"\0").endswith(JPEG_END):
            yield "truncated", f"{len(content)} bytes, without a JPEG's end"
        else:
            yield "unreadable", describe(error)


def check_records(root: Path, checked: Parallel) -> dict[str, Findings]:
    """Return the findings in both splits of a TFRecord set."""
    description = read_description(root)
    splits = {split: Findings() for split in SPLITS}
    for split, findings in splits.items():
        names = tfrecord.shards_in(root, split)
        if description:
            count = description["shards"][split]
            wanted = (tfrecord.shard_name(split, number, count) for number in range(count))
            missing = [name for name in wanted if name not in names]
        else:
            missing = tfrecord.absent(split, names) if names else [f"{tfrecord.PREFIXES[split]}-*"]
        for name in missing:
            findings.add("missing", name)
        classes = len(description["classes"]) if description else None
        tasks = [(root / name, classes) for name in names]
        findings.merge(checked(_check_shard, tasks, split))
        if description and not missing and findings.images != description["images"][split]:
            wrong = f"{findings.images} records of {description['images'][split]} images"
            findings.add("missing", split, wrong)
    return splits


def _check_shard(task: tuple[Path, int | None]) -> Findings:
    shard, classes = task
    found = Findings()
    offsets = []
    try:
        for number, record in enumerate(read_records(shard)):
            offsets.append(record.offset)
            _check_record(f"{shard.name} record {number}", record, classes, found)
    except DataError as error:
        found.add("broken_shard", shard.name, error)
    except OSError as error:
        found.add("broken_shard", shard.name, error.strerror)
    try:
        if tfrecord.read_index(shard)[:, 0].tolist() != offsets:
            raise DataError("does not hold the offsets of the records")
    except DataError as error:
        found.add("index", shard.name, error)
    return found


def _check_record(where: str, record: Record, classes: int | None, found: Findings) -> None:
    found.images += 1
    if not record.intact:
        found.add("checksum", where)
        return
    try:
        features = tfrecord.Example(record.data)
        name = features.first(FILENAME).decode(errors="replace") if FILENAME in features else ""
        content = features.first(tfrecord.ENCODED)
    except ValueError as error:
        found.add("bad_record", where, error)
        return
    where = f"{where} {name}".rstrip()
    found.bytes += len(content)
    try:
        label = features.label()
        found.classes.add(f"label {label + 1}")
        if classes is not None and label >= classes:
            raise ValueError(f"label {label + 1} of {classes} classes")
    except ValueError as error:
        found.add("label", where, error)
    for kind, detail in inspect_image(content, name or JPEG_EXTENSIONS[0]):
        found.add(kind, where, detail)
