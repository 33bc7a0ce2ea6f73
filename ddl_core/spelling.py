"""Names that are not known, and those that were meant. It imports the standard library alone."""

import difflib
from collections.abc import Iterable, Sequence

NEAR = 3  # names like a wrong one, that one message names


def choices(name: str, known: Iterable[str], other: str = "") -> str:
    """Return which names one that is not `known` is like; if it is like none, all, and `other`."""
    names = sorted(known)
    if near := nearest(name, names):
        others = ", ".join(near[:-1])
        return f"did you mean {others}{others and ' or '}{near[-1]}?"
    return f"choose one of: {', '.join(names) or 'none, there are none'}{other and f'; or {other}'}"


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return the few names that are like another one; else those that share a word with it."""
    name = name.lower()
    words = set(name.split("_"))
    alike = difflib.get_close_matches(name, known, NEAR)
    return alike or [one for one in known if words & set(one.split("_"))][:NEAR]
