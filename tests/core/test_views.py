import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from ddl_core.config import RunSpec
from ddl_core.data.image import CropSampler, evaluation_corner, evaluation_size
from ddl_core.models import torchvision


def ours(shape, count):
    views = CropSampler(RunSpec(seed=3, repeat=1))
    return [views.draw(2, index, *shape) for index in range(count)]


def torchvisions(shape, count):
    torch.manual_seed(3)
    image = torch.empty(3, *shape)
    crop = torchvision.transforms.RandomResizedCrop
    return [crop.get_params(image, scale=[0.08, 1.0], ratio=[3 / 4, 4 / 3]) for _ in range(count)]


@pytest.mark.parametrize("shape", [(375, 500), (500, 375), (333, 333), (100, 260)])
def test_views_are_distributed_like_those_of_torchvision(shape):
    got = np.array([view[:4] for view in ours(shape, 3000)])
    want = np.array(torchvisions(shape, 3000))
    for part, name in enumerate(("top", "left", "height", "width")):
        assert ks_2samp(got[:, part], want[:, part]).pvalue > 1e-3, name
    area, ratio = (lambda box: box[:, 2] * box[:, 3]), (lambda box: box[:, 3] / box[:, 2])
    assert ks_2samp(area(got), area(want)).pvalue > 1e-3
    assert ks_2samp(ratio(got), ratio(want)).pvalue > 1e-3


def test_half_of_the_views_are_mirrored_whatever_the_crop():
    views = ours((375, 500), 3000)
    flips = np.array([view.flip for view in views])
    assert abs(flips.mean() - 0.5) < 0.03  # three standard deviations
    left = np.array([view.left for view in views])
    assert ks_2samp(left[flips], left[~flips]).pvalue > 1e-3


@pytest.mark.parametrize("shape", [(1, 1), (40, 1000), (1000, 40)])
def test_an_image_without_an_allowed_crop_shows_its_middle_as_in_torchvision(shape):
    assert {view[:4] for view in ours(shape, 100)} == set(torchvisions(shape, 100))


def test_a_view_depends_on_run_epoch_and_image_alone():
    def draw(seed=3, repeat=1, epoch=2, index=7):
        return CropSampler(RunSpec(seed=seed, repeat=repeat)).draw(epoch, index, 375, 500)

    views = CropSampler(RunSpec(seed=3, repeat=1))
    views.draw(0, 0, 375, 500)
    assert views.draw(2, 7, 375, 500) == draw()
    others = [draw(seed=4), draw(repeat=2), draw(epoch=3), draw(index=8)]
    assert len({draw(), *others}) == 5


@pytest.mark.parametrize("shape", [(375, 500), (500, 375), (333, 333), (100, 101)])
@pytest.mark.parametrize("size", [224, 64, 33])
def test_evaluation_resizes_and_cuts_like_torchvision(shape, size):
    marked = torch.arange(float(shape[0] * shape[1])).reshape(1, *shape)
    resized = torchvision.transforms.Resize(size * 256 // 224)(marked)
    assert resized.shape[1:] == evaluation_size(size, *shape)
    top, left = evaluation_corner(size, *resized.shape[1:])
    want = torchvision.transforms.CenterCrop(size)(resized)
    assert torch.equal(resized[:, top : top + size, left : left + size], want)
