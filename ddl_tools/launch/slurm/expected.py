"""Expected time of runs on a site, at the rates that `ddl advise` knows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_tools.estimate import three_digits
from ddl_tools.launch.slurm.script import JobPlan
from ddl_tools.launch.slurm.site import Site, clock
from ddl_tools.launch.slurm.submit import show_costs
from ddl_tools.names import plural
from ddl_tools.records.ledger import Entry
from ddl_tools.records.paths import Tree
from ddl_tools.scaling import measured, paper
from ddl_tools.scaling.candidate import Candidate, Machine


@dataclass(frozen=True)
class Expected:
    """Hours of training of a run, without start, evaluation and checkpoints; and their source."""

    hours: float
    source: str


def machine_of(site_name: str, site: Site) -> Machine:
    """Return a site as `ddl advise` knows machines."""
    return Machine(Path(site_name).stem, site.description, site.gpus_per_node)


def expected_times(
    specs: Iterable[RunSpec],
    site_name: str,
    site: Site,
    tree: Tree,
    images: Mapping[str, int] | None = None,
) -> dict[str, Expected]:
    """Return by run_id what runs are expected to take on a site, where a rate of theirs is known.

    A rate is that of the same configuration in records of `tree`, else in the paper. `images` are
    training images by run_id; a run whose images are not known is left out.
    """
    machine = machine_of(site_name, site)
    known: dict[tuple[str, str], list[Candidate]] = {}
    found, every = {}, measured.trainings(tree)
    for spec in specs:
        of = spec.model, spec.dataset
        if of not in known:
            stated = paper.candidates(spec.model)
            runs = measured.of_network(every, *of)
            each = (*measured.candidates(runs, tree), *stated)
            known[of] = [one for one in each if machine.owns(one)]
        number = (images or {}).get(spec.run_id, spec.known_images)
        for one in known[of]:
            if number and one.describes(spec) and one.covers(spec.world_size):
                trained = spec.epochs * spec.passes(number) * number
                hours = one.hours(spec.world_size, trained).value
                source = f"{one.machine}: {'; '.join(one.sources)}"
                found[spec.run_id] = Expected(hours, source)
                break
    return found


def show(
    entries: list[Entry],
    plans: list[JobPlan],
    site_name: str,
    site: Site,
    tree: Tree,
    images: Mapping[str, int] | None = None,
) -> tuple[str, str | None]:
    """Return the table of costs, with a column of expected ones, and a warning of time limits.

    Parameters
    ----------
    entries
        All runs of a study.
    plans
        What is about to be submitted of them.
    site_name, site
        The machine.
    tree
        Where the records are.
    images
        Training images by run_id.
    """
    specs = [item.spec for item in entries]
    expected = expected_times(specs, site_name, site, tree, images)
    sources = dict.fromkeys(one.source for one in expected.values())
    lines = [f"expected: rates of {source}" for source in sources]
    table = show_costs(entries, plans, site, expected)
    return "\n".join([*lines, table]), too_long(plans, expected, site)


def too_long(plans: list[JobPlan], expected: Mapping[str, Expected], site: Site) -> str | None:
    """Say which jobs are expected to reach their time limit in all their starts."""
    found: list[tuple[float, JobPlan]] = []
    for plan in plans:
        specs = [item.spec for item in plan.runs]
        hours = sum(expected[spec.run_id].hours for spec in specs if spec.run_id in expected)
        if hours * 3600 > plan.limit_s(site) * (1 + plan.requeues(site)):
            found.append((hours, plan))
    if not found:
        return None
    hours, longest = max(found, key=lambda pair: pair[0])
    saved = all(item.spec.keeps_checkpoints for _, plan in found for item in plan.runs)
    then = (
        "continue from a checkpoint when you submit the study again"
        if saved
        else "fail if they have no checkpoint"
    )
    return (
        f"expected to exceed the time limit: {len(found)} of {plural(len(plans), 'job')}, "
        f"e.g. {longest.name.removeprefix('ddl-')}: {three_digits(hours)} h, limit "
        f"{clock(longest.limit_s(site))}. "
        f"Submit with --time HH:MM:SS; runs that reach the limit {then} "
        "(docs/how-to/run-on-slurm.md)"
    )
