"""The process that ranks of this machine are forked from: ``python -m ... SOCKET``.

It imports torch once, then waits for requests. Each is served by a fork of its own, the leader of
one run's ranks, which does what torchrun does: it keeps the store where they meet, forks them, and
ends the others when one fails. `fork_server` starts this process and asks it. Of an emulated run
the leader also makes the nodes, becomes their switch, and puts each rank into its node.
"""

import ctypes
import gc
import os
import random
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

from ddl_core.errors import LaunchError
from ddl_core.registry import STRATEGIES
from ddl_core.system import die_with_parent
from ddl_tools.emulation.counters import write_links
from ddl_tools.emulation.link_rates import measured_mbit
from ddl_tools.emulation.nodes import LINK, Node, Wiring, build
from ddl_tools.launch.diagnose import launcher_log
from ddl_tools.processes import TOKEN
from ddl_tools.records.paths import BoxFiles

# What every rank needs, whatever it trains and on what device. The frameworks themselves are not
# here: some look for a GPU when they are imported, and a process that has done so must not fork.
PRELOADED = (
    "torch._dynamo",
    "ddl_tools.rank.worker",
    "ddl_core.trainer",
    "ddl_core.models",
    "ddl_core.loaders.native",
    "ddl_core.loaders.synthetic",
    "ddl_core.strategies.ddp",
)
SHUTDOWN_S = 5.0  # what the other ranks have to end in, once one has failed

# The system shows the environment that a process began with. So a place is kept in it, here of
# equal length, into which a fork writes what it is: `processes.carrying` and `of_ranks` look there.
PLACE, PLACE_VALUE = "DDL_R", "00000"
RANK = "RANK={:06d}"
LOOPBACK = "127.0.0.1"

