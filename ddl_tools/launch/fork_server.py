"""Start the ranks of runs on this machine, as forks of a process that has imported torch.

The import takes seconds of processor time, which one server spends once for all runs of a study.
Outside a study, a run has a server of its own.
"""

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Self

from ddl_core.errors import LaunchError
from ddl_core.system import Passing, compiled
from ddl_tools import processes
from ddl_tools.launch import diagnose
from ddl_tools.launch.commands import Allocation
from ddl_tools.launch.forked_ranks import PLACE, PLACE_VALUE

ADDRESS = "DDL_FORK_SERVER"  # where this process, or the one that started it, has a server
PROGRAM = "ddl_tools.launch.forked_ranks"
START_S = 300.0  # torch may come from a busy parallel file system
POLL_S = 0.02


class ForkServer:
    """A process that has imported torch, or is about to.

    Parameters
    ----------
    environment
        Its variables. Those that torch reads when it is loaded are then also its ranks'.

    Raises
    ------
    OSError
        If it cannot be started.
    LaunchError
        If a folder that it needs is not this user's alone.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._token = uuid.uuid4().hex
        self._folder = Passing()
        self.address = str(Path(self._folder.name) / "socket")
        self._log = Path(self._folder.name) / "log"
        own = {PLACE: PLACE_VALUE, "PYTHONPATH": processes.import_path()}
        # It must not have threads.
        own |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        # Any other look for a GPU spoils CUDA in forks.
        own |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} | compiled()
        self._process = processes.start(
            [sys.executable, "-m", PROGRAM, self.address],
            token=self._token,
            log=self._log,
            environment={**environment, **own},
        )

    def wait(self) -> None:
        """Wait until it can be asked; it answers when torch is there.

        Raises
        ------
        OSError
            If it ended instead, with what it printed.
        """
        deadline = time.monotonic() + START_S
        while not Path(self.address).exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self.error()
            time.sleep(POLL_S)

    def error(self) -> OSError:
        """Return that it cannot be asked, with what it printed."""
        told = diagnose.tail(self._log)
        return OSError(f"the process that is to fork the ranks does not answer{told}")

    def close(self) -> None:
        """End it, and with it the ranks that are left."""
        with processes.undisturbed():
            processes.end_all(self._token)
            self._process.kill()  # just started, it may not have carried its token yet
            self._process.wait()
            self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


@contextmanager
def shared() -> Iterator[None]:
    """Have one server for all runs that begin meanwhile, here or in processes started from here.

    Inside a SLURM job there is none: srun starts the ranks. Nor where there is one already.

    Raises
    ------
    LaunchError
        If it cannot be started.
    """
    if Allocation.current() or ADDRESS in os.environ:
        yield
        return
    try:
        server = ForkServer(processes.inherited())
    except OSError as error:
        raise LaunchError(f"cannot start the process that ranks are forked from: {error}") from None
    with server:
        os.environ[ADDRESS] = server.address
        try:
            yield
        finally:
            del os.environ[ADDRESS]


class Ranks:
    """The ranks of one run, seen by who started them; to be used like a `subprocess.Popen`.

    Parameters
    ----------
    request
        ``rank``, the words of a rank's command; ``ranks``, how many; ``logs``, folder of their
        output; ``environment``; ``folder``, where they are to be at work; ``token``, which all
        their processes carry; ``wiring``, nodes to make for them (`Wiring`), if any.

    Raises
    ------
    OSError
        If they cannot be started.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.returncode: int | None = None
        self._own: ForkServer | None = None
        address = os.environ.get(ADDRESS)
        found = (_ask(address, request) if address else None) or self._ask_own(request)
        self._connection, self.pid = found

    def _ask_own(self, request: Mapping[str, Any]) -> tuple[Connection, int]:
        """Start a server for these ranks alone."""
        self._own = ForkServer(request["environment"])
        try:
            self._own.wait()
            if found := _ask(self._own.address, request):
                return found
            raise self._own.error()
        except BaseException:
            self._own.close()
            raise

    def poll(self) -> int | None:
        """Return the exit status, 0 if all ranks ended well; None while there are some."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until they have ended, for at most `timeout` seconds; see `poll`."""
        if self.returncode is None and self._connection.poll(timeout):
            try:
                self.returncode = self._connection.recv()
            except (EOFError, OSError):
                self.returncode = -signal.SIGKILL  # nothing else keeps it from telling
            self._connection.close()
            if self._own:
                self._own.close()
        return self.returncode


def _ask(address: str, request: Mapping[str, Any]) -> tuple[Connection, int] | None:
    """Return a connection to the ranks' leader, and its process; None if there is no such server.

    Nor is there if its environment is another one.

    Raises
    ------
    OSError
        If the leader cannot write its log, or does not answer.
    """
    try:
        connection = Client(address)
    except OSError:
        return None
    try:
        connection.send(request)
        if connection.poll(START_S):
            answer = connection.recv()
        else:
            answer = f"the process that is to fork the ranks is silent for {START_S:.0f} s"
    except (EOFError, ConnectionError):
        answer = None
    if isinstance(answer, int):
        return connection, answer
    connection.close()
    if answer:
        raise OSError(answer)
    return None
