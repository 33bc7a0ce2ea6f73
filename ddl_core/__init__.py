"""Data-parallel training with PyTorch: the loop, the strategies and the loaders.

``from ddl_core import RunSpec, Trainer`` trains in any Python process, epoch by epoch. What starts,
records and compares runs is in `ddl_tools`, of which nothing here knows.

Files in reading order:

1. `config.py`: what a run is, all of its settings
2. `schedules.py`: the learning rate, a function of images seen
3. `trainer.py`: from a run to results epoch by epoch
4. `loop.py`, `step.py`: an epoch; its steps
5. `strategies/base.py`: what a strategy does, and its defaults
6. `strategies/ddp.py`: one strategy
7. `loaders/base.py`, `loaders/native.py`: what a loader offers; one loader
8. `data/sampling.py`, `data/image.py`: which image when, and which part of it
9. `timing.py`: what is timed, and when
10. `fairness.py`, `monitor.py`: the checks of every run
11. `optim.py`, `models.py`: the optimiser and the networks
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddl_core.config import RunSpec as RunSpec
    from ddl_core.loop import EpochResult as EpochResult
    from ddl_core.reports import first_batch as first_batch
    from ddl_core.reports import report as report
    from ddl_core.trainer import Trainer as Trainer

__version__ = "0.2.0"

# Imported when first used: a launcher needs no torch.
_HOMES = {
    "EpochResult": "ddl_core.loop",
    "RunSpec": "ddl_core.config",
    "Trainer": "ddl_core.trainer",
    "first_batch": "ddl_core.reports",
    "report": "ddl_core.reports",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
