"""Ranks of this machine, forked from a process that has imported torch.

A study has one such server for all its runs; a run outside a study has a server of its own. The
server forks a leader for each run, which does what torchrun does: it keeps the store where the
ranks meet, forks the ranks, and ends the others when one fails. The leader of a run whose nodes
are simulated also makes these.

The leader is the ancestor of all that the ranks start, and ends it. What a leader leaves that is
killed, the server adopts and ends.
"""

import gc
import math
import os
import random
import runpy
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Client, Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NoReturn

import psutil

from ddl_core.errors import LaunchError
from ddl_core.system import die_with_parent
from ddl_tools import processes, subreaper
from ddl_tools.launch.commands import Allocation, Command, unbound
from ddl_tools.launch.diagnose import launcher_log, tail
from ddl_tools.processes import LEADER, Passing, compiled
from ddl_tools.rank import meeting

# Address of the server of this process, or of the one that started it.
SERVER = "DDL_FORK_SERVER"
PROGRAM = "ddl_tools.launch.local_ranks"
START_S = 300.0  # torch may come from a busy parallel file system
SHUTDOWN_S = 5.0  # what the other ranks have to end in, once one has failed
FORK = get_context("fork")

# What every rank needs, whatever it trains and on what device. The frameworks themselves are not
# here: some look for a GPU when they are imported, and a process that has done so must not fork.
PRELOADED = (
    *("torch._dynamo", "ddl_tools.rank.worker", "ddl_tools.rank.pytorch", "ddl_core.models"),
    *("ddl_core.loaders.native", "ddl_core.loaders.synthetic", "ddl_core.strategies.ddp"),
)


@contextmanager
def _server(environment: Mapping[str, str]) -> Iterator[str]:
    """Start a server, and end it with its ranks; yield its address."""
    own = processes.imports()
    # It must not have threads.
    own |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    # Any other look for a GPU spoils CUDA in forks.
    own |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} | compiled()
    with Passing() as folder:
        address = f"{folder}/socket"
        # It listens before the server begins: who connects meanwhile is answered later.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            process = processes.start(
                [sys.executable, "-m", PROGRAM],
                log=Path(folder, "log"),
                environment=unbound(environment) | own,
                stdin=listener.fileno(),
            )
        try:
            yield address
        finally:
            with processes.undisturbed():
                processes.end(process)
                process.wait()


@contextmanager
def shared() -> Iterator[None]:
    """Keep one server for all runs that this process, and those it starts, begin meanwhile.

    Inside a SLURM job there is none: srun starts the ranks.
    """
    if Allocation.current() or SERVER in os.environ:
        yield
        return
    with ExitStack() as stack:
        try:
            address = stack.enter_context(_server(processes.inherited()))
        except OSError as error:
            said = f"cannot start the process that ranks are forked from: {error}"
            raise LaunchError(said) from None
        os.environ[SERVER] = address
        stack.callback(os.environ.pop, SERVER)
        yield


@contextmanager
def local_ranks(
    command: Command, logs: Path, environment: Mapping[str, str]
) -> Iterator["LocalRanks"]:
    """Start the ranks of a run."""
    request = {"command": command, "logs": logs, "environment": unbound(environment)}
    request |= {"folder": Path.cwd()}
    address = os.environ.get(SERVER, "")
    with ExitStack() as stack:
        connection = _connect(address)
        if connection is None:  # there is none, or it is gone
            address = stack.enter_context(_server(environment))
            connection = _connect(address)
        answer = None
        with suppress(EOFError, ConnectionError):
            if connection is not None:
                stack.callback(connection.close)
                connection.send(request)
                answer = connection.recv() if connection.poll(START_S) else None
        if connection is None or not isinstance(answer, int):
            log = tail(Path(address).with_name("log"))
            raise OSError(answer or f"the process that is to fork the ranks does not answer{log}")
        yield LocalRanks(connection, answer)


