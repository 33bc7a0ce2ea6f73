"""The command that starts the ranks of a run on this machine: each framework's own launcher."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ddl_core.errors import NotInstalledError
from ddl_core.spec import RunSpec

# horovodrun tells a rank its place in its own variables and passes all output on to its own. This
# gives the rank the names and the log files that torchrun would have given it.
LIKE_TORCHRUN = """
export RANK=$HOROVOD_RANK LOCAL_RANK=$HOROVOD_LOCAL_RANK WORLD_SIZE=$HOROVOD_SIZE
mkdir -p "$0/$RANK" && exec "$@" >"$0/$RANK/stdout.log" 2>"$0/$RANK/stderr.log"
"""


def command(spec: RunSpec, worker: str, run_dir: Path, logs: Path) -> list[str]:
    """Return the command line that starts the ranks of a run.

    Parameters
    ----------
    spec
        The run.
    worker
        Module that each rank executes, with `run_dir` as its argument.
    run_dir
        The run's folder.
    logs
        Folder for ``*/attempt_*/RANK/stderr.log`` of each rank.

    Raises
    ------
    NotInstalledError
        If the launcher is not there.
    """
    rank = [sys.executable, "-m", worker, str(run_dir)]
    return LAUNCHERS.get(spec.strategy, _torchrun)(spec, rank, logs)


def _torchrun(spec: RunSpec, rank: list[str], logs: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(spec.gpus_per_node)),
        *("--log-dir", str(logs), "--redirects", "3", "--shutdown-timeout", "5"),
        *rank[1:],
    ]


def _horovodrun(spec: RunSpec, rank: list[str], logs: Path) -> list[str]:
    if find_spec("horovod") is None:
        raise NotInstalledError(
            "strategy 'horovod' needs the package 'horovod', which is not installed; run "
            "`make horovod`, or choose another strategy"
        )
    # Its cache in the user's home would outlive a change of this machine's network.
    return [
        *(sys.executable, "-m", "horovod.runner.launch", "--gloo", "--disable-cache"),
        *("-np", str(spec.gpus_per_node)),
        *("sh", "-c", LIKE_TORCHRUN, str(logs / "horovodrun" / "attempt_0")),
        *rank,
    ]


LAUNCHERS: dict[str, Callable[[RunSpec, list[str], Path], list[str]]] = {"horovod": _horovodrun}
