"""A set that the library datasets has saved becomes an image folder: same pixels, same labels."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as Pillow

from ddl_core.datasets.folder import list_images
from ddl_core.datasets.own import SOURCE, write_own
from ddl_core.errors import DataError, NotInstalledError

NAMES = ["a cat", "dog/s"]
FEATURES = Features({"id": Value("int64"), "seen": Image(), "kind": ClassLabel(names=NAMES)})
COLOURS = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
WIDE = np.full((4, 5), 0x8012, np.uint16)


def encoded(array: np.ndarray, suffix: str) -> bytes:
    content = io.BytesIO()
    Pillow.fromarray(array).save(content, suffix)
    return content.getvalue()


JPEG, GREY_JPEG = encoded(COLOURS, "JPEG"), encoded(COLOURS[..., 0], "JPEG")
IMAGES = [
    encoded(COLOURS, "PNG"),
    encoded(COLOURS[..., 0], "PNG"),
    JPEG,
    GREY_JPEG,
    encoded(WIDE, "PNG"),
    WIDE,  # which the library stores as TIFF
    Pillow.fromarray(COLOURS),
]


def rows(count: int = len(IMAGES), features: Features = FEATURES) -> Dataset:
    """Return a split: images of every kind in turn, each third a dog."""
    numbers = range(count)
    images = [IMAGES[number % len(IMAGES)] for number in numbers]
    labels = [int(number % 3 == 1) for number in numbers]
    values = dict(zip(features, (list(numbers), images, labels), strict=True))
    return Dataset.from_dict(values, features=features)


def saved(where: Path, **splits: Dataset) -> str:
    DatasetDict(splits).save_to_disk(where)
    return str(where)


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Return a set with both splits, to be damaged."""
    return Path(saved(tmp_path / "set", train=rows(), validation=rows(2)))


def told(folder: Path) -> dict[str, str]:
    return json.loads((folder / SOURCE).read_text())


def write(source: object, out: Path) -> int:
    return write_own(str(source), out, progress=False)


def test_pixels_and_labels_are_those_of_the_set(tmp_path: Path, both: Path) -> None:
    out = tmp_path / "out"
    assert write(both, out) == len(IMAGES) + 2
    listed = list_images(out / "train")
    assert listed.classes == ("0_a_cat", "1_dog_s")
    assert [listed.name(number) for number in range(len(listed))] == [
        "0_a_cat/00000.png", "0_a_cat/00002.jpg", "0_a_cat/00003.jpg", "0_a_cat/00005.png",
        "0_a_cat/00006.png", "1_dog_s/00001.png", "1_dog_s/00004.png",
    ]  # fmt: skip

    def pixels(name: str) -> np.ndarray:
        return np.asarray(Pillow.open(out / "train" / name))

    assert np.array_equal(pixels("0_a_cat/00000.png"), COLOURS)
    assert np.array_equal(pixels("1_dog_s/00001.png"), COLOURS[..., 0])
    assert (out / "train/0_a_cat/00002.jpg").read_bytes() == JPEG
    assert (out / "train/0_a_cat/00003.jpg").read_bytes() == GREY_JPEG
    for name in ("1_dog_s/00004.png", "0_a_cat/00005.png"):
        assert (pixels(name) == 0x80).all(), "of 16 bits the upper 8"
    assert np.array_equal(pixels("0_a_cat/00006.png"), COLOURS)
    assert len(list_images(out / "val")) == 2
    assert write(both, out) == 0


@pytest.mark.parametrize("held", ["validation", "valid", "val", "test"])
def test_these_splits_are_for_validation(tmp_path: Path, held: str) -> None:
    splits = {"train": rows(), held: rows(3), "unsupervised": rows(4)}
    if held != "test":
        splits["test"] = rows(5)
    out = tmp_path / "out"
    write(saved(tmp_path / "set", **splits), out)
    assert [len(list_images(out / one)) for one in ("train", "val")] == [len(IMAGES), 3]


@pytest.mark.parametrize("alone", [True, False])
def test_one_split_is_divided_by_numbers(tmp_path: Path, alone: bool) -> None:
    counts = {}
    for count in (300, 301):
        where, out = tmp_path / f"set{count}", tmp_path / f"out{count}"
        if alone:
            rows(count).save_to_disk(where)
        else:
            saved(where, test=rows(count))
        assert write(where, out) == count
        counts[count] = [len(list_images(out / split)) for split in ("train", "val")]
        assert sum(counts[count]) == count
    assert 15 <= counts[300][1] <= 45
    more = np.subtract(counts[301], counts[300]).tolist()
    assert more in ([1, 0], [0, 1]), "an image more moves no other"


