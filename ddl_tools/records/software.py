"""Machine, software and settings of a run as texts that are equal or not: all that changes speed.

A text is a list of items, with `ITEMS` between them. What an older record does not contain is
missing, and never equal to the text of another one.
"""

from collections.abc import Mapping
from typing import Any

from ddl_core.registry import FRAMEWORKS, LOADERS, STRATEGIES, Entry, known
from ddl_tools.names import ITEMS
from ddl_tools.records.run import Affinity, RunRecord

# What every run computes or reads images with; a library and a network may need more.
_COMMON = ("python", "torch", "torchvision", "timm", "numpy", "pillow", "cuda", "cudnn")
_OWN = tuple(
    beginning
    for entry in (*FRAMEWORKS.values(), *STRATEGIES.values(), *LOADERS.values())
    for beginning in entry.variables
)
UNKNOWN = "unknown"
ALONE = "one rank"
_NONE = "none"  # a table's empty cell is a missing value


def columns(record: RunRecord) -> dict[str, str | int | None]:
    """Return these columns of `tables.COLUMNS`; none before a start.

    What belongs to one strategy or loader alone is in ``communication`` and ``loader_software``:
    the others do not depend on it.
    """
    if record.system is None or record.provenance is None:
        return {}
    system, spec = record.system, record.spec
    environment = system.get("environment")
    if environment is not None:
        environment = {
            name: value for name, value in environment.items() if not name.startswith(_OWN)
        }
    messages = system.get("communication", {UNKNOWN: None}) or {}
    memory = system.get("memory_bytes")
    return {
        "cores_shared": _sharing(system.get("affinity")),
        "memory_gib": None if memory is None else round(memory / 2**30),
        "software": _joined(_software(record)),
        "environment": _text(environment),
        "threads": _text(system.get("threads")),
        "switches": _text(system.get("settings")),
        "communication": _joined([*_own(record, STRATEGIES[spec.strategy]), *_items(messages)]),
        "loader_software": _joined(_loader(record)),
    }


def _sharing(affinity: Affinity | None) -> str | None:
    """Return whether ranks of a node share cores; unknown of one rank alone."""
    if affinity is None:
        return None
    if affinity["shared"] is None:
        return ALONE
    least, most = affinity["cores_least"], affinity["cores_most"]
    uneven = "" if least == most else f", {least} to {most} each"
    return ("yes" if affinity["shared"] else "no") + uneven


def _software(record: RunRecord) -> list[str]:
    system, provenance = record.system or {}, record.provenance or {}
    versions: dict[str, Any] = {
        "python": provenance.get("python"),
        **provenance.get("packages", {}),
    }
    versions |= {"cuda": system.get("cuda"), "cudnn": system.get("cudnn")}
    network = known("model", record.spec.model)
    more = [FRAMEWORKS[record.spec.framework], *([network] if network else [])]
    needed = dict.fromkeys((*_COMMON, *(name for one in more for name in one.packages + one.also)))
    named = [f"{name} {versions[name]}" for name in needed if versions.get(name)]
    own = _variables(record, FRAMEWORKS[record.spec.framework])
    return [*named, *own, *([system["os"]] if "os" in system else [])]


def _own(record: RunRecord, entry: Entry) -> list[str]:
    """Return what belongs to one strategy or loader: its packages and variables."""
    packages = (record.provenance or {}).get("packages", {})
    versions = [f"{name} {packages[name]}" for name in entry.packages if name in packages]
    return [*versions, *_variables(record, entry)]


def _loader(record: RunRecord) -> list[str]:
    """Return what belongs to the loader of a run, and its version if it has several."""
    entry = known("loader", record.spec.loader)
    version = [f"version {record.loader_version}"] if record.loader_version > 1 else []
    return [*(_own(record, entry) if entry else []), *version]


def _variables(record: RunRecord, entry: Entry) -> list[str]:
    found = (record.system or {}).get("environment", {}).items()
    return _items({name: value for name, value in found if name.startswith(entry.variables)})


def _items(values: Mapping[str, Any]) -> list[str]:
    return [name if value is None else f"{name}={value}" for name, value in values.items()]


def _text(values: Mapping[str, Any] | None) -> str | None:
    return None if values is None else _joined(_items(values))


def _joined(items: list[str]) -> str:
    return ITEMS.join(items) or _NONE
