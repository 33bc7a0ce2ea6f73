"""Networks as functions: torch's parameters by name, shape and order, and torch's outputs."""

import pytest
import torch
from torch.nn import functional

from ddl_core.errors import SpecError
from ddl_core.libraries.networks import ALEXNET_SIZES, NETWORKS, network
from ddl_core.libraries.shapes import pixels, shapes
from ddl_core.spec.registry import MODELS, resolve

OTHERS = [name for name, entry in MODELS.items() if "tensorflow" in entry.libraries]
SIZES = {"alexnet": 224, "resnet8": 32, "resnet44": 32}  # where 96 pixels do not show as much
CLASSES = 7


def size_of(name: str) -> int:
    return SIZES.get(name, 96)


class Functionals:
    """The operations of torch, over the values of a module."""

    def __init__(self, module):
        self.values, self.training = module.state_dict(), module.training
        self.normalised = {}

    def conv(self, name, x, channels, width, kernel, stride, padding, bias=False):
        weight = self.values[f"{name}.weight"]
        assert weight.shape == (width, channels, kernel, kernel)
        bias = self.values[f"{name}.bias"] if bias else None
        return functional.conv2d(x, weight, bias, stride, padding)

    def norm(self, name, x, width, eps=1e-5):
        parts = ("running_mean", "running_var", "weight", "bias")
        self.normalised[name] = x.shape[2:].numel()
        of_name = (self.values[f"{name}.{part}"] for part in parts)
        return functional.batch_norm(x, *of_name, self.training, 0.1, eps)

    def linear(self, name, x, width, outputs):
        return functional.linear(x, self.values[f"{name}.weight"], self.values[f"{name}.bias"])

    def max_pool(self, x, kernel, stride, padding, ceil=False):
        assert (x >= 0).all()  # so that zeros would do as padding
        return functional.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil)

    def halve(self, x):
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))

    def global_mean(self, x):
        return x.mean(dim=(2, 3))

    def flatten(self, x):
        return x.flatten(1)

    def dropout(self, x, rate):
        return functional.dropout(x, rate, self.training)

    relu, tanh, add, concat = map(
        staticmethod, (torch.relu, torch.tanh, torch.add, lambda parts: torch.cat(parts, 1))
    )


def module_of(name: str) -> torch.nn.Module:
    """Return torch's, with weights and biases of normalisations that are not all alike."""
    torch.manual_seed(0)
    module = resolve("model", name)(CLASSES)
    for value in module.parameters():
        if value.ndim == 1:
            torch.nn.init.uniform_(value, 0.5, 1.5)
    return module


def test_every_model_that_the_libraries_may_be_asked_for_is_there():
    assert OTHERS
    assert set(NETWORKS) == set(OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_parameters_are_those_of_torch_in_its_order(name):
    with torch.device("meta"):
        values = resolve("model", name)(CLASSES).state_dict()
    want = [(key, tuple(value.shape)) for key, value in values.items() if value.ndim]
    assert list(shapes(name, CLASSES, size_of(name)).items()) == want


@pytest.mark.parametrize("name", OTHERS)
def test_outputs_and_statistics_are_those_of_torch(name):
    module, size = module_of(name), size_of(name)
    images = torch.randn(2, 3, size, size)
    apply = network(name, size)
    with torch.inference_mode():
        for training in (True, False):  # first of all, so that statistics are no zeros and ones
            own = Functionals(module.train(training))
            own.values = {key: value.clone() for key, value in own.values.items()}
            torch.manual_seed(1)  # of dropout
            found = apply(own, images, CLASSES)
            torch.manual_seed(1)
            torch.testing.assert_close(found, module(images), rtol=1e-4, atol=1e-5)
            for key, value in module.state_dict().items():
                if value.ndim:
                    torch.testing.assert_close(own.values[key], value)
    assert own.normalised == pixels(name, size)


def test_alexnet_is_refused_where_its_adaptive_pooling_would_change_something():
    features = resolve("model", "alexnet")(CLASSES).features.to("meta")
    for size in (ALEXNET_SIZES[0] - 1, *ALEXNET_SIZES, ALEXNET_SIZES[-1] + 1):
        left = features(torch.empty(1, 3, size, size, device="meta")).shape[2:]
        assert (left == (6, 6)) is (size in ALEXNET_SIZES)
    with pytest.raises(SpecError, match="image_size = 96: outside torch, alexnet takes"):
        network("alexnet", 96)
    with pytest.raises(SpecError, match="use 224"):
        shapes("alexnet", CLASSES, 255)


@pytest.mark.parametrize("size", [63, 75, 97])
def test_pixels_are_counted_where_windows_reach_beyond_the_edge(size):
    module = module_of("googlenet")
    own = Functionals(module.eval())
    with torch.inference_mode():
        network("googlenet", size)(own, torch.randn(1, 3, size, size), CLASSES)
    assert own.normalised == pixels("googlenet", size)
