"""Fair measurement of data-parallel training: one loop, one clock, one record.

``from ddl_core import RunSpec, Trainer`` trains in any Python process, epoch by epoch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddl_core.rank.loop import EpochResult as EpochResult
    from ddl_core.spec.run import RunSpec as RunSpec
    from ddl_core.train.trainer import Trainer as Trainer

__version__ = "0.1.0"

# Imported when first used: a launcher needs no torch.
_HOMES = {
    "EpochResult": "ddl_core.rank.loop",
    "RunSpec": "ddl_core.spec.run",
    "Trainer": "ddl_core.train.trainer",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
