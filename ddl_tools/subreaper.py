"""Run a command and end all that it has started: ``python subreaper.py PARENT COMMAND...``.

Linux gives a process whose parent has ended to its nearest ancestor that is a subreaper, whatever
session or group it is in. So all that a run starts is found below one process.

Executed as a file, it imports nothing of this project, which need not be installed.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NoReturn

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
PATIENCE_S = 20.0
POLL_S = 0.005
LONG_S = 86_400.0
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Find = Callable[[], list[psutil.Process]]
"""Returns the living processes that are meant, as they are now."""


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: psutil.Process) -> list[psutil.Process]:
    """Return the living processes below `root`."""
    try:
        return [one for one in root.children(recursive=True) if _lives(one)]
    except psutil.NoSuchProcess:
        return []


def family(root: psutil.Process) -> list[psutil.Process]:
    """Return `root` and the living processes below it; nothing if it has ended."""
    return [root, *descendants(root)] if _lives(root) else []


def freeze(find: Find) -> list[psutil.Process]:
    """Stop what `find` returns, until `thaw`; return it.

    Repeated until nothing new is found: a process that is stopped late may start another one.
    """
    stopped: dict[int, psutil.Process] = {}
    while found := [one for one in find() if one.pid not in stopped]:
        for process in found:
            stopped[process.pid] = process
            with suppress(psutil.Error):
                process.suspend()
    return list(stopped.values())


def thaw(stopped: Iterable[psutil.Process]) -> None:
    """Let processes go on, unless they have ended meanwhile."""
    for process in stopped:
        with suppress(psutil.Error):
            process.resume()


def end_all(find: Find, patience_s: float = PATIENCE_S) -> list[int]:
    """Kill what `find` returns, until it returns nothing; return those that are left even so.

    They are stopped first: what starts nothing more leaves no process that nobody has seen. Takes
    no exit status, which belongs to the parent.
    """
    deadline = time.monotonic() + patience_s
    while found := freeze(find):
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        while any(map(_lives, found)):
            if time.monotonic() > deadline:
                return [process.pid for process in found if _lives(process)]
            time.sleep(POLL_S)
    return []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def run(parent: int, command: list[str]) -> int:
    """Execute `command`, then end all that it has left; return its exit status, as of `Popen`.

    A signal to stop, also the one that Linux sends when the parent ends, goes on to the command,
    which has a while to end.
    """
    watched = {signal.SIGCHLD, *STOPS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    adopt_orphans()
    _stop_with(parent)
    own = psutil.Process()
    child = os.fork()
    if child == 0:
        _stop_with(own.pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            os.execv(command[0], command)
        except OSError as error:
            sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
            os._exit(1)
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)  # the command's alone
    code, deadline = None, float("inf")
    while code is None and time.monotonic() < deadline:
        came = signal.sigtimedwait(watched, LONG_S if deadline == float("inf") else POLL_S)
        if came is not None and came.si_signo in STOPS:
            os.kill(child, came.si_signo)
            deadline = min(deadline, time.monotonic() + PATIENCE_S)
        code = reap().get(child)
    end_all(lambda: descendants(own))
    left = reap()
    return left.get(child, -signal.SIGKILL) if code is None else code


def reap(but: Collection[int] = ()) -> dict[int, int]:
    """Take the exit statuses of all children that have ended, up to one of `but`; return them."""
    taken = {}
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in but:
                break
            taken[ended.si_pid] = os.waitstatus_to_exitcode(os.waitpid(ended.si_pid, 0)[1])
    return taken


def _stop_with(parent: int) -> None:
    """Ask Linux for SIGTERM when the parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent died first")


def _end_like(code: int) -> NoReturn:
    """End with an exit status as of `Popen`: by the same signal, if one has ended the command."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _end_like(run(int(sys.argv[1]), sys.argv[2:]))
