"""A machine from its own records: one worker, several, synthetic data, a loader alone, all-reduces.

What identifies what: one worker without a framework, its compute time; one with it, what that costs
in each step; synthetic data at several sizes, communication and waiting, which only three sizes or
an all-reduce measured alone tell apart; the loader alone, its rate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ddl_core.errors import DataError
from ddl_core.records.paths import Tree
from ddl_core.records.probe import AllReduce, ProbeRecord, read_probe
from ddl_core.records.run import RunRecord, read_epochs, read_record
from ddl_core.scaling.collectives import Network, all_reduce
from ddl_core.scaling.fit import Band, Fitted, Parameter, Point, fit
from ddl_core.scaling.loading import Loading
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, predict

NOISE = 0.05  # of one run: windows of a few seconds vary by that much on shared machines


@dataclass(frozen=True)
class Measured:
    """Seconds of a step of one run, or of one all-reduce of ``nbytes``."""

    kind: Literal["train", "load", "all_reduce"]
    ranks: int
    seconds: float
    training: Training | None = None
    synthetic: bool = False
    nbytes: int = 0


@dataclass(frozen=True)
class Calibrated:
    """A machine and a training as far as its records tell."""

    training: Training
    gpus_per_node: int
    spare_cores: bool
    fitted: Fitted
    measured: Sequence[Measured]

    def machine(self, point: Point) -> Machine:
        """Return the machine with these parameters."""
        return _machine(point, self.gpus_per_node, self.spare_cores)

    def throughput(self, ranks: Sequence[int]) -> Band:
        """Return the images per second on `ranks`, with the band of a single measurement."""
        return self.fitted.band(
            lambda point: predict(self.machine(point), self.training, ranks).throughput
        )


def calibrate(
    tree: Tree, study: str, strategy: str, loader: str, model: str, noise: float = NOISE
) -> Calibrated:
    """Return the machine on which PyTorch's runs of a study were made, from all that bear on it.

    Raises
    ------
    DataError
        If nothing was trained at two sizes or in two ways, or records contradict each other.
    RecordError
        If a record cannot be read.
    SpecError
        If the network's gradients are not known.
    """
    records = [record for record in _records(tree, study) if record.spec.model == model]
    fitting = [record for record in records if _bears(record, strategy, loader)]
    trained = [one for one in fitting if one.spec.strategy == strategy and one.spec.work == "train"]
    if not trained:
        raise DataError(
            f"no completed run of strategy={strategy!r}, loader={loader!r} or 'synthetic', "
            f"model={model!r} in {tree.study(study)}; run a study with them"
        )
    _alike(fitting)
    measured = [_measured(tree, study, record) for record in fitting]
    first = trained[0]
    measured += _all_reduces(tree, first)
    per_node = max(record.spec.gpus_per_node for record in fitting)
    spare = not (first.system or {}).get("affinity", {}).get("shared", False)
    training = Training.of(first.spec)
    fitted = fit(
        _parameters(measured),
        lambda point: _predicted(_machine(point, per_node, spare), training, measured),
        [one.seconds for one in measured],
        noise,
    )
    return Calibrated(training, per_node, spare, fitted, measured)


def _records(tree: Tree, study: str) -> Iterable[RunRecord]:
    for path in sorted(tree.study(study).glob("*/run.json")):
        record = read_record(path.parent)
        own = record.spec.library == "torch" and not record.spec.second_start
        if record.status == "completed" and own:
            yield record


def _bears(record: RunRecord, strategy: str, loader: str) -> bool:
    spec = record.spec
    data = spec.loader == loader or (spec.loader == "synthetic" and spec.work == "train")
    # A loader alone does not depend on the framework; training does, but for the one process.
    return data and (spec.work == "load" or spec.strategy in (strategy, "single"))


def _alike(records: Sequence[RunRecord]) -> None:
    """Refuse runs that one machine, one batch and one way to communicate cannot have made."""
    several = [one for one in records if one.world_size > 1]
    shared: dict[str, set[str]] = {
        "local_batch_size": {str(one.spec.local_batch_size) for one in records},
        "data_format": {one.spec.data_format for one in records if one.spec.loader != "synthetic"},
        "image_size": {str(one.spec.image_size) for one in records},
        "precision": {one.spec.precision for one in records},
        "ddp_compression": {one.spec.ddp_compression for one in several},
        "deepspeed_zero_stage": {str(one.spec.deepspeed_zero_stage) for one in several},
        "hardware": {_hardware(one.system) for one in records},
    }
    for name, values in shared.items():
        if len(values) > 1:
            raise DataError(
                f"the runs have several values of {name}: {', '.join(sorted(values))}; "
                "calibrate from runs that share it"
            )


def _hardware(system: dict[str, Any] | None) -> str:
    known = system or {}
    return str(known.get("accelerator") or known.get("cpu") or "unknown")


def _measured(tree: Tree, study: str, record: RunRecord) -> Measured:
    return Measured(
        "load" if record.spec.work == "load" else "train",
        record.world_size,
        warm_step_s(tree.study(study) / record.run_id, record),
        Training.of(record.spec),
        record.spec.loader == "synthetic",
    )


def warm_step_s(directory: Path, record: RunRecord) -> float:
    """Return the seconds of a step, the mean of a run's warm epochs.

    Raises
    ------
    DataError
        If none is warm.
    RecordError
        If they cannot be read.
    """
    rows = [row for row in read_epochs(directory) if row.phase == "train" and not row.cold]
    if not rows:
        raise DataError(f"{record.run_id} has no warm epoch; train more epochs than its warm-up")
    images = sum(row.samples for row in rows)
    return sum(row.wall_s for row in rows) * record.global_batch_size / images


def _all_reduces(tree: Tree, like: RunRecord) -> list[Measured]:
    """Return the all-reduces that `ddl doctor` measured on the same hardware."""
    probes = [read_probe(path.parent) for path in sorted(tree.probes.glob("*/probe.json"))]
    return [
        Measured("all_reduce", probe.spec.world_size, size.seconds, nbytes=size.bytes)
        for probe in probes
        if _hardware(probe.system) == _hardware(like.system)
        for size in _sizes(probe)
    ]


def _sizes(probe: ProbeRecord) -> list[AllReduce]:
    return list(probe.answers[0].all_reduce) if probe.answers else []


def _parameters(measured: Sequence[Measured]) -> list[Parameter]:
    """Return what is looked for: bounds are far beyond what the steps themselves allow."""
    trained = [one.seconds for one in measured if one.kind == "train"]
    fastest, slowest = min(trained), max(trained)
    found = [
        Parameter("compute_s", "s", fastest / 100, slowest, fastest),
        Parameter("framework_s", "s", fastest * 1e-5, slowest, fastest * 1e-5),
        Parameter("bandwidth", "B/s", 1e6, 1e12, 1e12),
        Parameter("latency_s", "s", 1e-7, 0.1, 1e-7),
        Parameter("stall_s", "s", fastest * 1e-5, slowest, fastest * 1e-5),
    ]
    if any(one.kind == "load" for one in measured):
        found.append(Parameter("rank_rate", "images/s", 1.0, 1e6, 1e6))
        found.append(Parameter("node_rate", "images/s", 1.0, 1e7, 1e7))
    return found


def _machine(point: Point, gpus_per_node: int, spare_cores: bool) -> Machine:
    network = Network(
        point["bandwidth"],
        point["latency_s"],
        point["bandwidth"],
        point["latency_s"],
        gpus_per_node,
    )
    loading = Loading(
        point.get("rank_rate", np.inf), point.get("node_rate", np.inf), spare_cores=spare_cores
    )
    return Machine(
        compute_s=point["compute_s"],
        network=network,
        loading=loading,
        stall_s=point["stall_s"],
        framework_s=point["framework_s"],
    )


def _predicted(
    machine: Machine, training: Training, measured: Sequence[Measured]
) -> NDArray[np.float64]:
    return np.array([_seconds(machine, training, one) for one in measured])


def _seconds(machine: Machine, training: Training, one: Measured) -> float:
    network = machine.network
    if one.kind == "all_reduce":
        return float(all_reduce(one.nbytes, one.ranks, network))
    if one.kind == "load":
        return float(machine.loading.batch_s(one.ranks, training.local_batch_size, network))
    assert one.training is not None
    return float(predict(_without_loading(machine, one), one.training, one.ranks).step_s[0])


def _without_loading(machine: Machine, one: Measured) -> Machine:
    return replace(machine, loading=Loading()) if one.synthetic else machine
