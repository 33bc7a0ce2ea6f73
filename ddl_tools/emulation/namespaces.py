"""Linux namespaces for emulated nodes and the local SLURM.

Network, host name and processes of a namespace are seen by nobody else, and end with its last
process. Python has `os.unshare` and `os.setns` from version 3.12 on.
"""

import ctypes
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ddl_core.errors import LaunchError

SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
PERMISSION_REMEDY = (
    "it needs namespaces of its own (unshare): call it as root, or let users make them "
    "(sysctl user.max_user_namespaces; a container needs the right CAP_SYS_ADMIN)"
)
USER, NET, UTS = 0x10000000, 0x40000000, 0x04000000  # CLONE_NEW... of sched.h

_libc = ctypes.CDLL(None, use_errno=True)


def missing(programs: Iterable[str]) -> list[str]:
    """Return the programs that this machine lacks."""
    return [name for name in programs if shutil.which(name, path=SEARCH_PATH) is None]


def need_user() -> bool:
    """Say whether this user needs a user namespace to make any other."""
    return os.geteuid() != 0


def unshare(kinds: int) -> None:
    """Give this process, which must have one thread, new namespaces; see unshare(2)."""
    if _libc.unshare(kinds):
        reason = os.strerror(ctypes.get_errno())
        raise LaunchError(f"cannot make a namespace: {reason}", remedy=PERMISSION_REMEDY)


def enter(namespace: int) -> None:
    """Move this process into the namespace of an open descriptor; see setns(2)."""
    if _libc.setns(namespace, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def current(kind: str) -> int:
    """Return a descriptor of this process's namespace, ``"net"`` or ``"uts"``, which keeps it."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)


def unshare_user(inside: int, outside: tuple[int, int]) -> None:
    """Become user and group `inside` of a new user namespace: who are `outside` in this one."""
    unshare(USER)
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in zip(("uid", "gid"), outside, strict=True):
        Path(f"/proc/self/{name}_map").write_text(f"{inside} {number} 1")
