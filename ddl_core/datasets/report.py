"""What `verify` found in an image folder or a TFRecord set."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Kind -> what it means. Errors make a set unfit for a measurement.
ERRORS = {
    "unreadable": "cannot be read or decoded",
    "truncated": "ends too early",
    "zero_byte": "empty file",
    "too_large": "more pixels than loaders accept",
    "empty_class": "class folder without images",
    "train_only": "class in train/ but not in val/",
    "val_only": "class in val/ but not in train/",
    "missing": "in the manifest but not in the folder",
    "extra": "in the folder but not in the manifest",
    "changed": "not as the manifest says",
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
# Named per kind; further ones are counted. Bounds the memory for a folder of millions.
NAMED_PER_KIND = 20_000


class Problem(NamedTuple):
    """One problem: its kind (a key of `ERRORS` or `WARNINGS`), where, and details."""

    kind: str
    path: str
    detail: str


@dataclass
class Range:
    """Minimum, mean and maximum of what was added (None as long as nothing was)."""

    count: int = 0
    total: int = 0
    minimum: int | None = None
    maximum: int | None = None

    @property
    def mean(self) -> float | None:
        """Arithmetic mean."""
        return self.total / self.count if self.count else None

    def add(self, value: int) -> None:
        """Add one value."""
        self.count += 1
        self.total += value
        self.minimum = value if self.minimum is None else min(self.minimum, value)
        self.maximum = value if self.maximum is None else max(self.maximum, value)

    def merge(self, other: "Range") -> None:
        """Add all values that were added to another range."""
        least = [one.minimum for one in (self, other) if one.minimum is not None]
        most = [one.maximum for one in (self, other) if one.maximum is not None]
        self.minimum, self.maximum = min(least, default=None), max(most, default=None)
        self.count += other.count
        self.total += other.total

    def as_dict(self) -> dict[str, float | None]:
        """Return minimum, mean, maximum."""
        return {"min": self.minimum, "mean": self.mean, "max": self.maximum}

    def __str__(self) -> str:
        """Return the three numbers for people."""
        if self.mean is None:
            return "none"
        return f"mean {self.mean:,.0f} ({self.minimum:,} to {self.maximum:,})"


@dataclass
class SplitReport:
    """One of train and val: image count, and ranges of bytes and pixels of what could be read."""

    images: int = 0
    classes: int = 0
    bytes: Range = field(default_factory=Range)
    width: Range = field(default_factory=Range)
    height: Range = field(default_factory=Range)

    def add(self, size: int, width: int, height: int) -> None:
        """Add the numbers of one image; without pixels if it could not be decoded."""
        self.bytes.add(size)
        if width:
            self.width.add(width)
            self.height.add(height)

    def merge(self, other: "SplitReport") -> None:
        """Add the images of a part."""
        self.images += other.images
        self.bytes.merge(other.bytes)
        self.width.merge(other.width)
        self.height.merge(other.height)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; `bytes_total` is the size of the split."""
        return {
            "images": self.images,
            "classes": self.classes,
            "bytes_total": self.bytes.total,
            "bytes": self.bytes.as_dict(),
            "width_pixels": self.width.as_dict(),
            "height_pixels": self.height.as_dict(),
        }


@dataclass
class VerifyReport:
    """All that was found; `problems` names at most `NAMED_PER_KIND` of each kind."""

    folder: str
    checksums: bool
    has_manifest: bool = False
    classes: int = 0
    splits: dict[str, SplitReport] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True without errors; warnings are allowed."""
        return not any(self.counts[kind] for kind in ERRORS)

    def add(self, kind: str, path: str, detail: str = "") -> None:
        """Count a problem, and name it while there is room."""
        self.counts[kind] += 1
        if self.counts[kind] <= NAMED_PER_KIND:
            self.problems.append(Problem(kind, path, detail))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        return {
            "ok": self.ok,
            "folder": self.folder,
            "checksums": self.checksums,
            "has_manifest": self.has_manifest,
            "classes": self.classes,
            "splits": {name: split.as_dict() for name, split in self.splits.items()},
            "counts": dict(self.counts),
            "problems": [problem._asdict() for problem in self.problems],
        }

    def text(self, limit: int = 20) -> str:
        """Return a summary for people that names the first `limit` problems."""
        lines = [f"{self.folder}: {self.classes:,} classes"]
        for name, split in self.splits.items():
            lines += [
                f"  {name}: {split.images:,} images in {split.classes:,} classes, "
                f"{split.bytes.total / 1e6:,.1f} MB",
                f"    bytes  {split.bytes}",
                f"    width  {split.width}",
                f"    height {split.height}",
            ]
        how = "sizes and checksums" if self.checksums else "sizes"
        lines.append(f"  manifest: {f'compared ({how})' if self.has_manifest else 'none'}")
        lines += [self._count_line(kind) for kind in (*ERRORS, *WARNINGS) if self.counts[kind]]
        order = [*ERRORS, *WARNINGS]
        ranked = sorted(self.problems, key=lambda problem: order.index(problem.kind))
        lines += [f"    {p.kind}: {p.path} {p.detail}".rstrip() for p in ranked[:limit]]
        left = self.counts.total() - min(limit, len(ranked))
        if left:
            lines.append(f"    ... and {left:,} more")
        lines.append("ok" if self.ok else "NOT OK: repair or remove what is named as an error")
        return "\n".join(lines)

    def _count_line(self, kind: str) -> str:
        level = "error" if kind in ERRORS else "warning"
        return f"  {level}: {self.counts[kind]:,} x {kind} ({(ERRORS | WARNINGS)[kind]})"
