"""Horovod's settings and rendezvous in a rank, for every framework that it serves."""

import os
import threading
from typing import Any

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from ddl_core.config import MOST_NODES_OVER_GLOO, RunSpec
from ddl_core.errors import LaunchError
from ddl_core.strategies import Group
from ddl_core.system import INTERLEAVED, check_host_name

# As patient as DDP. Horovod's own 30 s for Gloo begin while other ranks still import their library.
# An interleaved rank is stopped in between, and Gloo's clock is not: it gets a day.
PATIENCE_S = {
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "86400" if INTERLEAVED in os.environ else "600",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
}


def check_nodes(nodes: int, remedy: str) -> None:
    """Raise `LaunchError` with the `remedy` for more nodes than can meet over Gloo."""
    if nodes > MOST_NODES_OVER_GLOO:
        raise LaunchError(
            f"nodes = {nodes}: Horovod meets over Gloo on up to {MOST_NODES_OVER_GLOO} nodes",
            remedy=remedy,
        )


def settings() -> dict[str, Any]:
    """Return the settings in effect, for the record."""
    return {
        "fusion_bytes": int(os.environ["HOROVOD_FUSION_THRESHOLD"]),
        "cycle_ms": float(os.environ["HOROVOD_CYCLE_TIME"]),
        "autotune": os.environ["HOROVOD_AUTOTUNE"] != "0",
        "overlap": True,
    }


def configure(spec: RunSpec) -> None:
    """Set what Horovod reads when it starts; the run decides, not the environment."""
    _set(
        FUSION_THRESHOLD=round(spec.horovod_fusion_mb * 2**20),
        CYCLE_TIME=spec.horovod_cycle_ms,
        AUTOTUNE=0,
    )
    for name, seconds in PATIENCE_S.items():
        os.environ.setdefault(name, seconds)


def set_rank(spec: RunSpec, info: Group) -> None:
    """Tell Horovod which rank this is, as its own launcher would; ranks meet over Gloo."""
    check_host_name()
    _set(
        RANK=info.rank,
        SIZE=info.world_size,
        LOCAL_RANK=info.local_rank,
        LOCAL_SIZE=spec.gpus_per_node,
        CROSS_RANK=info.rank // spec.gpus_per_node,
        CROSS_SIZE=spec.nodes,
        CONTROLLER="gloo",
        CPU_OPERATIONS="gloo",
    )
    if spec.nodes == 1:
        os.environ.setdefault("HOROVOD_GLOO_IFACE", "lo")


def open_rendezvous(spec: RunSpec, interface: str) -> RendezvousHTTPServer:
    """Open Horovod's own rendezvous in rank 0; `close` it once all ranks are connected."""
    server = RendezvousHTTPServer((interface, 0), RendezvousHandler, False)
    hosts = ",".join(f"node{number}:{spec.gpus_per_node}" for number in range(spec.nodes))
    server.init(get_host_assignments(parse_hosts(hosts), spec.world_size))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def meet_at(host: str, port: str) -> None:
    """Tell Horovod where its rendezvous is."""
    _set(GLOO_RENDEZVOUS_ADDR=host, GLOO_RENDEZVOUS_PORT=port)


def close(server: RendezvousHTTPServer | None) -> None:
    """Close the rendezvous."""
    if server:
        server.shutdown()
        server.server_close()


def _set(**values: object) -> None:
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in values.items()})
