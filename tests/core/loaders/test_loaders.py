"""What loaders do with folders, files and processes."""

import shutil
import sys
from pathlib import Path

import psutil
import pytest
import torch

from ddl_core.data.dataset import Dataset
from ddl_core.errors import SpecError
from ddl_core.loaders import memory
from ddl_core.loaders.base import Loader
from tests.core.loaders.paths import TRAIN, images_of, open_loader
from tests.launch.running import wait_for
from tests.pictures import CLASSES, write_pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), 16, 8)


@pytest.fixture
def own_pictures(pictures, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(pictures, tmp_path / "copy"))


def native(root: Path, split: str = "train", **fields) -> Loader:
    small = {"image_size": 32, "classes": CLASSES, "train_images": 16, "eval_images": 8}
    return open_loader("native", root, split, **{**small, **fields})


def test_loading_does_not_disturb_the_random_numbers_of_training(pictures):
    loader = native(pictures)
    torch.manual_seed(1)
    want = torch.rand(1)
    iterator = iter(loader)
    next(iterator)  # DataLoader itself draws once when it starts
    torch.manual_seed(1)
    next(iterator)
    assert torch.equal(torch.rand(1), want)


def test_an_unreadable_image_is_named_once(own_pictures, caplog):
    path = own_pictures / "train" / "class1" / "5.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    loader = native(own_pictures)
    for _ in range(2):
        list(loader)
    assert caplog.text.count("class1/5.JPEG") == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"classes": 2}, "has 4 class folders"),
        ({"train_images": 17}, "train_images = 17.*only 16"),
    ],
)
def test_settings_that_do_not_fit_the_folder_are_named(pictures, fields, words):
    with pytest.raises(SpecError, match=words):
        native(pictures, **fields)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_few_images_of_a_folder_come_from_all_its_classes(pictures, split):
    loader = native(pictures, split, train_images=4, eval_images=4)
    labels = torch.cat([labels for _, labels in loader])
    assert sorted(labels.tolist()) == [0, 1, 2, 3]


def test_a_class_without_validation_images_does_not_shift_labels(own_pictures):
    shutil.rmtree(own_pictures / "val" / "class0")
    labels = torch.cat([labels for _, labels in native(own_pictures, "eval", eval_images=6)])
    assert set(labels.tolist()) == {1, 2, 3}


def test_each_file_is_read_once_in_a_run(data, monkeypatch):
    reads: list[int] = []
    plain = Dataset.read
    monkeypatch.setattr(
        Dataset, "read", lambda self, number: reads.append(number) or plain(self, number)
    )
    loader = open_loader("memory", data, local_batch_size=17)
    first, second = images_of(loader, 0), images_of(loader, 1)
    assert first.keys() == second.keys() == set(reads)
    assert reads == list(range(TRAIN))
    assert any(not torch.equal(first[number][0], second[number][0]) for number in first)


def test_a_set_too_large_to_keep_is_refused(data, monkeypatch):
    monkeypatch.setattr(memory, "MOST_BYTES", 1_000_000)
    with pytest.raises(SpecError, match=r"would keep .* GB .*'native' or 'turbo'"):
        open_loader("memory", data)


@pytest.mark.parametrize(
    ("eval_every", "kept"), [(0, False), (1, True), (4, True), (5, False), (30, False)]
)
def test_processes_of_frequent_evaluations_live_on(pictures, eval_every, kept) -> None:
    for split, expected in (("eval", kept), ("train", True)):
        loader = native(pictures, split, eval_every=eval_every, loader_workers=1)
        assert loader._loader.persistent_workers is expected


LOADING = """
import sys, time, torch
from pathlib import Path
from ddl_core.loaders.native import Native
from ddl_core.config import RunSpec
spec = RunSpec(image_size=256, classes=4, local_batch_size=4, loader_workers=2)
loader = Native(spec, Path(sys.argv[1]), "train", 0, 1, torch.device("cpu"))
next(iter(loader))
Path(sys.argv[2]).touch()
time.sleep(300)
"""


@pytest.mark.multiprocess
def test_a_killed_rank_takes_its_loader_processes_along(pictures, tmp_path):
    ready = tmp_path / "ready"
    rank = psutil.Popen([sys.executable, "-c", LOADING, str(pictures), str(ready)])
    wait_for(ready.exists, "the first batch")
    loaders = rank.children(recursive=True)
    assert len(loaders) >= 2
    rank.kill()
    rank.wait()
    assert psutil.wait_procs(loaders, timeout=20)[1] == []
