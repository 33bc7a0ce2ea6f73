"""Networks: the published number of parameters, and an output of the right shape."""

import pytest
import torch

from ddl_core.registry import MODELS, resolve

# torchvision's documentation; He et al. 2016, table 6, gives 0.66 million for ResNet44 on CIFAR.
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "alexnet": 61_100_840,
    "googlenet": 6_624_904,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_published_network(name):
    with torch.device("meta"):
        network = resolve("model", name)(1000)
    assert sum(p.numel() for p in network.parameters()) == PARAMETERS[name]


def test_resnet44_is_the_one_of_the_paper():
    network = resolve("model", "resnet44")(10)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(0.66e6, rel=0.01)
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) + 1 == 44


@pytest.mark.parametrize("name", ["resnet18", "resnet44", "alexnet", "googlenet"])
def test_forward_gives_one_logit_per_class(name):
    assert name in MODELS
    size = 32 if name.startswith("resnet") else 96
    logits = resolve("model", name)(7).eval()(torch.zeros(2, 3, size, size))
    assert logits.shape == (2, 7)
