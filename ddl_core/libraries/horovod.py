"""Horovod for the libraries beside torch: its ranks meet where those of the run have met."""

import os

from horovod.runner.http.http_server import RendezvousHTTPServer

from ddl_core.errors import LaunchError
from ddl_core.libraries.meeting import Meeting
from ddl_core.rank import horovod
from ddl_core.spec.run import MOST_NODES_OVER_GLOO, RunSpec


def prepare(spec: RunSpec, meeting: Meeting) -> RendezvousHTTPServer | None:
    """Set what Horovod reads when it starts: the run's settings, and where its ranks meet.

    Rank 0 opens Horovod's own meeting place and tells the others its port. What is returned has to
    live until all ranks are there; then `rank.horovod.close` it.

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
    horovod.configure(spec)
    horovod.take_place(spec, meeting)
    server, address = None, ""
    if meeting.rank == 0:
        server = horovod.open_meeting_place(spec, meeting.host)
        address = f"{meeting.host}:{server.server_port}"
    horovod.meet_at(*meeting.exchange(address)[0].rsplit(":", 1))
    return server


def describe() -> dict[str, str | int | float | bool]:
    """Return how Horovod is set in this process."""
    return {
        "controller": "gloo",
        "fusion_bytes": int(os.environ["HOROVOD_FUSION_THRESHOLD"]),
        "cycle_ms": float(os.environ["HOROVOD_CYCLE_TIME"]),
        "autotune": os.environ["HOROVOD_AUTOTUNE"] != "0",
        "overlap": True,
    }
