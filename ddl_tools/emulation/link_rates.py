"""Measure the rates of emulated links before a run uses them."""

import selectors
import socket
import time
from collections.abc import Sequence

from ddl_tools.emulation.nodes import ON_THE_WIRE, Node

# As many packets of 64 kB, as hosts hand them to a link: 8 and 60.
WARM_UP_BYTES, MIN_BYTES = 0.5e6, 4e6
WARM_UP_S, MIN_S = 0.3, 1.0
CHUNK = 256 * 1024


def measured_mbit(nodes: Sequence[Node], link_mbit: float) -> list[float]:
    """Return what each node receives while each sends to the next one, as in a ring, Mbit/s.

    Headers included; nothing of a node that is alone. `link_mbit` is the expected rate: slow links
    are measured for longer.
    """
    if len(nodes) < 2:
        return []
    receiving, sending = _ring(nodes)
    arrivals: dict[socket.socket, list[tuple[float, int]]] = {one: [] for one in receiving}
    with selectors.DefaultSelector() as ready:
        for one in receiving:
            ready.register(one, selectors.EVENT_READ)
        for one in sending:
            ready.register(one, selectors.EVENT_WRITE)
        byte_s = 8 / 1e6 / link_mbit
        begin = time.monotonic() + max(WARM_UP_S, WARM_UP_BYTES * byte_s)
        end = begin + max(MIN_S, MIN_BYTES * byte_s)
        chunk = bytes(CHUNK)
        while (now := time.monotonic()) < end:
            for key, _ in ready.select(timeout=0.1):
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                if peer in arrivals:
                    arrivals[peer].append((now, len(peer.recv(CHUNK))))
                else:
                    peer.send(chunk)
    for one in (*receiving, *sending):
        one.close()
    return [_rate([pair for pair in arrivals[one] if pair[0] > begin]) for one in receiving]


def _rate(arrivals: list[tuple[float, int]]) -> float:
    """Return Mbit/s on the wire between the first and the last arrival; 0 where nothing came."""
    seconds = arrivals[-1][0] - arrivals[0][0] if arrivals else 0.0
    nbytes = sum(count for _, count in arrivals[1:])
    return nbytes * 8 / 1e6 * ON_THE_WIRE / seconds if seconds else 0.0


def _ring(nodes: Sequence[Node]) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return the socket by which each node receives, and that by which it sends to the next."""
    listening = []
    for node in nodes:
        with node.entered():
            listening.append(socket.create_server((node.address, 0)))
    receiving, sending = [], []
    for number, node in enumerate(nodes):
        following = listening[(number + 1) % len(nodes)]
        with node.entered():
            sending.append(socket.create_connection(following.getsockname(), timeout=10))
        receiving.append(following.accept()[0])
    for one in listening:
        one.close()
    for one in (*sending, *receiving):
        one.setblocking(False)
    return receiving[-1:] + receiving[:-1], sending
