"""Interleaved measurement: one run of a study trains an epoch while all others are paused.

A machine drifts, but two runs that measure within seconds of each other are affected alike. All
runs of a block are alive, their ranks stopped by signal. In each round every run measures one
window, in an order drawn anew. Ranks ask for it through `ddl_tools/rank/interleave.py`.

As many runs as the cores hold get ready at the same time. Their first steps, which compile and
choose kernels, and the rest of their cold epochs are made one after the other.
"""

import itertools
import json
import math
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

import psutil

from ddl_core.config import RunSpec
from ddl_core.errors import DDLError
from ddl_core.system import INTERLEAVED
from ddl_tools import gpus, limits, processes, subreaper
from ddl_tools.launch.notebook import LocalJob, cancel_all
from ddl_tools.launch.screen import Screen
from ddl_tools.names import Names, named, plural
from ddl_tools.records.ledger import Entry, entry, plan_one
from ddl_tools.records.paths import Tree
from ddl_tools.records.progress import fraction, read_progress
from ddl_tools.records.run import Slot
from ddl_tools.study import Study

GIB = 2**30
MARGIN = 1.25  # a run may need so many times what the largest one took so far
SPARE_BYTES = GIB  # for everything else on the machine
CORES_PER_RANK = 2  # of a run that gets ready: less is busy, so that none waits for another
HERE = "this machine"  # the name of its main memory
SHOW_EVERY_S = 1.0
# A library in a command may take a rank for dead that stands still: NCCL, after 600 s. Our ranks
# ask between collectives.
PAUSE_S = 200.0

Submit = Callable[[Path], LocalJob]


@dataclass
class InterleavedJob:
    """One run of a block, and what its ranks wait for."""

    entry: Entry
    local: LocalJob
    requests: dict[int, Connection] = field(default_factory=dict)  # by rank; those that wait now
    last: bool = False  # there is no window to come
    leader: psutil.Process | None = None  # of its ranks, once one has asked
    stopped: list[psutil.Process] = field(default_factory=list)
    reported: bool = False

    @property
    def waits(self) -> bool:
        """Whether all its ranks wait."""
        return len(self.requests) == self.entry.spec.started_ranks

    def freeze(self) -> None:
        """Stop its ranks, and all that they have started."""
        if self.leader is not None:
            self.stopped = subreaper.freeze(partial(subreaper.descendants, self.leader))

    def family(self) -> list[psutil.Process]:
        """Return its living processes."""
        return [] if self.leader is None else subreaper.family(self.leader)

    def release(self, slot: Slot | None) -> None:
        """Let it measure one window; None: let it go on to its first one, or to its end."""
        subreaper.thaw(self.stopped)
        self.stopped = []
        requests, self.requests = self.requests, {}
        for connection in requests.values():
            with suppress(OSError):  # a rank that has died: its job tells
                connection.send_bytes(json.dumps(slot and slot.model_dump()).encode())


class SlotServer:
    """Where the ranks of all runs ask for a window: a socket that only this user can reach."""

    def __init__(self) -> None:
        self._folder = processes.Passing()
        self.address = str(Path(self._folder.name) / "socket")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen(1024)
        self._ranks: list[Connection] = []

    def receive(self, jobs: dict[str, InterleavedJob]) -> None:
        """Wait a while for ranks that ask and runs that end; stop a run all of whose ranks ask."""
        ends = [job.local.sentinel for job in jobs.values() if not job.local.ended]
        for ready in wait([self._socket, *self._ranks, *ends], SHOW_EVERY_S):
            if ready is self._socket:
                self._ranks.append(Connection(self._socket.accept()[0].detach()))
                continue
            if ready not in self._ranks:
                continue
            assert isinstance(ready, Connection)
            try:
                asks: dict[str, Any] = json.loads(ready.recv_bytes())
            except (EOFError, OSError):  # its rank has ended, well or badly
                ready.close()
                self._ranks.remove(ready)
                continue
            job = jobs[asks["run"]]
            job.requests[asks["rank"]], job.last = ready, asks["last"]
            if job.leader is None:
                with suppress(psutil.NoSuchProcess):
                    job.leader = psutil.Process(int(asks["leader"]))
            if job.waits:  # some frameworks have threads that are at work between windows
                job.freeze()

    def __enter__(self) -> Self:
        os.environ[INTERLEAVED] = self.address
        return self

    def __exit__(self, *reason: object) -> None:
        del os.environ[INTERLEAVED]
        for connection in self._ranks:
            connection.close()
        self._socket.close()
        self._folder.cleanup()


