"""Activation checkpointing: fewer kept activations, the same training, the blocks of networks."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ddl_core.activations import checkpoint_activations
from ddl_core.batch_norm import split_statistics
from ddl_core.blocks import blocks
from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_core.models import drawn
from tests.planted import tiny

IMAGES = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def kept_bytes(network: nn.Module, images: Tensor) -> int:
    """Return the bytes of different tensors that a forward pass keeps, and those of each block."""
    kept: dict[int, int] = {}
    weights = {one.data_ptr() for one in network.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    for block in blocks(network):  # whose inputs are kept by torch's checkpoint itself
        block.register_forward_pre_hook(lambda _, inputs: [*map(pack, inputs)] and None)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = network(images).sum()
    del loss
    return sum(kept.values())


def trained(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return gradients and buffers after two passes."""
    torch.manual_seed(0)
    for _ in range(2):
        network(images).square().sum().backward()
    gradients = {name: one.grad for name, one in network.named_parameters()}
    return gradients | dict(network.named_buffers())


def pair(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return a network, and the same one with activation checkpointing."""
    other = copy.deepcopy(network)
    checkpoint_activations(other)
    assert other.state_dict().keys() == network.state_dict().keys()
    return network, other


def dropped() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True)),
        nn.Sequential(nn.Dropout(0.5), nn.Conv2d(4, 4, 3)),
        nn.Flatten(),
    )


def ghosts() -> nn.Module:
    network = tiny(3)
    split_statistics(network, 2)
    return network


@pytest.mark.parametrize("make", [lambda: tiny(3), ghosts, dropped])
def test_gradients_statistics_and_dropout_are_the_same_bits(make) -> None:
    plain, recomputed = (trained(one.train(), IMAGES) for one in pair(make()))
    for name, value in plain.items():
        assert torch.equal(recomputed[name], value), name


@pytest.mark.parametrize(
    ("model", "kind", "count"),
    [
        ("resnet50", "Bottleneck", 16),
        ("torchvision/vit_b_32", "EncoderBlock", 12),
        ("torchvision/convnext_tiny", "CNBlock", 18),
        ("timm/test_vit", "Block", 6),
        ("timm/test_convnext", "ConvNeXtBlock", 8),
    ],
)
def test_the_blocks_of_a_network_are_found(model, kind, count) -> None:
    network = drawn(RunSpec(model=model, classes=3, image_size=160))
    found = [type(one).__name__ for one in blocks(network)]
    assert found.count(kind) == count


@pytest.mark.parametrize("model", ["resnet50", "timm/test_vit"])
def test_fewer_activations_are_kept(model) -> None:
    plain, recomputed = pair(drawn(RunSpec(model=model, classes=3, image_size=160)))
    images = torch.randn(2, 3, 160, 160)
    assert kept_bytes(recomputed, images) < 0.7 * kept_bytes(plain, images)


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(SpecError, match="no blocks"):
        checkpoint_activations(nn.Sequential(nn.Flatten(), nn.Linear(3, 3)))


def test_a_block_that_changes_its_input_is_refused() -> None:
    """The second pass would begin with what the first one left."""
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Sequential(nn.SiLU(inplace=True), nn.Conv2d(4, 4, 3))
    )
    checkpoint_activations(network)
    with pytest.raises(SpecError, match="in place"):
        network(IMAGES)