# Variables that a run may set otherwise than its server: they are read when a rank begins, by this
# package, a notebook's kernel, a framework or torch's compiler (which sets its own when it is
# imported). All others may be read where torch is loaded, as ONEDNN_MAX_CPU_ISA is.
READ_LATER = (
    *("DDL_", "HOROVOD_", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("PYTHONPATH", "TMPDIR"),
    *("JPY_", "IPYTHONDIR", "MPLBACKEND", "TERM", "CLICOLOR", "FORCE_COLOR", "PAGER", "GIT_PAGER"),
    *("PYTORCH_NVML_BASED_CUDA_CHECK", "PYDEVD_", "PYTEST_", "TORCHINDUCTOR_CACHE_DIR"),
)


def main(address: str) -> NoReturn:
    """Serve requests at a Unix socket until this process is ended."""
    shown = {name: _shown(name) for name in (TOKEN, PLACE)}
    environment = dict(os.environ)
    # Here and in all forks: an interrupt ends them by its name, not with a traceback in their logs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    listener = socket.socket(socket.AF_UNIX)
    # Whoever waits for the address may connect at once: it appears when the socket listens.
    listener.bind(f"{address}.new")
    listener.listen(16)
    Path(f"{address}.new").rename(address)
    for name in PRELOADED:
        with suppress(ImportError):  # a rank that needs it says so in its own log
            import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a rank would write into every page that it shares
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the leaders
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _exit(Leader(Connection(client.detach()), environment, shown).serve)
        client.close()


class Leader:
    """Starts the ranks of one run and sees to it that they end together."""

    def __init__(
        self, client: Connection, environment: dict[str, str], shown: dict[str, int]
    ) -> None:
        self.client = client
        self.environment = environment
        self.shown = shown
        self.ranks: dict[int, int] = {}  # by process id

    def serve(self) -> int:
        """Execute the ranks of one request; return 0 if all ended well."""
        die_with_parent()
        self.request = self.client.recv()
        if read_early(self.request["environment"]) != read_early(self.environment):
            self.client.send(None)
            return 0
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.logs = Path(self.request["logs"])
        self.wiring: Wiring | None = self.request.get("wiring")
        try:
            _write_output(launcher_log(self.logs), launcher_log(self.logs))
            self.nodes = build(self.wiring) if self.wiring else []
        except OSError as error:
            self.client.send(f"{self.logs}: {error.strerror}")
            return 1
        except LaunchError as error:
            self.client.send(str(error))
            return 1
        _show(self.shown[TOKEN], self.request["token"])
        self.pid = os.getpid()
        self.client.send(self.pid)
        if self.wiring:
            mbit = measured_mbit(self.nodes, self.wiring.link_mbit)
            write_links(BoxFiles(self.logs), mbit)
            _load_framework(self.wiring.strategy)
        store, port = self._open_store()
        noticed = _notice_children()
        for rank in range(self.request["ranks"]):
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _exit(partial(self._become, rank, port))
            self.ranks[pid] = rank
        code = self._watch(noticed)
        os.kill(store, signal.SIGKILL)
        with suppress(OSError):
            self.client.send(code)
        return code

    def _open_store(self) -> tuple[int, int]:
        """Fork a process that keeps the store of torch's ranks; return its id and the store's port.

        A process of its own: it has threads, and the leader is still to fork.
        """
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.client.close()
            _exit(partial(_keep_store, writing, self.nodes[0] if self.nodes else None))
        os.close(writing)
        with open(reading, "rb") as pipe:  # noqa: PTH123
            port = pipe.read()
        return pid, int(port or 0)  # 0: torch is not there, as every rank will say

    def _watch(self, noticed: socket.socket) -> int:
        """Wait for all ranks; once one has failed, or nobody waits for them any more, end them."""
        failed, deadline = False, None
        awaited: list[socket.socket | Connection] = [noticed, self.client]
        while self.ranks:
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait(awaited, patience)
            if self.client in ready or not ready:
                self._end(signal.SIGKILL)
                awaited, deadline = [noticed], None
            if noticed in ready:
                noticed.recv(4096)
            bad = [code for code in self._collect(told=not failed) if code]
            if bad and not failed:
                failed, deadline = True, time.monotonic() + SHUTDOWN_S
                self._end(signal.SIGTERM)
        return int(failed)

    def _collect(self, told: bool) -> list[int]:
        """Return the exit codes of ranks that have ended; tell of the bad ones in the log."""
        codes = []
        for pid, rank in list(self.ranks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self.ranks[pid]
                codes.append(os.waitstatus_to_exitcode(status))
                if told and codes[-1]:
                    sys.stderr.write(f"rank {rank} ended with {codes[-1]}\n")
        return codes

    def _end(self, number: signal.Signals) -> None:
        for pid in self.ranks:
            os.kill(pid, number)

    def _become(self, rank: int, port: int) -> int:
        """Be one rank; return its exit status."""
        die_with_parent(self.pid)
        self.client.close()  # its end is to say that the leader is gone
        _show(self.shown[PLACE] - len(f"{PLACE}="), RANK.format(rank))
        folder = self.logs / "ranks" / "attempt_0" / str(rank)
        _write_output(folder / "stdout.log", folder / "stderr.log")
        ranks = self.request["ranks"]
        per_node = self.wiring.ranks_per_node if self.wiring else ranks
        place = {"RANK": rank, "LOCAL_RANK": rank % per_node, "WORLD_SIZE": ranks}
        place |= {"LOCAL_WORLD_SIZE": per_node, "MASTER_PORT": port, "MASTER_ADDR": LOOPBACK}
        if self.nodes:
            self.nodes[rank // per_node].enter()
            place |= {"MASTER_ADDR": self.nodes[0].address, "GLOO_SOCKET_IFNAME": LINK}
        os.chdir(self.request["folder"])
        os.environ.clear()
        os.environ.update(self.request["environment"])
        tempfile.tempdir = None  # the server may have looked for its own
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update(
            {TOKEN: self.request["token"]}
            | {"TORCHELASTIC_USE_AGENT_STORE": "True"}  # the store is the leader's
        )
        return _run(self.request["rank"])


def _run(words: list[str]) -> int:
    """Execute the command of a rank, in this process if it is a module for this Python."""
    if words[:2] != [sys.executable, "-m"]:
        try:
            os.execvp(words[0], words)
        except OSError as error:
            sys.stderr.write(f"cannot start {words[0]}: {error.strerror}\n")
            return 127
    random.seed()
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in path if folder and folder not in sys.path]
    sys.argv = words[2:]
    sys.modules.pop(words[2], None)  # it is to be the main module, not that one again
    runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    return 0


def _exit(work: Callable[[], int]) -> NoReturn:
    """Do the work of a fork, then end without what its parent meant to do at its own end."""
    code = 1
    try:
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            util._exit_function()  # type: ignore[attr-defined]
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def read_early(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that had their effect when this process began."""
    return {name: value for name, value in environment.items() if not name.startswith(READ_LATER)}


def _shown(name: str) -> int:
    """Return the address of a variable's value in the memory that the system shows."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    return int(getenv(name.encode()))


def _show(address: int, text: str) -> None:
    """Write `text` there; it replaces one of the same length."""
    ctypes.memmove(address, text.encode(), len(text))


def _write_output(output: Path, errors: Path) -> None:
    """Send what this process prints to files."""
    output.parent.mkdir(parents=True, exist_ok=True)
    for descriptor, path in ((1, output), (2, errors)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), descriptor)


def _notice_children() -> socket.socket:
    """Return what becomes readable when a child of this process ends."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing.detach())
    return reading


def _load_framework(strategy: str) -> None:
    """Import once what each of many ranks would import on the cores that all of them share.

    Not for other runs: a framework may look for a GPU, and what has done so must not fork.
    """
    entry = STRATEGIES[strategy]
    os.environ["DS_ACCELERATOR"] = "cpu"  # else DeepSpeed looks for others when it is imported
    for name in (entry.code.split(":")[0], "ddl_tools.emulation.network", *entry.packages):
        with suppress(ImportError):  # as above
            import_module(name)
    gc.freeze()


def _keep_store(writing: int, node: Node | None) -> int:
    die_with_parent()
    address = LOOPBACK
    if node:
        node.enter()
        address = node.address
    with suppress(ImportError):
        make = import_module("torch.distributed").TCPStore
        one = socket.create_server((address, 0))  # its own choice would be all interfaces
        port = one.getsockname()[1]
        kept = make(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=one.detach(),
        )
        os.write(writing, str(kept.port).encode())
        os.close(writing)
        while True:
            signal.pause()
    return 1


if __name__ == "__main__":
    main(sys.argv[1])
