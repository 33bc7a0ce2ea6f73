"""A worker whose loader takes seconds until the first batch."""

import sys
import time
from collections.abc import Iterator

from ddl_core.loaders.synthetic import Synthetic
from ddl_tools.rank import worker

LATE_S = 7.0
iterate = Synthetic.__iter__


def late(self: Synthetic) -> Iterator:
    time.sleep(LATE_S)
    Synthetic.__iter__ = iterate  # type: ignore[method-assign]
    yield from iterate(self)


Synthetic.__iter__ = late  # type: ignore[method-assign]
sys.exit(worker.main(sys.argv[1:]))
