"""Networks have the published number of parameters."""

import pytest
import torch

from ddl_core.registry import resolve

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
