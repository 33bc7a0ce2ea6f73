"""The nodes of an emulated cluster, their switch, and the links between them.

A node is a network of its own with one link to the switch, and a host name of its own. Each link is
shaped at both ends, each at its egress, so it is limited in both directions. The process that makes
the nodes becomes the switch; all of it is gone with the last process in it.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddl_core.errors import LaunchError, NotInstalledError
from ddl_tools.emulation import namespaces
from ddl_tools.processes import imports

PROGRAMS, PACKAGE = ("ip", "tc"), "iproute2"
SUPPORT_TIMEOUT_S = 60.0
LINK = "ib0"  # what a node calls its link
MTU = 9000
# Of a packet of MTU bytes, 20 of IP, 20 of TCP and its 12 of time stamps carry nothing; the link
# also carries 14 of Ethernet, and counts them.
ON_THE_WIRE = (MTU + 14) / (MTU - 52)
# A large burst would let short messages travel free; htb, because tbf cuts the large packets that a
# host hands to its link, which costs a core; the queue is long enough to drop nothing.
SHAPE = """\
qdisc add dev {device} root handle 1: htb default 1
class add dev {device} parent 1: classid 1:1 htb rate {bits}bit ceil {bits}bit \
burst 16k cburst 16k quantum 65536
qdisc add dev {device} parent 1:1 pfifo limit 1000
"""
# Not what the host may have chosen, as bbr, which paces by itself; nor a slow start for each of a
# step's messages.
SETTINGS = {
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv6/conf/all/disable_ipv6": "1",
}
# In a process of its own: the maker of nodes becomes their switch, and must have no threads.
TRY = """
from ddl_core.errors import LaunchError
from ddl_tools.emulation.nodes import Wiring, build
try:
    build(Wiring("single", nodes=1, ranks_per_node=1, link_mbit=100, uplink_mbit=0))
except LaunchError as error:
    raise SystemExit(str(error))
"""


@dataclass(frozen=True)
class Wiring:
    """The nodes of a run: links of ``link_mbit`` each way, for ranks of one ``strategy``.

    ``uplink_mbit`` joins the switches of two halves of the nodes; 0: there is one switch.
    """

    strategy: str
    nodes: int
    ranks_per_node: int
    link_mbit: float
    uplink_mbit: float


@dataclass(frozen=True)
class Node:
    """A node; its namespaces live as long as these descriptors, or a process in them."""

    address: str
    net: int
    uts: int
    user: tuple[int, int] | None  # ids outside, where the nodes took a user namespace

    @property
    def variables(self) -> dict[str, str]:
        """Variables that its ranks need: the link that they use."""
        return {"GLOO_SOCKET_IFNAME": LINK}

    def enter(self) -> None:
        """Move this process, which is to have one thread, into the node, for good."""
        namespaces.enter(self.net)
        namespaces.enter(self.uts)
        if self.user:  # with a name of its own again: folders are looked up by it
            namespaces.unshare_user(self.user[0], (0, 0))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Use the network of the node in a ``with`` block."""
        before = namespaces.current("net")
        namespaces.enter(self.net)
        try:
            yield
        finally:
            namespaces.enter(before)
            os.close(before)


def check_support() -> None:
    """Check that nodes and shaped links can be made here, by making one node.

    `NotInstalledError` if a program is missing. `LaunchError` with the system's reason.
    """
    if lacking := namespaces.missing(PROGRAMS):
        raise NotInstalledError(
            f"emulated nodes need {', '.join(lacking)}",
            remedy=f"on Debian or Ubuntu: apt-get install {PACKAGE}",
        )
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRY],
            env={**os.environ, **imports()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SUPPORT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"making an emulated node took over {SUPPORT_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        detail, _, remedy = reason.partition("; ")
        raise LaunchError(f"this machine cannot emulate a cluster: {detail}", remedy=remedy)


def build(wiring: Wiring) -> list[Node]:
    """Make the nodes; this process, which must have one thread, becomes their switch.

    `LaunchError` if namespaces, links or their rates cannot be made here.
    """
    user = None
    if namespaces.need_user():
        user = (os.geteuid(), os.getegid())
        namespaces.unshare_user(0, user)
    # Both its own: a user may return only to namespaces of his own user namespace.
    namespaces.unshare(namespaces.NET | namespaces.UTS)
    nodes = [_node(number, user) for number in range(wiring.nodes)]
    halves = 2 if wiring.uplink_mbit else 1
    for half in range(halves):
        _ip(f"link add sw{half} mtu {MTU} type bridge", f"link set sw{half} up")
    if wiring.uplink_mbit:
        _ip(f"link add up0 mtu {MTU} type veth peer name up1 mtu {MTU}")
        _ip(*(f"link set up{half} master sw{half} up" for half in range(halves)))
        _shape(["up0", "up1"], wiring.uplink_mbit)
    for number, node in enumerate(nodes):
        half = number * halves // wiring.nodes
        ends = f"name {LINK} mtu {MTU} netns /proc/self/fd/{node.net}"
        _ip(f"link add p{number} mtu {MTU} type veth peer {ends}", inherited=[node.net])
        _ip(f"link set p{number} master sw{half} up")
        _shape([f"p{number}"], wiring.link_mbit)
        with node.entered():
            _ip("link set lo up", f"addr add {node.address}/16 dev {LINK}", f"link set {LINK} up")
            _shape([LINK], wiring.link_mbit)
    return nodes


def _node(number: int, user: tuple[int, int] | None) -> Node:
    """Make a node's namespaces; this process stays where it is."""
    address = f"10.77.{(number + 1) // 256}.{(number + 1) % 256}"
    before = namespaces.current("net"), namespaces.current("uts")
    namespaces.unshare(namespaces.NET | namespaces.UTS)
    # Horovod looks for the interface of its host's name, whatever it is told of interfaces.
    socket.sethostname(address)
    for name, value in SETTINGS.items():
        _set(Path("/proc/sys") / name, value)
    node = Node(address, namespaces.current("net"), namespaces.current("uts"), user)
    for namespace in before:
        namespaces.enter(namespace)
        os.close(namespace)
    return node


def _set(path: Path, value: str) -> None:
    if not path.exists() and "ipv6" in path.parts:
        return  # a kernel without it
    try:
        path.write_text(value)
    except OSError as error:
        raise LaunchError(
            f"cannot set {path} to {value} for a node: {error.strerror}; a container needs a "
            "writable /proc/sys (and the kernel's module tcp_reno, which is always built in)"
        ) from None


def _shape(devices: Sequence[str], mbit: float) -> None:
    bits = round(mbit * 1e6)
    _batch("tc", "".join(SHAPE.format(device=device, bits=bits) for device in devices))


def _ip(*lines: str, inherited: Sequence[int] = ()) -> None:
    _batch("ip", "\n".join(lines), inherited)


def _batch(program: str, lines: str, inherited: Sequence[int] = ()) -> None:
    """Let `ip` or `tc` execute lines; it inherits some of our descriptors."""
    done = subprocess.run(
        [program, "-batch", "-"],
        input=f"{lines}\n",
        env={**os.environ, "PATH": namespaces.SEARCH_PATH},
        pass_fds=inherited,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise LaunchError(f"the nodes cannot be joined: {program}: {done.stderr.strip()}")
