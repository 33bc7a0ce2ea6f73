"""Validation of the communication model on the emulated cluster, with nothing fitted.

Compute time is the measured step on one node, the rate of the links was measured before each run,
and latency was not measured and is taken as 0.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ddl_core.config import RunSpec, run_fields
from ddl_core.errors import DataError, SpecError
from ddl_core.registry import title
from ddl_tools.emulation.nodes import ON_THE_WIRE
from ddl_tools.emulation.options import Emulated
from ddl_tools.records.ledger import study_folders
from ddl_tools.records.paths import Tree, committed
from ddl_tools.scaling import paper
from ddl_tools.scaling.communication import (
    DDP_BUCKET_MB,
    Exchange,
    Network,
    exposed_s,
    resnet,
)
from ddl_tools.scaling.measured import throughputs

STUDY = "emulated_cluster"
# Of a node with 4 GPUs; the example on docs/explanation/scaling-model.md has the same.
LINKS = Network(20e9, 5e-6, 200e9, 1e-6, gpus_per_node=paper.BASE, algorithm="fastest")
_NETWORK = "resnet50"  # which the network of emulated runs represents
# Fields that change the step and that the calculator does not know.
_NOT_MODELLED = (
    "emu_straggler",
    "emu_jitter",
    "emu_draws",
    "emu_uplink_mbit",
    "ddp_compression",
)


class Run(NamedTuple):
    """A valid emulated run: its step, and the measured rate of its slowest link."""

    spec: RunSpec
    step_s: float
    link_mbit: float


@dataclass(frozen=True)
class Step:
    """The step of one framework on several nodes: the mean of ``n`` runs, and its prediction."""

    framework: str
    link_mbit: float
    nodes: int
    n: int
    compute_s: float
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Error of the step relative to the measured one."""
        return self.predicted_s / self.measured_s - 1

    @property
    def lost_s(self) -> float:
        """Seconds of the measured step that are not computed."""
        return self.measured_s - self.compute_s

    @property
    def exposed_s(self) -> float:
        """Seconds of the predicted step that are not computed: exposed communication."""
        return self.predicted_s - self.compute_s

    @property
    def measured_efficiency(self) -> float:
        """Step on one node over the measured step."""
        return self.compute_s / self.measured_s

    @property
    def predicted_efficiency(self) -> float:
        """Step on one node over the predicted step."""
        return self.compute_s / self.predicted_s


def read_runs(tree: Tree, study: str = STUDY) -> list[Run]:
    """Return the valid runs of a study of emulated nodes.

    `DataError` if there is none.
    """
    found = []
    for record, rate, _ in throughputs(study_folders(study, tree)):
        facts = record.emulation
        if record.status != "completed" or facts is None or record.rejected:
            continue
        if rate:
            mbit = facts.link_mbit_least or np.inf
            found.append(Run(record.spec, record.global_batch_size / rate, mbit))
    if not found:
        raise DataError(f"no valid emulated run in {tree.study(study)}; run the study first")
    return found


def validate(tree: Tree | None = None, study: str = STUDY) -> list[Step]:
    """Return measured and predicted steps by framework, links and nodes.

    `DataError` if there is no valid run, or none of a framework on one node.
    """
    groups: dict[tuple[str, float, int], list[Run]] = {}
    for run in read_runs(tree or committed(), study):
        mbit = run.spec.of(Emulated).emu_link_mbit if run.spec.nodes > 1 else 0.0
        groups.setdefault((framework(run.spec), mbit, run.spec.nodes), []).append(run)
    found = []
    for (name, mbit, nodes), runs in sorted(groups.items()):
        if nodes == 1:
            continue
        if (name, 0.0, 1) not in groups:
            raise DataError(f"no valid run of {name} on one node in study {study!r}")
        compute_s, measured_s = (
            float(np.mean([run.step_s for run in own])) for own in (groups[name, 0.0, 1], runs)
        )
        predicted_s = calculated_s(runs[0].spec, compute_s, min(run.link_mbit for run in runs))
        found.append(Step(name, mbit, nodes, len(runs), compute_s, measured_s, predicted_s))
    return found


def of_the_paper() -> Step:
    """Return the step of ResNet50 by PyTorch-DDP on the most GPUs of the paper (E02).

    The compute time and the efficiency, so the measured step, are stated; `LINKS` are assumed.
    """
    compute_s = paper.base_step_s(_NETWORK)
    assert compute_s is not None
    (stated,) = (one for one in paper.stated(_NETWORK, "ddp", "dali_cpu") if one.statement == "E02")
    exchange = Exchange(resnet(_NETWORK), "ddp")
    (exposed,) = exposed_s(exchange, compute_s, LINKS, [stated.ranks])
    nodes, mbit = stated.ranks // LINKS.gpus_per_node, 8 * LINKS.bandwidth / 1e6
    measured_s, predicted_s = compute_s / stated.value, compute_s + float(exposed)
    name = title("strategy", "ddp")
    return Step(name, mbit, nodes, 1, compute_s, measured_s, predicted_s)


def calculated_s(spec: RunSpec, compute_s: float, link_mbit: float) -> float:
    """Return the step of an emulated run in seconds, from that of one node and the links' rate.

    `SpecError` if the calculator does not know how the run communicates.
    """
    for name in _NOT_MODELLED:
        if getattr(spec, name) != run_fields()[name].default:
            raise SpecError(f"{name}={getattr(spec, name)!r}: its communication is not modelled")
    bandwidth = link_mbit * 1e6 / 8 / ON_THE_WIRE
    network = Network(bandwidth, inside_bandwidth=bandwidth)
    return compute_s + float(exposed_s(Exchange.of(spec), compute_s, network, spec.nodes)[0])


def represented_gbit(spec: RunSpec) -> float:
    """Return the rate of the link that an emulated run's represents, in Gbit/s.

    It joins GPUs that train ResNet50 as fast as the paper states for 4 of them. Compute and
    messages then have the same ratio as in the emulation.
    """
    asked = spec.of(Emulated)
    slower = asked.emu_step_ms / represented_ms(spec)
    return asked.emu_link_mbit / 1e3 * asked.emu_shrink * slower


def represented_ms(spec: RunSpec) -> float:
    """Return the step that an emulated run's represents, in ms: as the paper states for 4 GPUs."""
    step_s = paper.base_step_s(_NETWORK)
    assert step_s is not None
    return 1e3 * step_s * spec.local_batch_size / paper.BATCH_SIZE


def framework(spec: RunSpec) -> str:
    """Return the title of a run's strategy, with DeepSpeed's stage and other buckets of DDP."""
    name = title("strategy", spec.strategy)
    bucket_mb = spec.ddp_bucket_mb * spec.of(Emulated).emu_shrink
    if spec.strategy == "deepspeed":
        return f"{name}, ZeRO stage {spec.deepspeed_zero_stage}"
    if spec.strategy == "ddp" and bucket_mb != DDP_BUCKET_MB:
        return f"{name}, bucket {bucket_mb:g} MiB"
    return name
