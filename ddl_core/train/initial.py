"""The weights a run begins with: ``python -m ddl_core.train.initial RUN_DIR``.

Torch draws them whatever the run's library, so that all libraries begin with the same.
"""

import logging
import sys
from pathlib import Path

import torch
from torch import nn

from ddl_core.errors import DDLError
from ddl_core.rank.state import Floats, State, save
from ddl_core.records.paths import RunFiles
from ddl_core.records.run import read_record
from ddl_core.spec.registry import known, resolve
from ddl_core.spec.run import RunSpec
from ddl_core.spec.seeds import derive_seed

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Leave the run's ``initial.npz`` in its folder; return the exit status."""
    if len(arguments) != 1:
        log.error("usage: python -m ddl_core.train.initial RUN_DIR")
        return 2
    files = RunFiles(Path(arguments[0]))
    try:
        spec = read_record(files.directory).spec
        save(files.initial, spec.run_id, State(values(drawn(spec))))
    except DDLError as error:
        log.error("%s: %s", type(error).__name__, error)
        return 1
    return 0


def drawn(spec: RunSpec) -> nn.Module:
    """Return the run's network with its initial weights, on the CPU: the same everywhere."""
    torch.manual_seed(derive_seed("weights", spec.seed, spec.repeat))
    entry, make = known("model", spec.model), resolve("model", spec.model)
    network: nn.Module = make(spec) if entry and entry.of_run else make(spec.classes)
    return network


def values(network: nn.Module) -> dict[str, Floats]:
    """Return parameters and running statistics by name, without the counters of batches."""
    return {
        name: tensor.detach().float().cpu().contiguous().numpy()
        for name, tensor in network.state_dict().items()
        if tensor.is_floating_point()
    }


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    sys.exit(main(sys.argv[1:]))
