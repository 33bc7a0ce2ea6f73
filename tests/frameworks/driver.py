"""One rank of an equality test, started with the interpreter of its framework; needs no torch.

``python -m tests.frameworks.driver FOLDER``: FOLDER holds ``case.json``, ``batches.npz`` and the
state to begin with; each rank leaves ``rank.N.json`` and a state for each epoch, see `equality.py`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from ddl_core import registry
from ddl_core.config import RunSpec
from ddl_tools.frameworks import networks
from ddl_tools.frameworks.rendezvous import ControlGroup
from ddl_tools.frameworks.trainer import average_statistics
from ddl_tools.frameworks.weights import load, save

TINY = registry.Entry("tests.frameworks.equality:tiny", frameworks=tuple(registry.FRAMEWORKS))


def tiny(ops: Any, x: Any, classes: int) -> Any:
    """Apply the network of the equality tests: smooth, so that rounding does not grow."""
    x = ops.norm("1", ops.conv("0", x, 8, (3, 2, 0)))
    x = ops.dropout(ops.norm("3", ops.conv("2", x, 16, (3, 2, 0))), 0.2)
    return ops.linear("6", ops.dropout(ops.global_mean(x), 0.2), classes)


class WithoutDropout:
    """Operations of a framework, but for the one whose random numbers are its own."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def dropout(self, x: Any, rate: float) -> Any:
        return x


def without_dropout(network: networks.Network) -> networks.Network:
    return lambda ops, x, classes: network(WithoutDropout(ops), x, classes)


def in_layout(images: np.ndarray, layout: str) -> np.ndarray:
    return np.ascontiguousarray(images if layout == "NCHW" else images.transpose(0, 2, 3, 1))


def suffer(fault: str) -> None:
    """Meet a fault of the machine or of the training."""
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    elif fault == "raising":
        raise ValueError("planted")
    elif fault == "late":  # by more than Gloo waits for a rank that it does not know yet
        time.sleep(35)
    elif fault == "stopped":  # for longer than TensorFlow's heartbeats
        subprocess.Popen(["/bin/sh", "-c", f"sleep 20; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)


def main(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    registry.MODELS["tiny"] = TINY
    networks.NETWORKS.setdefault("tiny", tiny)
    spec = RunSpec(**case["spec"])
    if not case["dropout"]:
        networks.NETWORKS[spec.model] = without_dropout(networks.NETWORKS[spec.model])
    control = ControlGroup(spec, folder / "rendezvous")
    subject = registry.resolve("framework", spec.framework)(spec, control)
    given, _ = load(folder / "begin.npz", "")
    copy = deepcopy(given)
    subject.load(given)
    try:
        train(subject, control, case, folder)
        for name, value in copy.values.items():
            assert np.array_equal(given.values[name], value), f"{name} was changed in place"
    finally:
        subject.close()
        control.close()


def train(subject: Any, control: ControlGroup, case: dict[str, Any], folder: Path) -> None:
    """Train the epochs of the case as the loop does; leave what came of it."""
    rank, losses = control.rank, []
    with np.load(folder / "batches.npz") as file:
        images, labels = file["images"][:, rank], file["labels"][:, rank].astype(np.int32)
    steps, (fault, _, at) = case["steps"], case["fault"].partition(" ")
    for epoch in case["epochs"]:
        for step in range(epoch * steps, (epoch + 1) * steps):
            if (rank, str(step)) == (1, at):
                suffer(fault)
            subject.step(in_layout(images[step], subject.layout), labels[step], case["rates"][step])
        losses.append(subject.loss() / steps)
        subject.wait()
        own = subject.state()
        average_statistics(subject, control)
        save(folder / f"epoch.{epoch}.{rank}.npz", "", subject.state())
    logits = subject.predict(in_layout(images[0], subject.layout))
    save(folder / f"own.{rank}.npz", "", own)
    np.save(folder / f"logits.{rank}.npy", logits)
    facts = {
        "losses": losses,
        "settings": subject.settings(),
        "record": subject.describe(),
        "device": subject.device,
        "synchronous": subject.synchronous,
        "cores": cores(),
    }
    (folder / f"rank.{rank}.json").write_text(json.dumps(facts))


def cores() -> dict[str, list[int]]:
    """Return the cores on which this process's threads may be, by the threads' names."""
    found: dict[str, list[int]] = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            name = (task / "comm").read_text().strip()
            found.setdefault(name, []).extend(os.sched_getaffinity(int(task.name)))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
