"""How fast the links of a cluster in a box are: measured before anything else uses them."""

import selectors
import socket
import time
from collections.abc import Sequence

from ddl_core.emulation.nodes import Node
from ddl_core.spec.emulation import ON_THE_WIRE

WARM_S, LEAST_S, LEAST_BYTES = 0.3, 1.0, 2.5e6  # of forty packets as hosts hand them to a link
CHUNK = 256 * 1024


def measured_mbit(nodes: Sequence[Node], link_mbit: float) -> list[float]:
    """Return what each node receives while each sends to the next one, as in a ring, Mbit/s.

    What the link carries, headers included; nothing of a node that is alone.

    Parameters
    ----------
    nodes
        All of the cluster.
    link_mbit
        What is expected: slow links are measured for longer.
    """
    if len(nodes) < 2:
        return []
    receiving, sending = _ring(nodes)
    with selectors.DefaultSelector() as ready:
        for one in receiving:
            ready.register(one, selectors.EVENT_READ, _Received())
        for one in sending:
            ready.register(one, selectors.EVENT_WRITE)
        _exchange(ready, WARM_S + max(LEAST_S, LEAST_BYTES * 8 / 1e6 / link_mbit))
        found = [ready.get_key(one).data.mbit() for one in receiving]
    for one in (*receiving, *sending):
        one.close()
    return found


def _ring(nodes: Sequence[Node]) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return the socket by which each node receives, and that by which it sends to the next."""
    listening = []
    for node in nodes:
        with node.entered():
            listening.append(socket.create_server((node.address, 0)))
    sending, receiving = [], []
    for number, node in enumerate(nodes):
        following = listening[(number + 1) % len(nodes)]
        with node.entered():
            sending.append(socket.create_connection(following.getsockname(), timeout=10))
        receiving.append(following.accept()[0])
    for one in (*listening, *sending, *receiving):
        one.setblocking(False)
    for one in listening:
        one.close()
    return receiving[-1:] + receiving[:-1], sending


def _exchange(ready: selectors.BaseSelector, seconds: float) -> None:
    chunk = bytes(CHUNK)
    begun = time.monotonic()
    while (now := time.monotonic()) < begun + seconds:
        for key, _ in ready.select(timeout=0.1):
            one = key.fileobj
            assert isinstance(one, socket.socket)
            if key.data is None:
                one.send(chunk)
            else:
                key.data.add(now - begun, len(one.recv(CHUNK)))


class _Received:
    """What came between the first and the last arrival that count: chunks cut no time off."""

    def __init__(self) -> None:
        self._first = self._last = 0.0
        self._bytes = 0

    def add(self, moment: float, count: int) -> None:
        if moment < WARM_S:
            return
        if self._first:
            self._bytes += count
        else:
            self._first = moment
        self._last = moment

    def mbit(self) -> float:
        """Return Mbit/s on the wire; 0 where nothing came."""
        seconds = self._last - self._first
        return self._bytes * 8 / 1e6 * ON_THE_WIRE / seconds if seconds else 0.0