def _connect(address: str) -> Connection | None:
    with suppress(ConnectionError, FileNotFoundError):
        return Client(address) if address else None
    return None


class LocalRanks:
    """The ranks of one run, to be used like a `subprocess.Popen`; `pid` is their leader's."""

    def __init__(self, connection: Connection, pid: int) -> None:
        self._connection, self.pid = connection, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, 0 if all ranks ended well; None while there are some."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until they have ended, for at most `timeout` seconds; see `poll`."""
        if self.returncode is None and self._connection.poll(timeout):
            try:
                self.returncode = self._connection.recv()
                self._connection.poll(SHUTDOWN_S)  # for the end of the leader itself
            except (EOFError, OSError):
                self.returncode = -signal.SIGKILL  # nothing else keeps the leader from answering
        return self.returncode


def serve() -> NoReturn:
    """Import torch, then fork a leader for each request at the socket that is standard input."""
    # Here and in all forks: an interrupt ends them by its name, not with a traceback in their logs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    subreaper.adopt_orphans()
    listener = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    _load(PRELOADED)
    # With what a leader answers by. It is kept here until the leader has ended and nothing of its
    # run is left: the one who asked waits for its end.
    leaders: dict[ForkProcess, socket.socket] = {}
    with processes.ends_of_children() as ends:
        while True:
            if listener in wait([listener, ends]):
                client, _ = listener.accept()
                others = [listener, *leaders.values()]
                leader = FORK.Process(target=_lead, args=(client, others))
                leader.start()
                leaders[leader] = client
                continue
            ends.recv(1024)
            ended = [one for one in leaders if not one.is_alive()]
            if ended:
                _end_orphans([one.pid for one in leaders if one.pid])
            for one in ended:
                leaders.pop(one).close()


def _end_orphans(but: Collection[int]) -> None:
    """End the children of this process, with all that descends from them; reap them."""
    own = psutil.Process()

    def orphans() -> list[psutil.Process]:
        roots = [one for one in own.children() if one.pid not in but]
        return [one for root in roots for one in subreaper.family(root)]

    subreaper.end_all(orphans)
    subreaper.reap(but)


