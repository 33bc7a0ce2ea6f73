import errno
import hashlib
import io
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddl_core.data.folder import list_images
from ddl_core.errors import DataError
from ddl_tools.datasets import sample as sample_module
from ddl_tools.datasets.output import unfinished
from ddl_tools.datasets.photos import CLASSES
from ddl_tools.datasets.sample import MANIFEST, make_sample, read_manifest

REALLY = sample_module._make_image
SMALL = {"train_per_class": 2, "val_per_class": 1, "progress": False, "processes": 1}


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception, after: int = 0) -> None:
    """Make the work fail after some images, as an interrupt or a full disk does."""
    left = iter(range(after))

    def make_image(task):
        if next(left, None) is None:
            raise error
        return REALLY(task)

    monkeypatch.setattr(sample_module, "_make_image", make_image)


@pytest.fixture
def counted(monkeypatch) -> Counter:
    """How often each image was drawn."""
    made = Counter()
    crop = sample_module.make_crop

    def make_crop(photo, key):
        made[key.spawn_key] += 1
        return crop(photo, key)

    monkeypatch.setattr(sample_module, "make_crop", make_crop)
    return made


def test_layout_counts_and_size(finished_sample):
    files = {path: one for path, one in contents(finished_sample).items() if path != MANIFEST}
    manifest = read_manifest(finished_sample)
    assert manifest["files"] == [
        {"path": path, "sha256": hashlib.sha256(files[path]).hexdigest()} for path in sorted(files)
    ]
    assert len(files) == 3 * len(CLASSES) == len(set(files.values()))
    assert "val/cat/cat_00000.JPEG" in files
    assert np.mean([len(one) for one in files.values()]) == pytest.approx(110_000, rel=0.1)
    sizes = [Image.open(io.BytesIO(content)).size for content in files.values()]
    width, height = np.mean(sizes, axis=0)
    assert 450 <= width <= 500
    assert 370 <= height <= 420


@pytest.mark.skipif(
    (version("pillow"), version("numpy"), platform.machine()) != ("13.0.0", "2.4.6", "x86_64"),
    reason="bytes are stated for the pinned packages on x86-64",
)
def test_the_bytes_are_those_of_earlier_versions(finished_sample):
    lines = "".join(
        f"{one['sha256']}  {one['path']}\n" for one in read_manifest(finished_sample)["files"]
    )
    assert hashlib.sha256(lines.encode()).hexdigest() == (
        "c11dd6ee7dcd359b562f2e2e13e7b856c38a852153b2ce442411b10daf32b325"
    )


def test_more_classes_are_other_views_of_the_same_photographs(tmp_path, finished_sample):
    assert make_sample(tmp_path / "s", **{**SMALL, "train_per_class": 1}, classes=19) == 2 * 19
    images = list_images(tmp_path / "s" / "train")
    more = {"astronaut_001", "brick_001", "cat_001"}
    assert set(images.classes) == {*CLASSES, *more}
    made, first = contents(tmp_path / "s"), contents(finished_sample)
    assert len(set(made.values())) == 2 * 19 + 1
    assert made["train/cat/cat_00000.JPEG"] == first["train/cat/cat_00000.JPEG"]
    assert "train/cat_001/cat_001_00000.JPEG" in made


def test_second_call_does_nothing(sample):
    before = {path: path.stat().st_mtime_ns for path in sample.rglob("*")}
    assert make_sample(sample, **SMALL) == 0
    assert {path: path.stat().st_mtime_ns for path in sample.rglob("*")} == before


@pytest.mark.multiprocess
def test_the_bytes_do_not_depend_on_the_processes_or_the_counts(finished_sample, tmp_path):
    make_sample(tmp_path / "other", **{**SMALL, "processes": 2, "train_per_class": 1})
    first, made = contents(finished_sample), contents(tmp_path / "other")
    assert all(first[path] == made[path] for path in made if path != MANIFEST)


def test_an_interrupted_call_continues_and_leaves_no_set(
    tmp_path, monkeypatch, counted, finished_sample
):
    folder = tmp_path / "s"
    with monkeypatch.context() as patch:
        fail(patch, OSError(errno.EROFS, "Read-only file system"), after=20)
        with pytest.raises(DataError, match=r"s: Read-only .*; the set needs 6 MB .* choose"):
            make_sample(folder, **SMALL)
    assert not folder.exists()
    make_sample(folder, **SMALL)
    assert counted.total() == 48
    assert contents(folder) == contents(finished_sample)
    assert not unfinished(folder).exists()


def test_images_of_other_settings_are_not_mixed(tmp_path, monkeypatch, finished_sample):
    folder = tmp_path / "s"
    with monkeypatch.context() as patch:
        fail(patch, KeyboardInterrupt(), after=20)
        with pytest.raises(KeyboardInterrupt):
            make_sample(folder, **SMALL, seed=1)
    make_sample(folder, **SMALL)
    assert contents(folder) == contents(finished_sample)


@pytest.mark.multiprocess
def test_killed_making_continues(tmp_path, finished_sample):
    folder = tmp_path / "s"
    code = (
        "from ddl_tools.datasets.sample import make_sample\n"
        f"make_sample({str(folder)!r}, train_per_class=2, val_per_class=1, processes=2)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    while len(list(unfinished(folder).glob("train/*/*.JPEG"))) < 4:
        assert process.poll() is None
        time.sleep(0.02)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    make_sample(folder, **SMALL)
    assert contents(folder) == contents(finished_sample)
    assert workers
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers):  # none waits for ever
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_other_settings_are_refused(sample):
    with pytest.raises(DataError, match=r"seed = 0, not 3; ask for the same settings"):
        make_sample(sample, **SMALL, seed=3)


def test_a_set_of_an_earlier_version_is_known(sample):
    """Its manifest did not name the usual number of classes, and said more of each file."""
    manifest = read_manifest(sample)
    files = [{**one, "bytes": 1, "class_name": "a"} for one in manifest.pop("files")]
    del manifest["classes"]
    (sample / MANIFEST).write_text(json.dumps({**manifest, "packages": {}, "files": files}))
    assert make_sample(sample, **SMALL) == 0


def test_files_of_the_user_are_not_touched(tmp_path):
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("")
    for place in (tmp_path, thesis):
        with pytest.raises(DataError, match="not empty and was not made by"):
            make_sample(place, **SMALL)
    assert [*tmp_path.iterdir()] == [thesis]
