"""Horovod in a rank: its settings and its rendezvous, for every framework that it serves."""

import os
import threading
from typing import Any, Protocol

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from ddl_core.config import MOST_NODES_OVER_GLOO, RunSpec
from ddl_core.errors import LaunchError
from ddl_core.strategies import Group
from ddl_core.system import TURNS

MIB = 1024 * 1024

# The same patience as DDP's. Horovod's own, 30 s for Gloo, also counts while the other ranks still
# import their library from a busy file system. The environment may say otherwise. A rank that takes
# turns stands still meanwhile, and its clock does not: it is given a day.
PATIENCE_S = {
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "86400" if TURNS in os.environ else "600",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
}


class Rendezvous(Group, Protocol):
    """Ranks that can exchange texts, and the address at which rank 0 can be reached."""

    host: str

    def exchange(self, text: str) -> list[str]:
        """Return the texts of all ranks in order. A collective."""
        ...


def join(hvd: Any, spec: RunSpec, group: Rendezvous, device: str) -> dict[str, Any]:
    """Start `hvd`, Horovod's module for a framework, for ranks that have met already.

    Rank 0 opens Horovod's own meeting place and tells the others its port. Returns what `describe`
    tells.
    """
    check_nodes(spec.nodes, "use fewer nodes, or another strategy")
    configure(spec)
    take_place(spec, group)
    server, address = None, ""
    if group.rank == 0:
        server = open_meeting_place(spec, group.host)
        address = f"{group.host}:{server.server_port}"
    meet_at(*group.exchange(address)[0].rsplit(":", 1))
    hvd.init()
    group.barrier()  # all ranks are connected before the place where they met may close
    close(server)
    library = "nccl" if device == "cuda" and hvd.nccl_built() else "gloo"
    return {"library": library, "controller": "gloo", **settings()}


def check_nodes(nodes: int, remedy: str) -> None:
    """Check that Horovod's ranks can meet over Gloo; if not, `LaunchError` with the `remedy`."""
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
    """Close the meeting place."""
    if server:
        server.shutdown()
        server.server_close()


def _set(**values: object) -> None:
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in values.items()})