def run_interleaved(
    study: Study,
    todo: list[Entry],
    tree: Tree,
    data_dir: Path | None,
    submit: Submit,
    shown: Screen,
) -> None:
    """Run the runs of each repetition together, in as many blocks as memory asks for.

    Every block has a run of the baseline, if need be one beyond the study's repeats.
    """
    assert study.interleave is not None
    done, names = 0, named(study.expand())
    for repeat in sorted({item.spec.repeat for item in todo}):
        planned = (item for item in todo if item.spec.repeat == repeat)
        left = [entry(item.spec, item.directory) for item in planned]
        while left := [item for item in left if item.state != "completed"]:
            own = [item for item in left if study.interleave.is_reference(item.spec)]
            first = own or [_further_reference(study, tree, data_dir)]
            block = [*first, *(item for item in left if item not in own)]
            left = Block(submit, shown, done, names).run(block)
            done += sum(item.spec.epochs for item in block if item not in left)


def _further_reference(study: Study, tree: Tree, data_dir: Path | None) -> Entry:
    """Plan one more run of the baseline, unless one is left over."""
    beyond = map(study.reference, itertools.count(study.repeats))
    found = (plan_one(spec, study.name, tree, data_dir) for spec in beyond)
    return next(item for item in found if item.state != "completed")


def group_sizes(specs: Sequence[RunSpec], cores: int) -> list[int]:
    """Return how many runs of a block get ready at the same time, group after group.

    The first one starts alone: it shows how much memory the others need.
    """
    sizes: list[int] = []
    ranks = 0
    for number, spec in enumerate(specs):
        ranks += spec.world_size
        if number > 1 and ranks * CORES_PER_RANK <= cores:
            sizes[-1] += 1
        else:
            sizes.append(1)
            ranks = spec.world_size
    return sizes


class Block:
    """Runs that are alive together; the first of them is their baseline."""

    def __init__(self, submit: Submit, shown: Screen, done: float, names: Names) -> None:
        self._submit, self._shown, self._names = submit, shown, names
        self._done = done  # epochs of blocks before
        self._shown_at = 0.0
        self._jobs: dict[str, InterleavedJob] = {}
        self._where = ""
        self.name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:4]}"

    def run(self, entries: list[Entry]) -> list[Entry]:
        """Run as many of `entries` as memory holds to their end; return the others."""
        with SlotServer() as server, self._ended_together():
            self._shown.restart_clock(math.inf)  # starts take longer than epochs
            begun = self._begin(entries, server)
            self._shown.restart_clock(self._done_now())
            number = 0
            while measuring := [job for job in self._alive() if not job.last]:
                self._report_ends()
                self._where = f"round {number + 1}"
                # In a drawn order, so that a drift favours no run.
                random.Random(f"{self.name} {number}").shuffle(measuring)
                for place, job in enumerate(measuring):
                    slot = Slot(
                        block=self.name, reference=entries[0].spec.run_id, round=number, place=place
                    )
                    job.release(slot)
                    self._wait_for(job, server)
                number += 1
            self._where = "evaluating"
            for job in self._alive():
                job.release(None)
                while not job.local.ended:
                    server.receive(self._jobs)
                    self._show(job)
                self._report_end(job)
            self._report_ends()
        return entries[begun:]

    def _begin(self, entries: list[Entry], server: SlotServer) -> int:
        """Start runs, each up to its first window; return how many have found memory."""
        memory, begun, since = MemoryNeed(), 0, time.monotonic()
        for size in group_sizes([item.spec for item in entries], limits.whole_cores()):
            end = begun + size
            while begun < end:
                group, least = entries[begun:end], 1 if begun < 2 else 0
                paused_s = (time.monotonic() - since) * (begun + 1) / max(begun, 1)
                if not least and entries[begun].spec.command and paused_s > PAUSE_S:
                    self._shown.say(
                        f"no more than {begun} commands at once: they would stand still for longer "
                        f"than {PAUSE_S:.0f} s, a third of what NCCL waits for a rank"
                    )
                    return begun
                while len(group) > least and not memory.fits([item.spec for item in group]):
                    group.pop()
                started = self._start(group, memory, server)
                begun += started
                if not started or started < len(group):
                    self._shown.say(
                        f"no memory for more than {plural(begun, 'run')} at once: {memory}"
                    )
                    return begun
        return begun

    def _start(self, group: list[Entry], memory: "MemoryNeed", server: SlotServer) -> int:
        """Let runs get ready together, then train their cold epochs in turn; see `_begin`.

        A run that turns out to find no memory is ended, with those after it.
        """
        jobs: list[InterleavedJob | None] = []
        self._where = f"starting {group[0].spec.run_id}" if group else ""
        for item in group:
            try:
                local = self._submit(item.directory)
            except DDLError as error:
                self._shown.say(f"failed     {self._names[item.spec.run_id]}: {error}")
                jobs.append(None)
                continue
            job = self._jobs[str(local.run_dir)] = InterleavedJob(item, local)
            jobs.append(job)
        ready = [job for job in jobs if job]
        if len(ready) > 1:
            self._where = f"starting {len(ready)} runs"
        for job in ready:
            self._wait_for(job, server)
        for number, one in enumerate(jobs):
            if one is None or one.local.ended:
                continue
            spec = one.entry.spec
            held = processes.memory_bytes(one.family())
            if not memory.fits([spec], held) and number:
                self._drop([job for job in jobs[number:] if job])
                return number
            self._where = f"starting {spec.run_id}"
            one.release(None)
            self._wait_for(one, server)
            memory.learn(spec, one.family())
        return len(group)

    def _drop(self, jobs: list[InterleavedJob]) -> None:
        """End runs that have only got ready: a later block starts them again."""
        for job in jobs:
            subreaper.thaw(job.stopped)
        cancel_all([job.local for job in jobs])
        for job in jobs:
            del self._jobs[str(job.local.run_dir)]

    def _wait_for(self, job: InterleavedJob, server: SlotServer) -> None:
        """Wait until a run asks to go on, or has ended."""
        while not (job.waits or job.local.ended):
            server.receive(self._jobs)
            self._show(job)

    def _alive(self) -> list[InterleavedJob]:
        return [job for job in self._jobs.values() if not job.local.ended]

    def _show(self, job: InterleavedJob) -> None:
        """Show now and then how far all runs are: looking takes processor time."""
        if time.monotonic() - self._shown_at < SHOW_EVERY_S:
            return
        self._shown_at = time.monotonic()
        self._shown.show(self._done_now(), self._where, read_progress(job.local.run_dir))

    def _done_now(self) -> float:
        """Return how many epochs are done, as progress bars count them."""
        shares = (
            job.entry.spec.epochs
            * (1 if job.local.ended else fraction(read_progress(job.local.run_dir)))
            for job in self._jobs.values()
        )
        return self._done + sum(shares)

    def _report_ends(self) -> None:
        """Say how those runs ended that have ended since."""
        for job in self._jobs.values():
            if job.local.ended and not job.reported:
                self._report_end(job)

    def _report_end(self, job: InterleavedJob) -> None:
        job.reported = True
        try:
            job.local.wait()
            self._shown.say(f"completed  {self._names[job.entry.spec.run_id]}")
        except DDLError as error:
            self._shown.say(f"failed     {self._names[job.entry.spec.run_id]}: {error}")

    @contextmanager
    def _ended_together(self) -> Iterator[None]:
        """Leave no run behind, whatever ends the block."""
        try:
            yield
        except BaseException:
            with processes.undisturbed():
                for job in self._alive():
                    subreaper.thaw(job.stopped)
                cancel_all([job.local for job in self._alive()])
            raise


