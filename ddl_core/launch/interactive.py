"""Runs on engines that stay: for a notebook in which one turns a knob, looks, and turns it again.

Such a run is like any other: the same worker, checks, record and files. Only its ranks are not
started for it. Imports ipyparallel: import it when needed.
"""

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

from ddl_core.errors import LaunchError
from ddl_core.launch import diagnose, preflight, ranks, supervise
from ddl_core.launch.commands import Allocation
from ddl_core.launch.engines import EngineCluster
from ddl_core.launch.ranks import OnProgress
from ddl_core.records.paths import RunFiles
from ddl_core.records.run import RunRecord, read_record
from ddl_core.spec.registry import known
from ddl_core.spec.run import RunSpec

RankState = dict[str, Any]
OnRanks = Callable[[list[RankState]], None]

# What has to be the same for all runs on the same engines: it is fixed when these start.
FIXED = ("nodes", "gpus_per_node", "cpu_threads")


class Engines:
    """One engine per rank of a run, on this machine or on the nodes of the SLURM job around it.

    Engines survive a run that completes, unless it was one of Horovod or DeepSpeed, or used a
    network or plug-in of the user's, whose code may be edited before the next run. After one that
    fails, hangs or is interrupted they are ended at once, since one in a hung collective answers
    nothing else. The next run gets new ones.

    Parameters
    ----------
    spec
        A run like those that are to come: its ranks and threads.

    Raises
    ------
    SpecError, LaunchError, NotInstalledError
        If the engines cannot be started here.
    """

    def __init__(self, spec: RunSpec) -> None:
        preflight.check_run(spec)
        self._spec = spec
        self._cluster: EngineCluster | None = EngineCluster(spec)
        self._runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        """End all engines and their controller."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    @property
    def places(self) -> list[dict[str, Any]]:
        """``rank``, ``host``, ``pid`` of every engine, in order of rank; starts them if need be."""
        return self._started().places

    def run(
        self,
        run_dir: Path | str,
        on_progress: OnProgress | None = None,
        on_ranks: OnRanks | None = None,
        stall_timeout: float | None = None,
    ) -> RunRecord:
        """Execute a planned, failed or interrupted run on the engines; return its record.

        Parameters
        ----------
        run_dir, on_progress, stall_timeout
            See `ranks.run_ranks`.
        on_ranks
            Called several times a second with what each rank last told, in order of rank:
            ``rank``, ``host``, ``pid``, and once it has begun ``phase``, ``epoch``, ``epochs``,
            ``step``, ``steps`` and ``images_per_s``, its own throughput.

        Raises
        ------
        LaunchError
            If the run failed or hung, or does not fit these engines.
        SpecError, DataError, RecordError, NotInstalledError
            If it could not be started.
        KeyboardInterrupt
            If this process was interrupted, once the engines are gone.
        """
        self._check(read_record(Path(run_dir)).spec)
        execute = partial(self._execute, on_ranks)
        return ranks.run_ranks(run_dir, on_progress, stall_timeout, execute)

    def _check(self, spec: RunSpec) -> None:
        if spec.library != "torch":
            raise LaunchError(
                f"library = {spec.library!r}: engines compute with torch; use ranks.run_ranks or "
                "`ddl run` for this run"
            )
        if spec.emulated:
            raise LaunchError(
                "emulated = true: engines are processes of this machine and in no node of a box; "
                "use ranks.run_ranks or `ddl run` for this run"
            )
        if spec.nsys:
            raise LaunchError(
                "nsys = true, but these engines have started without Nsight Systems and it can "
                "only begin with a process; use ranks.run_ranks or `ddl run` for this run, or "
                "leave nsys out"
            )
        for name in FIXED:
            wanted, given = getattr(spec, name), getattr(self._spec, name)
            if wanted != given:
                raise LaunchError(
                    f"{name} = {wanted}, but these engines were started with {name} = {given}; "
                    "close them, and start Engines for this run"
                )

    def _started(self) -> EngineCluster:
        if self._cluster is None or self._cluster.broken:
            self.close()
            self._cluster = EngineCluster(self._spec)
        return self._cluster

    def _execute(
        self,
        on_ranks: OnRanks | None,
        spec: RunSpec,
        files: RunFiles,
        logs: Path,
        on_progress: OnProgress | None,
        stall_timeout: float,
    ) -> None:
        """Let the engines execute their ranks; after `on_ranks`, see `ranks.Execute`."""
        cluster, whole = self._started(), False
        try:
            arguments = (ranks.WORKER, str(files.directory), str(logs), self._meeting_place())
            answers = cluster.submit(*arguments)
            ended = partial(_look, cluster, answers, on_ranks)
            stalled = ranks.watch(spec, ended, files, on_progress, stall_timeout)
            cause = supervise.ask_ranks(logs, cluster.token, stalled) if stalled else None
            gone = cluster.ended()
            whole = not cluster.broken and all(answer.ready() for answer in answers)
        finally:
            if not whole or not _completed(files) or _one_run_per_process(spec):
                self.close()
        if not _completed(files):
            raise ranks.Failed(cause or diagnose.diagnose(files, logs, 0, ended=gone))

    def _meeting_place(self) -> dict[str, str]:
        """Return where the ranks of the next run meet: a new port, the last may be in use."""
        self._runs += 1
        if Allocation.current() is None:
            # The store that these ranks began with would keep what the last run left in it.
            own = {"TORCHELASTIC_USE_AGENT_STORE": "False"}
            return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), **own}
        port = int(os.environ["MASTER_PORT"]) + self._runs
        return {"MASTER_ADDR": os.environ["MASTER_ADDR"], "MASTER_PORT": str(port)}


def _look(cluster: EngineCluster, answers: list[Any], on_ranks: OnRanks | None) -> bool:
    """Show where the ranks are; return whether there is nothing left to wait for."""
    done = [answer for answer in answers if answer.ready()]
    well = [answer for answer in done if answer.successful() and answer.get() == 0]
    if on_ranks:
        states = [_state(*pair) for pair in zip(cluster.places, answers, strict=True)]
        # What a rank told last may arrive later than that it has returned.
        ends = [{"phase": "done"} if answer in well else {} for answer in answers]
        on_ranks([state | end for state, end in zip(states, ends, strict=True)])
    # One rank that has failed is enough: the others may wait for it for ever.
    return cluster.broken or len(well) < len(done) or len(done) == len(answers)


def _state(place: dict[str, Any], answer: Any) -> RankState:
    state = {**place, **answer.data}
    if state.get("images_per_s") is not None:
        state["images_per_s"] /= state["world_size"]
    return state


def _one_run_per_process(spec: RunSpec) -> bool:
    """Say whether engines may execute no second run: it could fail, or use old code of a user."""
    parts = (known(kind, getattr(spec, kind)) for kind in ("strategy", "loader", "model"))
    return any(part is not None and part.one_run_per_process for part in parts)


def _completed(files: RunFiles) -> bool:
    return read_record(files.directory).status == "completed"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
