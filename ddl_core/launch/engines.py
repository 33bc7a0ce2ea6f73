"""An ipyparallel cluster with one engine per rank, here or on the nodes of a SLURM job.

ipyparallel's own launchers are not used: they give an engine no rank, and what they start outlives
a notebook that is killed. Imports ipyparallel: import it when needed.
"""

import json
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any

import ipyparallel

from ddl_core import processes
from ddl_core.errors import LaunchError
from ddl_core.launch import commands, diagnose, engine, supervise
from ddl_core.launch.commands import Allocation
from ddl_core.private import Passing, temporary_in
from ddl_core.records.paths import results
from ddl_core.records.storage import cannot_write
from ddl_core.spec.run import RunSpec

START_S = 120.0
POLL_S = 0.1
# An engine is known to the controller only after its first heartbeat, by default up to 3 s later.
# On a busy machine a heart may be late: it is watched by its process, not by this.
HEARTBEAT = ("--HeartMonitor.period=1000", "--HeartMonitor.max_heartmonitor_misses=120")


class EngineCluster:
    """Controller, engines, and the client that talks to them; nothing of it outlives `close`.

    Parameters
    ----------
    spec
        A run: there will be as many engines as it has ranks, with its threads.

    Raises
    ------
    LaunchError
        If an engine ends at once or does not answer, with what it printed.
    NotInstalledError
        If the run's launcher is not installed.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.token = uuid.uuid4().hex
        self._spec = spec
        self._allocation = Allocation.current()
        self._holder = _shared_folder() if self._allocation else Passing()
        self._folder = Path(self._holder.name)
        self._client: Any = None
        self._started: list[supervise.Launcher] = []
        try:
            self._start_controller()
            for who in ("client", "engine"):
                self._wait(partial(_is_whole, self._connection(who)), "the controller")
            self._start_engines()
            self._client = self._connected()
            self.places = self._places()
        except BaseException:
            self.close()
            raise

    def submit(self, *arguments: Any) -> list[Any]:
        """Let every engine call `engine.run_rank`; return one `AsyncResult` per rank."""
        return [view.apply_async(engine.run_rank, *arguments) for view in self._views]

    @property
    def broken(self) -> bool:
        """Whether a process of the cluster has ended."""
        return any(process.poll() is not None for process in self._started)

    def ended(self) -> list[tuple[int, int]]:
        """Return rank and exit code of the engines that have ended."""
        return diagnose.ended_ranks(self._folder)

    def close(self) -> None:
        """End everything at once: an engine in a hung collective answers no message or Ctrl-C."""
        with processes.undisturbed():
            if self._client is not None:
                self._client.close()
                self._client = None
            for process in self._started[1:]:
                supervise.end_step(process)
            processes.end_all(self.token)
            for process in self._started:
                with suppress(TimeoutExpired):  # the system holds it, e.g. in a dead file system
                    process.wait(processes.PATIENCE_S)
            self._holder.cleanup()

    def _controller_options(self) -> list[str]:
        # Encrypted, and open only to who can read the connection files: on a shared node, or a
        # cluster's network, others could talk to the engines otherwise.
        options = [*HEARTBEAT, "--IPController.enable_curve=True"]
        return [f"--ip={'*' if self._allocation else '127.0.0.1'}", *options]

    def _connection(self, who: str) -> Path:
        return self._folder / "security" / f"ipcontroller-{who}.json"

    def _command(self, program: str, *options: str) -> list[str]:
        folder = f"--profile-dir={self._folder}"
        return [sys.executable, "-m", f"ipyparallel.{program}", folder, *options]

    def _start_controller(self) -> None:
        command = self._command("controller", *self._controller_options())
        log = self._folder / "controller.log"
        with _named("the controller"):
            begun = processes.start(
                command, token=self.token, log=log, environment=self._environment()
            )
        self._started.append(begun)

    def _start_engines(self) -> None:
        options = [f"--file={self._connection('engine')}", f"--timeout={START_S}"]
        rank = self._command("engine", *options)
        words: list[str] = []
        if self._allocation:
            words = commands.step(self._spec, rank, self._folder, self._allocation)
        command = commands.Command(tuple(rank), self._spec.gpus_per_node, tuple(words))
        with _named("the engines"):
            begun = supervise.start(command, self._folder, self._environment(), self.token)
        self._started.append(begun)

    def _environment(self) -> dict[str, str]:
        own = {**commands.environment(self._spec), "IPYTHONDIR": str(self._folder)}
        return own if self._allocation else own | temporary_in(str(self._folder))

    def _connected(self) -> Any:
        client = ipyparallel.Client(str(self._connection("client")), timeout=START_S)
        try:
            self._wait(lambda: len(client.ids) == self._spec.world_size, "the engines")
        except BaseException:
            client.close()
            raise
        return client

    def _places(self) -> list[dict[str, Any]]:
        """Ask every engine for its rank; keep `_views` and the answers in order of rank."""
        views = [self._client[number] for number in self._client.ids]
        answers = [view.apply_async(engine.place) for view in views]
        self._wait(lambda: all(answer.ready() for answer in answers), "the engines' ranks")
        found = sorted(
            ((answer.get(), view) for answer, view in zip(answers, views, strict=True)),
            key=lambda pair: pair[0]["rank"],
        )
        numbers = [answer["rank"] for answer, _ in found]
        if numbers != list(range(self._spec.world_size)):
            raise LaunchError(
                f"the engines were given the ranks {numbers}, not 0 to {self._spec.world_size - 1}"
            )
        self._views = [view for _, view in found]
        return [answer for answer, _ in found]

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            if self.broken or time.monotonic() > deadline:
                reason = (
                    "ended at once" if self.broken else f"did not answer within {START_S:.0f} s"
                )
                logs = sorted(self._folder.rglob("*.log"))
                said = "".join(diagnose.tail(log) for log in logs)
                raise LaunchError(f"{what}: a process of the ipyparallel cluster {reason}{said}")
            time.sleep(POLL_S)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Say of an error of the system what it kept from starting."""
    try:
        yield
    except OSError as error:
        raise LaunchError(f"{what} cannot be started: {error}") from None


def _is_whole(path: Path) -> bool:
    """Say whether a file of JSON is there to its end."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def _shared_folder() -> "TemporaryDirectory[str]":
    """Return a folder that all nodes see and only this user may enter, for the keys."""
    root = results().root
    try:
        root.mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(prefix=".engines-", dir=root, ignore_cleanup_errors=True)
    except OSError as error:
        raise cannot_write(root, error) from error
