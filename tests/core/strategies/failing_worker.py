"""A worker whose rank 1 raises where the other ranks wait for it."""

import os
import sys

from ddl_core.errors import DataError
from ddl_core.strategies.deepspeed import DeepSpeed
from ddl_tools.rank import worker

real = DeepSpeed.optimizer_step


def fails_on_one_rank(self, scaler):
    if os.environ["RANK"] == "1":
        raise DataError("planted")
    real(self, scaler)


DeepSpeed.optimizer_step = fails_on_one_rank  # type: ignore[method-assign]
sys.exit(worker.main(sys.argv[1:]))
