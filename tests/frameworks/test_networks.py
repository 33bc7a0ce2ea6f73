"""Networks as functions: torch's parameters by name, shape and order, and torch's outputs."""

import pytest
import torch
from torch.nn import functional

from ddl_core.errors import SpecError
from ddl_core.registry import MODELS, resolve
from ddl_tools.frameworks.networks import ALEXNET_SIZES, NETWORKS, network

OTHERS = [name for name, entry in MODELS.items() if "tensorflow" in entry.frameworks]
SIZES = {"alexnet": 224, "resnet8": 32, "resnet44": 32}  # where 96 pixels do not show as much
CLASSES = 7


def size_of(name: str) -> int:
    return SIZES.get(name, 96)


class Functionals:
    """The operations of torch, over the values of a module; notes which ones are asked for.

    Shapes are those that a framework would infer from the input and the arguments.
    """

    def __init__(self, module):
        self.values = {key: value.clone() for key, value in module.state_dict().items()}
        self.training = module.training
        self.noted = {}

    def value(self, name, *shape):
        self.noted[name] = shape
        return self.values[name]

    def conv(self, name, x, width, window, bias=False):
        kernel, *rest = window
        weight = self.value(f"{name}.weight", width, x.shape[1], kernel, kernel)
        return functional.conv2d(
            x, weight, self.value(f"{name}.bias", width) if bias else None, *rest
        )

    def norm(self, name, x, eps=1e-5):
        parts = ("weight", "bias", "running_mean", "running_var")
        weight, bias, mean, variance = (self.value(f"{name}.{one}", x.shape[1]) for one in parts)
        return functional.batch_norm(x, mean, variance, weight, bias, self.training, 0.1, eps)

    def linear(self, name, x, outputs):
        weight = self.value(f"{name}.weight", outputs, x.shape[1])
        return functional.linear(x, weight, self.value(f"{name}.bias", outputs))

    def max_pool(self, x, window, ceil=False):
        assert x.is_meta or (x >= 0).all()  # so that zeros would do as padding
        return functional.max_pool2d(x, *window, ceil_mode=ceil)

    def halve(self, x):
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))

    def global_mean(self, x):
        return x.mean(dim=(2, 3))

    def flatten(self, x):
        return x.flatten(1)

    def dropout(self, x, rate):
        return functional.dropout(x, rate, self.training)

    def relu(self, x):
        return torch.relu(x)

    def concat(self, parts):
        return torch.cat(parts, 1)


def module_of(name: str) -> torch.nn.Module:
    """Return torch's, with weights and biases of normalisations that are not all alike."""
    torch.manual_seed(0)
    module = resolve("model", name)(CLASSES)
    for value in module.parameters():
        if value.ndim == 1:
            torch.nn.init.uniform_(value, 0.5, 1.5)
    return module


def test_every_model_that_the_frameworks_may_be_asked_for_is_there():
    assert OTHERS
    assert set(NETWORKS) == set(OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_parameters_are_those_of_torch_in_its_order(name):
    size = size_of(name)
    with torch.device("meta"):
        module, images = resolve("model", name)(CLASSES), torch.empty(2, 3, size, size)
    found = Functionals(module)
    network(name, size)(found, images, CLASSES)
    values = module.state_dict().items()
    assert list(found.noted.items()) == [(key, tuple(of.shape)) for key, of in values if of.ndim]


@pytest.mark.parametrize("name", OTHERS)
def test_outputs_and_statistics_are_those_of_torch(name):
    module, size = module_of(name), size_of(name)
    images = torch.randn(2, 3, size, size)
    for training in (True, False):  # in this order: evaluation with statistics of training
        found = Functionals(module.train(training))
        with torch.inference_mode():
            torch.manual_seed(1)  # of dropout
            logits = network(name, size)(found, images, CLASSES)
            torch.manual_seed(1)
            torch.testing.assert_close(logits, module(images), rtol=1e-4, atol=1e-5)
        for key, value in module.state_dict().items():
            if value.ndim:
                torch.testing.assert_close(found.values[key], value)


def test_alexnet_is_refused_where_its_adaptive_pooling_would_change_something():
    features = resolve("model", "alexnet")(CLASSES).features.to("meta")
    for size in (ALEXNET_SIZES[0] - 1, *ALEXNET_SIZES, ALEXNET_SIZES[-1] + 1):
        left = features(torch.empty(1, 3, size, size, device="meta")).shape[2:]
        assert (left == (6, 6)) is (size in ALEXNET_SIZES)
    with pytest.raises(SpecError, match="image_size = 96: outside torch, alexnet takes"):
        network("alexnet", 96)
