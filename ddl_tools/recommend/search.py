"""A search within a time limit: starts of the configurations that are left, block after block.

Everything lies in an ordinary interleaved study, so a second call goes on from its records.
"""

import hashlib
import itertools
import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ddl_core.config import RunSpec
from ddl_core.errors import DataError, LaunchError, SpecError
from ddl_tools.analysis.interleaving import Interleaved, over_blocks
from ddl_tools.analysis.tables import write_tables
from ddl_tools.labels import REPEATS
from ddl_tools.launch import local_ranks, measuring
from ddl_tools.launch.study import plan_run, run_one, run_study
from ddl_tools.processes import stoppable
from ddl_tools.recommend.candidates import Request, Space, describe, epoch_size, space
from ddl_tools.recommend.race import Observation, Race, race
from ddl_tools.records.ledger import Entry, ledger, read_study
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import EpochRecord, Failure, read_epochs, read_record
from ddl_tools.study import ADHOC, Interleave, Study

FINISH_S = 15.0  # for figure, page and answer
SCREENING = 2  # starts of the baseline and its single changes
MOST_COMBINATIONS = 3
START_S = 4.0  # of a configuration, before it is measured
SCREENING_SHARE = 0.6  # of the time
PILOT_STEPS = 2
FAILED = ("failed", "damaged")


