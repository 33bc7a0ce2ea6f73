"""Configurations that were measured: Amdahl's law fitted to the runs of each."""

import logging
from collections.abc import Container, Iterable, Sequence
from functools import cache
from pathlib import Path

from ddl_tools.labels import labels, plural
from ddl_tools.records.damage import examine
from ddl_tools.records.paths import Tree
from ddl_tools.records.rounds import Round, rounds_left_out
from ddl_tools.records.run import EpochRecord, RunRecord
from ddl_tools.scaling.amdahl import Observation, fit_throughput
from ddl_tools.scaling.configuration import Configuration, Span

log = logging.getLogger(__name__)

# Fields that do not change the throughput. Two runs that differ in any other one are never pooled.
_WITHOUT_EFFECT = {
    *("nodes", "gpus_per_node", "seed", "repeat", "second_start"),
    *("epochs", "train_images", "eval_images", "eval_every", "precise_bn", "checkpoint_every"),
    *("discard_steps", "min_steps_per_epoch", "profile_steps"),
    *("schedule", "base_lr", "lr_scaling", "warmup_epochs", "label_smoothing"),
    *("momentum", "weight_decay"),
}
_APART = _WITHOUT_EFFECT | {"strategy", "loader"}


def machine_name(system: dict[str, object] | None) -> str:
    """Return the name of a record's machine: its accelerator, else its processor."""
    known = system or {}
    return str(known.get("accelerator") or f"{known.get('cpu')}, {known.get('cpu_cores')} cores")


def throughputs(folders: Iterable[Path]) -> list[tuple[RunRecord, float | None]]:
    """Return records, each with its images per second over the epochs that count, if any do.

    `folders` are those of all runs of their studies. The log names damaged records, which are left
    out.
    """
    runs = list(map(examine, folders))
    why, found = rounds_left_out(runs), []
    for run in runs:
        for line in run.lines():
            _warn(line)
        if run.record and not run.damages:
            found.append((run.record, _rate(run.record.study, run.rows, why)))
    return found


@cache  # advice reads all records twice
def _warn(line: str) -> None:
    log.warning("left out: %s", line)


def _rate(study: str, rows: Iterable[EpochRecord], why: Container[Round]) -> float | None:
    slots = ((row, row.interleave) for row in rows if row.phase == "train" and not row.cold)
    counted = [row for row, slot in slots if not slot or (study, slot.block, slot.round) not in why]
    seconds = sum(row.wall_s for row in counted)
    return sum(row.samples for row in counted) / seconds if seconds else None


def trained(tree: Tree, model: str, dataset: str) -> list[tuple[RunRecord, float | None]]:
    """Return the completed PyTorch trainings of a network on a data set, as `throughputs` does."""
    folders = (path.parent for path in sorted(tree.runs.glob("*/*/run.json")))
    return [
        (one, rate)
        for one, rate in throughputs(folders)
        if one.status == "completed"
        and (one.spec.framework, one.spec.work, one.spec.emulated) == ("torch", "train", False)
        and (one.spec.model, one.spec.dataset) == (model, dataset)
    ]


def configurations(tree: Tree, model: str, dataset: str) -> list[Configuration]:
    """Return the configurations that the records of a tree measured of a network on a data set.

    Left out are a single process, synthetic data, and runs under a profiler.
    """
    groups: dict[tuple[str, str], list[tuple[RunRecord, float]]] = {}
    for record, rate in trained(tree, model, dataset):
        spec = record.spec
        if spec.strategy == "single" or spec.loader == "synthetic" or spec.nsys:
            continue
        if rate:
            same = spec.model_dump_json(exclude=_WITHOUT_EFFECT)
            groups.setdefault((machine_name(record.system), same), []).append((record, rate))
    details = labels([group[0][0].spec for group in groups.values()], _APART)
    return [
        _configuration(tree, group, name)
        for group, name in zip(groups.values(), details, strict=True)
    ]


def _configuration(
    tree: Tree, group: Sequence[tuple[RunRecord, float]], details: str
) -> Configuration:
    records = [record for record, _ in group]
    spec = records[0].spec
    posterior = fit_throughput([Observation(one.world_size, rate) for one, rate in group])

    def rate(ranks: int) -> Span:
        return Span(*(float(part[0]) for part in posterior.throughput([ranks])))

    folders = sorted({str(tree.study(one.study).relative_to(tree.root.parent)) for one in records})
    return Configuration(
        machine=machine_name(records[0].system),
        strategy=spec.strategy,
        loader=spec.loader,
        details=details,
        batch_size=spec.local_batch_size * spec.accumulation,
        ranks_per_node=max(one.spec.gpus_per_node for one in records),
        sizes=tuple(sorted({one.world_size for one in records})),
        sources=(
            f"{plural(len(records), 'run')} in {', '.join(folders)}",
            f"{spec.image_size} px, batch {spec.local_batch_size}, {spec.precision}",
        ),
        throughput=rate,
        in_jobs=all(one.job_id is not None for one in records),
    )
