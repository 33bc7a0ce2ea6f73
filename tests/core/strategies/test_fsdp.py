"""FSDP: which weights are gathered together, and what is refused."""

import pytest
import torch
from torch import nn

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_core.models import drawn, resnet18
from ddl_core.strategies import fsdp
from ddl_core.strategies.fsdp import units


def sizes(model: nn.Module) -> list[int]:
    """Return how many weights each unit has of its own."""
    taken: set[nn.Parameter] = set()
    found = []
    for unit in units(model):
        own = set(unit.parameters()) - taken
        taken |= own
        found.append(sum(one.numel() for one in own))
    return found


def test_every_weight_is_in_one_unit_and_all_but_the_last_are_large() -> None:
    model = resnet18(10)
    own = sizes(model)
    assert sum(own) == sum(one.numel() for one in model.parameters())
    assert units(model)[-1] is model
    assert min(own[:-1]) >= fsdp.UNIT
    assert len(own) > 3
    assert max(own) < 5 * fsdp.UNIT  # a block of 512 channels is 4.7 million


class ReadsWeights(nn.Module):
    """Reads the weights of two parts that it never calls, as networks of timm do."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.attention = nn.Linear(4, 12), nn.MultiheadAttention(4, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = nn.functional.linear(images, self.qkv.weight)[:, :4]
        return self.attention(rows, rows, rows)[0]


@pytest.mark.parametrize("name", ["own", "timm/test_vit", "torchvision/googlenet", "resnet18"])
def test_every_unit_is_called(monkeypatch, name) -> None:
    """Else its weights are read before they are gathered."""
    monkeypatch.setattr(fsdp, "UNIT", 10)
    run = RunSpec(model="resnet18" if name == "own" else name, classes=3, image_size=160)
    model = nn.Sequential(ReadsWeights(), nn.Linear(4, 3)) if name == "own" else drawn(run)
    called = set()
    found = units(model)
    for one in found:
        one.register_forward_pre_hook(lambda module, _: called.add(module))
    model.eval()(torch.zeros(2, 4) if name == "own" else torch.zeros(1, 3, 160, 160))
    assert called == set(found)
    assert len(found) > 1


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


def test_weights_of_two_layers_are_refused() -> None:
    with pytest.raises(SpecError, match=r"as second\.weight is"):
        fsdp._refuse_tied(Tied())
