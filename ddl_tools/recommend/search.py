"""Measure for a search within a time limit: parts on ranks that stay, then interleaved starts.

Parts are runs of a study of their own, and whole configurations those of an interleaved one: a
second call goes on from these records.
"""

import math
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddl_core.config import RunSpec, run_fields
from ddl_core.errors import DataError, LaunchError
from ddl_core.registry import title
from ddl_tools import limits
from ddl_tools.analysis import estimates
from ddl_tools.analysis.interleaving import Interleaved, block_means
from ddl_tools.analysis.metrics import throughput
from ddl_tools.analysis.tables import windows_table
from ddl_tools.launch import local_ranks, measuring
from ddl_tools.launch.interleave import group_sizes
from ddl_tools.launch.screen import follow
from ddl_tools.launch.study import plan_run, run_study
from ddl_tools.processes import stoppable
from ddl_tools.recommend import plan
from ddl_tools.recommend.load import Load
from ddl_tools.recommend.plan import FINISH_S, Known, Space
from ddl_tools.recommend.search_space import (
    Request,
    change,
    epoch_size,
    search_name,
    space,
)
from ddl_tools.records.identity import REPEATS
from ddl_tools.records.ledger import Entry, ledger, read_study, write_study
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import EpochRecord, Failure, read_epochs, read_record
from ddl_tools.study import Interleave, Study
from ddl_tools.visible import visible

if TYPE_CHECKING:  # imports ipyparallel
    from ddl_tools.launch.interactive import Engines

START_S = {"cpu": 6.0, "cuda": 30.0}  # of configurations that start together, without epochs
PART_S = {"cpu": 2.0, "cuda": 4.0}  # of a part, besides its epochs
COMPILE_S = 80.0  # once
CACHED = 0.25  # share of this time that a later start needs: torch keeps what it has compiled
UNSURE = 1.25  # factor on the seconds of a start, before there was one
PILOT_STEPS = 2
FAILED = ("failed", "damaged")
MEMORY = "out of memory"


