"""The one process of ours in a run of a command of the user's: it starts it, reads it, ends it.

The command is not trusted to end: all that descends from it is ended with the run.
"""

import os
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TextIO

import psutil

from ddl_core.config import RunSpec
from ddl_core.errors import Interrupted, LaunchError
from ddl_core.loop import EpochResult
from ddl_core.reports import FIRST_BATCH
from ddl_core.timing import EpochTiming
from ddl_tools import consent, gpus
from ddl_tools.processes import COMMAND_STEP, memory_bytes, stoppable, undisturbed
from ddl_tools.rank.recorder import RunRecorder
from ddl_tools.rank.reports import Report, Window, read, window
from ddl_tools.records.progress import SETUP_TIMEOUT_S, Publish
from ddl_tools.subreaper import descendants, end_all

# Until the first report, as a share of what the launcher waits, which knows less of the reason.
SILENT = 0.9
END_S = 10.0  # for a command that is asked to end
SHOWN = 5  # last lines of a command that failed
LONGEST = 2**16  # characters of a line: more is read in parts
TORCHRUN = ("-m", "torch.distributed.run")
# From here on, torchrun tells that a rank has failed, which has said why before.
_OF_TORCHRUN = re.compile(r"E\d{4} .*torch/distributed/elastic")


def words(spec: RunSpec, step: Sequence[str] = ()) -> list[str]:
    """Return the words of a run's command, with what starts its ranks before them.

    Parameters
    ----------
    spec
        Its strategy says what starts the ranks: nothing, ``torchrun`` or ``srun``.
    step
        Words of srun in a SLURM job: it starts a task for each rank, or each torchrun.
    """
    assert spec.command is not None
    own = shlex.split(spec.command)
    if spec.strategy != "torchrun":
        return [*step, *own]
    nodes, ranks = str(spec.nodes), str(spec.gpus_per_node)
    options = ["--nnodes", nodes, "--nproc-per-node", ranks, "--tee", "1"]
    options += (
        ["--standalone"]
        if spec.nodes == 1
        else ["--rdzv-backend", "c10d", "--rdzv-id", "ddl", "--rdzv-endpoint", _endpoint()]
    )
    is_python = Path(own[0]).name.startswith("python")
    torchrun = (
        [own[0], *TORCHRUN, *options, *own[1:]]
        if is_python
        else [sys.executable, *TORCHRUN, *options, "--no-python", *own]
    )
    return [*step, *torchrun]


def _endpoint() -> str:
    """Return where the torchruns meet: on this node, the first of the job, by its own name.

    The name of a fast network would not do: by it, torchrun does not find that it is the host.
    """
    return f"{os.uname().nodename}:{29_400 + os.getpid() % 1000}"


def _silence_s() -> float:
    return SILENT * float(os.environ.get("DDL_SETUP_TIMEOUT") or SETUP_TIMEOUT_S)


