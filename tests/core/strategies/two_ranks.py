"""What tests of two ranks of torch share: their start, the process they have to equal, how near."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from ddl_core.strategies.base import Single
from tests.core.strategies.deepspeed_ranks import Batches, build, network, result, spec, train

PROJECT = Path(__file__).resolve().parents[3]
RANKS = 2

Fields = dict[str, Any]


def start(module: str, cases: list[Fields], out: Path, **environment: str) -> str:
    """Run a module of this folder as two ranks, with warnings as errors; return what it said."""
    launch = [sys.executable, "-W", "error", "-m", "torch.distributed.run", "--standalone"]
    ranks = ["--nproc-per-node", str(RANKS), "-m", f"tests.core.strategies.{module}"]
    paths = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [*launch, *ranks, json.dumps(cases), str(out)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
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


def tolerances(fields: Fields) -> tuple[float, float]:
    """Return those of losses and state; docs/contributing/test-tolerances.md explains them."""
    half = fields.get("precision", "fp32") != "fp32"
    return (5e-5, 1e-3) if half else (1e-5, 1e-4)
