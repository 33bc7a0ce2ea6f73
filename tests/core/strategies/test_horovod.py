"""Horovod in real processes: what DDP computes, its own settings, where its ranks meet."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ddl_core import registry
from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, NotInstalledError
from ddl_tools.launch import commands, ranks
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Attempt, read_epochs, read_record, write_record
from ddl_tools.records.storage import now
from tests.closeness import assert_near, falls
from tests.core.strategies.conftest import RUN, TWO, failed, needs_horovod
from tests.launch.running import free_port, two_ranks

pytestmark = pytest.mark.usefixtures("planted_names")

HOROVOD = {"strategy": "horovod", **TWO}

# docs/contributing/test-tolerances.md explains these.
STATE_TOLERANCE = 1e-4
LOSS_TOLERANCE = 1e-5


def test_without_horovod_its_arm_says_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_is_installed", lambda package: False)
    with pytest.raises(NotInstalledError, match="make horovod"):
        ranks.command(RunSpec(**RUN, **HOROVOD), tmp_path, tmp_path)


def with_horovod(test: Any) -> Any:
    """Mark a test that starts real ranks."""
    for mark in (pytest.mark.multiprocess, pytest.mark.slow, needs_horovod, two_ranks):
        test = mark(test)
    return test


def losses(directory: Path) -> list[float]:
    return [row.loss for row in read_epochs(directory) if row.phase == "train"]


def timeline(directory: Path) -> list[dict[str, Any]]:
    """Return what Horovod did, as it wrote it down; its last line may be missing."""
    text = (directory / "timeline.json").read_text().strip().rstrip(",").rstrip("]").rstrip(",")
    return json.loads(text + "]")


def cycle_ms(directory: Path) -> float:
    """Return the median time from the start of one cycle to that of the next."""
    starts = [one["ts"] for one in timeline(directory) if one.get("name") == "CYCLE_START"]
    return float(np.median(np.diff(sorted(starts)))) / 1000


@pytest.fixture(scope="module")
def pair(plan, tmp_path_factory) -> dict[str, Path]:
    """The same work by two ranks of Horovod and of DDP."""
    done = {}
    for name in ("horovod", "ddp"):
        done[name] = plan(tmp_path_factory.mktemp(name), strategy=name, **TWO)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOROVOD_TIMELINE", str(done[name] / "timeline.json"))
            patch.setenv("HOROVOD_TIMELINE_MARK_CYCLES", "1")
            run_ranks(done[name])
    return done


def state(directory: Path) -> dict[str, torch.Tensor]:
    """Return parameters, statistics and momenta after the last step."""
    saved = torch.load(RunFiles(directory).checkpoint, weights_only=True)
    momenta = saved["optimizer"]["state"]
    return saved["model"] | {f"momentum {i}": momenta[i]["momentum_buffer"] for i in momenta}


@pytest.mark.numeric
@with_horovod
def test_two_ranks_train_like_those_of_ddp(pair):
    assert falls(losses(pair["ddp"]))
    assert_near(losses(pair["horovod"]), losses(pair["ddp"]), LOSS_TOLERANCE)
    assert_near(state(pair["horovod"]), state(pair["ddp"]), STATE_TOLERANCE)


class AcceptedError(Exception):
    """Raised where a rank would go on to join the others."""


@pytest.fixture
def strategy(monkeypatch) -> Any:
    """The strategy's module with a Horovod that is complete and a GPU that is there."""
    from ddl_core.strategies import base, horovod

    def accept(spec: RunSpec) -> None:
        raise AcceptedError

    monkeypatch.setattr(horovod.horovod, "configure", accept)
    monkeypatch.setattr(base, "choose_device", lambda wanted, _: torch.device(wanted))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(horovod.hvd, "nccl_built", lambda: 22907)
    monkeypatch.setattr(horovod.hvd, "mpi_built", lambda: True)
    monkeypatch.setattr(horovod.ctypes, "CDLL", lambda name: None)
    monkeypatch.delenv("HOROVOD_CONTROLLER", raising=False)
    return horovod


