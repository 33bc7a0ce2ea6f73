"""How gradients are added up over ranks under MXNet, by the run's strategy."""

import atexit
import ctypes
import os
import subprocess
import sys
from typing import Any

import mxnet as mx

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.frameworks.groups import GradientGroup, HorovodGroup
from ddl_tools.frameworks.rendezvous import ControlGroup

Array = Any  # MXNet has no types of its own

# What a scheduler and a server do. They load MXNet as a worker would and are told their role
# afterwards: between a port's release and its use lie no seconds of an import.
SERVE = """
import os, sys
from ddl_core.system import die_with_parent
die_with_parent(int(sys.argv[2]))
from mxnet.kvstore.kvstore_server import _init_kvstore_server_module
print(flush=True)
sys.stdin.readline()
os.environ["DMLC_ROLE"] = sys.argv[1]
_init_kvstore_server_module()
"""


class Single(GradientGroup):
    """The group of one rank; the others derive from it."""

    def all_reduce_sum(self, gradients: list[Array]) -> None:
        """Replace each gradient by its sum over ranks; wait for nothing."""


class KVStore(Single):
    """MXNet's parameter servers: every rank starts one, rank 0 their scheduler as well.

    They add up, the ranks update. With the servers' own update, which is the default, the rate that
    a run sets changes nothing (apache/mxnet issue 15919).

    No weights go through the store, as they would with Gluon's Trainer: a server's queue does not
    keep the order of messages, so that the pull of the first weights may be answered after the
    gradients have replaced them. One request for a key at a time needs no order.
    """

    def __init__(self, spec: RunSpec, control: ControlGroup, device: str) -> None:
        host, port = control.exchange(control.reserve())[0].rsplit(":", 1)
        os.environ |= {
            "DMLC_PS_ROOT_URI": host,
            "DMLC_PS_ROOT_PORT": port,
            "DMLC_NODE_HOST": control.host,
            "DMLC_NUM_WORKER": str(spec.world_size),
            "DMLC_NUM_SERVER": str(spec.world_size),
            "DMLC_ROLE": "worker",
        }
        roles = ["server", "scheduler"] if control.rank == 0 else ["server"]
        self._started = [_start(role) for role in roles]
        for one in self._started:
            _await(one)
        control.barrier()  # else all would wait for one that has failed to start
        control.release()
        for one in self._started:
            assert one.stdin is not None
            one.stdin.close()
        self._store = mx.kv.create("dist_sync")
        _let_go_alone(self._store)
        self._known = False

    def all_reduce_sum(self, gradients: list[Array]) -> None:
        """Push each gradient and pull the sum; those of the first layers go first."""
        if not self._known:
            self._store.init(list(range(len(gradients))), gradients)
            self._known = True
        for number, gradient in enumerate(gradients):
            self._store.pushpull(number, gradient, priority=-number)

    def describe(self) -> dict[str, Any]:
        """Return what carries the gradients."""
        return {"library": "ps-lite", "servers_per_rank": 1, "overlap": True}

    def close(self) -> None:
        """Leave the store and end what was started.

        With an error on its way, what was sent may never be answered. Freeing the store would wait
        for it, and so would the end of the process.
        """
        if sys.exc_info()[0] is None:
            del self._store
        else:
            atexit.register(_end_at_once, self._store)
        for one in self._started:
            one.kill()
            one.wait()


class Horovod(HorovodGroup, Single):
    """Horovod between MXNet's asynchronous operations."""

    def all_reduce_sum(self, gradients: list[Array]) -> None:
        """Send each gradient as soon as it is there."""
        for number, gradient in enumerate(gradients):
            self._hvd.allreduce_(gradient, op=self._hvd.Sum, name=str(number), priority=-number)


def _start(role: str) -> "subprocess.Popen[bytes]":
    """Start a scheduler or a server, to die with this process; its errors go where this one's go.

    It loads MXNet and says so; it begins when its input ends.
    """
    return subprocess.Popen(
        [sys.executable, "-c", SERVE, role, str(os.getpid())],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _await(started: "subprocess.Popen[bytes]") -> None:
    assert started.stdout is not None
    if not started.stdout.readline():
        raise LaunchError(
            f"a server of MXNet's KVStore ended with exit code {started.wait()} before it began; "
            "the rank's log says why"
        )


def _end_at_once(store: Any) -> None:
    """End this process as a failed one; until then `store` is kept."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _let_go_alone(store: Any) -> None:
    """Let the end of `store` wait for no other rank, as it would for ever where one is gone."""
    code = mx.base._LIB.MXKVStoreSetBarrierBeforeExit(store.handle, ctypes.c_int(0))
    mx.base.check_call(code)


GROUPS: dict[str, type[Single]] = {
    "single": Single,
    "kvstore": KVStore,
    "horovod": Horovod,
}