def test_an_image_may_be_a_path_only(tmp_path: Path, both: Path) -> None:
    (tmp_path / "one.jpg").write_bytes(JPEG)
    change(both / "train", seen=[{"bytes": None, "path": str(tmp_path / "one.jpg")}] * len(IMAGES))
    write(both, tmp_path / "out")
    assert (tmp_path / "out/train/0_a_cat/00000.jpg").read_bytes() == JPEG


def test_the_fingerprint_is_of_the_content(tmp_path: Path, both: Path) -> None:
    first = tmp_path / "first"
    write(both, first)
    elsewhere = shutil.copytree(both, tmp_path / "else" / "where")
    for one in elsewhere.rglob("*"):
        os.utime(one, (1, 1))
    assert write(elsewhere, first) == 0, "another place, other times"
    state = both / "validation" / "state.json"
    other = {**json.loads(state.read_text()), "_fingerprint": "0123456789abcdef"}
    state.write_text(json.dumps(other))
    assert write(both, first) == 0, "saved once more"

    # As many bytes, and the library's own fingerprint: a label alone is another.
    before = {one: one.stat().st_size for one in both.rglob("*.arrow")}
    change(elsewhere / "train", kind=[1, 0] + [1] * (len(IMAGES) - 2))
    change(both / "train", kind=[0, 1] + [0] * (len(IMAGES) - 2))
    found = {one: one.stat().st_size for one in both.rglob("*.arrow")}
    assert found == before
    tolds = [told(first)]
    for number, one in enumerate((both, elsewhere)):
        with pytest.raises(DataError, match="holds another set, or an older state of it"):
            write(one, first)
        write(one, tmp_path / str(number))
        tolds.append(told(tmp_path / str(number)))
    assert len({one["train"] for one in tolds}) == 3
    assert len({one["val"] for one in tolds}) == 1

    info = both / "train" / "dataset_info.json"
    info.write_text(info.read_text().replace("dog/s", "wolf"))
    shutil.copy(info, both / "validation")
    write(both, tmp_path / "renamed")
    assert told(tmp_path / "renamed")["train"] != told(tmp_path / "0")["train"]


def test_a_format_and_a_column_that_nobody_can_read_are_left_alone(tmp_path: Path) -> None:
    split = rows().with_format("numpy", columns=["id"])
    write(saved(tmp_path / "set", train=split, val=split), tmp_path / "out")
    assert len(list_images(tmp_path / "out/train")) == len(IMAGES)


def change(split: Path, **columns: list) -> None:
    """Replace columns of a saved split, in its file alone."""
    (file,) = split.glob("*.arrow")
    table = pa.ipc.open_stream(file.read_bytes()).read_all()
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        table = table.set_column(place, field, pa.array(values, field.type))
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)


def entry(content: bytes | None, path: str | None) -> dict:
    return {"bytes": content, "path": path}


def second(one: object) -> Callable[[Path], None]:
    """Replace the second image."""
    first = entry(JPEG, None)
    return lambda root: change(root / "train", seen=[first, one] + [first] * (len(IMAGES) - 2))


def unlabelled(*labels: int | None) -> Callable[[Path], None]:
    """Give the last of these labels to one image, the first to all others."""
    labels_of_all = [labels[0]] * (len(IMAGES) - 1) + [labels[-1]]
    return lambda root: change(root / "train", kind=labels_of_all)


def cut(root: Path) -> None:
    (file,) = (root / "train").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:-200])


def emptied(root: Path) -> None:
    (file,) = (root / "train").glob("*.arrow")
    file.write_bytes(b"")


def offset(root: Path) -> None:
    """Let an image begin far outside of the file."""
    (file,) = (root / "train").glob("*.arrow")
    content = file.read_bytes()
    sizes = np.cumsum([0, *(len(one["bytes"]) for one in rows().cast_column(
        "seen", Image(decode=False))["seen"])], dtype="<i4")  # fmt: skip
    assert content.count(sizes.tobytes()) == 1
    sizes[1] = 2**31 - 1
    place = content.index(sizes[2:].tobytes()) - 8
    file.write_bytes(content[:place] + sizes.tobytes() + content[place + sizes.nbytes :])


def fifo(root: Path) -> None:
    (file,) = (root / "train").glob("*.arrow")
    file.unlink()
    os.mkfifo(file)
    os.open(file, os.O_RDWR)  # else whoever opened it would wait, and no timeout could end that


