"""The weights a run begins with: ``python -m ddl_tools.frameworks.initial RUN_DIR``.

Torch draws them for every framework, so that all begin with the same.
"""

import logging
import sys
from pathlib import Path

from ddl_core.errors import DDLError
from ddl_core.models import drawn
from ddl_tools.frameworks.weights import State, save
from ddl_tools.rank.weights import values
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import read_record

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Leave the run's ``initial.npz`` in its folder; return the exit status."""
    if len(arguments) != 1:
        log.error("usage: python -m ddl_tools.frameworks.initial RUN_DIR")
        return 2
    files = RunFiles(Path(arguments[0]))
    try:
        spec = read_record(files.directory).spec
        save(files.initial, spec.run_id, State(values(drawn(spec).state_dict())))
    except DDLError as error:
        log.error("%s: %s", type(error).__name__, error)
        return 1
    return 0


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    sys.exit(main(sys.argv[1:]))
