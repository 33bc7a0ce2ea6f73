"""Both loaders keep the protocol; the native one keeps its promises about bad files."""

import shutil
import sys
from pathlib import Path

import psutil
import pytest
import torch
from PIL import Image

from ddl_core.config import RunSpec
from ddl_core.data.dataset import Dataset
from ddl_core.errors import SpecError
from ddl_core.loaders import turbo
from ddl_core.loaders.native import Native
from ddl_core.registry import resolve
from tests.core.loaders.paths import images_of, open_loader
from tests.launch.running import wait_for
from tests.pictures import write_pictures

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Three classes, 7 training and 3 validation images each, every one different."""
    root = tmp_path_factory.mktemp("images")
    number = 0
    for split, count in (("train", 7), ("val", 3)):
        for name in ("ant", "bee", "cat"):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                number += 1
                image = Image.linear_gradient("L").rotate(7 * number).convert("RGB")
                image.save(root / split / name / f"{index}.JPEG")
    return root


@pytest.fixture
def own_folder(folder, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def spec(**fields) -> RunSpec:
    values = {
        "image_size": 32,
        "classes": 3,
        "local_batch_size": 4,
        "loader_workers": 0,
        "train_images": 21,
        "eval_images": 9,
    }
    return RunSpec(**{**values, **fields})


def native(root: Path, split="train", rank=0, world_size=1, **fields) -> Native:
    return Native(spec(**fields), root, split, rank, world_size, CPU)


@pytest.mark.parametrize("name", ["native", "synthetic"])
def test_batches_have_the_stated_shape_number_and_place(name, folder):
    run = spec(loader=name)
    train = resolve("loader", name)(run, folder, "train", 0, 1, CPU)
    batches = list(train)
    assert len(batches) == len(train) == 5
    for images, labels in batches:
        assert images.shape == (4, 3, 32, 32)
        assert images.dtype == torch.float32
        assert labels.shape == (4,)
        assert labels.dtype == torch.int64
        assert 0 <= labels.min() <= labels.max() < 3


def test_loading_does_not_disturb_the_random_numbers_of_training(folder):
    loader = native(folder)
    torch.manual_seed(1)
    want = torch.rand(1)
    iterator = iter(loader)
    next(iterator)  # DataLoader itself draws once when it starts
    torch.manual_seed(1)
    next(iterator)
    assert torch.equal(torch.rand(1), want)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


def test_an_unreadable_image_is_named_once(own_folder, caplog):
    truncate(own_folder / "train" / "bee" / "3.JPEG")
    loader = native(own_folder, local_batch_size=7)
    for _ in range(2):
        list(loader)
    assert caplog.text.count("bee/3.JPEG") == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"classes": 2}, "has 3 class folders"),
        ({"train_images": 22}, "train_images = 22.*only 21"),
        ({"local_batch_size": 22}, "global batch of 22"),
    ],
)
def test_settings_that_do_not_fit_the_folder_are_named(folder, fields, words):
    with pytest.raises(SpecError, match=words):
        native(folder, **fields)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_few_images_of_a_folder_come_from_all_its_classes(folder, split):
    loader = native(folder, split, local_batch_size=3, train_images=3, eval_images=3)
    labels = torch.cat([labels for _, labels in loader])
    assert sorted(labels.tolist()) == [0, 1, 2]


def test_a_class_without_validation_images_does_not_shift_labels(own_folder):
    shutil.rmtree(own_folder / "val" / "ant")
    labels = torch.cat([labels for _, labels in native(own_folder, "eval", eval_images=6)])
    assert set(labels.tolist()) == {1, 2}


def test_each_file_is_read_once_in_a_run(data, monkeypatch):
    reads: list[int] = []
    plain = Dataset.read
    monkeypatch.setattr(
        Dataset, "read", lambda self, number: reads.append(number) or plain(self, number)
    )
    loader = open_loader("memory", data, local_batch_size=17)
    first, second = images_of(loader, 0), images_of(loader, 1)
    assert first.keys() == second.keys() == set(reads)
    assert len(reads) == len(first)
    assert any(not torch.equal(first[number][0], second[number][0]) for number in first)


def test_a_set_too_large_to_keep_is_refused(data, monkeypatch):
    monkeypatch.setattr(turbo, "MOST_BYTES", 1_000_000)
    loader = open_loader("memory", data)
    with pytest.raises(SpecError, match=r"would keep .* GB .*'native' or 'turbo'"):
        images_of(loader, 0)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), 16, 8)


def lives_on(pictures: Path, split: str, **fields) -> bool:
    few = {"train_images": 16, "eval_images": 8, "loader_workers": 1}
    return open_loader("native", pictures, split, **{**few, **fields})._loader.persistent_workers


@pytest.mark.parametrize(
    ("eval_every", "kept"), [(0, False), (1, True), (4, True), (5, False), (30, False)]
)
def test_processes_of_frequent_evaluations_live_on(pictures, eval_every, kept) -> None:
    assert lives_on(pictures, "eval", eval_every=eval_every) is kept
    assert lives_on(pictures, "train", eval_every=eval_every)


LOADING = """
import sys, time, torch
from pathlib import Path
from ddl_core.loaders.native import Native
from ddl_core.config import RunSpec
spec = RunSpec(image_size=256, classes=3, local_batch_size=4, loader_workers=2)
loader = Native(spec, Path(sys.argv[1]), "train", 0, 1, torch.device("cpu"))
next(iter(loader))
Path(sys.argv[2]).touch()
time.sleep(300)
"""


@pytest.mark.multiprocess
def test_a_killed_rank_takes_its_loader_processes_along(folder, tmp_path):
    ready = tmp_path / "ready"
    rank = psutil.Popen([sys.executable, "-c", LOADING, str(folder), str(ready)])
    wait_for(ready.exists, "the first batch")
    loaders = rank.children(recursive=True)
    assert len(loaders) >= 2
    rank.kill()
    rank.wait()
    assert psutil.wait_procs(loaders, timeout=20)[1] == []
