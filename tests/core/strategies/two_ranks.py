"""What tests of two ranks of torch share: their start, the process they have to equal, how near."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from ddl_core.strategies.base import Single
from ddl_tools.processes import import_path
from tests.closeness import assert_far, assert_near, falls
from tests.core.strategies.deepspeed_ranks import (
    BASE_LR,
    Batches,
    build,
    network,
    result,
    spec,
    train,
)

RANKS = 2

Fields = dict[str, Any]


def start(module: str, cases: list[Fields], out: Path, **environment: str) -> str:
    """Run a module of this folder as two ranks, with warnings as errors; return what it said."""
    launch = [sys.executable, "-W", "error", "-m", "torch.distributed.run", "--standalone"]
    ranks = ["--nproc-per-node", str(RANKS), "-m", f"tests.core.strategies.{module}"]
    done = subprocess.run(
        [*launch, *ranks, json.dumps(cases), str(out)],
        env={**os.environ, "PYTHONPATH": import_path(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def left(out: Path, number: int) -> list[dict]:
    """Return what the ranks left of a case, by its place among those that were started."""
    return [torch.load(out / f"{number}.rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


def single(fields: Fields, **unfair: Any) -> dict:
    """Train one process that accumulates what the two ranks do."""
    shared = {k: v for k, v in fields.items() if not k.startswith("deepspeed_")}
    accumulation = RANKS * shared.pop("accumulation", 1)
    run = spec("single", accumulation=accumulation, **shared, **unfair)
    subject = build(run, Single(run), network())
    return result(subject, train(subject, Batches(0, accumulation, accumulation)))


def held(of: dict) -> dict[str, torch.Tensor]:
    """Return those of `numbers` that a rank holds: rank 0 alone keeps what was gathered."""
    return {name: value for name, value in numbers(of).items() if value.numel()}


def numbers(of: dict) -> dict[str, torch.Tensor]:
    """Return parameters, statistics and momenta."""
    # num_batches_tracked counts the forward passes of one rank.
    weights = {name: value for name, value in of["weights"].items() if value.is_floating_point()}
    momenta = {
        f"momentum {index}": state["momentum_buffer"]
        for index, state in of["optimizer"]["state"].items()
        if state["momentum_buffer"] is not None
    }
    return weights | momenta


def check_like_one_process(ranks: list[dict], fields: Fields) -> None:
    """Check that two ranks trained like one process that accumulates."""
    want, (of_losses, of_state) = single(fields), tolerances(fields)
    assert falls(want["losses"])
    for rank in ranks:
        got = rank["undisturbed"]
        assert_near(got["losses"], want["losses"], of_losses)
        assert_near(held(got), {name: numbers(want)[name] for name in held(got)}, of_state)
        rates = [one["optimizer"]["param_groups"][0]["lr"] for one in (got, want)]
        assert rates[0] == rates[1]
    assert held(ranks[0]["undisturbed"]).keys() == numbers(want).keys()


def check_unfair_is_far(ranks: list[dict], fields: Fields) -> None:
    """Check that a rate one percent higher is seen."""
    unfair, (of_losses, of_state) = single(fields, base_lr=1.01 * BASE_LR), tolerances(fields)
    got = ranks[0]["undisturbed"]
    assert_far(unfair["losses"], got["losses"], of_losses)
    assert_far(numbers(unfair), numbers(got), of_state)


def check_resumed(ranks: list[dict]) -> None:
    """Check that a run that went on from a checkpoint has the bits of one that was not stopped."""
    for rank in ranks:
        want, got = rank["undisturbed"], rank["resumed"]
        assert got["losses"] == want["losses"]
        for name, value in want["weights"].items():
            assert torch.equal(got["weights"][name], value), name


def tolerances(fields: Fields) -> tuple[float, float]:
    """Return those of losses and state; docs/contributing/test-tolerances.md explains them."""
    half = fields.get("precision", "fp32") != "fp32"
    return (5e-5, 1e-3) if half else (1e-5, 1e-4)
