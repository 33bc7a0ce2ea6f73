"""What an interrupt does while the command is still being imported: it ends it, and no more.

Nothing has begun then, and the lines of code that were being imported tell nobody anything.
Imported before all else; `over` when all else is there.
"""

import signal
import threading

_HERE = threading.current_thread() is threading.main_thread()  # no other may change handlers
_DEFAULT = signal.getsignal(signal.SIGINT) is signal.default_int_handler

if _HERE and _DEFAULT:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def over() -> None:
    """From now on an interrupt is an exception again, which commands handle."""
    if _HERE and _DEFAULT:
        signal.signal(signal.SIGINT, signal.default_int_handler)
