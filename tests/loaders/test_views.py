import pytest
import torch

from ddl_core.loaders.views import Training, evaluation_corner, evaluation_size
from ddl_core.seeds import derive_seed
from ddl_core.spec import RunSpec
from ddl_core.vision import transforms

SHAPES = [(375, 500), (500, 375), (1, 1), (40, 1000), (1000, 40), (224, 224)]


@pytest.mark.parametrize("shape", SHAPES)
def test_views_are_those_of_torchvision(shape):
    views = Training(RunSpec(seed=3, repeat=1))
    for index in range(50):
        got = views.view(2, index, *shape)
        torch.manual_seed(derive_seed("augment", 3, 1, 2, index))
        box = transforms.RandomResizedCrop.get_params(
            torch.empty(3, *shape), scale=[0.08, 1.0], ratio=[3 / 4, 4 / 3]
        )
        assert got[:4] == box
        assert got.flip == bool(torch.rand(1) < 0.5)


def test_drawing_a_view_leaves_the_random_numbers_of_training_alone():
    torch.manual_seed(1)
    want = torch.rand(1)
    torch.manual_seed(1)
    Training(RunSpec()).view(0, 0, 375, 500)
    assert torch.equal(torch.rand(1), want)


@pytest.mark.parametrize("shape", [(375, 500), (500, 375), (333, 333), (100, 101)])
@pytest.mark.parametrize("size", [224, 64, 33])
def test_evaluation_resizes_and_cuts_like_torchvision(shape, size):
    marked = torch.arange(float(shape[0] * shape[1])).reshape(1, *shape)
    resized = transforms.Resize(size * 256 // 224)(marked)
    assert resized.shape[1:] == evaluation_size(size, *shape)
    top, left = evaluation_corner(size, *resized.shape[1:])
    want = transforms.CenterCrop(size)(resized)
    assert torch.equal(resized[:, top : top + size, left : left + size], want)
