"""Horovod for the libraries beside torch: its ranks meet where those of the run have met."""

import os
from typing import Any

from ddl_core.errors import LaunchError
from ddl_core.libraries.meeting import Meeting
from ddl_core.rank import horovod
from ddl_core.spec.run import MOST_NODES_OVER_GLOO, RunSpec


def join(hvd: Any, spec: RunSpec, meeting: Meeting, device: str) -> dict[str, Any]:
    """Set and start Horovod; return what carries the gradients, and how it is set.

    Rank 0 opens Horovod's own meeting place and tells the others its port.

    Parameters
    ----------
    hvd
        Horovod's module for the library.
    device
        ``"cpu"`` or ``"cuda"``.

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
    hvd.init()
    meeting.barrier()  # all ranks are connected before the place where they met may close
    horovod.close(server)
    return {
        "library": "nccl" if device == "cuda" and hvd.nccl_built() else "gloo",
        "controller": "gloo",
        "fusion_bytes": int(os.environ["HOROVOD_FUSION_THRESHOLD"]),
        "cycle_ms": float(os.environ["HOROVOD_CYCLE_TIME"]),
        "autotune": os.environ["HOROVOD_AUTOTUNE"] != "0",
        "overlap": True,
    }