class CommandRun:
    """A run of a command: `execute` records its windows."""

    def __init__(self, directory: Path, publish: Publish | None = None) -> None:
        self.recorder = RunRecorder(directory, publish)
        self.spec = self.recorder.spec
        assert self.spec.command is not None
        self._folder, self._environment = consent.origin(self.spec.command)
        self._step = shlex.split(os.environ.get(COMMAND_STEP, ""))
        self._words = words(self.spec, self._step)
        self._lines: queue.SimpleQueue[tuple[float, str] | None] = queue.SimpleQueue()
        self._last: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._images, self._heard = 0, False  # of one line; whether there has been one
        self._cpu_at_first_s = 0.0  # CPU seconds at the beginning of a window

    def execute(self, leaving: ExitStack) -> None:
        """Start the command, record one window after the other, end it; put its end on `leaving`.

        So a command that is in the way of an error ends once the error has been said. A start
        measures all windows: what an earlier one left, the newest lines replace.
        """
        try:
            with stoppable():
                self._measure(leaving)
        except KeyboardInterrupt:  # also the end of a job
            raise Interrupted("the command was ended from outside") from None

    def _measure(self, leaving: ExitStack) -> None:
        recorder, spec = self.recorder, self.spec
        recorder.progress.set_up("starting the command")
        recorder.describe_command()
        ranks: list[int] = []
        leaving.enter_context(self._started())
        for epoch in range(spec.epochs):
            cold = epoch == 0
            recorder.wait_for_slot(epoch, cold)
            recorder.progress.begin("train", epoch, self._images)
            found = self._window(epoch, ranks, spec.discard_steps if cold else 1)
            ranks = found.ranks or ranks
            if epoch == 0:
                recorder.note_reporting(found.ranks)
            result = self._result(found, self._cpu_s() - self._cpu_at_first_s)
            recorder.store(result, epoch, "train", cold, self._memory())
            recorder.end_slots(epoch)
        leaving.close()
        recorder.complete(None)

    def _window(self, epoch: int, ranks: list[int], steps: int) -> Window:
        paused = self.recorder.slots.interleaved and epoch > 0
        try:
            return window(self._reports(paused), least_steps=max(steps, 1), expected=ranks)
        except EOFError:
            raise self._ended(epoch) from None

    def _reports(self, paused: bool) -> Iterator[Report]:
        """Yield reports as they come; after a pause, not the first one of a rank.

        That one is of a step before the pause, or of one that the pause has cut.
        """
        seen: set[int] = set()
        begun = time.perf_counter()
        done = 0
        while True:
            try:
                item = self._lines.get(timeout=1.0)
            except queue.Empty:
                if not self._heard and time.perf_counter() - begun > (limit := _silence_s()):
                    raise self._silent(f" within {limit:.0f} s") from None
                continue
            if item is None:
                return
            at, text = item
            one = read(text, at, self.spec.gpus_per_node)
            if one is None or at < begun:
                continue
            self._images, self._heard = one.images, True
            if paused and one.rank not in seen:
                seen.add(one.rank)
                continue
            if not done:  # the window begins: what came before has taken time of its own
                self._cpu_at_first_s = self._cpu_s()
            done += 1
            self.recorder.progress.step(done, 0)
            yield one

    @contextmanager
    def _started(self) -> Iterator[None]:
        own = {**self._environment, "PYTHONUNBUFFERED": "1"}
        if self.spec.loader == "synthetic":
            own[FIRST_BATCH] = "1"
        try:
            self._process = subprocess.Popen(
                self._words, cwd=self._folder, env=own, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                bufsize=1,
            )  # fmt: skip
        except OSError as error:
            raise LaunchError(
                f"cannot start {error.filename or self._words[0]!r}: {error.strerror}",
                category="settings",
            ) from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        errors = threading.Thread(
            target=self._keep, args=(self._process.stderr, sys.stderr), daemon=True
        )
        errors.start()
        threading.Thread(
            target=self._read, args=(self._process.stdout, errors), daemon=True
        ).start()
        try:
            yield
        finally:
            with undisturbed():
                self._end()

    def _read(self, output: TextIO, errors: threading.Thread) -> None:
        """Pass on each line with the time of its arrival; at the end, None."""
        self._keep(output, sys.stdout, lambda line: self._lines.put((time.perf_counter(), line)))
        errors.join(END_S)  # what it complained of is to be told, unless a child of it lives on
        self._lines.put(None)

    def _keep(
        self, lines: TextIO, log: TextIO, heard: Callable[[str], None] = lambda line: None
    ) -> None:
        """Copy lines into the log of this rank; keep the last ones."""
        over = False
        for line in iter(partial(lines.readline, LONGEST), ""):
            heard(line)
            over = over or _OF_TORCHRUN.match(line) is not None
            if (text := line.rstrip()) and not over:
                self._last = [*self._last[-SHOWN + 1 :], text]
            log.write(line)
            log.flush()

    def _end(self) -> None:
        """Ask the command to end, and end what has not; srun asks the tasks of its step."""
        process = self._process
        assert process is not None
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        me = psutil.Process()
        end_all(lambda: descendants(me))
        process.wait()

    def _cpu_s(self) -> float:
        """Return the CPU seconds of the command and of all that it has started and waited for.

        0 of a job step, whose tasks are not below srun.
        """
        total = 0.0
        if self._step:
            return total
        for one in descendants(psutil.Process()):
            with suppress(psutil.Error):
                total += sum(one.cpu_times()[:4])
        return total

    def _memory(self) -> int | None:
        """Return the memory of a rank of the command, with all that it has started, bytes.

        On a GPU the most that is held on one. None of a job step, or if its driver does not say.
        """
        if self._step:
            return None
        own = descendants(psutil.Process())
        if self.spec.device == "cuda":
            return max(gpus.bytes_of([one.pid for one in own]) or [0]) or None
        return memory_bytes(own) // self.spec.world_size

    @staticmethod
    def _result(found: Window, cpu_s: float) -> EpochResult:
        timing = EpochTiming(
            wall_s=found.wall_s,
            cpu_s=max(cpu_s, 0.0),
            data_s=0.0,
            rank_wall_s_min=found.wall_s,
            rank_wall_s_max=found.wall_s,
            step_s_median=found.median_s,
            step_s_p95=sorted(found.intervals)[int(0.95 * (found.steps - 1))],
            energy_j=None,
        )
        return EpochResult(timing, found.steps, found.images, 0)

    def _ended(self, epoch: int) -> LaunchError:
        assert self._process is not None
        code = self._process.wait()
        said = "; its last lines: " + " | ".join(self._last) if self._last else ""
        if code == 0 and self._heard:
            return LaunchError(
                f"the command ended by itself in window {epoch + 1} of {self.spec.epochs}; let it "
                "train longer, or ask for fewer epochs",
                category="settings",
            )
        if code == 0:
            return self._silent()
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        return LaunchError(f"the command ended {how}{said}", category="code")

    def _silent(self, within: str = "") -> LaunchError:
        said = f"; it printed: {' | '.join(self._last)}" if self._last else "; it printed nothing"
        return LaunchError(
            f'the command printed no line like {{"images": 256}}{within}{said}; print one after '
            "each step or epoch, or call ddl_core.report"
            + ("; if its start takes long, set DDL_SETUP_TIMEOUT to more seconds" * bool(within)),
            category="settings",
        )
