"""Where a rank computes, and what its group is bound to."""

from pathlib import Path

import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.device import choose_device
from ddl_core.errors import LaunchError
from ddl_core.strategies import base as group
from ddl_core.strategies.base import ProcessGroup
from ddl_tools.doctor import machine
from ddl_tools.rank.pytorch import check_driver


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver tool that lists one GPU, first on PATH, and a torch that sees none."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '550.54.15, GPU-5ab, NVIDIA A100-SXM4-40GB'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return tool


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
@pytest.mark.parametrize(("cuda", "built"), [("13.0", "for CUDA 13.0"), (None, "for the CPU")])
def test_a_driver_that_is_too_old_for_torch_is_named(
    nvidia_smi, monkeypatch, wanted, cuda, built
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(LaunchError) as raised:
        check_driver(RunSpec(device=wanted))
    for words in ("NVIDIA A100", "550.54.15", built, "whl/cu126", "device 'cpu'"):
        assert words in str(raised.value)


def test_the_cpu_is_used_where_it_is_asked_for_or_gpus_are_hidden(nvidia_smi, monkeypatch) -> None:
    check_driver(RunSpec(device="cpu"))
    assert choose_device("cpu", 0).type == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_driver(RunSpec())
    assert choose_device("auto", 0).type == "cpu"


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'"])
def test_a_driver_tool_that_lists_nothing_is_no_gpu(nvidia_smi, script) -> None:
    nvidia_smi.write_text(f"#!/bin/sh\n{script}\n")
    check_driver(RunSpec())
    assert choose_device("auto", 0).type == "cpu"
    with pytest.raises(LaunchError, match="sees no CUDA device"):
        choose_device("cuda", 0)


@pytest.mark.slow
def test_the_doctor_says_the_same(nvidia_smi) -> None:
    if torch.version.cuda and torch.cuda.device_count():
        pytest.skip("this torch sees a GPU")
    found = machine.ask("torch", required=True)
    assert found.state == "bad"
    assert "NVIDIA A100" in found.detail
    assert "550.54.15" in found.detail
    assert "whl/cu126" in found.remedy


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_group_is_bound_to_a_gpu_only_if_it_has_others(monkeypatch, ranks: int) -> None:
    """NCCL cannot split the bound communicator of one rank, as DeepSpeed does."""
    asked = {}
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setattr(group, "choose_device", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(
        group.dist, "init_process_group", lambda backend, **how: asked.update(how, name=backend)
    )
    ProcessGroup(RunSpec(strategy="ddp", gpus_per_node=ranks))
    assert asked["name"] == "nccl"
    assert asked["device_id"] == (torch.device("cuda", 0) if ranks > 1 else None)
