"""What the measuring loop costs: `train_one_epoch` against a bare torch loop, same work, one run.

    python benchmarks/loop_overhead.py

Both loops train the same network (one object: a copy elsewhere in memory may run some percent
faster or slower) on the same synthetic batches, in turn, in one process, for several rounds; the
order changes from round to round. The result is the median over rounds of bare time / loop time,
by wall clock and by CPU time (which other users of the machine disturb less). Takes about five
minutes. Target: at least 0.98.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from ddl_core.records.provenance import host, provenance
from ddl_core.spec.registry import resolve
from ddl_core.spec.run import RunSpec
from ddl_core.train import device
from ddl_core.train.loaders.synthetic import Synthetic
from ddl_core.train.loop import Trainee, train_one_epoch
from ddl_core.train.optim import make_optimizer
from ddl_core.train.strategies.single import Single

ROUNDS = 7
SHORT_STEPS = RunSpec(
    loader="synthetic",
    model="resnet44",
    image_size=32,
    local_batch_size=8,
    train_images=800,
    device="cpu",
)
CASES = {
    "laptop study (resnet50, 64 px, batch 16)": RunSpec(
        loader="synthetic", image_size=64, local_batch_size=16, train_images=64, device="cpu"
    ),
    "short steps (resnet44, 32 px, batch 8)": SHORT_STEPS,
}


def bare_loop(network: nn.Module, optimizer: torch.optim.Optimizer, loader: Synthetic) -> None:
    """Train one epoch with nothing around it."""
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    network.train()
    loader.set_epoch(0)
    for images, labels in loader:
        optimizer.zero_grad(set_to_none=True)
        criterion(network(images), labels).backward()
        optimizer.step()


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds of ``work()``."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(spec: RunSpec) -> dict[str, float]:
    """Return the ratios of one case."""
    device.configure(spec)
    group = Single(spec)
    network = resolve("model", spec.model)(spec.classes)
    trainee = Trainee.build(spec, group, network, make_optimizer(spec, network))
    loader = Synthetic(spec, None, "train", 0, 1, group.device)

    works: dict[str, Callable[[], object]] = {
        "bare": lambda: bare_loop(network, trainee.optimizer, loader),
        "loop": lambda: train_one_epoch(trainee, loader, 0, lambda done, steps: None),
    }
    took = in_turns(works, ROUNDS)
    return throughput_ratios(took["bare"], took["loop"])


def in_turns(
    works: dict[str, Callable[[], object]], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return `seconds` of each work, round by round, after one that does not count."""
    for work in works.values():
        work()
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for number in range(rounds):
        for name in sorted(works, reverse=number % 2 == 1):
            took[name].append(seconds(works[name]))
    return took


def throughput_ratios(
    base: list[tuple[float, float]], other: list[tuple[float, float]]
) -> dict[str, float]:
    """Return the medians over rounds of the time of `base` / the time of `other`."""
    ratios = [[b / o for b, o in zip(*pair, strict=True)] for pair in zip(base, other, strict=True)]
    wall, cpu = zip(*ratios, strict=True)
    return {
        "throughput_ratio_wall": statistics.median(wall),
        "throughput_ratio_cpu": statistics.median(cpu),
        "rounds": len(ratios),
    }


def main() -> None:
    """Measure all cases; print them and store them beside this file."""
    results = {name: compare(spec) for name, spec in CASES.items()}
    for name, result in results.items():
        print(
            f"{name}: {result['throughput_ratio_wall']:.3f} of the bare loop by wall clock, "
            f"{result['throughput_ratio_cpu']:.3f} by CPU time (median of {ROUNDS} rounds)"
        )
    target = Path(__file__).parent / "results" / "loop_overhead.json"
    target.parent.mkdir(exist_ok=True)
    content = {"results": results, "provenance": provenance(), "system": host()}
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
