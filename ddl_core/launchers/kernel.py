"""A notebook kernel that is certain to be this Python. Imports jupyter: import it when needed."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from ddl_core.launchers.ranks import import_path

# A socket's path may have 107 bytes; a long TMPDIR (some clusters have one per job) leaves no room.
MAX_FOLDER_LENGTH = 60


class ThisPython(AsyncKernelManager):
    """Kernel manager that asks no kernel specification and opens no network port.

    The user's home may hold a kernel `python3` of another environment, and TCP on a shared node
    lets every user of it talk to the kernel. So: this executable, and sockets in a private folder.
    """

    def __init__(self, **settings: Any) -> None:
        base = tempfile.gettempdir()
        self._folder = tempfile.TemporaryDirectory(
            prefix="ddl-", dir=base if len(base) <= MAX_FOLDER_LENGTH else "/tmp"
        )
        super().__init__(
            transport="ipc",
            connection_file=str(Path(self._folder.name) / "kernel.json"),
            **settings,
        )

    @property
    def kernel_spec(self) -> KernelSpec:
        """How to start the kernel: by this executable, whatever is installed elsewhere."""
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="Python 3",
            language="python",
            env={
                "PYTHONPATH": import_path(),
                "IPYTHONDIR": self._folder.name,
                "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            },
        )

    @property
    def pid(self) -> int | None:
        """Process of the kernel; None before it starts and after it ended."""
        return getattr(self.provisioner, "pid", None)