class Search:
    """A search for the fastest configuration; `run` measures until the time is over.

    `failed` has the reasons of configurations that could not run. `stopped` says that the user
    ended the search.
    """

    def __init__(self, request: Request, tree: Tree, found: Space | None = None) -> None:
        self.request, self.tree, self.stopped = request, tree, False
        self.space = found or space(request)
        text = f"{replace(request, epochs=1)} {self.space.hardware} {self.space.baseline.run_id}"
        model = re.sub(r"\W", "_", request.model.lower(), flags=re.ASCII)
        # A study's name has at most LONGEST_NAME characters; the hash tells long ones apart.
        self.name = f"recommend_{model[:64]}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        self.failed: dict[RunSpec, str] = {}
        self._ends = math.inf
        self._start_s, self._epoch_s = START_S, 0.0
        self._epochs_s: dict[RunSpec, float] = {}  # of one start

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
                self._pilot()
                while chosen := self._next():
                    self._measure(chosen)
        except KeyboardInterrupt:
            self.stopped = self.left_s > 0

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """Interrupt this process, as Ctrl-C does, once the time is over."""
        self._ends = time.monotonic() + max(60 * self.request.minutes - FINISH_S, 1)
        timer = threading.Timer(self.left_s, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        with stoppable(signal.SIGINT):  # shells let what they start in the background ignore it
            timer.start()
            try:
                yield
            finally:
                timer.cancel()

    def _pilot(self) -> None:
        """Train two short epochs of the baseline, or of the first change of it that can run."""
        messages = set[str]()
        for spec in self.space.pilots():
            images = min(self.space.images, PILOT_STEPS * spec.global_batch_size)
            short = spec.model_copy(update={"train_images": images, "epochs": 2})
            directory = plan_run(short, ADHOC, self.tree, self.request.data_dir)
            began = time.monotonic()
            try:
                if read_record(directory).status != "completed":
                    run_one(directory)
                rows = read_epochs(directory)
                # Half of it, because the pilot starts the process that ranks are forked from.
                start_s = (time.monotonic() - began - sum(row.wall_s for row in rows)) / 2
                self._start_s = max(START_S, start_s)
                self._take_baseline(spec, rows)
                return
            except LaunchError as error:
                cause = read_record(directory).error or Failure.of_error(error)
                if cause.category == "data":  # of any strategy
                    raise DataError(cause.message) from None
                short_of_memory = cause.category == "out_of_memory"
                remedy = f"see {directory}"
                if short_of_memory:
                    remedy = f"try --batch {max(1, spec.local_batch_size // 2)}"
                self.failed[spec] = f"{cause.message}; {remedy}"
                if cause.message in messages and not short_of_memory:
                    break  # the fault is not one of a strategy
                messages.add(cause.message)
        raise LaunchError(f"{self.request.model} cannot train here; {self.first_failure()}")

    def first_failure(self) -> str:
        """Return the configuration that failed first, and why; empty if none has failed."""
        return next((f"{describe(spec)}: {why}" for spec, why in self.failed.items()), "")

    def _take_baseline(self, spec: RunSpec, rows: list[EpochRecord]) -> None:
        """Take a configuration as the baseline, with epochs as long as its pilot `rows` say."""
        step_s = rows[-1].wall_s * spec.global_batch_size / rows[-1].samples
        steps, size = epoch_size(spec, step_s, self.space.images)
        self._epoch_s = steps * step_s
        self.failed = {one.model_copy(update=size): why for one, why in self.failed.items()}
        self.space = replace(self.space, baseline=spec.model_copy(update=size))

    def entries(self) -> list[Entry]:
        """Return the runs of the search."""
        study = read_study(self.name, self.tree)
        return ledger(study, self.tree) if study else []

    def _planned(self) -> tuple[list[RunSpec], int]:
        """Return all configurations that were started, and the number of complete starts."""
        study = read_study(self.name, self.tree)
        if study is None:
            return [], 0
        repeats = [one.spec.repeat for one in self.entries() if one.state == "completed"]
        # Repeats beyond the study's are baselines of further blocks.
        starts = 1 + max((one for one in repeats if one < study.repeats), default=-1)
        return [run for run in study.expand() if run.repeat == 0], starts

    def race(self, nodes: int | None = 1) -> Race[RunSpec]:
        """Return what is left of the configurations by all that was measured on some nodes."""
        entries = self.entries()
        failed = {first(item.spec) for item in entries if item.state in FAILED}
        done = [item for item in entries if item.state == "completed"]
        if not done:
            return race([])
        table, of_epochs = write_tables(self.tree, self.name)
        windows = Interleaved(of_epochs)
        runs = table.set_index("run_id")["throughput_samples_per_s"]
        found = []
        for item in done:
            spec, own = item.spec, windows.of(self.name, [item.spec.run_id])
            is_half = spec.work != "train" or spec.loader == "synthetic"
            if is_half or spec.nodes != nodes or first(spec) in failed:
                continue
            if own:
                found.append(Observation(first(spec), max(own)[0][1], over_blocks(own).ratio))
            elif read_epochs(item.directory)[-1].interleave is None:  # in a SLURM job
                place = f"start {spec.repeat:04}", float(runs[spec.run_id])
                found.append(Observation(first(spec), *place))
        return race(found)

    def _next(self) -> list[RunSpec]:
        """Return what to start together next; nothing if the time does not hold it."""
        for item in self.entries():
            if item.state == "completed":
                self._epochs_s[first(item.spec)] = _epochs_s(item)
            elif item.state in FAILED:
                self.failed[first(item.spec)] = item.reason
        before, starts = self._planned()
        baseline, found = self.space.baseline, self.race()
        if starts < SCREENING:
            changes = [one for one in self.space.single_changes() if not before or one in before]
            wanted = self._able(changes, [one for one in found.dropped if one != baseline])
            if not starts or len(wanted) > 1:
                return self._screening(wanted, starts)
        if not found.left:
            raise LaunchError("no configuration has a throughput", remedy="see `ddl study status`")
        leader = found.left[0]
        core = self._able(dict.fromkeys([leader, baseline, *self.halves(leader)]))
        if self._cost_s(core) > self.left_s:
            return []
        effects = {one: found.log_ratio(one, baseline) for one in self.space.single_changes()
                   if {one, baseline} <= set(found.configurations)}  # fmt: skip
        count = MOST_COMBINATIONS if starts < SCREENING + 2 else 0
        new = self._able(self.space.combinations(effects), found.configurations)[:count]
        reserve = self._cost_s(core) if starts == SCREENING else 0.0
        rest = [one for one in [*new, *found.left] if one not in core]
        return self._fitting([*core, *rest], max(self.left_s - reserve, self._cost_s(core)))

    def _screening(self, wanted: list[RunSpec], starts: int) -> list[RunSpec]:
        """Return as many of the baseline and its single changes as the time holds."""
        room_s = SCREENING_SHARE * self.left_s / SCREENING if starts == 0 else self.left_s
        chosen = self._fitting(wanted, room_s)
        if len(chosen) < 2:
            chosen = self._fitting(wanted[:2], self.left_s)
        if starts or len(chosen) >= min(2, len(wanted)):
            return chosen if len(chosen) > 1 else []
        needed_s = self._cost_s(wanted[:2]) - self.left_s
        raise SpecError(
            f"--minutes {self.request.minutes:g} is too short to compare two configurations of "
            f"{self.request.model} here; {math.ceil(self.request.minutes + needed_s / 60)} would do"
        )

    def halves(self, spec: RunSpec) -> list[RunSpec]:
        """Return the loader alone and the training alone of a configuration."""
        images = spec.train_images or self.space.images
        synthetic = {"loader": "synthetic", "data_format": "folder", "train_images": images}
        return [spec.model_copy(update=change) for change in ({"work": "load"}, synthetic)]

    def left_out(self) -> list[RunSpec]:
        """Return the single changes for which there was no time."""
        return self._able(self.space.single_changes(), self._planned()[0])

    def _able(self, specs: Any, without: Sequence[RunSpec] = ()) -> list[RunSpec]:
        return [one for one in specs if one not in self.failed and one not in without]

    def _fitting(self, wanted: Sequence[RunSpec], room_s: float) -> list[RunSpec]:
        costs = itertools.accumulate(self._cost_s([one]) for one in wanted)
        return [one for one, cost in zip(wanted, costs, strict=True) if cost <= room_s]

    def _cost_s(self, specs: Sequence[RunSpec]) -> float:
        """Return the seconds that one start of some configurations takes."""
        guess = self.space.baseline.epochs * self._epoch_s
        return sum(self._start_s + self._epochs_s.get(spec, guess) for spec in specs)

    def _measure(self, chosen: Sequence[RunSpec]) -> None:
        """Start some configurations as one block, and wait for their end."""
        (before, starts), began = self._planned(), time.monotonic()
        every = dict.fromkeys([*before, *chosen])
        study = study_of(self.name, self.request.model, every, starts + 1)
        runs = {one.model_copy(update={"repeat": starts}).run_id for one in chosen}
        run_study(study, self.tree, data_dir=self.request.data_dir, only=runs)
        took = [_epochs_s(item) for item in self.entries()
                if item.spec.run_id in runs and item.state == "completed"]  # fmt: skip
        if took:
            self._start_s = (time.monotonic() - began - sum(took)) / len(took)


def study_of(name: str, model: str, configurations: Iterable[RunSpec], starts: int) -> Study:
    """Return an interleaved study of some configurations; the first one is its baseline."""
    rows = [one.model_dump(exclude=set(REPEATS)) for one in configurations]
    shared = {name for name in rows[0] if all(row[name] == rows[0][name] for row in rows)}
    own = [{name: row[name] for name in row if name not in shared} for row in rows]
    changed = {name for name in shared if rows[0][name] != RunSpec.model_fields[name].default}
    return Study(
        name=name,
        question=f"How should {model} be trained in parallel on this machine?",
        base={name: rows[0][name] for name in rows[0] if name in changed},
        axes=[{name: [value] for name, value in row.items()} for row in own],
        repeats=starts,
        interleave=Interleave(reference=own[0]),
    )


def first(spec: RunSpec) -> RunSpec:
    """Return the configuration of a run: its first start."""
    return spec.model_copy(update={"repeat": 0})


def _epochs_s(item: Entry) -> float:
    return sum(row.wall_s for row in read_epochs(item.directory))
