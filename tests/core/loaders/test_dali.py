"""DALI: its graphs for a GPU, its epochs, its crops, and records that it orders itself."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from ddl_core.config import RunSpec
from ddl_core.data.image import STD
from ddl_core.errors import SpecError
from ddl_core.registry import resolve
from tests.core.loaders.paths import FORMATS, images_of, open_loader, with_dali

pytestmark = with_dali

ALL = {"train_images": None, "local_batch_size": 16}


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Crop as the GPU's loader does, after decoding whole images, but with the CPU's decoder."""
    from nvidia.dali import fn

    plain = fn.decoders.image

    def whole(encoded, device, **options):
        return plain(encoded, device="cpu", **options)

    monkeypatch.setattr(fn.decoders, "image", whole)
    monkeypatch.delattr(fn.decoders, "image_random_crop")

    def opened(*arguments, **fields):
        loader = open_loader("dali_cpu", *arguments, **fields)
        loader.decoder = "mixed"
        return loader

    return opened


@pytest.mark.parametrize("split", ["train", "eval"])
def test_graphs_have_no_constant_input_that_would_lie_on_the_gpu(
    split, data, monkeypatch, as_on_a_gpu
):
    from nvidia.dali import fn

    inputs = []
    for name in ("slice", "random_resized_crop", "crop_mirror_normalize", "resize"):
        plain = getattr(fn, name)

        def called(*arguments, plain=plain, **named):
            inputs.append(len(arguments))
            return plain(*arguments, **named)

        monkeypatch.setattr(fn, name, called)
    as_on_a_gpu(data, split).set_epoch(0)
    assert set(inputs) == {1}


def ratio(content: bytes) -> float:
    """Return width / height of an image."""
    width, height = Image.open(io.BytesIO(content)).size
    return width / height


def differ(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().mean())


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_pipeline_is_built_before_it_is_timed(split, data, monkeypatch):
    from nvidia.dali.pipeline import Pipeline

    loader = open_loader("dali_cpu", data, split)
    plain, calls = Pipeline.build, []
    monkeypatch.setattr(
        Pipeline, "build", lambda self: self._built or calls.append(1) or plain(self)
    )
    loader.set_epoch(0)
    assert calls
    built = len(calls)
    assert len(list(loader)) == len(loader)
    assert len(calls) == built


@pytest.mark.parametrize("form", FORMATS)
def test_an_epoch_is_the_same_after_a_stop(form, data):
    fields = {"rank": 1, "world_size": 2, "data_format": form}
    undisturbed = open_loader("dali_cpu", data, **fields)
    first, want = (images_of(undisturbed, epoch) for epoch in (0, 1))
    assert list(first) != list(want)
    got = images_of(open_loader("dali_cpu", data, **fields), 1)
    assert list(got) == list(want)
    assert all(torch.equal(got[number][0], image) for number, (image, _) in want.items())
    assert list(images_of(open_loader("dali_cpu", data, **fields, seed=1), 1)) != list(want)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_pipeline_lives_on_where_no_run_is_resumed(split, data, monkeypatch):
    from nvidia.dali.pipeline import Pipeline

    plain, calls = Pipeline.build, []
    monkeypatch.setattr(
        Pipeline, "build", lambda self: self._built or calls.append(1) or plain(self)
    )
    one, other = (open_loader("dali_cpu", data, split, checkpoint_every=0) for _ in range(2))
    shown = []
    for epoch in range(3):
        one.set_epoch(epoch)
        taken = list(itertools.islice(one, len(one)))  # a training asks for no batch beyond
        labels = [label for _, labels in taken for label in labels.tolist()]
        want = images_of(other, epoch)
        assert np.concatenate(one.seen).tolist() == list(want)
        assert labels == [label for _, label in want.values()]
        native = images_of(open_loader("native", data, split), epoch)
        assert list(want) == list(native)
        shown.append(want)
    assert len(calls) == 2
    first, last = shown[0], shown[-1]
    same = [torch.equal(first[number][0], last[number][0]) for number in first.keys() & last.keys()]
    assert all(same) if split == "eval" else not any(same)


def test_a_pipeline_that_was_left_half_way_is_not_used_again(data):
    loader = open_loader("dali_cpu", data, checkpoint_every=0)
    loader.set_epoch(0)
    next(iter(loader))
    want = images_of(open_loader("native", data), 1)
    assert list(images_of(loader, 1)) == list(want)


