"""The switch that has ranks run under Nsight Systems; launchers and ranks both read it."""

import os

SWITCH = "DDL_NSYS"


def asked() -> bool:
    """Say whether ``DDL_NSYS`` is set, and not to 0."""
    return os.environ.get(SWITCH, "0") not in ("", "0")