class Starts(ABC):
    """Interleaved starts of a search; `run` measures until the time is over.

    `stopped` says that the user ended it. `unfit` are the configurations without enough memory that
    were tried as the default, in words, and why they failed. `load` is what else was at work on the
    machine. `question` is that of its study, `name`.
    """

    def __init__(
        self,
        found: Space,
        tree: Tree,
        name: str,
        question: str,
        minutes: float,
        data_dir: Path | None = None,
    ) -> None:
        self.space, self.tree, self.name, self.question = found, tree, name, question
        self.known, self.load, self.stopped = Known(), Load(), False
        self.unfit: dict[str, str] = {}
        self.parts_name = f"{name}_parts"
        self._minutes, self._data_dir = minutes, data_dir
        self._ends = math.inf
        self._start_s = UNSURE * START_S[found.default.device]
        self._interleaved = True

    @property
    def left_s(self) -> float:
        """Seconds that are left for measuring."""
        return self._ends - time.monotonic()

    def run(self) -> None:
        """Measure; Ctrl-C and the end of the time keep what is complete.

        `LaunchError` if no configuration can run. `DataError` if the images cannot be read.
        `SpecError` if the time is too short for two configurations.
        """
        try:
            with measuring.alone("ddl recommend"), self._time_limit(), local_ranks.shared():
                self.resume()
                plan.search(self.space, self)
        except KeyboardInterrupt:
            self.stopped = self.left_s > 0
        self.look()

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """Interrupt this process, as Ctrl-C does, once the time is over."""
        self._ends = time.monotonic() + max(60 * self._minutes - FINISH_S, 1)
        timer = threading.Timer(self.left_s, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        with stoppable(signal.SIGINT):  # shells let what they start in the background ignore it
            timer.start()
            try:
                yield
            finally:
                timer.cancel()

    @abstractmethod
    def resume(self) -> None:
        """Take up what the records say; where there is no pilot yet, make it."""

    @abstractmethod
    def cost_s(self, spec: RunSpec) -> float:
        """Return the seconds of a part, or of the epochs of a start, as far as is known now."""

    @abstractmethod
    def measure_parts(self, parts: Sequence[RunSpec]) -> None:
        """Measure parts one after the other."""

    def block_s(self, block: Sequence[RunSpec]) -> float:
        """Return the seconds that a block takes: its starts and their epochs."""
        return self._groups(block) * self._start_s + sum(map(self.cost_s, block))

    def _groups(self, block: Sequence[RunSpec]) -> int:
        """Return how many times something starts in a block, one after the other."""
        return len(group_sizes(block, limits.whole_cores()))

    def measure_block(self, block: Sequence[RunSpec]) -> None:
        """Start configurations as one block, and wait for their end."""
        before, starts = self._planned()
        every = dict.fromkeys([*before, *block])
        study = study_of(self.name, self.question, every, starts + 1, self._interleaved)
        runs = {one.model_copy(update={"repeat": starts}).run_id for one in block}
        began = time.monotonic()
        with self.load.watched():
            run_study(study, self.tree, data_dir=self._data_dir, only=runs)
        spent_s = time.monotonic() - began
        done = [item for item in self.entries() if item.state == "completed"]
        own = [read_epochs(item.directory) for item in done if item.spec.run_id in runs]
        if took := [_epochs_s(rows) for rows in own]:
            self._start_s = max(0.0, spent_s - sum(took)) / self._groups(block)
        self.look()

    def look(self) -> None:
        """Read what is known from the records."""
        self.known = self._read()

    def _read(self) -> Known:
        """Return what the records say of whole configurations."""
        found, entries = Known(took=self.known.took), self.entries()
        found.failed = {first(item.spec): item.reason for item in entries if item.state in FAILED}
        done = [item for item in entries if item.state == "completed"]
        windows = Interleaved(windows_table(self.tree, [self.name]) if done else None)
        for item in done:
            own, spec = windows.of(self.name, [item.spec.run_id]), first(item.spec)
            rows = read_epochs(item.directory)
            found.took[spec] = _epochs_s(rows)
            starts = found.starts.setdefault(spec, {})
            if (rate := _rate_alone(rows)) is not None:
                starts[f"start {item.spec.repeat}"] = rate
            for block in {block for block, _ in own}:
                (starts[block[1]],) = block_means(
                    {place: value for place, value in own.items() if place[0] == block}
                )
        return found

    def first_failure(self) -> str:
        """Return what failed first, and why; empty if nothing has failed."""
        default = self.space.default
        failed = {
            change(spec, default) or "the default": why for spec, why in self.known.failed.items()
        }
        return next((f"{name}: {why}" for name, why in (self.unfit | failed).items()), "")

    def entries(self) -> list[Entry]:
        """Return the runs of whole configurations."""
        return self._entries(self.name)

    def _entries(self, name: str) -> list[Entry]:
        study = read_study(name, self.tree)
        return ledger(study, self.tree) if study else []

    def _planned(self) -> tuple[list[RunSpec], int]:
        """Return all whole configurations that were started, and the number of complete starts."""
        study = read_study(self.name, self.tree)
        if study is None:
            return [], 0
        entries = self.entries()
        repeats = [one.spec.repeat for one in entries if one.state == "completed"]
        # Repeats beyond the study's are defaults of further blocks.
        starts = 1 + max((one for one in repeats if one < study.repeats), default=-1)
        return [one.spec for one in entries if one.spec.repeat == 0], starts


class Search(Starts):
    """A search for the fastest way to train a network with what is installed here.

    `name` is by default made from what is asked and where: then the same question goes on.
    """

    def __init__(self, request: Request, tree: Tree, name: str | None = None) -> None:
        self.request, found = request, space(request)
        question = f"How should {request.model} be trained in parallel on this machine?"
        name = name or _name(request, found)
        super().__init__(found, tree, name, question, request.minutes, request.data_dir)
        self._rate = 1.0  # of the default's training
        self._engines: Engines | None = None
        self._size: list[int] = []

    def run(self) -> None:
        """Measure; see `Starts.run`."""
        try:
            super().run()
        finally:
            self._close()

    def resume(self) -> None:
        """Take up what the records say; where there is no pilot yet, make it."""
        self._pilot()
        self.look()

    def _pilot(self) -> None:
        """Train two short epochs of the default, or of the first that fits into the memory."""
        found = plan.fitting(self.space, self._trains)
        if found is None:
            tried = "; ".join(f"{name}: {why}" for name, why in self.unfit.items())
            batch = max(1, self.space.default.local_batch_size // 2)
            text = f"{self.request.model} cannot train here: {tried}"
            raise LaunchError(text, remedy=f"try --batch {batch}")
        self.space = found
        self._take(self._executed(self._short(found.default)))

    def _trains(self, default: RunSpec) -> bool:
        """Train the pilot of a default; False if that needs too much memory.

        `LaunchError` if the first one, which saves no memory, fails for another reason.
        """
        short, began = self._short(default), time.monotonic()
        try:
            self._executed(short)
        except LaunchError as error:
            memory = self._failure(short).category == "out_of_memory"
            if not (memory or self.unfit):
                raise LaunchError(f"{self.request.model} cannot train here: {error}") from None
            why = MEMORY if memory else _first_line(error)
            name = change(default, self.space.default)
            self.unfit[name or title("strategy", default.strategy)] = why
            sys.stderr.write(visible(f"failed     {self._label(short)}: {why}\n"))
            return False
        # A machine on which this takes long starts slowly.
        self._start_s = max(self._start_s, UNSURE * (time.monotonic() - began))
        return True

    def _short(self, default: RunSpec) -> RunSpec:
        """Return the pilot of a default: how long an epoch has to be."""
        images = min(self.space.images, PILOT_STEPS * default.global_batch_size)
        return plan.training_alone(default, self.space).model_copy(
            update={"train_images": images, "epochs": 2}
        )

    def _take(self, rows: list[EpochRecord]) -> None:
        """Let epochs be as long as those of the pilot say."""
        default = self.space.default
        self._rate = rows[-1].samples / rows[-1].wall_s
        size = epoch_size(default, default.global_batch_size / self._rate, self.space.images)
        self.space = replace(self.space, default=default.model_copy(update=size))

    def cost_s(self, spec: RunSpec) -> float:
        """Return the seconds of a part, or of the epochs of a start, as far as is known now."""
        if spec in self.known.took:
            return self.known.took[spec]
        images = spec.train_images or self.space.images
        if spec.min_steps_per_epoch:
            images = max(images, spec.min_steps_per_epoch * spec.global_batch_size)
        promised = plan.forecasts(self.space, self.known).get(spec)
        rate = promised.least if promised else self._rate
        before = 0.0
        if plan.is_part(spec):
            before = PART_S[spec.device] if self._stays(spec) else START_S[spec.device]
            before += COMPILE_S if spec.compile else 0.0
        elif spec.compile and promised:
            # A training that was measured again was compiled already.
            before += CACHED * max(COMPILE_S, self.known.took.get(promised.training, 0.0))
        return before + spec.epochs * images / rate

    def measure_parts(self, parts: Sequence[RunSpec]) -> None:
        """Measure parts one after the other, on ranks that stay where they can."""
        for spec in parts:
            began = time.monotonic()
            try:
                self._part(spec)
            except LaunchError as error:
                self._check_data(spec)
                sys.stderr.write(visible(f"failed     {self._label(spec)}: {error}\n"))
            self.known.took[first(spec)] = time.monotonic() - began
            self.look()

    def _check_data(self, spec: RunSpec) -> None:
        """End the search if PyTorch's own loader cannot read the images."""
        cause = self._failure(spec)
        if spec.loader == self.space.default.loader and cause.category == "data":
            raise DataError(cause.message)

    def _failure(self, spec: RunSpec) -> Failure:
        record = read_record(self.tree.study(self.parts_name) / spec.run_id)
        return record.error or Failure.of("NotStarted", "it has not ended")

    def _part(self, spec: RunSpec) -> None:
        """Measure a part, unless that was done."""
        specs = [*(item.spec for item in self._entries(self.parts_name)), spec]
        starts = 1 + max(one.repeat for one in specs)
        parts = dict.fromkeys(map(first, specs))
        write_study(study_of(self.parts_name, self.question, parts, starts), self.tree)
        self._executed(spec)

    def _executed(self, spec: RunSpec) -> list[EpochRecord]:
        """Execute a run on ranks that stay, unless that was done; return its epochs."""
        directory = plan_run(spec, self.parts_name, self.tree, self.request.data_dir)
        record = read_record(directory)
        if record.status in FAILED:
            raise LaunchError(str(record.error))
        if record.status != "completed":
            ranks = self._ranks(spec)
            with self.load.watched(loading=spec.work == "load"):
                ranks.run(directory, follow(self._label(spec)))
        return read_epochs(directory)

    def _label(self, spec: RunSpec) -> str:
        """Return a part in words."""
        own = {"work": "train"}
        if spec.work == "train":
            own["loader"] = self.space.default.loader
        words = change(spec.model_copy(update=own), self.space.default)
        what = "loading" if spec.work == "load" else "training"
        again = ", again" if spec.repeat else ""
        return f"{what} alone: {words or 'the default'}{again}"

    def _ranks(self, spec: RunSpec) -> "Engines":
        """Return the ranks for a part: those of the part before, if they are as many."""
        from ddl_tools.launch.interactive import Engines

        if self._engines is None or self._size != _size(spec):
            self._close()
            self._size, self._engines = _size(spec), Engines(spec)
        return self._engines

    def _stays(self, spec: RunSpec) -> bool:
        """Say whether a part may find ranks that are there already."""
        from ddl_tools.launch.interactive import one_run_per_process

        return self._size == _size(spec) and not one_run_per_process(spec)

    def _close(self) -> None:
        """End the ranks of parts."""
        if self._engines:
            self._engines.close()
        self._engines, self._size = None, []

    def measure_block(self, block: Sequence[RunSpec]) -> None:
        """Start configurations as one block, and wait for their end."""
        self._close()  # ranks that wait would hold memory
        super().measure_block(block)

    def _read(self) -> Known:
        """Return what the records say of parts and of whole configurations."""
        found, failed = super()._read(), dict[RunSpec, str]()
        for item in self._entries(self.parts_name):
            rows = [row for row in _rows(item) if not row.cold]
            spec = first(item.spec)
            if rows:
                values = [row.throughput_samples_per_s for row in rows]
                rate = estimates.middle(values).value
                found.rates[spec] = max(rate, found.rates.get(spec, 0.0))
            elif item.state in FAILED and spec not in found.rates:
                failed[spec] = item.reason
        found.failed = failed | found.failed
        return found


def _name(request: Request, found: Space) -> str:
    """Return the name of the study of a search: a longer time, or other epochs, go on with it."""
    asked = replace(request, epochs=1, minutes=1.0)
    text = f"{asked} {found.hardware} {found.default.run_id}"
    return search_name(request.model, text)


def study_of(
    name: str,
    question: str,
    configurations: Iterable[RunSpec],
    starts: int = 1,
    interleaved: bool = False,
) -> Study:
    """Return a study of configurations; of an interleaved one, the first is the baseline."""
    fields = run_fields()
    rows = [{name: value for name, value in one if name not in REPEATS} for one in configurations]
    shared = {name for name in rows[0] if all(row[name] == rows[0][name] for row in rows)}
    own = [{name: row[name] for name in row if name not in shared} for row in rows]
    changed = {name for name in shared if rows[0][name] != fields[name].default}
    reference = own[0] or {"loader": rows[0]["loader"]}
    return Study(
        name=name,
        question=question,
        base={name: rows[0][name] for name in rows[0] if name in changed},
        axes=[{name: [value] for name, value in row.items()} for row in own],
        repeats=starts,
        interleave=Interleave(reference=reference) if interleaved else None,
    )


def first(spec: RunSpec) -> RunSpec:
    """Return the configuration of a run: its first start."""
    return spec.model_copy(update={"repeat": 0})


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _size(spec: RunSpec) -> list[int]:
    """Return what is fixed when ranks start."""
    from ddl_tools.launch.interactive import FIXED

    return [getattr(spec, name) for name in FIXED]


def _rate_alone(rows: Sequence[EpochRecord]) -> float | None:
    """Return the images per second of a run that was not interleaved; None of any other."""
    warm = [row for row in rows if not row.cold]
    if not warm or any(row.interleave for row in warm):
        return None
    return throughput(sum(row.samples for row in warm), _epochs_s(warm))


def _epochs_s(rows: Sequence[EpochRecord]) -> float:
    """Return the seconds of some epochs."""
    return sum(row.wall_s for row in rows)


def _rows(item: Entry) -> list[EpochRecord]:
    return read_epochs(item.directory) if item.state == "completed" else []
