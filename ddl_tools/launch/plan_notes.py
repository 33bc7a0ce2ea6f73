"""Notes on planned runs: short epochs, networks not found, no throughput."""

import os
from typing import TYPE_CHECKING

from ddl_core.config import RunSpec
from ddl_core.registry import COMMAND
from ddl_tools.launch import own_network
from ddl_tools.launch.commands import BINDING, Allocation
from ddl_tools.names import plural

if TYPE_CHECKING:
    from ddl_tools.launch.slurm.site import Site

ENOUGH_IMAGES = 200 * 64  # of a GPU and epoch: 4 to 10 s, in which a start of 0.1 s is 1 to 3 %


def short_windows(runs: list[RunSpec], images: dict[str, int] | None = None) -> str | None:
    """Say which runs on GPUs have epochs too short to tell more than how a loader starts.

    `images` are training images by run_id; a run whose images are not known is left out.
    """
    short = [
        (run.world_size, count, enough)
        for run in runs
        if run.device == "cuda"
        and run.framework != COMMAND
        and (known := _images_of(run, images)) is not None
        if (count := _steps(run, known)) < (enough := enough_steps(run))
    ]
    if not short:
        return None
    steps = sorted({ranks: count for ranks, count, _ in short}.items())
    sizes = ", ".join(f"{count} on {plural(ranks, 'rank')}" for ranks, count in steps)
    enough = max(one for *_, one in short)
    return (
        f"short windows: in {len(short)} of {plural(len(runs), 'run')} an epoch, the window, has "
        f"fewer than {ENOUGH_IMAGES} images a GPU ({sizes}): the first batch and the loader's "
        f"start are a large part of it; min_steps_per_epoch: {enough} in the study makes it longer "
        "(docs/explanation/measurement.md)"
    )


def images_not_known(runs: list[RunSpec], images: dict[str, int]) -> str | None:
    """Say of how many runs the length of an epoch is not known; `images` as in `short_windows`."""
    number = sum(_images_of(run, images) is None for run in runs if run.framework != COMMAND)
    if not number:
        return None
    return (
        f"the number of training images is not known in {number} of {plural(len(runs), 'run')}: "
        "the length of their epochs is not checked. Name an image folder with --data DIR, or set "
        "train_images"
    )


def networks_not_found(runs: list[RunSpec]) -> str | None:
    """Say which networks of your own are in no package that Python finds here; import none."""
    lost = sorted({run.model for run in runs if own_network.is_lost(run.model)})
    if not lost:
        return None
    return (
        f"not found: model {', '.join(lost)}; before the study starts, put the folder of the "
        "module in PYTHONPATH (docs/how-to/use-your-model.md)"
    )


def prefixes(runs: list[RunSpec]) -> str | None:
    """Name the programs that the ranks of some runs start with."""
    found = [run.prefix for run in runs if run.prefix]
    if not found:
        return None
    programs = "".join(f"\n  {one}" for one in sorted(set(found)))
    return (
        f"prefix: a program that the study names starts in {len(found)} of "
        f"{plural(len(runs), 'run')}, with your rights and without a throughput:{programs}"
    )


def commands(runs: list[RunSpec]) -> str | None:
    """Show the commands that some runs start."""
    found = dict.fromkeys(run.command for run in runs if run.command)
    if not found:
        return None
    lines = "".join(f"\n  {one}" for one in found)
    return f"commands: these start in the current folder, with your rights:{lines}"


def bindings() -> str | None:
    """Name the variables of the environment that ranks of this machine do not get."""
    found = sorted(set(BINDING) & os.environ.keys())
    if not found or Allocation.current():
        return None
    return (
        f"without effect: {', '.join(found)}. All ranks of a machine would be bound to the same "
        "cores"
    )


def open_ports(runs: list[RunSpec], site: "Site") -> str | None:
    """Name the strategies whose ranks open ports on nodes that a site's jobs may share."""
    found = {
        f"{run.framework} {run.strategy}"
        for run in runs
        if run.world_size > 1 or run.strategy in ("multiworker", "kvstore")  # these always
    }
    if site.exclusive or not found:
        return None
    return (
        f"ports without authentication: {', '.join(sorted(found))}. On shared nodes, other users "
        "reach them; set exclusive = true in the site file (SECURITY.md)"
    )


def enough_steps(run: RunSpec) -> int:
    """Return the steps of an epoch that is long enough to be measured on GPUs."""
    return -(-ENOUGH_IMAGES // run.local_batch_size)


def _images_of(run: RunSpec, images: dict[str, int] | None) -> int | None:
    """Return the training images of a run: those found in its folder, else those it asks for."""
    return (images or {}).get(run.run_id, run.known_images)


def _steps(run: RunSpec, images: int) -> int:
    """Return the steps of an epoch that has so many images."""
    return images * run.passes(images) // run.global_batch_size


def without_throughput(
    runs: list[RunSpec],
    *,
    interleaved: bool = False,
    images: dict[str, int] | None = None,
    remedy: str = "ask for more epochs, or fewer discard_steps",
) -> str | None:
    """Say which runs will have no throughput, because all their epochs are discarded.

    `images` are training images by run_id. A run whose images are not known, or are fewer than its
    batch, is left out. If runs are `interleaved`, the first round of a start is discarded too.
    """
    cold = {}
    for run in runs:
        known = _images_of(run, images)
        steps = 0 if known is None else _steps(run, known)
        if run.prefix or not steps:  # with a prefix no epoch is meant to count
            continue
        discarded = run.cold_epochs(steps)
        if run.epochs - bool(run.profile_steps) - interleaved <= discarded:
            cold[run] = min(discarded, run.epochs)
    if not cold:
        return None
    first, count = next(iter(cold.items()))
    more = [" and the profiled one"] if first.profile_steps else []
    more += [" and the first round"] if interleaved else []
    all_cold = len(cold) == len(runs) and not first.profile_steps
    none = "nothing to compare: " if all_cold else ""
    return (
        f"{none}no throughput: in {len(cold)} of {plural(len(runs), 'run')} no epoch is left to "
        f"count. E.g. in {first.run_id}, of epochs = {first.epochs}, the first "
        f"{count}{''.join(more)} do not count (discard_steps = {first.discard_steps}); {remedy}"
    )
