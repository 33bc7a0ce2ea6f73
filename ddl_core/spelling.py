"""Names that are not known, and those that were meant. It imports the standard library alone."""

import difflib
from collections.abc import Iterable, Sequence

NEAR = 3  # names like a wrong one, that one message names


def choices(name: str, known: Iterable[str], other: str = "") -> str:
    """Return which names one that is not `known` is like; if it is like none, all, and `other`."""
    names = sorted(known)
    every = f"choose one of: {', '.join(names) or 'none, there are none'}"
    return suggestion(name, names) or f"{every}{other and f'; or {other}'}"


def suggestion(name: str, known: Sequence[str]) -> str:
    """Ask whether one of the few names like a wrong one was meant; if there is none, say nothing.

    Without a name that is like it, those that share a word with it are.
    """
    name = name.lower()
    words = set(name.split("_"))
    alike = difflib.get_close_matches(name, known, NEAR)
    alike = alike or [one for one in known if words & set(one.split("_"))][:NEAR]
    if not alike:
        return ""
    *others, last = alike
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
