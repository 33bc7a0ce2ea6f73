"""Which runs of a study are left, their folders and their data: before anything starts."""

import itertools
from contextlib import suppress
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.data.dataset import Dataset
from ddl_core.errors import DataError, RecordError, SpecError
from ddl_tools.launch import preflight
from ddl_tools.records.ledger import (
    TO_RETRY,
    TO_RUN,
    Entry,
    data_folder,
    plan,
    plan_one,
)
from ddl_tools.records.paths import STUDIES, RunFiles, Tree, locate, portable
from ddl_tools.records.run import read_record, write_record
from ddl_tools.study import Study

ENOUGH_STEPS = 200  # of a window on GPUs: some 10 s, in which a start of 0.1 s is one per cent


def find_study(name: str) -> Study:
    """Load a study by its file, or by its bare name from the project's ``studies/``.

    Raises
    ------
    SpecError
        If there is no such study, or its file is wrong.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return Study.load(Path(name))
    known = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    if name not in known:
        raise SpecError(
            f"unknown study {name!r}; choose one of: {', '.join(known)}; or name a .yaml file"
        )
    return Study.load(STUDIES / f"{name}.yaml")


def pending(entries: list[Entry], retry_failed: bool = False) -> list[Entry]:
    """Return what a study still has to run; a run stopped from outside has not failed."""
    wanted = TO_RETRY if retry_failed else TO_RUN
    return [item for item in entries if item.state in wanted]


def write_plans(study: Study, todo: list[Entry], tree: Tree, data_dir: Path | None) -> None:
    """Give every run of a study a record, and those in `todo` one that can be started from."""
    for item in todo:
        _set_aside_unreadable(item)
    plan(study, tree, data_dir)
    if data_dir:
        for item in todo:
            _point_to(item.directory, data_dir)


def check_data(entries: list[Entry], tree: Tree, data_dir: Path | None = None) -> None:
    """Check the folders that some runs will read.

    Raises
    ------
    DataError
        If one is missing or cannot be read.
    SpecError
        If a run asks for more images or classes than there are.
    """
    places = ((_folder_of(item, tree, data_dir), item.spec.data_format) for item in entries)
    for folder, data_format in sorted({(folder, form) for folder, form in places if folder}):
        preflight.check_data(folder, data_format)
    check_images(entries, tree, data_dir)


def check_images(entries: list[Entry], tree: Tree, data_dir: Path | None = None) -> None:
    """Check that runs ask for no more images and classes than the folders have that are there.

    What else is wrong with a folder its ranks name.

    Raises
    ------
    SpecError
        If one asks for more.
    """
    checked = set()
    for item in entries:
        spec, folder = item.spec, _folder_of(item, tree, data_dir)
        asked = (spec.train_images, spec.eval_images, spec.classes, spec.global_batch_size)
        if folder is None or spec.data_format != "folder" or (folder, asked) in checked:
            continue
        checked.add((folder, asked))
        with suppress(DataError):
            images = len(Dataset(spec, folder, "train"))
            preflight.check_batch(spec.model_copy(update={"train_images": images}))
            if spec.work == "train" and spec.eval_every:
                Dataset(spec, folder, "eval")


def _folder_of(item: Entry, tree: Tree, data_dir: Path | None) -> Path | None:
    """Return what a run will read: what is chosen now, else what was chosen when it was planned."""
    if data_dir is None and item.state not in ("missing", "unreadable"):
        planned = read_record(item.directory).data_dir
        return locate(planned) if planned else None
    return data_folder(item.spec, tree, data_dir)


def plan_run(spec: RunSpec, study: str, tree: Tree, data_dir: Path | None = None) -> Path:
    """Plan a single run, unless it is planned already; return its folder."""
    directory = plan_one(spec, study, tree, data_dir).directory
    if data_dir:
        _point_to(directory, data_dir)
    return directory


def short_windows(runs: list[RunSpec]) -> str | None:
    """Say which runs on GPUs have windows too short to tell more than how a loader starts.

    A window is an epoch. Where a run's number of images is not known before it starts, nothing is
    said of it.
    """
    steps = {run.world_size: count for run in runs if (count := _few_steps(run))}
    if not steps:
        return None
    short = sum(_few_steps(run) is not None for run in runs)
    sizes = ", ".join(f"{count} on {ranks} ranks" for ranks, count in sorted(steps.items()))
    return (
        f"short windows: in {short} of {len(runs)} runs an epoch, the window, has fewer than "
        f"{ENOUGH_STEPS} steps ({sizes}): the first batch and the loader's start are a large part "
        f"of it; min_steps_per_epoch: {ENOUGH_STEPS} in the study makes it longer (docs/method.md)"
    )


def _few_steps(run: RunSpec) -> int | None:
    """Return the steps of a window where they are too few; None where not, or not known."""
    if run.device != "cuda" or run.known_images is None:
        return None
    steps = _steps(run, run.known_images)
    return steps if steps < ENOUGH_STEPS else None


def _steps(run: RunSpec, images: int) -> int:
    return images * run.passes(images) // run.global_batch_size


def without_throughput(runs: list[RunSpec]) -> str | None:
    """Say which runs will have no throughput: what does not count is as long as they are.

    Where a run's number of images is not known before it starts, nothing is said of it.
    """
    cold = [run for run in runs if _all_cold(run)]
    if not cold:
        return None
    first = cold[0]
    count = min(_cold(first), first.epochs)
    last = " and the profiled one" if first.profile_steps else ""
    return (
        f"no throughput: in {len(cold)} of {len(runs)} runs no epoch is left to count. E.g. in "
        f"{first.run_id}, of epochs = {first.epochs}, the first {count}{last} do not count "
        f"(discard_steps = {first.discard_steps}); ask for more epochs, or fewer discard_steps"
    )


def _all_cold(run: RunSpec) -> bool:
    if run.nsys or run.known_images is None:  # under nsys no epoch is meant to count
        return False
    return run.epochs - bool(run.profile_steps) <= _cold(run)


def _cold(run: RunSpec) -> int:
    return run.cold_epochs(max(1, _steps(run, run.known_images or 1)))


def _point_to(directory: Path, data_dir: Path) -> None:
    """Let a run that has not completed read from another folder."""
    record = read_record(directory)
    folder = portable(data_dir)
    if record.status != "completed" and record.data_dir not in (None, folder):
        write_record(directory, record.model_copy(update={"data_dir": folder}))


def _set_aside_unreadable(item: Entry) -> None:
    """Make room for a new record; the unreadable one is kept for whoever wants to look at it.

    With its lines and its checkpoint: a new record would take them for its own.
    """
    if item.state != "unreadable":
        return
    files = RunFiles(item.directory)
    places = (f".unreadable{number or ''}" for number in itertools.count())
    end = next(one for one in places if not any(item.directory.glob(f"*{one}")))
    for path in (files.record, files.epochs, files.checkpoint, files.state):
        try:
            if path.exists():
                path.replace(path.with_name(path.name + end))
        except OSError as error:
            raise RecordError(f"cannot set aside {path}: {error.strerror}") from None
