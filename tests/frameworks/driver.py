"""One rank of an equality test, started with the interpreter of its framework; needs no torch.

``python -m tests.frameworks.driver FOLDER``: FOLDER holds ``case.json``, ``batches.npz`` and the
state to begin with; each rank leaves ``rank.N.npz`` and ``rank.N.json``, see `equality.py`.
"""

import json
import sys
from importlib import import_module
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


def main(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    registry.MODELS["tiny"] = TINY
    networks.NETWORKS.setdefault("tiny", networks.tiny)
    spec = RunSpec(**case["spec"])
    networks.NETWORKS[spec.model] = without_dropout(networks.NETWORKS[spec.model])
    control = ControlGroup(spec, folder / "rendezvous")
    kind = registry.resolve("framework", spec.framework)
    if case["fault"]:
        module, name = case["fault"].split(":")
        kind = getattr(import_module(module), name)(kind)
    subject = kind(spec, control)
    subject.load(load(folder / "begin.npz", "")[0])
    train(subject, control, case, folder)
    subject.close()
    control.close()


def train(subject: Any, control: ControlGroup, case: dict[str, Any], folder: Path) -> None:
    """Train the epochs of the case as the loop does; leave what came of it."""
    rank, losses = control.rank, []
    with np.load(folder / "batches.npz") as file:
        images, labels = file["images"][:, rank], file["labels"][:, rank].astype(np.int32)
    steps = case["steps"]
    for epoch in case["epochs"]:
        for step in range(epoch * steps, (epoch + 1) * steps):
            subject.step(in_layout(images[step], subject.layout), labels[step], case["rates"][step])
        losses.append(subject.loss() / steps)
        subject.wait()
        own = subject.state()
        average_statistics(subject, control)
    logits = subject.predict(in_layout(images[0], subject.layout))
    save(folder / f"own.{rank}.npz", "", own)
    save(folder / f"rank.{rank}.npz", "", subject.state())
    np.save(folder / f"logits.{rank}.npy", logits)
    told = {"losses": losses, "settings": subject.settings(), "told": subject.describe()}
    told |= {"device": subject.device, "synchronous": subject.synchronous}
    (folder / f"rank.{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