def text(name: str, content: str) -> Callable[[Path], None]:
    return lambda root: (root / name).write_text(content) and None


def other_classes(root: Path) -> None:
    shutil.rmtree(root / "validation")
    rows().cast_column("kind", ClassLabel(names=["a cat", "wolf"])).save_to_disk(
        root / "validation"
    )


def without(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (second(None), "train image 1: it has neither bytes nor a path"),
        (second(entry(None, None)), "train image 1: it has neither bytes nor a path"),
        (second(entry(b"", "a.jpg")), "train image 1: it has no bytes"),
        (second(entry(b"no", "a.jpg")), "train image 1: not an image of a known format"),
        (second(entry(JPEG[:-300], None)), "train image 1: OSError: "),
        (second(entry(None, "/no/where.jpg")), "1: cannot read /no/where.jpg: No such file"),
        (second(entry(None, "/dev")), "1: cannot read /dev: it is a folder, not a file"),
        (second(entry(None, "https://example.org/a.jpg")), "1: cannot read https://.*: No such"),
        (unlabelled(None), "train: 7 of 7 images have no label .*; save a DatasetDict without"),
        (unlabelled(-1), "train: 7 of 7 images have no label .none, or -1"),
        (unlabelled(0, None), "train: 1 of 7 images have no label"),
        (lambda root: change(root / "train", kind=[2] * len(IMAGES)), "label 2, but there are 2 c"),
        (cut, r"set/train cannot be read as a saved set of images \(.*\); copy it once more"),
        (emptied, "set/train cannot be read as a saved set of images"),
        (offset, r"set/train cannot be read .* \(ArrowInvalid: .*offset"),
        (fifo, "set/train cannot be read .* a fifo, not a file"),
        (text("train/state.json", '{"_data_files'), r"set/train cannot .* \(JSONDecodeError"),
        (text("train/state.json", "{}"), r"set/train cannot be read .* \(KeyError"),
        (text("train/state.json", '{"_data_files": []}'), "set/train cannot be read as"),
        (text("train/dataset_info.json", "[]"), "set/train cannot be read as"),
        (text("train/dataset_info.json", '{"features": {"a": {"_type": "No"}}}'), "train cannot"),
        (without("train/state.json"), "set/train cannot .*No such file"),
        (lambda root: shutil.rmtree(root / "train"), "set/train has no file .*copied whole; sa"),
        (text("dataset_dict.json", '{"spl'), r"set/dataset_dict.json cannot .* \(JSONDecodeE"),
        (text("dataset_dict.json", "[" * 9999), r"dataset_dict.json cannot .* \(RecursionErr"),
        (text("dataset_dict.json", "[]"), "set/dataset_dict.json cannot be read as"),
        (text("dataset_dict.json", '{"splits": 3}'), "its splits are no list of names"),
        (text("dataset_dict.json", '{"splits": ["../a"]}'), "its splits are no list of names"),
        (text("dataset_dict.json", '{"splits": [3]}'), "dataset_dict.json cannot be read as"),
        (other_classes, "different classes: 'a cat', '.*' and 'a cat', '.*'; cast both to one"),
    ],
)
def test_damage_is_named_and_nothing_is_left(
    tmp_path: Path, both: Path, damage: Callable[[Path], None], match: str
) -> None:
    damage(both)
    with pytest.raises(DataError, match=match) as caught:
        write(both, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


TWO = Features({"id": Image(), "seen": Image(), "kind": ClassLabel(names=NAMES)})


@pytest.mark.parametrize(
    ("splits", "match"),
    [
        ({"train": rows(), "a": rows()}, "has the splits train, a; it has to have one alone, or"),
        ({"val": rows(), "test": rows()}, "has the splits val, test; .*save a DatasetDict of"),
        ({"train": rows(), "val": rows(), "valid": rows()}, "the splits train, val, valid; "),
        ({}, r"has the splits \(none\)"),
        ({"train": rows(), "val": rows(0)}, "set/val has no file .*: the set has no images, or"),
        ({"train": rows(0)}, "set/train has no file .*: the set has no images, or was not copied"),
        ({"train": rows(1)}, "one image alone: a cat"),
        (
            {"train": rows().remove_columns("seen")},
            "set/train has to have one column of type Image, but has none among 'id', 'kind'; "
            "choose in a function of your own: docs/your_data.md",
        ),
        (
            {"train": rows().cast_column("kind", Value("int64"))},
            "one column of type ClassLabel, but has none among 'id', 'seen', 'kind'",
        ),
        (
            {"train": rows().cast_column("id", ClassLabel(num_classes=99))},
            "one column of type ClassLabel, but has these: 'id', 'kind'",
        ),
        (
            {"train": Dataset.from_dict({"id": [JPEG], "seen": [JPEG], "kind": [0]}, TWO)},
            "one column of type Image, but has these: 'id', 'seen'",
        ),
    ],
)
def test_a_set_that_is_not_clear_is_refused(
    tmp_path: Path, splits: dict[str, Dataset], match: str
) -> None:
    with pytest.raises(DataError, match=match):
        write(saved(tmp_path / "set", **splits), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_of_an_undivided_set_the_number_in_the_set_is_told(tmp_path: Path) -> None:
    rows(40).save_to_disk(tmp_path / "set")
    images = [entry(JPEG, None)] * 39 + [entry(b"no", None)]
    change(tmp_path / "set", seen=images)
    with pytest.raises(DataError, match=r"(train|val) image \d+ \(undivided: 39\): not an image"):
        write(tmp_path / "set", tmp_path / "out")


def test_a_folder_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = saved(tmp_path / "a set, 50%20 #1?", train=rows(), val=rows())
    assert write(Path(source).name, tmp_path / "out") == 2 * len(IMAGES)


def test_a_name_that_the_library_takes_for_an_address_is_refused(
    tmp_path: Path, both: Path
) -> None:
    both.rename(tmp_path / "a::http")
    with pytest.raises(DataError, match=r"a::http: the library takes .* in the network; rename"):
        write(tmp_path / "a::http", tmp_path / "out")


@pytest.mark.parametrize("place", ["a.parquet", "data/train-00000.parquet", "train/data.arrow"])
def test_what_the_library_keeps_elsewhere_is_no_saved_set(tmp_path: Path, place: str) -> None:
    file = tmp_path / "set" / place
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    with pytest.raises(DataError, match="not as save_to_disk writes them; save what load_dataset"):
        write(tmp_path / "set", tmp_path / "out")


def test_classes_without_images_have_no_folder(tmp_path: Path) -> None:
    """As `filter` and `select` leave them: names of classes stay."""
    named = [*NAMES, "never", "seldom"]
    features = Features({**FEATURES, "kind": ClassLabel(names=named)})
    rare = rows(20, features).map(lambda row: {"kind": 3 if row["id"] == 7 else row["kind"]})
    out = tmp_path / "out"
    write(saved(tmp_path / "set", train=rare, val=rows(4, features)), out)
    assert list_images(out / "train").classes == ("0_a_cat", "1_dog_s", "3_seldom")
    assert len(list_images(out / "val", list_images(out / "train").classes)) == 4
    few = rows(4, features)
    with pytest.raises(DataError, match=r"val has images .* training has none: 3_seldom"):
        write(saved(tmp_path / "other", train=few, val=rare), tmp_path / "more")
    assert [one.name for one in tmp_path.iterdir() if "more" in one.name] == [".more.lock"]


def test_numbers_of_32_bits_are_refused(tmp_path: Path) -> None:
    """The library keeps such as TIFF; whether 180 is grey nobody knows."""
    images = [np.full((4, 5), 180, np.int32)] * 4
    values = {"id": [0] * 4, "seen": images, "kind": [0] * 4}
    split = Dataset.from_dict(values, features=FEATURES)
    with pytest.raises(DataError, match=r"train image 0: .*32 bits, of which nobody"):
        write(saved(tmp_path / "set", train=split, val=split), tmp_path / "out")


def test_half_of_its_files_make_no_saved_set(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "state.json").write_text("{}")
    with pytest.raises(DataError, match="set has no class folders"):
        write(tmp_path / "set", tmp_path / "out")


def test_without_the_library_the_error_says_how_to_get_it(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(NotInstalledError, match=r"'datasets'.*pip install datasets==[\d.]+`"):
        write(both, tmp_path / "out")


def test_it_is_imported_offline_and_the_environment_stays(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process of its own: here it is imported already."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("HF_DATASETS_OFFLINE", raising=False)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from ddl_core.datasets.own import write_own\n"
        "assert 'datasets' not in sys.modules\n"
        "write_own(sys.argv[1], Path(sys.argv[2]), False)\n"
        "import datasets.config, huggingface_hub.constants\n"
        "assert datasets.config.HF_HUB_OFFLINE and huggingface_hub.constants.HF_HUB_OFFLINE\n"
        "assert os.environ['HF_HUB_OFFLINE'] == '0' and 'HF_DATASETS_OFFLINE' not in os.environ\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, both, tmp_path / "out"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
