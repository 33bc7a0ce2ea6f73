"""Where the ranks of a framework meet: rank 0 listens, the others connect, numbers go through it.

What a run needs beside its gradients (barriers, maxima of times, counts, addresses) goes this way,
for every framework alike and exact in float64; gradients go by the framework's own means.
"""

import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.strategies import RankInfo, Reduction
from ddl_tools.processes import KEY
from ddl_tools.rank import meeting
from ddl_tools.rank.meeting import PATIENCE_S

REDUCTIONS: dict[Reduction, Callable[..., Any]] = {"sum": np.sum, "min": np.min, "max": np.max}
GREETING_S = 10  # for the key of who connects: a scanner of ports sends none


class ControlGroup:
    """One rank of a group whose ranks are connected to rank 0; see `Group`.

    `LaunchError` if the others do not come within ten minutes.

    Parameters
    ----------
    spec
        The run.
    folder
        Of this start of the run: rank 0 leaves its address there, and all ranks see it.

    Attributes
    ----------
    host
        Address of this machine that the other ranks reach.
    """

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        info = RankInfo.from_environment(spec)
        self.rank, self.local_rank, self.world_size = info.rank, info.local_rank, info.world_size
        self.host = meeting.own_address(spec)
        self._kept: list[socket.socket] = []
        self._key = os.environ.get(KEY, "").encode() or b"alone"
        if spec.nodes > 1 and KEY not in os.environ:
            raise LaunchError(
                f"{KEY} is not set: without it, any program of the network could join the run",
                remedy="start the ranks with `ddl run`, `ddl study run` or `ddl study submit`",
            )
        self._others: list[Connection] = []
        if self.world_size > 1:
            self._others = self._listen(spec, folder) if self.rank == 0 else [self._call(folder)]

    def _listen(self, spec: RunSpec, folder: Path) -> list[Connection]:
        """Return the connections of all other ranks, in their order.

        Who connects without the key of the run, or stays silent, is left alone and delays nobody.
        """
        others: dict[int, Connection] = {}
        arrived: SimpleQueue[tuple[int, Connection]] = SimpleQueue()
        until = time.monotonic() + PATIENCE_S
        server, host = meeting.listen(spec, folder)
        with server:
            address = f"{host}:{server.getsockname()[1]}"
            door = Thread(target=self._admit, args=(server, arrived), daemon=True)
            door.start()
            try:
                while len(others) + 1 < self.world_size:
                    rank, other = arrived.get(timeout=max(0, until - time.monotonic()))
                    others[rank] = other
            except Empty:
                missing = sorted({*range(1, self.world_size)} - {*others})
                some = ", ".join(map(str, missing[:8]))
                raise LaunchError(
                    f"ranks {some} did not come to rank 0 at {address} "
                    f"within {PATIENCE_S:.0f} s; their own logs say why"
                ) from None
            finally:
                server.shutdown(socket.SHUT_RDWR)  # ends `accept`
                door.join()
        return [others[rank] for rank in range(1, self.world_size)]

    def _admit(self, server: socket.socket, arrived: "SimpleQueue[tuple[int, Connection]]") -> None:
        """Greet each that connects in a thread of its own, until the server is shut down."""
        while True:
            try:
                own, _ = server.accept()
            except OSError:
                return
            Thread(target=self._greet, args=(own, arrived), daemon=True).start()

    def _greet(self, own: socket.socket, arrived: "SimpleQueue[tuple[int, Connection]]") -> None:
        """Pass on a connection whose other end has the key and a rank; close any other."""
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", GREETING_S, 0))
        with own, suppress(OSError, EOFError, ValueError, AuthenticationError):
            other = Connection(os.dup(own.fileno()))
            deliver_challenge(other, self._key)
            answer_challenge(other, self._key)
            rank = int(other.recv_bytes(16))
            if 0 < rank < self.world_size:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
                arrived.put((rank, other))

    def _call(self, folder: Path) -> Connection:
        first = Client(meeting.find(folder), authkey=self._key)
        first.send_bytes(str(self.rank).encode())
        return first

    def reduce(self, values: npt.ArrayLike, op: Reduction = "sum") -> npt.NDArray[Any]:
        """Return `values` reduced over ranks, in their own type. A collective."""
        own = np.asarray(values)

        def reduced(given: list[bytes]) -> bytes:
            whole = REDUCTIONS[op]([_unpacked(one) for one in given], axis=0)
            return _packed(whole.astype(own.dtype))

        return _unpacked(self._through_first(_packed(own), reduced))

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.reduce(0.0)

    def exchange(self, text: str) -> list[str]:
        """Return what each rank has given, in their order. A collective."""
        return self._through_first(text.encode(), b"\0".join).decode().split("\0")

    def _through_first(self, own: bytes, merge: Callable[[list[bytes]], bytes]) -> bytes:
        """Return what rank 0 makes of the contents that all ranks give. A collective."""
        if self.rank:
            self._send(self._others[0], 0, own)
            return self._receive(self._others[0], 0)
        numbered = list(enumerate(self._others, start=1))
        merged = merge([own, *(self._receive(one, rank) for rank, one in numbered)])
        for rank, one in numbered:
            self._send(one, rank, merged)
        return merged

    def reserve(self) -> str:
        """Return ``host:port``, a port that nobody else gets until `release`.

        It is bound and never listened on, so that a server that shares ports may take it.
        """
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind((self.host, 0))
        self._kept.append(kept)
        return f"{self.host}:{kept.getsockname()[1]}"

    def release(self) -> None:
        """Let the reserved ports go, just before a server that does not share takes them."""
        for kept in self._kept:
            kept.close()
        self._kept = []

    def close(self) -> None:
        """Leave."""
        self.release()
        for one in self._others:
            one.close()

    def _send(self, other: Connection, rank: int, content: bytes) -> None:
        try:
            other.send_bytes(content)
        except OSError:
            raise _gone(rank) from None

    def _receive(self, other: Connection, rank: int) -> bytes:
        try:
            # Not `poll` of the connection: who hangs is told by the innermost frame of each rank.
            waiting = select.poll()
            waiting.register(other.fileno(), select.POLLIN)
            if not waiting.poll(1000 * PATIENCE_S):
                raise LaunchError(
                    f"rank {rank} sent nothing for {PATIENCE_S:.0f} s; its own log says why"
                )
            return other.recv_bytes()
        except (OSError, EOFError):
            raise _gone(rank) from None


def _gone(rank: int) -> LaunchError:
    return LaunchError(f"rank {rank} is gone; its own log says why")


def _packed(values: npt.NDArray[Any]) -> bytes:
    file = BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def _unpacked(content: bytes) -> npt.NDArray[Any]:
    return np.asarray(np.load(BytesIO(content), allow_pickle=False))
