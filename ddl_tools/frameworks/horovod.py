"""Horovod in a rank of TensorFlow or MXNet."""

from typing import Any

from ddl_core.config import RunSpec
from ddl_core.strategies import horovod_setup as setup
from ddl_tools.frameworks.rendezvous import ControlGroup


def join(hvd: Any, spec: RunSpec, group: ControlGroup, device: str) -> dict[str, Any]:
    """Start `hvd`, Horovod's module for a framework; return what the record tells of it.

    Rank 0 opens Horovod's rendezvous and tells the others its port.
    """
    setup.check_nodes(spec.nodes, "use fewer nodes, or another strategy")
    setup.configure(spec)
    setup.set_rank(spec, group)
    server, address = None, ""
    if group.rank == 0:
        server = setup.open_rendezvous(spec, group.host)
        address = f"{group.host}:{server.server_port}"
    setup.meet_at(*group.exchange(address)[0].rsplit(":", 1))
    hvd.init()
    group.barrier()  # all ranks are connected before the rendezvous closes
    setup.close(server)
    library = "nccl" if device == "cuda" and hvd.nccl_built() else "gloo"
    return {"library": library, "controller": "gloo", **setup.settings()}
