"""Ctrl-C while the commands are being loaded ends `ddl` without a word, as it ends other programs.

Its own file because it has to be imported before all that takes time: Python would print a
traceback of the import.
"""

import signal
import threading

_ours = (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _ours:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def loaded() -> None:
    """Let Ctrl-C be an error again that commands handle."""
    if _ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