def test_images_do_not_depend_on_the_number_of_threads(data):
    want, got = (
        images_of(open_loader("dali_cpu", data, loader_workers=threads)) for threads in (1, 3)
    )
    assert list(got) == list(want)
    assert all(torch.equal(got[number][0], image) for number, (image, _) in want.items())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_dali_shows_the_image_that_it_names(place, form, data, request):
    opened = request.getfixturevalue("as_on_a_gpu") if place == "gpu" else None
    fields = {"data_format": form, "crop_min_area": 1.0, "train_images": None}  # nearly all of it
    native = open_loader("native", data, local_batch_size=1, **fields)
    want = images_of(native)
    got = images_of(opened(data, **fields) if opened else open_loader("dali_cpu", data, **fields))
    assert len(got) == 64
    assert all(label == want[number][1] for number, (_, label) in got.items())
    # Of the others, nearly all is a part that DALI chooses otherwise.
    whole = [number for number in got if 0.76 < ratio(native._files.read(number)[0]) < 1.32]
    mirrored = [differ(got[number][0].flip(2), want[number][0]) < 0.02 for number in whole]
    straight = [differ(got[number][0], want[number][0]) < 0.02 for number in whole]
    assert all(one != other for one, other in zip(mirrored, straight, strict=True))
    assert 5 < sum(mirrored) < len(whole) - 5


@pytest.mark.parametrize("split", ["train", "eval"])
def test_images_come_in_the_memory_format_of_the_run(split, data):
    want = images_of(open_loader("dali_cpu", data, split))
    loader = open_loader("dali_cpu", data, split, channels_last=True)
    loader.set_epoch(0)
    images, _ = next(iter(loader))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images[0], want[int(loader.seen[0][0])][0])


@pytest.fixture
def ramps(tmp_path):
    """Pictures whose red is the place from left to right, and whose green that from the top."""
    place = np.linspace(0, 255, 200)
    red, green = np.meshgrid(place, place)
    picture = np.stack([red, green, np.zeros_like(red)], axis=2).round().astype(np.uint8)
    for name in [
        f"{part}/class{number % 2}/{number}.png"
        for part in ("train", "val")
        for number in range(60)
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(tmp_path / name)
    return tmp_path


def crops_of(name: str, folder, area: float) -> np.ndarray:
    """Return the share of the area, the ratio, and whether it is mirrored, of each crop."""
    loader = open_loader(name, folder, **ALL, classes=2, crop_min_area=area)
    shown = torch.stack(
        [image for epoch in range(4) for image, _ in images_of(loader, epoch).values()]
    )
    red, green = shown[:, 0].mean(1) * STD[0], shown[:, 1].mean(2) * STD[1]  # from 0 to 1
    width, height = red[:, -1] - red[:, 0], green[:, -1] - green[:, 0]
    return torch.stack([width.abs() * height, width.abs() / height, (width < 0).float()]).numpy()


@pytest.mark.parametrize("area", [0.08, 0.5])
def test_crops_have_the_distribution_of_other_loaders(area, ramps):
    want, got = (crops_of(name, ramps, area) for name in ("native", "dali_cpu"))
    assert got.shape == want.shape == (3, 192)
    spread = np.sqrt((want.var(axis=1) + got.var(axis=1)) / 192)
    assert (np.abs(got.mean(axis=1) - want.mean(axis=1)) < 4 * spread).all()
    assert np.allclose(
        np.quantile(got[:2], [0.1, 0.9], axis=1),
        np.quantile(want[:2], [0.1, 0.9], axis=1),
        atol=0.15,
    )


@pytest.mark.parametrize("fields", [{}, {"dali_decode": "cpu"}])
def test_a_loader_for_a_gpu_says_that_there_is_none(fields, data):
    with pytest.raises(SpecError, match="dali_cpu"):
        open_loader("dali_gpu", data, **fields)
    with pytest.raises(SpecError, match="dali_cpu"):
        RunSpec.parse({"loader": "dali_gpu", "device": "cpu", **fields})


def test_where_to_decode_is_asked_of_the_gpus_loader_alone():
    with pytest.raises(SpecError, match="dali_decode = 'cpu' is of loader = 'dali_gpu' alone"):
        RunSpec.parse({"loader": "dali_cpu", "dali_decode": "cpu"})
    assert resolve("loader", "dali_gpu").on_gpu