def join(strategy: Any, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    spec = RunSpec(strategy="horovod", model="tiny", **fields)
    monkeypatch.setenv("WORLD_SIZE", str(spec.world_size))
    strategy.Horovod(spec)


@needs_horovod
@pytest.mark.parametrize("number", [1, 2])
def test_without_nccl_no_gpu_is_used(strategy, monkeypatch, number):
    """One GPU neither: Horovod's own thread would abort."""
    with pytest.raises(AcceptedError):
        join(strategy, monkeypatch, device="cuda", gpus_per_node=number)
    monkeypatch.setattr(strategy.hvd, "nccl_built", lambda: False)
    with pytest.raises(LaunchError, match=r"without NCCL.*HOROVOD_GPU_OPERATIONS=NCCL"):
        join(strategy, monkeypatch, device="cuda", gpus_per_node=number)
    with pytest.raises(AcceptedError):
        join(strategy, monkeypatch, device="cpu", gpus_per_node=number)


@needs_horovod
def test_a_driver_without_its_plain_name_is_told(strategy, monkeypatch):
    def missing(name: str) -> None:
        assert name == "libcuda.so"  # what Horovod asks for
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(strategy.ctypes, "CDLL", missing)
    with pytest.raises(LaunchError, match=r"cannot open .*link of that name to libcuda\.so\.1"):
        join(strategy, monkeypatch, device="cuda")
    monkeypatch.setattr(torch.version, "cuda", None)  # ROCm has no such library
    with pytest.raises(AcceptedError):
        join(strategy, monkeypatch, device="cuda")


@needs_horovod
def test_above_16_nodes_horovods_ranks_meet_over_mpi(strategy, monkeypatch):
    with pytest.raises(AcceptedError):
        join(strategy, monkeypatch, device="cpu", nodes=16)
    with pytest.raises(LaunchError, match=r"nodes = 17: .*CONTROLLER=mpi .*HOROVOD_WITH_MPI=1"):
        join(strategy, monkeypatch, device="cpu", nodes=17)
    monkeypatch.setenv("HOROVOD_CONTROLLER", "mpi")
    with pytest.raises(AcceptedError):
        join(strategy, monkeypatch, device="cpu", nodes=17)
    monkeypatch.setattr(strategy.hvd, "mpi_built", lambda: False)
    with pytest.raises(LaunchError, match=r"built without MPI; .*HOROVOD_WITH_MPI=1"):
        join(strategy, monkeypatch, device="cpu", nodes=2)


@with_horovod
def test_a_late_rank_meets_the_others_where_no_agent_keeps_the_store(plan, tmp_path):
    """As under srun, where rank 0 itself keeps what the others read; then reductions work."""
    run = plan(tmp_path / "run", **HOROVOD)
    record = read_record(run)
    record.attempts.append(Attempt(started_utc=now()))
    write_record(run, record)
    environment = {
        **commands.environment(record.spec),
        **{"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
        "DDL_TEST_FAULT": "late",
    }
    command = [sys.executable, "-m", "tests.core.strategies.faulty_worker", str(run)]
    ranks_started = [
        subprocess.Popen(command, env={**environment, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    assert [process.wait(timeout=60) for process in ranks_started] == [0, 0]
    assert read_record(run).status == "completed"


@with_horovod
def test_fusion_and_cycle_change_the_traffic_and_not_the_result(pair, plan, tmp_path, monkeypatch):
    run = plan(tmp_path / "run", **HOROVOD, horovod_fusion_mb=0, horovod_cycle_ms=25)
    monkeypatch.setenv("HOROVOD_TIMELINE", str(run / "timeline.json"))
    monkeypatch.setenv("HOROVOD_TIMELINE_MARK_CYCLES", "1")
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "12345")  # the run decides, not the environment
    record = run_ranks(run)
    assert record.weights_sha256 == read_record(pair["horovod"]).weights_sha256
    assert record.system is not None
    assert record.system["communication"] == {
        "library": "gloo",
        "controller": "gloo",
        "fusion_bytes": 0,
        "cycle_ms": 25,
        "autotune": False,
        "overlap": True,
    }
    assert record.system["environment"]["HOROVOD_TIMELINE"] == "timeline.json"
    assert not {"HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_PORT"} & set(record.system["environment"])

    def count(directory: Path, name: str) -> int:
        return sum(event.get("name") == name for event in timeline(directory))

    assert count(pair["horovod"], "MEMCPY_IN_FUSION_BUFFER") > 0
    assert count(run, "MEMCPY_IN_FUSION_BUFFER") == 0
    # Their distance, not their number: a busy machine takes longer for the same work.
    assert cycle_ms(run) >= 20
    assert cycle_ms(run) > 1.5 * cycle_ms(pair["horovod"])


@pytest.mark.numeric
@pytest.mark.extended
@with_horovod
def test_a_run_of_channels_last_resumes(pair, plan, tmp_path):
    """Neither weights, gradients nor momenta are contiguous."""
    run = plan(tmp_path / "run", **HOROVOD, channels_last=True)
    assert failed(run, "kill", "rank 1 was killed by SIGKILL") == ("Killed", 1)
    run_ranks(run)
    laid_out = state(run)
    assert laid_out["momentum 0"].is_contiguous(memory_format=torch.channels_last)
    assert_near(laid_out, state(pair["ddp"]), STATE_TOLERANCE)
