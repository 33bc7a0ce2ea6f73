"""A Jupyter kernel of this environment, after the convention of HPC centres.

A folder with ``kernel.json`` and the script that it starts: ``kernel.sh`` loads the site's modules,
enters this environment and becomes the kernel. Imports jupyter: import it when needed.
"""

import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, SpecError
from ddl_core.origin import IN_CLONE
from ddl_tools.launch.slurm import script as sbatch
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.records.paths import PROJECT

TEMPLATE = "kernel.sh.j2"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")  # JupyterHub portals refuse capitals
OURS = "ddl_core"  # key in the metadata of a kernel that this module has made


@dataclass(frozen=True)
class Kernel:
    """A kernel: its name, the site whose modules it loads, and where it goes.

    With a `prefix` it goes under ``PREFIX/share/jupyter``, else it is this user's alone.
    """

    name: str = "ddl"
    site: str | None = None
    prefix: Path | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise SpecError(
                f"name = {self.name!r}: a kernel's name has small letters, digits and . _ - only, "
                "and begins with a letter or digit"
            )
        self.script()

    @property
    def folder(self) -> Path:
        """Where the kernel is, or will be."""
        root = self.prefix.resolve() / "share" / "jupyter" if self.prefix else jupyter_data_dir()
        return Path(root) / "kernels" / self.name

    @property
    def display_name(self) -> str:
        """What the launcher of JupyterLab shows."""
        return f"{self.name} ({Path(self.site).stem})" if self.site else self.name

    def description(self) -> dict[str, Any]:
        """Return the content of ``kernel.json``."""
        return {
            "argv": ["{resource_dir}/kernel.sh", "-f", "{connection_file}"],
            "display_name": self.display_name,
            "language": "python",
            # Where a server is told to encrypt, it may do so with this kernel.
            "metadata": {
                "debugger": True,
                "supported_encryption": ["curve"],
                OURS: {"python": sys.executable, "site": self.site},
            },
        }

    def script(self) -> str:
        """Return the content of ``kernel.sh``."""
        around: dict[str, Any] = {"modules": (), "environment": {}, "setup": (), "srun": None}
        if self.site:
            site = find_site(self.site)
            # Of a run that uses all of a node, as whoever sits in front of it would. Of Horovod's:
            # what it needs to use MPI hinders no other.
            whole = RunSpec(strategy="horovod", gpus_per_node=max(1, site.gpus_per_node))
            around = sbatch.job_environment(whole, site, PROJECT)
        return sbatch.template(TEMPLATE).render(
            **around,
            project=shlex.quote(str(PROJECT)) if IN_CLONE else "",
            programs=shlex.quote(str(Path(sys.executable).parent)),
            python=shlex.quote(sys.executable),
        )

    def install(self) -> Path:
        """Write the kernel, in the place of an older one of ours; return its folder."""
        if self.folder.exists() and not _is_ours(self.folder):
            raise LaunchError(
                f"{self.folder} holds a kernel that `ddl kernel install` has not made; "
                "choose another --name, or remove it with `jupyter kernelspec remove`"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.description(), indent=1) + "\n"
            (self.folder / "kernel.json").write_text(text, encoding="utf-8")
            script = self.folder / "kernel.sh"
            script.write_text(self.script(), encoding="utf-8")
            script.chmod(0o755)
        except OSError as error:
            raise LaunchError(f"cannot write the kernel to {self.folder}: {error}") from None
        return self.folder


def _is_ours(folder: Path) -> bool:
    try:
        return OURS in json.loads((folder / "kernel.json").read_text())["metadata"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
