import numpy as np
import pytest

from ddl_core.errors import SpecError
from ddl_tools.emulation.layers import layers
from ddl_tools.scaling.communication import resnet


@pytest.mark.parametrize(
    ("model", "parameters", "flop"),
    [
        ("resnet18", 11_689_512, 1.8e9),
        ("resnet50", 25_557_032, 4.1e9),
        ("resnet101", 44_549_160, 7.8e9),
        ("resnet152", 60_192_808, 11.5e9),
    ],
)
def test_sizes_are_those_of_the_networks(model: str, parameters: int, flop: float) -> None:
    assert resnet(model).total == 4 * parameters
    assert sum(layer.flop for layer in layers(model)) == pytest.approx(flop, rel=0.02)


def test_the_last_layer_is_ready_first_and_the_first_last() -> None:
    gradients = resnet("resnet50")
    assert len(gradients.nbytes) == 161
    assert gradients.nbytes[0] == 4 * 1000  # the bias behind the last layer's weights
    assert gradients.nbytes[-1] == 4 * 64 * 3 * 49
    assert (np.diff(gradients.ready) >= 0).all()
    assert gradients.ready[0] < 0.01
    assert gradients.ready[-1] == 1


def test_a_network_without_gradients_here_is_named() -> None:
    with pytest.raises(SpecError, match=r"model='vgg16'; allowed: resnet18, resnet50"):
        resnet("vgg16")
