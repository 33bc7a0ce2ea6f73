import pickle
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ddl_core import registry
from ddl_core.config import RunSpec
from ddl_core.data.dataset import Dataset
from ddl_core.data.folder import ImageList, list_images
from ddl_core.errors import DataError


def touch(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def pairs(images: ImageList) -> list[tuple[str, int]]:
    return [(images.path(index), images.label(index)) for index in range(len(images))]


@pytest.fixture
def split(tmp_path):
    root = tmp_path / "set" / "train"
    touch(root, "b/2.JPEG", "b/10.jpg", "a/x.png", "b/notes.txt", "B/q.webp", "readme.md")
    touch(root, "b/more/0.JPEG", "b/more/.hidden/0.jpeg", "a/nom \u00e9.Jpg", "a/y.gif")
    return root


def test_order_labels_and_names(split):
    images = list_images(split)
    assert images.classes == ("B", "a", "b")
    assert pairs(images) == [
        (f"{split}/B/q.webp", 0),
        (f"{split}/a/nom \u00e9.Jpg", 1),
        (f"{split}/a/x.png", 1),
        (f"{split}/b/10.jpg", 2),
        (f"{split}/b/2.JPEG", 2),
        (f"{split}/b/more/0.JPEG", 2),
    ]
    assert all(Path(images.path(i)).exists() for i in range(len(images)))
    assert images.name(5) == "b/more/0.JPEG"


@pytest.mark.parametrize("where", ["", "a", "b/more"])
def test_a_hidden_folder_is_no_part_of_a_set(split: Path, where: str) -> None:
    """An editor's ``.ipynb_checkpoints`` would be a class, or hold images twice."""
    before = list_images(split)
    touch(split, f"{where}/.ipynb_checkpoints/0.jpg")
    after = list_images(split)
    assert (after.classes, pairs(after)) == (before.classes, pairs(before))


def test_a_class_that_is_a_link_to_nowhere_is_named(split: Path) -> None:
    (split / "c").symlink_to(split / "gone")
    with pytest.raises(DataError, match="links that lead nowhere: c;"):
        list_images(split)


@pytest.mark.slow
def test_the_order_is_that_of_torchvision(split):
    vision = pytest.importorskip("ddl_core.models")
    del vision  # makes `import torchvision` work on every build of torch
    from torchvision.datasets import ImageFolder

    shutil.rmtree(split / "b" / "more" / ".hidden")  # which torchvision reads
    assert ImageFolder(str(split)).samples == pairs(list_images(split))


def test_fingerprint_follows_names_and_labels_only(split, tmp_path):
    first = list_images(split).fingerprint()
    (split / "a/x.png").write_bytes(b"other content")
    assert list_images(split.rename(tmp_path / "moved")).fingerprint() == first
    touch(tmp_path / "moved", "a/new.jpg")
    assert list_images(tmp_path / "moved").fingerprint() != first


def test_validation_takes_the_classes_of_training(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "val/a/1.jpg", "val/c/1.jpg")
    train = list_images(tmp_path / "train")
    val = list_images(tmp_path / "val", train.classes)
    assert val.labels.tolist() == [0, 2]
    assert val.classes == ("a", "b", "c")
    assert val.present() == ["a", "c"]
    assert list_images(tmp_path / "val").labels.tolist() == [0, 1]
    touch(tmp_path, "val/d/1.jpg")
    with pytest.raises(DataError, match="does not know: d"):
        list_images(tmp_path / "val", train.classes)


def test_missing_folder_shows_the_expected_tree(tmp_path):
    with pytest.raises(DataError, match=r"(?s)No such file.*train/<class>/\*.JPEG.*ddl data samp"):
        list_images(tmp_path / "train")


def test_empty_class_folders_are_named(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "train/b/1.txt")
    (tmp_path / "train/.ipynb_checkpoints").mkdir()
    with pytest.raises(DataError, match=r"without images: b; fill or remove"):
        list_images(tmp_path / "train")


@pytest.mark.parametrize(("loader", "names"), [("npy", ["1.npy"]), ("native", ["1.jpg", "2.jpg"])])
def test_a_loader_of_other_files_lists_these_alone(tmp_path, monkeypatch, loader, names):
    entry = registry.Entry("ours:Npy", extensions=(".npy",))
    monkeypatch.setitem(registry.LOADERS, "npy", entry)
    touch(tmp_path, "train/a/1.npy", "train/a/1.jpg", "train/a/2.jpg")
    found = Dataset(RunSpec(loader=loader, classes=1), tmp_path, "train")
    assert [Path(found.name(one)).name for one in range(len(found))] == names


def test_of_empty_folders_the_files_that_count_are_named(tmp_path):
    touch(tmp_path, "train/a/1.jpg")
    with pytest.raises(DataError, match=r"images: \.npy"):
        list_images(tmp_path / "train", extensions=(".npy",))


def test_a_long_list_is_small(tmp_path):
    classes = tuple(f"n{number:08d}" for number in range(100))
    names = ([f"{name}_{number}.JPEG" for number in range(1000)] for name in classes)
    tracemalloc.start()
    images = ImageList.pack(tmp_path, classes, names)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(images) == 100_000
    assert images.path(99_999) == f"{tmp_path}/n00000099/n00000099_999.JPEG"
    assert held / len(images) < 35  # bytes an image; a list of tuples needs over 200
    assert np.array_equal(pickle.loads(pickle.dumps(images)).labels, images.labels)


def test_a_link_to_a_file_or_folder_elsewhere_is_followed(split, tmp_path):
    touch(tmp_path, "elsewhere/1.jpg")
    (split / "a" / "one.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    (split / "c").symlink_to(tmp_path / "elsewhere")
    images = list_images(split)
    names = [images.name(number) for number in range(len(images))]
    assert {"a/one.jpg", "c/1.jpg"} <= set(names)
