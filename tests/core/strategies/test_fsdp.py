"""FSDP: which weights are gathered together, what is refused, results equal to one process."""

from typing import Any

import pytest
import torch
from torch import nn

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_core.models import drawn, resnet18
from ddl_core.strategies import fsdp
from ddl_core.strategies.fsdp import units
from tests.core.strategies.two_ranks import (
    check_like_one_process,
    check_resumed,
    check_unfair_is_far,
    left,
    start,
)


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


CASES = [
    {},
    {"accumulation": 2},
    {"momentum": 0.0},
    {"precision": "bf16"},
    {"precision": "bf16", "accumulation": 2},
    {"decay_norm_bias": False},
]


def named(case: int) -> str:
    return "-".join(f"{name}={value}" for name, value in CASES[case].items()) or "default"


def two_processes(test: Any) -> Any:
    return pytest.mark.multiprocess(pytest.mark.slow(test))


def every_case(test: Any) -> Any:
    return two_processes(pytest.mark.parametrize("case", range(len(CASES)), ids=named)(test))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[int, list[dict]]:
    """Results of each case and rank, of one start of two processes."""
    out = tmp_path_factory.mktemp("fsdp")
    start("fsdp_ranks", CASES, out)
    return {case: left(out, case) for case in range(len(CASES))}


@every_case
def test_two_ranks_train_like_one_process_that_accumulates(trained, case) -> None:
    check_like_one_process(trained[case], CASES[case])


@every_case
def test_a_rate_one_percent_higher_is_seen(trained, case) -> None:
    check_unfair_is_far(trained[case], CASES[case])


@two_processes
def test_rank_0_alone_keeps_what_was_gathered(trained) -> None:
    kept = trained[0][1]["undisturbed"]
    assert {kept["weights"][name].numel() for name in ("0.weight", "8.bias")} == {0}
    assert {one["momentum_buffer"].numel() for one in kept["optimizer"]["state"].values()} == {0}


@two_processes
def test_each_rank_keeps_its_part(trained) -> None:
    first, second = (rank["undisturbed"] for rank in trained[0])
    assert first["units"] > 2
    assert first["kept"] + second["kept"] == first["whole"] == second["whole"]
    assert max(first["kept"], second["kept"]) < 0.7 * first["whole"]


@two_processes
def test_no_state_is_gathered_by_the_collective_that_crashed(trained) -> None:
    """See `fsdp._whole`."""
    assert all(not rank["undisturbed"]["gathers"] for case in trained.values() for rank in case)


@every_case
def test_weights_are_gathered_as_they_are_computed_with(trained, case) -> None:
    """Autocast makes no copy of weights that come in its type, and takes normalisation in fp32."""
    half = CASES[case].get("precision") == "bf16"
    for rank in trained[case]:
        computed = rank["undisturbed"]["computed"]
        assert computed["BatchNorm2d"] == ["torch.float32"]
        want = ["torch.bfloat16" if half else "torch.float32"]
        assert computed["Conv2d"] == computed["Linear"] == want


@every_case
def test_a_network_goes_on_in_the_type_that_one_process_has(trained, case) -> None:
    for rank in trained[case]:
        alone, sharded = rank["undisturbed"]["goes_on_in"]
        assert sharded == alone


@every_case
def test_a_resumed_run_ends_with_the_same_bits(trained, case) -> None:
    check_resumed(trained[case])
