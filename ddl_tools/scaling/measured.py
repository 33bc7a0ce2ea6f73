"""Candidates that were measured: Amdahl's law fitted to the runs of each."""

import logging
from collections.abc import Container, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from ddl_tools.names import ITEMS, describe, distinguish, hardware, label, plural
from ddl_tools.records.damage import examine
from ddl_tools.records.identity import FACTS, SOFTWARE, SPEED, complete, description, key
from ddl_tools.records.ledger import listed, study_folders
from ddl_tools.records.paths import Tree
from ddl_tools.records.rounds import Round, round_of, rounds_left_out
from ddl_tools.records.run import EpochRecord, RunRecord, System
from ddl_tools.scaling.amdahl import Observation, fit_throughput
from ddl_tools.scaling.candidate import NAMED, Candidate

_SHOWN = ("image_size", "local_batch_size", "precision")

log = logging.getLogger(__name__)


def machine_name(system: System | None) -> str:
    """Return the name of a record's machine: its accelerator, else its processor."""
    known = system or {}
    return hardware(known.get("accelerator"), known.get("cpu"), known.get("cpu_cores"))


class Measured(NamedTuple):
    """A record with its images per second over the epochs that count, if any do, and its rows."""

    record: RunRecord
    rate: float | None
    rows: Sequence[EpochRecord]


def throughputs(folders: Iterable[Path]) -> list[Measured]:
    """Return the runs of some folders with their throughput.

    `folders` are those of all runs of their studies. The log names damaged records, which are left
    out.
    """
    runs = list(map(examine, folders))
    why, found = rounds_left_out(runs), []
    for run in runs:
        for line in run.lines():
            log.warning("left out: %s", line)
        if run.record and not run.damages and not run.record.withdrawn:
            rate = _rate(run.record.study, run.rows, why)
            found.append(Measured(run.record, rate, run.rows))
    return found


def _rate(study: str, rows: Iterable[EpochRecord], why: Container[Round]) -> float | None:
    slots = ((row, row.interleave) for row in rows if row.phase == "train" and not row.cold)
    counted = [row for row, slot in slots if not slot or round_of(study, slot) not in why]
    seconds = sum(row.wall_s for row in counted)
    return sum(row.samples for row in counted) / seconds if seconds else None


def trainings(tree: Tree) -> list[Measured]:
    """Return the completed PyTorch trainings of a tree, of each study as it was planned last."""
    wanted = "torch", "train", False
    fields = attrgetter("framework", "work", "simulated")
    folders = (folder for study in listed(tree) for folder in study_folders(study, tree))
    return [
        one
        for one in throughputs(folders)
        if one.record.status == "completed" and fields(one.record.spec) == wanted
    ]


def of_network(runs: Iterable[Measured], model: str, dataset: str) -> list[Measured]:
    """Return those of some runs that trained a network on a data set."""
    specs = ((one, one.record.spec) for one in runs)
    return [one for one, spec in specs if (spec.model, spec.dataset) == (model, dataset)]


def trained(tree: Tree, model: str, dataset: str) -> list[Measured]:
    """Return the `trainings` of a network on a data set."""
    return of_network(trainings(tree), model, dataset)


def candidates(runs: Iterable[Measured], tree: Tree) -> list[Candidate]:
    """Return the candidates of some runs of a tree, all `trained` alike.

    Left out are a single process, and the controls: synthetic data and second starts.
    """
    own: list[tuple[RunRecord, float]] = []
    for record, rate, _ in runs:
        spec = record.spec
        if spec.strategy == "single" or spec.loader == "synthetic" or spec.second_start:
            continue
        if rate:
            own.append((record, rate))
    abouts = [description(record) for record, _ in own]
    complete(abouts)
    groups: dict[str, list[tuple[RunRecord, float]]] = {}
    for about, one in zip(abouts, own, strict=True):
        groups.setdefault(key(about, SPEED), []).append(one)
    details = _details([group[0][0] for group in groups.values()])
    return [
        _candidate(tree, group, text) for group, text in zip(groups.values(), details, strict=True)
    ]


def _details(firsts: Sequence[RunRecord]) -> list[str]:
    """Return what sets candidates apart; equal ones end with what differs in software."""
    found = label([one.spec for one in firsts], SPEED.union(NAMED))
    shown: dict[tuple[str, str, str], list[int]] = {}
    for place, one in enumerate(firsts):
        name = machine_name(one.system), one.spec.strategy, one.spec.loader
        shown.setdefault(name, []).append(place)
    for places in shown.values():
        facts = [_facts(description(firsts[place])) for place in places]
        names = distinguish([found[place] for place in places], facts)
        for place, text in zip(places, names, strict=True):
            found[place] = text
    return found


def _facts(about: dict[str, Any]) -> str:
    """Return machine, software and method of a run as one text of items."""
    own = [name for name in FACTS if name not in SOFTWARE and about[name] is not None]
    items = [f"{name} {about[name]}" for name in own]
    return ITEMS.join([*items, *(about[name] for name in SOFTWARE if about[name])])


def _candidate(tree: Tree, group: Sequence[tuple[RunRecord, float]], details: str) -> Candidate:
    records = [record for record, _ in group]
    largest = max(records, key=lambda one: one.spec.gpus_per_node)
    spec = largest.spec
    posterior = fit_throughput([Observation(one.world_size, rate) for one, rate in group])
    folders = sorted({str(tree.study(one.study).relative_to(tree.root.parent)) for one in records})
    return Candidate(
        spec,
        machine_name(largest.system),
        sizes=tuple(sorted({one.world_size for one in records})),
        sources=(
            f"{plural(len(records), 'run')} in {', '.join(folders)}",
            describe({name: getattr(spec, name) for name in _SHOWN}),
        ),
        throughput=posterior.throughput,
        details=details,
        in_jobs=all(one.job_id is not None for one in records),
        describes=lambda other: key(dict(other), SPEED) == key(dict(spec), SPEED),
    )
