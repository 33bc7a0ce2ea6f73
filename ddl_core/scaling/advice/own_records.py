"""What records say: each study's runs of a strategy with a loader, calibrated."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ddl_core.errors import DataError, SpecError
from ddl_core.records.paths import Tree
from ddl_core.records.run import RunRecord, read_epochs, read_record
from ddl_core.scaling.advice.evidence import Evidence
from ddl_core.scaling.calibrate import Calibrated, calibrate
from ddl_core.scaling.gradients import resnet


class _Arm(NamedTuple):
    study: str
    strategy: str
    loader: str


@dataclass(frozen=True)
class Found:
    """What some records say, and why others say nothing."""

    evidence: list[Evidence]
    refused: list[str]


def machine_name(system: dict[str, object] | None) -> str:
    """Return what a record's machine is called here: its accelerator, else its processor."""
    known = system or {}
    return str(known.get("accelerator") or f"{known.get('cpu')}, {known.get('cpu_cores')} cores")


def completed(tree: Tree) -> list[RunRecord]:
    """Return the completed runs of a tree that PyTorch trained.

    Raises
    ------
    RecordError
        If a record cannot be read.
    """
    paths = sorted(tree.runs.glob("*/*/run.json"))
    records = [read_record(path.parent) for path in paths]
    return [
        one
        for one in records
        if one.status == "completed" and one.spec.library == "torch" and one.spec.work == "train"
    ]


def evidence(tree: Tree, model: str, dataset: str) -> Found:
    """Return what the records of a tree say of a network on a data set.

    Where several studies tell of the same arm on the same machine, the one that was measured at the
    most numbers of ranks counts.

    Raises
    ------
    RecordError
        If a record cannot be read.
    SpecError
        If the network's gradients are not known.
    """
    resnet(model)
    asked = [
        one for one in completed(tree) if (one.spec.model, one.spec.dataset) == (model, dataset)
    ]
    arms: dict[_Arm, list[RunRecord]] = {}
    for record in asked:
        spec = record.spec
        if spec.strategy != "single" and spec.loader != "synthetic":
            arms.setdefault(_Arm(record.study, spec.strategy, spec.loader), []).append(record)
    best: dict[tuple[str, str, str], Evidence] = {}
    refused = []
    for arm, records in arms.items():
        try:
            found = _evidence(tree, arm, records)
        except (DataError, SpecError) as error:  # SpecError: how it communicates is not modelled
            refused.append(f"{arm.study}, {arm.strategy}, {arm.loader}: {error}")
            continue
        key = (found.machine, found.strategy, found.loader)
        if key not in best or len(found.sizes) > len(best[key].sizes):
            best[key] = found
    return Found(list(best.values()), refused)


def _evidence(tree: Tree, arm: _Arm, records: list[RunRecord]) -> Evidence:
    first = records[0].spec
    calibrated = calibrate(tree, arm.study, arm.strategy, arm.loader, first.model)
    sizes = {one.ranks for one in calibrated.measured if one.kind == "train"}
    return Evidence(
        machine=machine_name(records[0].system),
        strategy=arm.strategy,
        loader=arm.loader,
        model=first.model,
        dataset=first.dataset,
        gpus_per_node=calibrated.gpus_per_node,
        sizes=tuple(sorted(sizes)),
        rests_on=(
            _measured(tree, arm, calibrated),
            f"{first.image_size} px, batch {calibrated.training.local_batch_size}, "
            f"{first.precision}",
        ),
        admitted=calibrated.fitted.admitted,
        noise=calibrated.fitted.spread,
        training=calibrated.training,
        built=calibrated.machine,
        in_jobs=all(one.job_id is not None for one in records),
        power_w=_power(tree, records),
    )


def _measured(tree: Tree, arm: _Arm, calibrated: Calibrated) -> str:
    kinds = {"train": "training runs", "load": "of the loader alone", "all_reduce": "all-reduces"}
    counts = {kind: sum(one.kind == kind for one in calibrated.measured) for kind in kinds}
    told = ", ".join(f"{count} {kinds[kind]}" for kind, count in counts.items() if count)
    return f"records of {tree.study(arm.study).relative_to(tree.root.parent)}: {told}"


def _power(tree: Tree, records: Iterable[RunRecord]) -> tuple[float, float] | None:
    """Return the least and the most watts of a rank in a warm epoch, where energy was measured."""
    watts = [
        row.energy_j / row.wall_s / record.world_size
        for record in records
        for row in read_epochs(tree.study(record.study) / record.run_id)
        if row.phase == "train" and not row.cold and row.energy_j is not None and row.wall_s > 0
    ]
    return (min(watts), max(watts)) if watts else None
