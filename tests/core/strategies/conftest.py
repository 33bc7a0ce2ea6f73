"""The strategies on which every test of a strategy runs, one line each."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.launch import ranks
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.records.run import RunRecord, write_record
from tests.launch.running import error_of, processes_of
from tests.pictures import write_pictures

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp"},
    "horovod": {"strategy": "horovod"},
    "zero0": {"strategy": "deepspeed", "deepspeed_zero_stage": 0},
    "zero1": {"strategy": "deepspeed", "deepspeed_zero_stage": 1},
    "zero2": {"strategy": "deepspeed", "deepspeed_zero_stage": 2},
    "zero3": {"strategy": "deepspeed", "deepspeed_zero_stage": 3},
}


def horovod_is_there() -> bool:
    """Say whether Horovod is there; in CI it has to be."""
    if find_spec("horovod") is None and os.environ.get("CI"):
        raise AssertionError("CI tests the real Horovod, which is missing here: run `make horovod`")
    return find_spec("horovod") is not None


needs_horovod = pytest.mark.skipif(
    not horovod_is_there(), reason="Horovod is missing; run `make horovod`"
)


def on(fields: dict[str, Any], *marks: Any, name: str) -> Any:
    """Return the parameter of a test on a strategy, with the marks of that one."""
    own = [needs_horovod] * (fields["strategy"] == "horovod")
    return pytest.param(fields, marks=[*own, *marks], id=name)


# The launcher is one, so that two that differ most stand for all in every run.
IN_EVERY_RUN = {"horovod", "zero3"}


@pytest.fixture(
    params=[
        on(fields, *[pytest.mark.extended] * (name not in IN_EVERY_RUN), name=name)
        for name, fields in STRATEGIES.items()
    ]
)
def strategy(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The fields of a run that name a strategy."""
    fields: dict[str, Any] = request.param
    return fields


# Two epochs of ten steps, four virtual workers, batch normalisation, momentum, weight decay.
RUN: dict[str, Any] = {
    "model": "tiny",
    "device": "cpu",
    "image_size": 16,
    "classes": 4,
    "local_batch_size": 4,
    "epochs": 2,
    "warmup_epochs": 1,
    "schedule": "constant",
    "discard_steps": 0,
    "base_lr": 0.01,
    "loader_workers": 0,
}
TWO = {"gpus_per_node": 2, "accumulation": 2}


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Callable[..., Path]:
    """Return a function that plans a run on pictures of ten steps."""
    images = write_pictures(tmp_path_factory.mktemp("images"), 160, 10)

    def planned(directory: Path, **fields: Any) -> Path:
        spec = RunSpec(**{**RUN, **fields})
        write_record(directory, RunRecord.plan("test", spec, str(images)))
        return directory

    return planned


def failed(run: Path, fault: str, words: str) -> tuple[str, int | None]:
    """Run with a fault of `faulty_worker`; return the error and the rank that the record has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "WORKER", "tests.core.strategies.faulty_worker")
        patch.setenv("DDL_TEST_FAULT", fault)
        with pytest.raises(LaunchError, match=words):
            run_ranks(run, stall_timeout=10)
    assert processes_of(run) == []
    error = error_of(run)
    return error.kind, error.rank
