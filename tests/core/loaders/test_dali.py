"""DALI's graphs for a GPU, the failures of its decoder, and its own readers."""

import io
import logging
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from ddl_core.config import RunSpec
from ddl_core.device import make_clock
from ddl_core.errors import DataError, SpecError
from ddl_core.loop import load_epoch
from ddl_core.registry import resolve
from tests.core.loaders.paths import FORMATS, TRAIN, images_of, open_loader, with_dali

pytestmark = with_dali

READER = "dali_reader_cpu"
ALL = {"train_images": None, "local_batch_size": 16}


def decode_as_on_a_gpu(monkeypatch, name: str, part: str) -> None:
    """Give the CPU's loader `name` the GPU's way to make parts of images, but its own decoder."""
    on_gpu = getattr(resolve("loader", name.replace("cpu", "gpu")), part)
    monkeypatch.setattr(resolve("loader", name), part, on_gpu)
    for region in ("image_slice", "image_random_crop"):
        monkeypatch.delattr(f"nvidia.dali.fn.decoders.{region}")


def test_a_gpu_cuts_the_same_views_out_of_whole_images(data, monkeypatch):
    want = images_of(open_loader("native", data))
    decode_as_on_a_gpu(monkeypatch, "dali_cpu", "_decoded_part")
    got = images_of(open_loader("dali_cpu", data))
    assert got.keys() == want.keys()
    for number, (image, _) in want.items():  # as close as in test_agreement.py
        difference = (got[number][0] - image).abs()
        assert difference.mean() < 0.02, number
        assert difference.quantile(0.99) < 0.1, number


@pytest.mark.parametrize("split", ["train", "eval"])
def test_slices_have_no_constant_input_that_would_lie_on_the_gpu(split, data, monkeypatch):
    from nvidia.dali import fn

    inputs, plain = [], fn.slice

    def slice_(*arguments, **named):
        inputs.append(len(arguments))
        return plain(*arguments, **named)

    decode_as_on_a_gpu(monkeypatch, "dali_cpu", "_decoded_part")
    monkeypatch.setattr(fn, "slice", slice_)
    open_loader("dali_cpu", data, split)._build()
    assert inputs == [1]


def differ(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().mean())


def ratio(content: bytes) -> float:
    """Return width / height of an image."""
    width, height = Image.open(io.BytesIO(content)).size
    return width / height


def test_a_decoder_that_always_fails_ends_the_run(data, monkeypatch, caplog):
    from ddl_core.loaders import dali

    plain = dali._bytes

    def damaged(content: bytes):
        return plain(b"\xff\xd8\xff" + b"\0" * 100 if content[:2] == b"\xff\xd8" else content)

    loader = open_loader("dali_cpu", data, **ALL)
    spec = RunSpec(classes=16, local_batch_size=16, work="load", loader="dali_cpu")
    single = resolve("strategy", "single")(spec)
    outcome = load_epoch(spec, loader, 0, make_clock(single))
    assert (outcome.corrupt_images, outcome.rescued_images) == (0, 0)
    monkeypatch.setattr(dali, "_bytes", damaged)
    with caplog.at_level(logging.WARNING), pytest.raises(DataError, match="64 of 64 images"):
        load_epoch(spec, loader, 1, make_clock(single))
    assert caplog.text.count("DALI failed on images, which Pillow decodes instead") == 1


@pytest.mark.parametrize("name", ["dali_cpu", READER])
def test_an_evaluation_builds_its_pipeline_before_it_is_timed(name, data, monkeypatch):
    loader = open_loader(name, data, "eval")
    plain, calls = type(loader)._build, []
    monkeypatch.setattr(type(loader), "_build", lambda self: calls.append(1) or plain(self))
    for _ in range(2):
        loader.set_epoch(0)
        assert len(calls) == 1
        assert len(list(loader)) == len(loader)
    assert len(calls) == 1


def images_in(form: str) -> int | None:
    """Return the number of images to ask for: DALI's reader of records takes the whole set."""
    return TRAIN if form == "folder" else None


def test_a_part_of_the_records_is_refused_by_dalis_reader(data):
    with pytest.raises(SpecError, match=f"train_images = {TRAIN}.* leave train_images out"):
        open_loader(READER, data, data_format="tfrecord")


@pytest.mark.parametrize("form", FORMATS)
def test_an_epoch_of_dalis_reader_is_the_same_after_a_stop(form, data):
    fields = {"rank": 1, "world_size": 2, "data_format": form, "train_images": images_in(form)}
    undisturbed = open_loader(READER, data, **fields)
    first, want = (images_of(undisturbed, epoch) for epoch in (0, 1))
    assert list(first) != list(want)
    got = images_of(open_loader(READER, data, **fields), 1)
    assert list(got) == list(want)
    assert all(torch.equal(got[number][0], image) for number, (image, _) in want.items())
    assert list(images_of(open_loader(READER, data, **fields, seed=1), 1)) != list(want)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_readers_of_dali_show_the_image_that_they_name(place, form, data, monkeypatch):
    limit = images_in(form)
    fields = {"data_format": form, "train_images": limit, "crop_min_area": 1.0}  # nearly all of it
    native = open_loader("native", data, local_batch_size=1, **fields)
    want = images_of(native)
    if place == "gpu":
        decode_as_on_a_gpu(monkeypatch, READER, "_cropped")
    got = images_of(open_loader(READER, data, **fields))
    assert len(got) == (limit or 64) // 4 * 4
    assert all(label == want[number][1] for number, (_, label) in got.items())
    # Of the others, nearly all is a part that DALI chooses otherwise.
    whole = [number for number in got if 0.76 < ratio(native._files.read(number)[0]) < 1.32]
    mirrored = [differ(got[number][0].flip(2), want[number][0]) < 0.02 for number in whole]
    straight = [differ(got[number][0], want[number][0]) < 0.02 for number in whole]
    assert all(one != other for one, other in zip(mirrored, straight, strict=True))
    assert 5 < sum(mirrored) < len(whole) - 5


def test_a_damaged_file_ends_a_run_with_dalis_reader(data, tmp_path):
    folder = Path(shutil.copytree(data, tmp_path / "copy"))
    for cat in (folder / "train" / "cat").iterdir():
        cat.write_bytes(b"no image at all")
    with pytest.raises(DataError, match=r"verify DIR.*'dali_cpu' survives; DALI says: "):
        images_of(open_loader(READER, folder, **ALL))


def test_labels_beyond_the_classes_end_a_run_with_dalis_reader(data):
    loader = open_loader(READER, data, data_format="tfrecord", train_images=None)
    loader._source._classes = 3
    with pytest.raises(DataError, match="classes = 3"):
        images_of(loader)


@pytest.mark.parametrize("name", ["dali_gpu", "dali_reader_gpu"])
def test_a_loader_for_a_gpu_says_that_there_is_none(name, data):
    with pytest.raises(SpecError, match=name.replace("gpu", "cpu")):
        open_loader(name, data)
    with pytest.raises(SpecError, match=name.replace("gpu", "cpu")):
        RunSpec.parse({"loader": name, "device": "cpu"})


def test_evaluation_with_dalis_reader_is_that_of_the_fed_loader(data):
    want = images_of(open_loader("dali_cpu", data, "eval"))
    got = images_of(open_loader(READER, data, "eval"))
    assert list(got) == list(want)
    assert all(torch.equal(got[number][0], image) for number, (image, _) in want.items())