def _lead(client: socket.socket, others: Iterable[socket.socket]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()
    subreaper.adopt_orphans()
    for one in others:
        one.close()
    os.setsid()
    with Connection(client.detach()) as connection:
        try:
            leader = Leader(connection)
        except (OSError, LaunchError) as error:
            connection.send(str(error))
            return
        try:
            code = leader.lead()
        except Exception as error:  # also of torch; else this process would wait for the ranks
            sys.stderr.write(f"cannot start the ranks: {error}\n")
            code = 1
        _end_orphans(())
        with suppress(OSError):
            connection.send(code)


class Leader:
    """Starts the ranks of one run and sees to it that they end together."""

    def __init__(self, client: Connection) -> None:
        self.client = client
        self.request = client.recv()
        self.command: Command = self.request["command"]
        self.logs: Path = self.request["logs"]
        self.simulated = self.command.simulated
        _write_output(launcher_log(self.logs), launcher_log(self.logs))
        self.nodes = self.simulated.build() if self.simulated else []

    def lead(self) -> int:
        """Execute the ranks; return 0 if all ended well."""
        self.pid = os.getpid()
        self.client.send(self.pid)
        if self.simulated:
            # Once, what each of many ranks would import on the cores that all of them share. Not
            # for other runs: a framework may look for a GPU, and what has done so must not fork.
            _load(self.simulated.prepare(self.nodes, self.logs))
        with self.nodes[0].entered() if self.nodes else nullcontext():
            address = self.nodes[0].address if self.nodes else meeting.LOCAL
            server = socket.create_server((address, 0), backlog=1024)
            _check_reachable(server)
            ranks = {
                rank: FORK.Process(target=self._become, args=(rank, server))
                for rank in range(self.command.ranks)
            }
            for process in ranks.values():
                process.start()
            store = None
            with server, suppress(ImportError):  # without torch, as every rank will say
                store = meeting.serve_store(server, address)  # it has threads: after the last fork
        code = self._watch(ranks)
        del store
        return code

    def _watch(self, ranks: dict[int, ForkProcess]) -> int:
        """Wait for all ranks; once one has failed, or nobody waits for them any more, end them."""
        deadline = math.inf
        with processes.ends_of_children() as ends:
            while ranks:
                ended = {rank: one.exitcode for rank, one in ranks.items()}
                ended = {rank: code for rank, code in ended.items() if code is not None}
                for rank in ended:
                    del ranks[rank]
                bad = {rank: code for rank, code in ended.items() if code}
                if bad and deadline == math.inf:
                    deadline = time.monotonic() + SHUTDOWN_S
                    for rank, code in bad.items():
                        sys.stderr.write(f"rank {rank} ended with {code}\n")
                    for process in ranks.values():
                        process.terminate()
                if not ranks:
                    break
                left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
                if wait([self.client, ends], left) != [ends]:
                    return 1  # what is left is killed
                ends.recv(1024)
                subreaper.reap(but=[one.pid for one in ranks.values() if one.pid])
        return int(deadline < math.inf)

    def _become(self, rank: int, server: socket.socket) -> None:
        """Be one rank."""
        die_with_parent(self.pid)
        self.client.close()  # its end is to say that the leader is gone
        port = server.getsockname()[1]
        server.close()
        folder = self.logs / "ranks" / "attempt_0" / str(rank)
        _write_output(folder / "stdout.log", folder / "stderr.log")
        ranks = self.command.ranks
        per_node = self.simulated.ranks_per_node if self.simulated else ranks
        numbers = {"RANK": rank, "LOCAL_RANK": rank % per_node, "WORLD_SIZE": ranks}
        numbers |= {"LOCAL_WORLD_SIZE": per_node, "MASTER_PORT": port}
        own = {name: str(number) for name, number in numbers.items()}
        own |= {meeting.MASTER: meeting.LOCAL}
        if self.nodes:
            node = self.nodes[rank // per_node]
            node.enter()
            own |= {meeting.MASTER: self.nodes[0].address, **node.variables}
        own |= {LEADER: str(self.pid), meeting.AGENT_STORE: "True"}  # the leader's
        os.chdir(self.request["folder"])
        os.environ.clear()
        os.environ.update(self.request["environment"] | own)
        tempfile.tempdir = None  # the server may have looked for its own
        _run(self.command.rank)


def _check_reachable(server: socket.socket) -> None:
    """Raise `OSError` where ranks could not connect to `server`: they would try for minutes."""
    try:
        with socket.create_connection(server.getsockname(), SHUTDOWN_S), server.accept()[0]:
            pass
    except OSError as error:
        address = server.getsockname()[0]
        text = f"cannot connect to {address} on this machine, where ranks meet: {error.strerror}"
        raise OSError(error.errno, f"{text}; check its loopback (`ip link show lo`)") from None


def _run(words: tuple[str, ...]) -> None:
    """Execute the command of a rank, in this process if it is a module for this Python."""
    if words[:2] != (sys.executable, "-m"):
        try:
            os.execvp(words[0], words)
        except OSError as error:
            sys.stderr.write(f"cannot start {words[0]}: {error.strerror}\n")
            sys.exit(127)
    random.seed()
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in path if folder and folder not in sys.path]
    sys.argv = [*words[2:]]
    sys.modules.pop(words[2], None)  # it is to be the main module, not that one again
    runpy.run_module(words[2], run_name="__main__", alter_sys=True)


def _load(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ImportError):  # a rank that needs it says so in its own log
            import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a rank would write into every page that it shares


def _write_output(output: Path, errors: Path) -> None:
    """Send what this process prints to files."""
    output.parent.mkdir(parents=True, exist_ok=True)
    for descriptor, path in ((1, output), (2, errors)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), descriptor)


if __name__ == "__main__":
    serve()
