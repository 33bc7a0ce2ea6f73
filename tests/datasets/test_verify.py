import io
import json
import shutil
import struct

import pytest
from PIL import Image

from ddl_core.datasets import report as report_module
from ddl_core.datasets.manifest import MANIFEST
from ddl_core.datasets.report import ERRORS, WARNINGS
from ddl_core.datasets.verify import verify
from ddl_core.errors import DataError


def check(folder, **options):
    return verify(folder, progress=False, processes=1, **options)


def found(report) -> set[tuple[str, str]]:
    return {(problem.kind, problem.path) for problem in report.problems}


def encoded(mode: str, file_format: str, size=(40, 30)) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, file_format)
    return buffer.getvalue()


def huge_jpeg(side: int) -> bytes:
    """A small JPEG whose header claims to be `side` pixels high and wide."""
    content = encoded("RGB", "JPEG")
    frame = content.index(b"\xff\xc0") + 5
    return content[:frame] + struct.pack(">HH", side, side) + content[frame + 4 :]


def test_a_finished_set_is_ok(finished_sample):
    report = check(finished_sample, checksums=True)
    assert report.ok
    assert not report.problems
    assert report.classes == 16
    assert (report.splits["train"].images, report.splits["val"].images) == (32, 16)
    assert 450 <= report.splits["train"].width.mean <= 500
    assert report.splits["val"].bytes.total == sum(
        path.stat().st_size for path in (finished_sample / "val").rglob("*.JPEG")
    )
    assert report.text().endswith("\nok")
    assert "manifest: compared (sizes and checksums)" in report.text()


@pytest.mark.multiprocess
def test_the_report_does_not_depend_on_the_processes(sample):
    (sample / MANIFEST).unlink()
    (sample / "train/cat/cat_00001.JPEG").write_bytes(b"")
    one, two = check(sample), verify(sample, progress=False, processes=2)
    assert one.as_dict() == two.as_dict()
    assert not two.ok


def test_every_kind_of_bad_file_is_named(sample):
    (sample / MANIFEST).unlink()
    cat = sample / "train/cat"
    whole = (cat / "cat_00000.JPEG").read_bytes()
    bad = {
        "zero_byte": b"",
        "truncated": whole[: len(whole) // 2],
        "unreadable": b"not an image",
        "too_large": huge_jpeg(20_000),
        "grey": encoded("L", "JPEG"),
        "cmyk": encoded("CMYK", "JPEG"),
        "not_rgb": encoded("P", "PNG"),
    }
    for kind, content in bad.items():
        (cat / f"{kind}.JPEG").write_bytes(content)
    (cat / "honest.png").write_bytes(encoded("RGB", "PNG"))
    (cat / "cut_by_one_byte.JPEG").write_bytes(whole[:-1])
    (cat / "cut_in_the_header.JPEG").write_bytes(whole[:60])
    (cat / "bomb.JPEG").write_bytes(huge_jpeg(10_000))  # Pillow warns here, and refuses 20,000
    (cat / "nowhere.JPEG").symlink_to(cat / "gone")
    report = check(sample)
    expected = {(kind, f"train/cat/{kind}.JPEG") for kind in bad}
    expected |= {
        ("truncated", f"train/cat/cut_{where}.JPEG") for where in ("by_one_byte", "in_the_header")
    }
    expected |= {("too_large", "train/cat/bomb.JPEG"), ("unreadable", "train/cat/nowhere.JPEG")}
    assert found(report) == expected | {("not_jpeg", "train/cat/not_rgb.JPEG")}
    assert report.counts["truncated"] == 3
    assert not report.ok
    json.dumps(report.as_dict())


def test_warnings_alone_are_ok(sample):
    (sample / MANIFEST).unlink()
    (sample / "train/cat/grey.JPEG").write_bytes(encoded("L", "JPEG"))
    report = check(sample)
    assert report.ok
    assert "warning: 1 x grey (one channel instead of RGB)" in report.text()
    assert "grey: train/cat/grey.JPEG mode L" in report.text()


def test_classes_of_one_split_only_and_empty_ones(sample):
    (sample / MANIFEST).unlink()
    shutil.rmtree(sample / "val/cat")
    shutil.rmtree(sample / "train/moon")
    (sample / "train/nothing").mkdir()
    assert found(check(sample)) == {
        ("train_only", "train/cat"),
        ("train_only", "train/nothing"),
        ("val_only", "val/moon"),
        ("empty_class", "train/nothing"),
    }


def test_differences_from_the_manifest(sample):
    cat = sample / "train/cat"
    (cat / "cat_00000.JPEG").rename(cat / "other.JPEG")
    shutil.copy(sample / "train/moon/moon_00000.JPEG", cat / "cat_00001.JPEG")
    content = bytearray((sample / "val/cat/cat_00000.JPEG").read_bytes())
    content[len(content) // 2] ^= 1
    (sample / "val/cat/cat_00000.JPEG").write_bytes(content)
    expected = {
        ("missing", "train/cat/cat_00000.JPEG"),
        ("extra", "train/cat/other.JPEG"),
        ("changed", "train/cat/cat_00001.JPEG"),
    }
    assert found(check(sample)) == expected
    assert found(check(sample, checksums=True)) == expected | {
        ("changed", "val/cat/cat_00000.JPEG")
    }


def test_another_programs_manifest_is_ignored(sample):
    (sample / MANIFEST).write_text('{"name": "web app"}')
    assert check(sample).ok
    assert not check(sample).has_manifest


def test_damaged_manifest(sample):
    (sample / MANIFEST).write_text('{"format": "ddl-sample", ')
    with pytest.raises(DataError, match=r"manifest.json is damaged"):
        check(sample)


def test_long_lists_are_cut_and_counted(sample, monkeypatch):
    monkeypatch.setattr(report_module, "NAMED_PER_KIND", 5)
    (sample / MANIFEST).unlink()
    for number in range(9):
        (sample / f"train/cat/empty_{number}.JPEG").write_bytes(b"")
    report = check(sample)
    assert report.counts["zero_byte"] == 9
    assert len(report.problems) == 5
    assert report.text(limit=3).count("zero_byte: train/") == 3
    assert "... and 6 more" in report.text(limit=3)


@pytest.mark.parametrize("missing", [".", "val", "train"])
def test_missing_folders(sample, missing):
    shutil.rmtree(sample / missing)
    with pytest.raises(DataError, match=r"(?s)expected an ImageNet-like folder:.*ddl data sample"):
        check(sample)


def test_unreadable_file(sample, monkeypatch):
    read_bytes = type(sample).read_bytes

    def refuse(path):
        if path.name == "cat_00001.JPEG":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(type(sample), "read_bytes", refuse)
    report = check(sample)
    assert [tuple(problem) for problem in report.problems] == [
        ("unreadable", "train/cat/cat_00001.JPEG", "Permission denied")
    ]


def test_every_kind_has_one_meaning():
    assert not ERRORS.keys() & WARNINGS.keys()
