"""Ranks that average gradients: one alone, and Horovod's, for TensorFlow and MXNet."""

import sys
from importlib import import_module
from typing import Any

from ddl_core.config import RunSpec
from ddl_tools.frameworks.rendezvous import ControlGroup


class GradientGroup:
    """The group of one rank; those of several derive from it."""

    def __init__(self, spec: RunSpec, control: ControlGroup, device: str) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        """Return ``library`` and its settings; nothing of one rank."""
        return {}

    def close(self) -> None:
        """Leave the group; end what was started."""


class HorovodGroup(GradientGroup):
    """Horovod, which adds up gradients while the backward pass still computes others.

    Its module is imported here, since the environment need not have it.
    """

    def __init__(self, spec: RunSpec, control: ControlGroup, device: str) -> None:
        self._hvd = import_module(f"horovod.{spec.framework}")
        self._settings = _join(self._hvd, spec, control, device)

    def describe(self) -> dict[str, Any]:
        """Return what carries the gradients, and Horovod's settings."""
        return self._settings

    def close(self) -> None:
        """Leave, unless an error is on its way: that would make the other ranks complain first."""
        if sys.exc_info()[0] is None:
            self._hvd.shutdown()


def _join(hvd: Any, spec: RunSpec, group: ControlGroup, device: str) -> dict[str, Any]:
    """Start `hvd`, Horovod's module for a framework; return what the record tells of it.

    Rank 0 opens Horovod's rendezvous and tells the others its port.
    """
    from ddl_core.strategies import horovod_setup as setup

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
