"""What a private SLURM and a cluster in a box are made of: namespaces, and whether there are any.

Their network, host name and processes are seen by nobody else, and end with their last process.
"""

import ctypes
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ddl_core.errors import LaunchError

PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
ALLOW = (
    "it needs namespaces of its own (unshare): call it as root, or let users make them "
    "(sysctl user.max_user_namespaces; a container needs the right CAP_SYS_ADMIN)"
)
USER, NET, UTS = 0x10000000, 0x40000000, 0x04000000  # CLONE_NEW... of sched.h

_libc = ctypes.CDLL(None, use_errno=True)


def missing(programs: Iterable[str]) -> list[str]:
    """Return the programs that this machine lacks."""
    return [name for name in programs if shutil.which(name, path=PLACES) is None]


def need_user() -> bool:
    """Say whether this user needs a user namespace to make any other."""
    return os.geteuid() != 0


def unshare(kinds: int) -> None:
    """Give this process new namespaces, as unshare(2) does; it must have one thread.

    Raises
    ------
    LaunchError
        If it may not.
    """
    if _libc.unshare(kinds):
        raise LaunchError(f"cannot make a namespace: {os.strerror(ctypes.get_errno())}; {ALLOW}")


def enter(namespace: int) -> None:
    """Move this process into the namespace of an open descriptor, as setns(2) does.

    Raises
    ------
    OSError
        If it may not.
    """
    if _libc.setns(namespace, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def opened(kind: str) -> int:
    """Return a descriptor of this process's namespace, ``"net"`` or ``"uts"``, which keeps it."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)


def unshare_user(inside: int, outside: tuple[int, int]) -> None:
    """Become user and group `inside` of a new user namespace: who are `outside` in this one."""
    unshare(USER)
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in zip(("uid", "gid"), outside, strict=True):
        Path(f"/proc/self/{name}_map").write_text(f"{inside} {number} 1")
