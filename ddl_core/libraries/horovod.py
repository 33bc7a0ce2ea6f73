"""Where Horovod's ranks meet and how they are set, whichever library's gradients it carries."""

import os
import threading

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from ddl_core.errors import LaunchError
from ddl_core.libraries.meeting import Meeting
from ddl_core.processes import TURNS
from ddl_core.spec.run import MOST_NODES_OVER_GLOO, RunSpec

MIB = 1024 * 1024

# Horovod's own patience, 30 s for Gloo, also counts while the other ranks still import their
# library from a busy file system. The environment may say otherwise. A rank that takes turns stands
# still meanwhile, and its clock does not: it is given a day.
PATIENCE_S = {
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "86400" if TURNS in os.environ else "600",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
}


def prepare(spec: RunSpec, meeting: Meeting) -> RendezvousHTTPServer | None:
    """Set what Horovod reads when it starts: the run's settings, and where its ranks meet.

    Rank 0 opens Horovod's own meeting place and tells the others its port. What is returned has to
    live until all ranks are there; then `close` it.

    Raises
    ------
    LaunchError
        If there are more nodes than Horovod can connect over Gloo.
    """
    if spec.nodes > MOST_NODES_OVER_GLOO:
        raise LaunchError(
            f"nodes = {spec.nodes}: Horovod's ranks meet over Gloo on up to "
            f"{MOST_NODES_OVER_GLOO} nodes, since each of them connects to every other; use fewer "
            "nodes, or another strategy"
        )
    _configure(spec, meeting)
    server, address = None, ""
    if meeting.rank == 0:
        server = _open_meeting_place(spec, meeting.host)
        address = f"{meeting.host}:{server.server_port}"
    host, port = meeting.exchange(address)[0].rsplit(":", 1)
    os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = host
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = port
    return server


def close(server: RendezvousHTTPServer | None) -> None:
    """End the meeting place, once all ranks are connected."""
    if server:
        server.shutdown()
        server.server_close()


def describe() -> dict[str, str | int | float | bool]:
    """Return how Horovod is set in this process."""
    return {
        "controller": "gloo",
        "fusion_bytes": int(os.environ["HOROVOD_FUSION_THRESHOLD"]),
        "cycle_ms": float(os.environ["HOROVOD_CYCLE_TIME"]),
        "autotune": os.environ["HOROVOD_AUTOTUNE"] != "0",
        "overlap": True,
    }


def _configure(spec: RunSpec, meeting: Meeting) -> None:
    """Set the variables; the run decides, not the environment."""
    values = {
        "RANK": meeting.rank,
        "SIZE": meeting.world_size,
        "LOCAL_RANK": meeting.local_rank,
        "LOCAL_SIZE": spec.gpus_per_node,
        "CROSS_RANK": meeting.rank // spec.gpus_per_node,
        "CROSS_SIZE": spec.nodes,
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "FUSION_THRESHOLD": round(spec.horovod_fusion_mb * MIB),
        "CYCLE_TIME": spec.horovod_cycle_ms,
        "AUTOTUNE": 0,
    }
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in values.items()})
    for name, seconds in PATIENCE_S.items():
        os.environ.setdefault(name, seconds)
    if spec.nodes == 1:
        os.environ.setdefault("HOROVOD_GLOO_IFACE", "lo")


def _open_meeting_place(spec: RunSpec, host: str) -> RendezvousHTTPServer:
    server = RendezvousHTTPServer((host, 0), RendezvousHandler, False)
    hosts = ",".join(f"node{number}:{spec.gpus_per_node}" for number in range(spec.nodes))
    server.init(get_host_assignments(parse_hosts(hosts), spec.world_size))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
