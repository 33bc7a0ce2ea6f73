"""Where the ranks of a run meet: rank 0 listens on a free port, and a file tells the others.

The file is in the folder of this start of the run, which all ranks see. Nobody can compute the
port, and it is open to the network only if the run has several nodes.
"""

import os
import socket
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.strategies import RankInfo

LOCAL = "127.0.0.1"
PATIENCE_S = 600.0  # as for collectives of torch: the first waits for the slowest list of images
ADDRESS = "address"
MASTER = "MASTER_ADDR"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # torch's ranks find a store, and open none


def own_address(spec: RunSpec) -> str:
    """Return the address of this node on the network of ``MASTER_ADDR``, where rank 0 is."""
    if spec.nodes == 1:
        return LOCAL
    master = os.environ.get(MASTER, LOCAL)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, 9))  # sends nothing
        except OSError as error:
            raise LaunchError(
                f"{MASTER} = {master!r} cannot be reached: {error.strerror}",
                remedy="see `master_address` and `master_suffix` of the site file",
            ) from None
        return str(probe.getsockname()[0])


def listen(spec: RunSpec, folder: Path) -> tuple[socket.socket, str]:
    """Listen in rank 0; return the socket, and the host by which the others know it."""
    bound = host = own_address(spec)
    master = os.environ.get(MASTER, LOCAL)
    if spec.nodes > 1 and host.startswith("127.") and not master.startswith("127."):
        # Some systems give a host's own name a loopback address, on that host only.
        bound, host = "", master
    server = socket.create_server((bound, 0), backlog=max(1024, spec.world_size))
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{ADDRESS}"
    part.write_text(f"{host}:{server.getsockname()[1]}")
    part.rename(folder / ADDRESS)
    return server, host


def find(folder: Path) -> tuple[str, int]:
    """Return host and port at which rank 0 listens; `LaunchError` if it does not in time."""
    until = time.monotonic() + PATIENCE_S
    folder.mkdir(parents=True, exist_ok=True)
    # To list a folder makes NFS look; that a file is missing may be remembered for a minute.
    while ADDRESS not in os.listdir(folder):  # noqa: PTH208
        if time.monotonic() > until:
            raise LaunchError(
                f"rank 0 did not leave its address in {folder} within {PATIENCE_S:.0f} s; its "
                "own log says why"
            )
        time.sleep(0.05)
    host, port = (folder / ADDRESS).read_text().rsplit(":", 1)
    return host, int(port)


def open_store(spec: RunSpec, folder: Path) -> Any:
    """Tell torch where its ranks meet; return the store, which rank 0 keeps as long as it runs.

    Nothing is done where the launcher keeps a store.
    """
    if os.environ.get(AGENT_STORE) == "True":
        return None
    store = None
    if RankInfo.from_environment(spec).rank == 0:
        server, host = listen(spec, folder)
        port = server.getsockname()[1]
        # The choice of the store itself would be a given port on all interfaces.
        store = serve_store(server, host)
    else:
        host, port = find(folder)
    os.environ.update({MASTER: host, "MASTER_PORT": str(port), AGENT_STORE: "True"})
    return store


def serve_store(server: socket.socket, host: str) -> Any:
    """Return the store of torch's ranks, which listens at `server`; `ImportError` without torch."""
    make = import_module("torch.distributed").TCPStore
    port = server.getsockname()[1]
    settings = {"is_master": True, "wait_for_workers": False}
    return make(host, port, **settings, master_listen_fd=server.detach())
