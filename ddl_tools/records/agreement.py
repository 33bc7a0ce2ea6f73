"""Comparison of final weights between strategies that did the same work, from records alone.

A group holds completed runs of one study that differ in the strategy alone, on one processor with
one version of one framework. Processors and frameworks round differently.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from ddl_tools.names import named, plural
from ddl_tools.records.identity import WEIGHTS, key
from ddl_tools.records.ledger import Entry
from ddl_tools.records.run import RunRecord

_MACHINE = ("cpu", "architecture", "device", "accelerator")
# Beginnings of names of packages.
_COMPUTE = ("torch", "tensorflow", "keras", "jax", "mxnet", "pillow", "numpy", "nvidia-dali")

REMEDY = """\
This is a bug, or the hardware fails. Do not compare these runs. Were they all made on this machine,
by the same code? Then remove their folders and run the study again: hashes that change point to the
memory or the processor, hashes that stay to a bug; please report it with the run.json of each."""


@dataclass(frozen=True)
class Group:
    """Completed runs of at least two strategies that did the same work on one machine."""

    records: list[RunRecord]

    @property
    def agrees(self) -> bool:
        """Whether all hold the same weights."""
        return len({one.weights_sha256 for one in self.records}) == 1

    @property
    def promised(self) -> bool:
        """Whether different weights are a fault.

        The sum of more than two numbers depends on their order, which each strategy chooses; the
        norm by which gradients are clipped is such a sum. GPU kernels and compilers also choose.
        Of several nodes, a record names the first processor.
        """
        one = self.records[0]
        return (
            (one.spec.framework, one.spec.compile) == ("torch", False)
            and one.spec.precision in ("fp32", "torch")  # the same arithmetic on the CPU
            and (one.system or {}).get("device") == "cpu"
            and one.spec.nodes == 1
            and one.spec.clip_grad_norm is None
            and one.world_size <= 2
        )


def groups(records: Iterable[RunRecord]) -> list[Group]:
    """Return the groups among some runs; a run that trained nothing or is alone is in none."""
    ordered = sorted((one for one in records if one.weights_sha256), key=_decisive)
    found = [Group(list(same)) for _, same in groupby(ordered, _decisive)]
    return [one for one in found if len({run.spec.strategy for run in one.records}) > 1]


def _decisive(record: RunRecord) -> str:
    """Return everything that decides the final weights, but for the strategy."""
    system, packages = record.system or {}, (record.provenance or {}).get("packages", {})
    decisive = [
        (record.study, record.method_version, record.loader_version),
        key(record.spec.model_dump(), WEIGHTS),
        record.data and record.data.model_dump(),
        {name: system.get(name) for name in _MACHINE},
        {name: version for name, version in packages.items() if name.startswith(_COMPUTE)},
    ]
    return json.dumps(decisive, sort_keys=True)


def completed(entries: list[Entry]) -> list[RunRecord]:
    """Return the records of the runs that completed."""
    return [item.record for item in entries if item.record and item.state == "completed"]


def statements(entries: list[Entry]) -> list[str]:
    """Return how many groups agree, as lines at the end of a study; none without a group."""
    texts = {
        True: "same weights under all strategies",
        False: "same weights where the last bit is not promised (docs/explanation/fairness.md)",
    }
    all_complete = all(item.state == "completed" for item in entries)
    scope = "" if all_complete else ", of what is complete"
    lines = []
    for promised, text in texts.items():
        found = [one for one in groups(completed(entries)) if one.promised == promised]
        if found:
            same = sum(one.agrees for one in found)
            lines.append(f"{text}: {same} of {plural(len(found), 'group')}{scope}")
    return lines


def alarm(entries: list[Entry]) -> str:
    """Return the groups that disagree and must not, with what to do; empty if there are none."""
    found = [one for one in groups(completed(entries)) if one.promised]
    wrong = [one for one in found if not one.agrees]
    if not wrong:
        return ""
    names = named(run.spec for one in found for run in one.records)
    of_all = plural(len(found), "group")
    lines = [f"DIFFERENT WEIGHTS in {len(wrong)} of {of_all} that must hold the same:"]
    for one in wrong:
        lines.append(f"  on {(one.records[0].system or {}).get('cpu')}:")
        for run in sorted(one.records, key=lambda run: run.run_id):
            commit = str((run.provenance or {}).get("git_commit"))[:7]
            lines.append(f"    {run.weights_sha256:.8}  {names[run.run_id]}, commit {commit}")
    return "\n".join([*lines, REMEDY])
