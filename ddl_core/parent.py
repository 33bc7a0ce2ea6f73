"""End a process together with its parent, so that a killed run leaves nothing behind."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to end this process as soon as its parent is gone.

    Parameters
    ----------
    parent
        Its process id where that is known: Linux says nothing of a parent that was gone before.
    number
        The signal that ends it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)
