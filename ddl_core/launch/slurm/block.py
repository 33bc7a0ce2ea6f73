"""Which runs share a job, in which order it executes them, and what it is called.

A block is all that is left of one repeat and needs the same nodes. Its runs go one after the other
on one allocation, so a slow node slows all of them and cancels in their ratios; a random order
keeps what changes with time from falling on the same arm each time.
"""

import hashlib
from collections.abc import Sequence

from ddl_core.launch.slurm.site import Site
from ddl_core.records.ledger import Entry
from ddl_core.spec.run import RunSpec


def job_name(study: str, specs: Sequence[RunSpec]) -> str:
    """Return what the job of some runs of a study is called: a run alone, or a block."""
    return f"ddl-{specs[0].run_id}" if len(specs) == 1 else f"ddl-{_name(study, specs[0])}"


def may_be_of(job: str, item: Entry) -> bool:
    """Say whether a job of this name may be that of a run, alone or in its block."""
    study = item.directory.parent.name
    return job in (job_name(study, [item.spec]), f"ddl-{_name(study, item.spec)}")


def blocks(items: list[Entry], site: Site) -> list[list[Entry]]:
    """Return some runs of a study as blocks, each in the order in which its job executes them.

    The order is random, and the same whenever it is asked for: a run's place follows from its name
    and that of its block, whatever else is left.
    """
    found: dict[tuple[object, ...], list[Entry]] = {}
    for item in items:
        # On nodes with GPUs a job of runs on the CPU asks for none.
        key = (_name("", item.spec), site.wants_gpus(item.spec))
        found.setdefault(key, []).append(item)
    return [sorted(block, key=_chance) for block in found.values()]


def _name(study: str, spec: RunSpec) -> str:
    work = "" if spec.work == "train" else f"-{spec.work}"
    return f"{study}-{spec.nodes}x{spec.gpus_per_node}{work}-r{spec.repeat}"


def _chance(item: Entry) -> str:
    seed = _name(item.directory.parent.name, item.spec)
    return hashlib.sha256(f"{seed} {item.spec.run_id}".encode()).hexdigest()
