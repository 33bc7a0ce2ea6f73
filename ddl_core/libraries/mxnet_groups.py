"""How MXNet's gradients become their mean over ranks: a Trainer of Gluon for each strategy."""

import ctypes
import os
import subprocess
import sys
from typing import Any, Protocol

import mxnet as mx
from mxnet import gluon

from ddl_core.libraries.meeting import Meeting
from ddl_core.processes import LEASH
from ddl_core.spec.run import RunSpec

# What a scheduler and a server run. The library is loaded as a worker does it and told its role
# afterwards, so that nobody waits for an import between the port's release and its use.
SERVE = """
import time; T=time.time()
import os, sys
import mxnet
from mxnet.kvstore.kvstore_server import _init_kvstore_server_module
print(time.time()-T, file=sys.stderr); print(flush=True)
sys.stdin.readline()
os.environ["DMLC_ROLE"] = sys.argv[1]
_init_kvstore_server_module()
"""


class Group(Protocol):
    """The ranks of a run, as far as gradients are concerned; takes ``(spec, meeting)``."""

    shares: int
    """What `Trainer.step` has to divide by."""

    def trainer(self, parameters: list[gluon.Parameter], optimizer: mx.optimizer.Optimizer) -> Any:
        """Return what updates `parameters` with the mean of their gradients."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return ``library``, what carries the gradients, and how it is used."""
        ...

    def close(self) -> None:
        """Leave the group; end what was started."""
        ...


class Single:
    """One process."""

    shares = 1

    def __init__(self, spec: RunSpec, meeting: Meeting) -> None:
        pass

    def trainer(self, parameters: list[gluon.Parameter], optimizer: mx.optimizer.Optimizer) -> Any:
        """Return a Trainer without a store."""
        return gluon.Trainer(parameters, optimizer, kvstore=None)

    def describe(self) -> dict[str, Any]:
        """Return that nothing is sent."""
        return {"library": None}

    def close(self) -> None:
        """Do nothing."""


class KVStore:
    """MXNet's parameter servers: every rank starts one, rank 0 the scheduler as well.

    The servers add the gradients up, each for a part of the parameters; the ranks update. With the
    server's own update, the default, the rate that a run sets would change nothing (apache/mxnet
    issue 15919).
    """

    def __init__(self, spec: RunSpec, meeting: Meeting) -> None:
        self.shares = spec.world_size
        host, port = meeting.exchange(meeting.reserve())[0].rsplit(":", 1)
        os.environ |= {
            "DMLC_PS_ROOT_URI": host,
            "DMLC_PS_ROOT_PORT": port,
            "DMLC_NODE_HOST": meeting.host,
            "DMLC_NUM_WORKER": str(spec.world_size),
            "DMLC_NUM_SERVER": str(spec.world_size),
            "DMLC_ROLE": "worker",
        }
        roles = ["scheduler", "server"] if meeting.rank == 0 else ["server"]
        self._served = [_start(role) for role in roles]
        for child in self._served:
            child.stdout.readline()
        meeting.release()
        for child in self._served:
            child.stdin.write(b"\n")
            child.stdin.flush()
        self._store = mx.kv.create("dist_sync")
        # It is never freed: that waits for all ranks, also for those that are gone.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._store))

    def trainer(self, parameters: list[gluon.Parameter], optimizer: mx.optimizer.Optimizer) -> Any:
        """Return a Trainer that pushes each gradient, pulls the sum, and updates here."""
        return gluon.Trainer(parameters, optimizer, kvstore=self._store, update_on_kvstore=False)

    def describe(self) -> dict[str, Any]:
        return {"library": "ps-lite", "servers": self.shares, "overlap": True}

    def close(self) -> None:
        for child in self._served:
            child.kill()
            child.wait()


def _start(role: str) -> "subprocess.Popen[bytes]":
    leash = [sys.executable, "-I", "-S", "-c", LEASH, str(os.getpid())]
    return subprocess.Popen(
        [*leash, sys.executable, "-c", SERVE, role],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


GROUPS: dict[str, Any] = {"single": Single, "kvstore": KVStore}