class MemoryNeed:
    """Learns from the processes of runs that have started what the next run will need.

    Other programs take and give back memory meanwhile: the free memory of the machine would show
    what they did as well.
    """

    def __init__(self) -> None:
        self._free = free_bytes()
        self._per_rank: dict[str, int] = {}

    def learn(self, spec: RunSpec, own: list[psutil.Process]) -> None:
        """Note what the processes of a run hold that has just started; none if it has ended."""
        before, self._free = self._free, free_bytes()
        if not own:
            return
        for device, taken in _held(own, before, self._free).items():
            most = max(self._per_rank.get(device, 0), taken // spec.world_size)
            self._per_rank[device] = most

    def fits(self, specs: Sequence[RunSpec], held: int = 0) -> bool:
        """Say whether more runs find memory now; they hold some of the main memory already."""
        self._free = free_bytes()
        ranks = sum(spec.world_size for spec in specs)
        return all(
            need * ranks * MARGIN + SPARE_BYTES <= self._free[device] + held * (device == HERE)
            for device, need in self._per_rank.items()
            if need and device in self._free
        )

    def __str__(self) -> str:
        return "; ".join(
            f"{device}: {self._free[device] / GIB:.1f} GiB free, {need / GIB:.1f} GiB for each rank"
            for device, need in self._per_rank.items()
            if need and device in self._free
        )


def free_bytes() -> dict[str, int]:
    """Return the free memory of this machine and of each GPU that its driver shows."""
    found = {HERE: limits.free_memory_bytes()}
    known = {_gpu(number): free for number, free in enumerate(gpus.free_bytes())}
    return found | {name: free for name, free in known.items() if free is not None}


def _held(own: list[psutil.Process], before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Return the memory that processes hold, by device.

    On GPUs whose driver names none of them, it is the change of the free memory.
    """
    held = {HERE: processes.memory_bytes(own)}
    on_gpus = {name: before.get(name, free) - free for name, free in now.items() if name != HERE}
    told = gpus.bytes_of([one.pid for one in own]) if on_gpus else None
    if told is not None:
        on_gpus = {_gpu(number): amount for number, amount in enumerate(told)}
    return held | on_gpus


def _gpu(number: int) -> str:
    return f"GPU {number}"
