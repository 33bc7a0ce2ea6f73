"""The loader that keeps a small set on the device: its crops are those of `turbo`, to rounding."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from ddl_core.config import RunSpec
from ddl_core.data.image import MEAN, STD, CropSampler, crop_image
from ddl_core.loaders.memory import crops, weights
from tests.core.loaders.paths import images_of, open_loader
from tests.pictures import write_pictures

STEP = 1 / 255 / min(STD)  # one of 256 steps, normalised, in the channel where it is largest
WHOLE = {"train_images": None, "eval_images": None}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Return a set of pictures of five sizes, of which one is tall and one is grey."""
    root = write_pictures(tmp_path_factory.mktemp("pictures"), 24, 8)
    for number, path in enumerate(sorted(root.glob("*/*/*"))):
        with Image.open(path) as image:
            size = [(24, 20), (33, 17), (16, 70), (48, 48), (9, 11)][number % 5]
            image.resize(size).convert("L" if number % 7 == 0 else "RGB").save(path, "PNG")
    return root


@pytest.mark.parametrize("size", [8, 14, 32, 64])
@pytest.mark.parametrize("split", ["train", "eval"])
def test_its_images_are_those_of_turbo(pictures, split, size):
    """Smaller, larger and mirrored ones."""
    for epoch in (0, 3):
        want, got = (
            images_of(open_loader(name, pictures, split, image_size=size, **WHOLE), epoch)
            for name in ("turbo", "memory")
        )
        assert list(got) == list(want)
        for number, (image, label) in want.items():
            assert got[number][1] == label
            # Both resizers of 8 bits round twice, and once more in between.
            assert (got[number][0] - image).abs().max() <= 1.6 * STEP, number


def test_a_crop_is_pillows_without_its_rounding():
    generator = np.random.default_rng(0)
    photo = generator.integers(0, 256, (40, 30, 3), dtype=np.uint8)
    sampler = CropSampler(RunSpec(crop_min_area=0.1))
    kept = torch.from_numpy(photo).permute(0, 2, 1)[None].contiguous()
    for number in range(50):
        part = sampler.draw(0, number, 40, 30)
        view = [part.top, part.height, 16, 0, part.left, part.width, 16, 0, part.flip]
        (got,) = crops(kept, torch.tensor([view], dtype=torch.float32), 16)
        want = np.asarray(crop_image(Image.fromarray(photo), 16, part)).transpose(2, 0, 1)
        assert np.abs(got.numpy() - want).max() <= 1.01


def test_the_weights_of_a_pixel_add_up_to_one():
    views = torch.tensor([[0.0, 28, 32, 0], [3, 1, 32, 0], [27, 1, 32, 0]])
    found = weights(views, 32, 28)
    assert torch.allclose(found.sum(-1), torch.ones(3, 32))
    assert found[1, :, 3].eq(1).all()  # a part of one pixel has its colour only


def test_an_unreadable_image_is_the_mean_colour_and_counts_each_time(pictures, tmp_path):
    root = shutil.copytree(pictures, tmp_path / "pictures")
    sorted((root / "train" / "class0").glob("*"))[0].write_bytes(b"no image")
    loader = open_loader("memory", root, image_size=16, local_batch_size=6, **WHOLE)
    for epoch in (0, 1):
        shown = images_of(loader, epoch)
        assert loader.corrupt_images == 1
        flat = [image for image, _ in shown.values() if image.std(dim=(1, 2)).max() < 1e-6]
        assert len(flat) == 1
        pixels = flat[0].mean(dim=(1, 2)) * torch.tensor(STD) + torch.tensor(MEAN)
        assert torch.allclose(255 * pixels, 255 * torch.tensor(MEAN), atol=0.51)


def test_an_epoch_of_several_passes_crops_an_image_anew_in_each(pictures):
    loader = open_loader(
        "memory", pictures, image_size=16, min_steps_per_epoch=12, eval_every=0, **WHOLE
    )
    shown = images_of(loader)
    assert len(shown) == 48  # two passes over 24
    assert not torch.equal(shown[0][0], shown[24][0])
    assert shown[0][1] == shown[24][1]
