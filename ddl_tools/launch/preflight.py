"""What can be known before anything starts: is there room, data, and a core for every rank."""

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.data.formats import open_format
from ddl_core.errors import DataError, LaunchError, NotInstalledError, SpecError
from ddl_core.files import cannot_write, or_elsewhere
from ddl_core.origin import INSTALL
from ddl_core.registry import COMMAND
from ddl_tools import gpus, limits
from ddl_tools.datasets import PUBLIC_SETS
from ddl_tools.launch import own_network
from ddl_tools.launch.commands import Allocation, command_step
from ddl_tools.names import plural
from ddl_tools.processes import caches
from ddl_tools.records.profiling import first_step

# Two checkpoints of the largest model (one being written) are 1 GB.
MIN_FREE_BYTES = 1_000_000_000


def check_run(spec: RunSpec) -> None:
    """Check that this machine, or the SLURM job around this process, can start a run's ranks."""
    allocation = Allocation.current()
    if not (allocation and allocation.container):  # of an image its ranks find out
        _check_software(spec)
    check_code(spec)
    caches()
    if simulated := spec.launcher:
        simulated.check()  # its ranks share whatever cores there are
    elif allocation:  # its GPUs and cores were asked for, and granted, with the job
        if spec.nodes > allocation.nodes:
            raise SpecError(
                f"nodes = {spec.nodes}, but this SLURM job has {allocation.nodes}; "
                "submit the run with `ddl study submit`, or set nodes to fewer"
            )
    elif spec.nodes > 1:
        raise SpecError(
            f"nodes = {spec.nodes}: the local launcher runs on this machine only; set nodes "
            "to 1, or submit the study to SLURM with `ddl study submit`"
        )
    else:
        _check_ranks(spec, gpus.count() if spec.device != "cpu" else 0)
    check_batch(spec)


def _check_software(spec: RunSpec) -> None:
    """Check for torch, and for what torch.compile calls: it compiles while a run goes on."""
    if find_spec("torch") is None:
        raise NotInstalledError(
            f"training needs the package 'torch'; run `{INSTALL}` to install it"
        )
    names = [os.environ.get("CC", ""), "cc", "gcc"]
    if spec.compile and not any(name and shutil.which(name) for name in names):
        raise NotInstalledError(
            "compile = true, but this machine has no C compiler (neither cc nor gcc in PATH, nor "
            "what CC names), which torch.compile calls while the run goes on; load or install "
            "one where the ranks run, or set compile to false"
        )


def check_code(spec: RunSpec) -> None:
    """Check that a command of the user's can be started from here, and that a network is there."""
    if spec.framework == COMMAND:
        command_step(spec)
    allocation = Allocation.current()
    if not (allocation and allocation.container):
        own_network.require(spec.model)


def check_batch(spec: RunSpec) -> None:
    """Check that an epoch has images enough for an optimiser step, and for the profiled ones."""
    images = spec.train_images
    if not images:
        return
    steps = images * spec.passes(images) // spec.global_batch_size
    if not steps:
        raise SpecError(
            f"global batch of {spec.global_batch_size} images (ranks {spec.world_size} x "
            f"accumulation {spec.accumulation} x local_batch_size {spec.local_batch_size}) is "
            f"larger than train_images = {spec.train_images}; make one of them fit"
        )
    if spec.profile_steps:
        first_step(spec, steps)


def _check_ranks(spec: RunSpec, found: int) -> None:
    ranks = spec.gpus_per_node
    if spec.device == "cuda" and found == 0:
        raise SpecError("device = 'cuda', but no GPU is visible here; choose 'cpu' or 'auto'")
    if found:
        if ranks > found:
            raise SpecError(
                f"gpus_per_node = {ranks}, but this machine shows {plural(found, 'GPU')}; "
                f"use at most {found}, or device 'cpu'"
            )
    elif ranks > limits.whole_cores() and not spec.oversubscribe:
        raise SpecError(
            f"gpus_per_node = {ranks}, but this process may use "
            f"{plural(limits.cores(), 'core', 'g')}; ranks that share a core do not show the "
            f"speed of a machine: use at most {limits.whole_cores()}, or oversubscribe = true to "
            "compare memory"
        )


def check_data(folder: Path, data_format: str) -> None:
    """Check that `folder` looks like images in `data_format` and may be read."""
    made = f"import {folder.name}" if folder.name in PUBLIC_SETS else "sample"
    what = "it" if folder.name in PUBLIC_SETS else "a sample set"
    remedy = f"make {what} with `ddl data {made}`, or name another folder with --data DIR"
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist; {remedy}")
    found = open_format(data_format, folder)
    for part in found.folders():
        try:
            next(part.iterdir(), None)
        except OSError as error:
            raise DataError(f"cannot read {part}: {error.strerror}; {remedy}") from None
    found.check()


def check_room(folder: Path) -> None:
    """Check that files can be made below `folder`, which need not exist, and that disk is left."""
    try:
        present = next(place for place in (folder, *folder.parents) if place.exists())
        with tempfile.TemporaryFile(dir=present) as probe:
            probe.write(b"0")
    except OSError as error:
        raise cannot_write(folder, error) from None
    free = shutil.disk_usage(present).free
    if free < MIN_FREE_BYTES:
        raise LaunchError(
            f"{free / 1e6:.0f} MB are free on the disk of {folder}",
            remedy=f"a run may need {MIN_FREE_BYTES / 1e6:.0f} MB: {or_elsewhere('free some')}",
            category="disk",
        )
