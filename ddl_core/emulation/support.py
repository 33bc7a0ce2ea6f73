"""Whether this machine lets this user make a cluster in a box: asked by making a very small one.

Apart from what makes nodes: who asks must not become their switch.
"""

import os
import subprocess
import sys

from ddl_core.emulation import namespaces
from ddl_core.emulation.nodes import PROGRAMS
from ddl_core.errors import LaunchError, NotInstalledError
from ddl_core.processes import import_path

PACKAGES = "iproute2"
PATIENCE_S = 60.0

# In a process of its own: whoever makes nodes becomes their switch, and must have no threads.
TRY = """
from ddl_core.errors import LaunchError
from ddl_core.emulation.nodes import Wiring, build
try:
    build(Wiring("single", nodes=1, ranks_per_node=1, link_mbit=100, uplink_mbit=0))
except LaunchError as error:
    raise SystemExit(str(error))
"""


def check() -> None:
    """Check that nodes and shaped links can be made here.

    Raises
    ------
    NotInstalledError
        If a program is missing.
    LaunchError
        With what the system said.
    """
    if lacking := namespaces.missing(PROGRAMS):
        raise NotInstalledError(
            f"a cluster in a box needs {', '.join(lacking)}; on Debian or Ubuntu: "
            f"apt-get install {PACKAGES}"
        )
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRY],
            env={**os.environ, "PYTHONPATH": import_path()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"making an emulated node took over {PATIENCE_S:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise LaunchError(f"this machine cannot emulate a cluster: {said}")
