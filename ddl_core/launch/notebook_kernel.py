"""A notebook kernel that is certain to be this Python. Imports jupyter: import it when needed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_event_loop

from ddl_core.processes import import_path

LOG = "kernel.log"


class ThisPython(AsyncKernelManager):
    """Kernel manager that asks no kernel specification and opens no network port.

    The user's home may hold a kernel `python3` of another environment, and TCP on a shared node
    lets every user of it talk to the kernel. So: this executable, and sockets in a private folder.
    """

    folder: Path
    works_in: Path

    def __init__(self, **settings: Any) -> None:
        connection = str(self.folder / "kernel.json")
        super().__init__(transport="ipc", connection_file=connection, **settings)

    @property
    def kernel_spec(self) -> KernelSpec:
        """How to start the kernel: by this executable, whatever is installed elsewhere."""
        return KernelSpec(
            # At its end nbclient interrupts the kernel, which it would otherwise log as an error.
            argv=[
                *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
                "--log-level=CRITICAL",
            ],
            display_name="Python 3",
            language="python",
            env={
                "PYTHONPATH": import_path(),
                "IPYTHONDIR": str(self.folder),
                "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            },
        )

    async def start_kernel(self, **settings: Any) -> None:  # type: ignore[override]
        """Start the kernel; what it says itself goes to a file and not into the user's terminal.

        Told to end while it is being interrupted, it may complain of its own closed sockets.
        """
        with (self.folder / LOG).open("ab") as log:
            await super().start_kernel(**settings, cwd=str(self.works_in), stderr=log)

    @property
    def pid(self) -> int | None:
        """Process of the kernel; None before it starts and after it ended."""
        return getattr(self.provisioner, "pid", None)


@contextmanager
def event_loop() -> Iterator[None]:
    """Close the loop that jupyter makes for the calling thread, which would stay open."""
    loop = ensure_event_loop()
    try:
        yield
    finally:
        if not loop.is_running():
            loop.close()


def manager_class(
    sockets: Path, directory: Path, on_start: Callable[[ThisPython], None]
) -> type[ThisPython]:
    """Return a class for nbclient, which takes no instance, that reports the one it makes.

    The kernel's sockets are in `sockets`, its working directory is `directory`.
    """

    class Manager(ThisPython):
        folder = sockets
        works_in = directory

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            on_start(self)

    return Manager
