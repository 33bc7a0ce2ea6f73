"""Let the large runs of an arm wait for a small one: a broken set-up then burns few node-hours."""

from ddl_core.launch.slurm.scheduler import Queue, queued
from ddl_core.records.ledger import Entry
from ddl_core.spec.run import RunSpec


def arm(spec: RunSpec) -> str:
    """Return what the runs of one curve have in common."""
    return f"{spec.strategy} {spec.loader} {spec.model}"


def small_first(
    entries: list[Entry], todo: list[Entry], queue: Queue | None
) -> tuple[list[Entry], dict[str, Entry]]:
    """Return what may be submitted, in order, and by run the smaller one that it waits for.

    A run on more nodes than the smallest of its arm waits for the first of these that is about to
    be submitted or in the queue. Where one of them is complete, nothing waits; where all have
    failed and are not tried again, the larger runs of the arm are left out.
    """
    order, waits = [], {}
    for item in sorted(todo, key=lambda one: one.spec.nodes):
        small = _smallest(item, entries)
        alive = [one for one in small if one in todo or queued(one, queue)]
        if item in small or any(one.state == "completed" for one in small):
            order.append(item)
        elif alive:
            order.append(item)
            waits[item.spec.run_id] = alive[0]
    return order, waits


def _smallest(item: Entry, entries: list[Entry]) -> list[Entry]:
    """Return the runs of an arm on the fewest nodes."""
    own = [one for one in entries if arm(one.spec) == arm(item.spec)]
    nodes = min(one.spec.nodes for one in own)
    return [one for one in own if one.spec.nodes == nodes]
