"""Names that installed packages bring: their entry points, read without importing any of them.

A package announces strategies, loaders, models and sites in its own ``pyproject.toml``, in groups
``ddl_core.strategy`` and so on; ``docs/plug_ins.md`` has a whole example.
"""

import re
from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import NamedTuple

NAME = re.compile(r"[a-z0-9_]+")  # it becomes part of a folder's name


class PlugIn(NamedTuple):
    """A name, where what it stands for is (``"module:attribute"``), and the package it is from."""

    name: str
    code: str
    package: str


def plug_ins(kind: str, taken: Collection[str]) -> tuple[dict[str, PlugIn], list[str]]:
    """Return what packages announce as ``"strategy"``, ``"loader"``, ``"model"`` or ``"site"``.

    Parameters
    ----------
    kind
        Of the names.
    taken
        Names that the project has: no package replaces one.

    Returns
    -------
    plug_ins
        By name.
    left_out
        A sentence on each that cannot be had.
    """
    found: dict[str, list[PlugIn]] = {}
    for point in _all(f"ddl_core.{kind}"):
        one = PlugIn(point.name, point.value.strip(), _package(point))
        if one not in found.setdefault(one.name, []):  # a package may be on the path twice
            found[one.name].append(one)
    left_out = {name: why for name in found if (why := _refused(kind, found[name], taken))}
    chosen = {name: several[0] for name, several in found.items() if name not in left_out}
    return chosen, list(left_out.values())


def _refused(kind: str, several: list[PlugIn], taken: Collection[str]) -> str:
    name, packages = several[0].name, " and ".join(sorted({one.package for one in several}))
    announced = f"{kind} {name!r} of package {packages}"
    if not NAME.fullmatch(name):
        return f"{announced}: a name is made of a-z, 0-9 and _"
    if name in taken:
        return f"{announced}: the project has one of that name; give it another"
    if len(several) > 1:
        return f"{announced}: one name stands for one thing; uninstall all but one"
    return ""


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "?"


@cache
def _all(group: str) -> EntryPoints:
    """Return the entry points of all installed packages, which takes 10 ms to find."""
    return entry_points(group=group)
