"""Runs on ipyparallel engines that stay between the runs of a notebook.

Such a run has the same worker, checks, record and files as any other. Imports ipyparallel: import
this module when needed.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any, Self

from ipyparallel import Cluster
from ipyparallel.cluster.launcher import EngineLauncher, LocalControllerLauncher
from ipyparallel.error import IPythonError
from traitlets import Any as AnyTrait

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.registry import EXTENSIBLE, known
from ddl_tools import processes
from ddl_tools.launch import commands, diagnose, engine, preflight, ranks
from ddl_tools.launch.commands import Allocation
from ddl_tools.launch.ranks import OnProgress, Watch
from ddl_tools.processes import Passing, temporary_in
from ddl_tools.records.paths import RunFiles, results
from ddl_tools.records.run import RunRecord, read_record

RankState = dict[str, Any]
OnRanks = Callable[[list[RankState]], None]

START_S = 120.0
POLL_S = 0.1
LOOK_S = 0.25
# Fixed when the engines start, so the same for all runs on them.
FIXED = ("nodes", "gpus_per_node", "cpu_threads")
CONTROLLER = (
    # Only the owner of the connection files may talk to the engines, on a shared node or network.
    "--IPController.enable_curve=True",
    # The controller knows an engine only after its first heartbeat, by default up to 3 s later. On
    # a busy machine a heart may be late: an engine is watched by its process, not by this.
    "--HeartMonitor.period=1000",
    "--HeartMonitor.max_heartmonitor_misses=120",
)
_log = logging.getLogger(__name__)
_log.setLevel(logging.CRITICAL)  # errors of the cluster are raised, with what it printed


class _Controller(LocalControllerLauncher):
    """Starts the controller, which ends with this process."""

    def find_args(self) -> list[str]:
        return processes.supervised(super().find_args())

    def get_env(self) -> dict[str, str]:
        """Return the environment of the controller."""
        return {**super().get_env(), **processes.imports()}

    def _log_output(self, stop_data: Any = None) -> None:
        """Leave the log where it is: ipyparallel would read and remove it."""


class _RankEngines(EngineLauncher):
    """Starts an engine per rank: processes of this machine, or tasks of one step of a job."""

    spec = AnyTrait()
    processes: Sequence[Popen[bytes]] = ()  # until they are started

    def start(self, n: int) -> None:
        folder, allocation = Path(self.profile_dir), Allocation.current()
        words = [sys.executable, "-m", engine.__name__, f"--timeout={START_S}"]
        words.append(f"--profile-dir={folder}")
        if allocation:
            # By the file on the shared disk: an environment travels over the network.
            del self.environment["IPP_CONNECTION_INFO"]
            words.append(f"--file={self.connection_files['engine']}")
            step = commands.step(self.spec, words, folder, allocation)
            self.processes = [self._begin(step, diagnose.launcher_log(folder))]
            return
        size = {"WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
        self.processes = [
            self._begin(words, folder / f"rank_{rank}.log", RANK=rank, LOCAL_RANK=rank, **size)
            for rank in range(n)
        ]

    def _begin(self, words: list[str], log: Path, **numbers: int) -> Popen[bytes]:
        environment = self.environment | {name: str(one) for name, one in numbers.items()}
        return processes.start(words, log=log, environment=environment)


class Engines:
    """One engine per rank of a run, on this machine or on the nodes of the SLURM job around it.

    Engines survive a run that completes. They are replaced after a run that did not, after one of
    Horovod or DeepSpeed, and after one with the user's own code, which may be edited meanwhile.

    `spec` is a run like those that are to come: its ranks and threads.
    """

    def __init__(self, spec: RunSpec) -> None:
        preflight.check_run(spec)
        if (allocation := Allocation.current()) and allocation.container:
            raise LaunchError(
                "engines start outside of a container, in which the ranks of this site run; "
                "execute the run with notebook 01, or `ddl run`"
            )
        self._spec = spec
        self._cluster: Any = None
        self._client: Any = None
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """``rank``, ``host``, ``pid`` of every engine, in order of rank; starts them if need be."""
        self._start()
        return self._ranks

    def run(
        self,
        run_dir: Path | str,
        on_progress: OnProgress | None = None,
        on_ranks: OnRanks | None = None,
        stall_timeout: float | None = None,
    ) -> RunRecord:
        """Execute a run on the engines, as `ranks.run_ranks` does; refuse one that does not fit.

        `on_ranks` is called several times a second with the state of every rank, in order of rank:
        what ``progress.json`` says, its own ``images_per_s``, and ``rank``, ``host``, ``pid``.
        """
        self._check(read_record(Path(run_dir)).spec)
        execute = partial(self._execute, on_ranks)
        return ranks.run_ranks(run_dir, on_progress, stall_timeout, execute)

    def close(self) -> None:
        """End everything at once: an engine in a hung collective answers no message or Ctrl-C."""
        if self._cluster is None:
            return
        with processes.undisturbed():
            cluster, self._cluster = self._cluster, None
            if self._client is not None:
                self._client.close()
            started = cluster.engine_set.processes if cluster.engines else []
            for process in started:
                if Allocation.current():
                    ranks.end_step(process)
            processes.end_supervised(*started)
            left = processes.end(*started)  # the system holds it, e.g. in a dead file system
            for process in started:
                if process.pid not in left:
                    process.wait()
            if cluster.controller:
                cluster.stop_controller_sync()
            self._folder.cleanup()

    def _start(self) -> None:
        """Start the engines, unless they are there and whole."""
        if self._cluster is not None and not self._broken:
            return
        self.close()
        self._client = None
        self._folder = _private_folder()
        allocation = Allocation.current()
        self._cluster = Cluster(
            controller=_Controller,
            engines=_RankEngines,
            controller_ip="*" if allocation else "127.0.0.1",
            controller_args=list(CONTROLLER),
            profile_dir=self._folder.name,
            cluster_id="",
            cluster_file="",
            load_profile=False,
            shutdown_atexit=False,
            parent=None,
            log=_log,
        )
        environment = {**commands.environment(self._spec), "IPYTHONDIR": self._folder.name}
        if not allocation:
            environment |= temporary_in(self._folder.name)
        try:
            self._cluster.start_controller_sync()
            self._cluster.start_engines_sync(
                self._spec.world_size, spec=self._spec, environment=environment
            )
            self._client = self._cluster.connect_client_sync(timeout=START_S)
            self._wait(lambda: len(self._client.ids) == self._spec.world_size)
            self._find_ranks()
        except (OSError, RuntimeError, IPythonError) as error:  # ipyparallel's own
            logs = sorted(Path(self._folder.name).rglob("*.log"))
            said = "".join(diagnose.tail(log) for log in logs)
            self.close()
            raise LaunchError(f"the engines cannot be started: {error}{said}") from None
        except BaseException:
            self.close()
            raise

    def _find_ranks(self) -> None:
        """Ask every engine for its rank; keep views and ranks in that order."""
        views = [self._client[number] for number in self._client.ids]
        answers = [view.apply_async(engine.rank_info) for view in views]
        self._wait(lambda: all(answer.ready() for answer in answers))
        found = [(answer.get(), view) for answer, view in zip(answers, views, strict=True)]
        found.sort(key=lambda pair: pair[0]["rank"])
        self._ranks, self._views = [info for info, _ in found], [view for _, view in found]
        numbers = [info["rank"] for info in self._ranks]
        if numbers != [*range(self._spec.world_size)]:
            raise RuntimeError(f"the engines were given the ranks {numbers}")

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            if self._broken:
                raise RuntimeError("a process ended at once")
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answer within {START_S:.0f} s")
            time.sleep(POLL_S)

    @property
    def _broken(self) -> bool:
        """Whether a process of the cluster has ended."""
        engines = self._cluster.engine_set.processes
        return self._cluster.controller.poll() is not None or any(
            process.poll() is not None for process in engines
        )

    def _ended(self) -> list[tuple[int, int]]:
        """Return rank and exit code of the engines that have ended badly."""
        if Allocation.current():
            return diagnose.ended_ranks(Path(self._folder.name))
        codes = enumerate(process.poll() for process in self._cluster.engine_set.processes)
        return [(rank, code) for rank, code in codes if code]

    def _check(self, spec: RunSpec) -> None:
        other = f"framework = {spec.framework!r}: engines compute with torch"
        for unfit, reason in (
            (spec.framework != "torch", other),
            (spec.simulated, "emulated = true: engines are in no emulated node"),
            (spec.prefix, f"prefix = {spec.prefix!r}: engines have begun without it"),
        ):
            if unfit:
                raise LaunchError(reason, remedy="use ranks.run_ranks or `ddl run` for this run")
        for name in FIXED:
            wanted, given = getattr(spec, name), getattr(self._spec, name)
            if wanted != given:
                raise LaunchError(
                    f"{name} = {wanted}, but these engines were started with {name} = {given}",
                    remedy="close them, and start Engines for this run",
                )

    def _execute(
        self, on_ranks: OnRanks | None, spec: RunSpec, files: RunFiles, logs: Path, observe: Watch
    ) -> None:
        """Let the engines execute their ranks; after `on_ranks`, see `ranks.Execute`."""
        self._start()
        whole, before = False, diagnose.Shortages.now()
        try:
            arguments = (ranks.WORKER, str(files.directory), str(logs))
            answers = [view.apply_async(engine.run_rank, *arguments) for view in self._views]
            stalled = observe(partial(self._look, answers, on_ranks))
            cause = diagnose.ask_ranks(logs, spec.world_size, stalled, before.since())
            gone = self._ended()
            whole = not self._broken and all(answer.ready() for answer in answers)
        finally:
            if not whole or not _completed(files) or one_run_per_process(spec):
                self.close()
        if not _completed(files):
            raise ranks.Failed(cause or diagnose.diagnose(files, logs, 0, before.since(), gone))

    def _look(self, answers: list[Any], on_ranks: OnRanks | None, seconds: float) -> bool:
        """Wait, show where the ranks are, return whether nothing is left to wait for."""
        time.sleep(min(seconds, LOOK_S))
        done = [answer for answer in answers if answer.ready()]
        well = [answer for answer in done if answer.successful() and answer.get() == 0]
        if on_ranks:
            states = [{**info, **one.data} for info, one in zip(self._ranks, answers, strict=True)]
            for state, answer in zip(states, answers, strict=True):
                if state.get("images_per_s") is not None:
                    state["images_per_s"] /= state["world_size"]
                if answer in well:  # what it told last may arrive later than that it has returned
                    state["phase"] = "done"
            on_ranks(states)
        # One rank that has failed is enough: the others may wait for it for ever.
        return self._broken or len(well) < len(done) or len(done) == len(answers)


def _private_folder() -> "Passing | TemporaryDirectory[str]":
    """Return a private folder for logs and keys; a job has it where all of its nodes see it."""
    if not Allocation.current():
        return Passing()
    base = results().root / ".engines"
    base.mkdir(parents=True, exist_ok=True)
    return TemporaryDirectory(dir=base, ignore_cleanup_errors=True)


def one_run_per_process(spec: RunSpec) -> bool:
    """Say whether engines may execute no second run: it could fail, or use old code of a user."""
    parts = (known(kind, getattr(spec, kind)) for kind in EXTENSIBLE)
    return any(part is not None and part.one_run_per_process for part in parts)


def _completed(files: RunFiles) -> bool:
    return read_record(files.directory).status == "completed"
