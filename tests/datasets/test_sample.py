"""The sample set: ImageNet's shape, the same bytes as ever, and what a killed call leaves."""

import hashlib
import io
import json
import platform
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from ddl_core.data.folder import list_images
from ddl_core.errors import DataError
from ddl_tools.datasets import sample as sample_module
from ddl_tools.datasets.output import unfinished
from ddl_tools.datasets.photos import CLASSES, load_photo, make_crop
from ddl_tools.datasets.sample import MANIFEST, make_sample, read_manifest
from tests.datasets.conftest import IN_PROCESS, SMALL, contents, fail_after
from tests.launch.running import wait_for


def test_layout_counts_and_size(finished_sample):
    files = {path: one for path, one in contents(finished_sample).items() if path != MANIFEST}
    assert read_manifest(finished_sample)["files"] == [
        {"path": path, "sha256": hashlib.sha256(files[path]).hexdigest()} for path in sorted(files)
    ]
    assert len(files) == 3 * len(CLASSES) == len(set(files.values()))
    assert "val/cat/cat_00000.JPEG" in files
    assert np.mean([len(one) for one in files.values()]) == pytest.approx(110_000, rel=0.1)
    for content in files.values():
        with Image.open(io.BytesIO(content)) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert min(np.asarray(image).std(axis=(0, 1))) > 2  # a picture, not a plain area


def test_shapes_vary_like_imagenet():
    photo = load_photo("flower")
    crops = [make_crop(photo, np.random.SeedSequence(number)) for number in range(40)]
    sizes = [Image.open(io.BytesIO(crop)).size for crop in crops]
    assert 3 <= sum(height > width for width, height in sizes) <= 16
    width, height = np.median(sizes, axis=0)
    assert width == 500
    assert 363 <= height <= 387
    assert all(min(size) >= 320 and max(size) <= 512 for size in sizes)


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
    counts = {"classes": 19, "train_per_class": 1, "val_per_class": 1}
    assert make_sample(tmp_path / "s", **counts, **IN_PROCESS) == 2 * 19
    images = list_images(tmp_path / "s" / "train")
    assert set(images.classes) == {*CLASSES, "astronaut_001", "brick_001", "cat_001"}
    made, first = contents(tmp_path / "s"), contents(finished_sample)
    assert len(set(made.values())) == 2 * 19 + 1
    assert made["train/cat/cat_00000.JPEG"] == first["train/cat/cat_00000.JPEG"]
    assert "train/cat_001/cat_001_00000.JPEG" in made


def test_a_set_that_has_lost_images_is_not_called_whole(sample):
    shutil.rmtree(sample / "train" / "cat")
    with pytest.raises(DataError, match="lacks 2 of its 48 images; delete it"):
        make_sample(sample, **SMALL, **IN_PROCESS)


def test_images_of_other_settings_are_not_mixed(tmp_path, monkeypatch, finished_sample):
    folder = tmp_path / "s"
    with monkeypatch.context() as patch:
        fail_after(patch, sample_module, "_make_image", KeyboardInterrupt(), 20)
        with pytest.raises(KeyboardInterrupt):
            make_sample(folder, **SMALL, **IN_PROCESS, seed=1)
    make_sample(folder, **SMALL, **IN_PROCESS)
    assert contents(folder) == contents(finished_sample)
    assert not unfinished(folder).exists()


@pytest.mark.multiprocess
def test_a_killed_call_continues_and_leaves_no_process(tmp_path, finished_sample):
    folder: Path = tmp_path / "s"
    code = (
        "from ddl_tools.datasets.sample import make_sample\n"
        f"make_sample({str(folder)!r}, train_per_class=2, val_per_class=1, processes=2)"
    )
    process = psutil.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    wait_for(lambda: len([*unfinished(folder).glob("train/*/*.JPEG")]) >= 4, "some images")
    workers = process.children()
    process.send_signal(signal.SIGKILL)
    process.wait()
    make_sample(folder, **SMALL, **IN_PROCESS)
    assert contents(folder) == contents(finished_sample)
    assert workers
    wait_for(lambda: not any(one.is_running() for one in workers), "the workers to end")


def test_a_set_of_an_earlier_version_is_known(sample):
    """Its manifest did not name the usual number of classes, and said more of each file."""
    manifest = read_manifest(sample)
    files = [{**one, "bytes": 1, "class_name": "a"} for one in manifest.pop("files")]
    del manifest["classes"]
    (sample / MANIFEST).write_text(json.dumps({**manifest, "packages": {}, "files": files}))
    assert make_sample(sample, **SMALL, **IN_PROCESS) == 0
