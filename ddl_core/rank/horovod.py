"""How Horovod is set in a rank and where its ranks meet, whichever library it serves."""

import os
import threading

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from ddl_core.processes import TURNS
from ddl_core.rank.group import Group
from ddl_core.spec.run import RunSpec

MIB = 1024 * 1024

# The same patience as DDP's. Horovod's own, 30 s for Gloo, also counts while the other ranks still
# import their library from a busy file system. The environment may say otherwise. A rank that takes
# turns stands still meanwhile, and its clock does not: it is given a day.
PATIENCE_S = {
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "86400" if TURNS in os.environ else "600",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
}


def configure(spec: RunSpec) -> None:
    """Set what Horovod reads when it starts; the run decides, not the environment."""
    _set(
        FUSION_THRESHOLD=round(spec.horovod_fusion_mb * MIB),
        CYCLE_TIME=spec.horovod_cycle_ms,
        AUTOTUNE=0,
    )
    for name, seconds in PATIENCE_S.items():
        os.environ.setdefault(name, seconds)


def take_place(spec: RunSpec, info: Group) -> None:
    """Tell Horovod which rank this is, as its own launcher would, and that ranks meet over Gloo."""
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


def open_meeting_place(spec: RunSpec, interface: str) -> RendezvousHTTPServer:
    """Open Horovod's own meeting place, in rank 0; to `close` once all ranks are connected."""
    server = RendezvousHTTPServer((interface, 0), RendezvousHandler, False)
    hosts = ",".join(f"node{number}:{spec.gpus_per_node}" for number in range(spec.nodes))
    server.init(get_host_assignments(parse_hosts(hosts), spec.world_size))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def meet_at(host: str, port: str) -> None:
    """Tell Horovod where that place is."""
    _set(GLOO_RENDEZVOUS_ADDR=host, GLOO_RENDEZVOUS_PORT=port)


def close(server: RendezvousHTTPServer | None) -> None:
    """End the meeting info."""
    if server:
        server.shutdown()
        server.server_close()


def _set(**values: object) -> None:
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in values.items()})
