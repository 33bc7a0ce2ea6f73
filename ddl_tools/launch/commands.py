"""How the ranks of a run are started: here as forks of a process, in a SLURM job by `srun`."""

import os
import shlex
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    ValidationError,
    field_validator,
    model_validator,
)

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, NotInstalledError, SpecError
from ddl_core.files import describe
from ddl_core.origin import HOME
from ddl_core.registry import COMMAND
from ddl_tools.commit import code
from ddl_tools.launch import interpreters
from ddl_tools.launch.slurm.site import Container
from ddl_tools.processes import CACHES, COMMAND_STEP, KEY, compiled, imports, inherited
from ddl_tools.records.provenance import CONTAINER
from ddl_tools.records.storage import Index, Line

# Variables by which OpenMP binds threads: in each rank of a machine, to the same cores.
BINDING = (
    *("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"),
    *("KMP_AFFINITY", "KMP_HW_SUBSET", "KMP_PLACE_THREADS"),
)
# Set by a job of several runs before each of them.
BLOCK, PLACE = "DDL_BLOCK", "DDL_PLACE"

# Gives a process the log files of its rank.
LOGGED = """
mkdir -p "$0/$RANK" && exec "$@" >"$0/$RANK/stdout.log" 2>"$0/$RANK/stderr.log"
"""
# Gives a task of srun the variables that torchrun sets, and log files of its own.
TASK = f"""
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS{LOGGED}"""
# Before that where the task is in a container: its variables may be the image's, the code is ours.
# Packages of the user's home folder are of another Python.
INSIDE = """
export PYTHONNOUSERSITE=1 PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}"
shift"""


class Allocation(BaseModel):
    """Nodes that SLURM has granted, and the site's way to start tasks on them.

    Read from the variables that are the aliases of its fields.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    nodes: int = Field(1, ge=1, le=10**6, alias="SLURM_JOB_NUM_NODES")
    srun: tuple[str, ...] = Field(min_length=1, alias="DDL_SRUN")
    srun_node: tuple[str, ...] = Field((), alias="DDL_SRUN_NODE")  # for one task on each node
    container: Json[Container] | None = Field(None, alias="DDL_CONTAINER")
    block: Line | None = Field(None, alias=BLOCK)  # of runs that share this start of the job
    place: Index | None = Field(None, alias=PLACE)  # of the run at work in it

    @field_validator("srun", "srun_node", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.block is not None and self.place is None:
            raise ValueError(f"{BLOCK} is set, but {PLACE} is not; a job script sets both")
        return self

    @classmethod
    def current(cls) -> "Allocation | None":
        """Return the allocation of this process; None outside a job script, which sets DDL_SRUN.

        `LaunchError` names the variables that are wrong.
        """
        if not os.environ.get("DDL_SRUN") or "SLURM_JOB_ID" not in os.environ:
            return None
        try:
            return cls.model_validate(dict(os.environ))
        except ValidationError as error:
            faults = "; ".join(line.strip() for line in describe(error, cls).splitlines())
            raise LaunchError(f"this job has a wrong environment variable: {faults}") from None


class SimulatedNode(Protocol):
    """A node that the leader of the ranks makes on this machine."""

    @property
    def address(self) -> str:
        """Where the node is reached from the others."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables that its ranks need."""

    def enter(self) -> None:
        """Move this process into the node, for good."""

    def entered(self) -> AbstractContextManager[None]:
        """Use the network of the node in a ``with`` block."""


class SimulatedNodes(Protocol):
    """What `Options.launcher` returns: the nodes of a run, which are made on this machine."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node."""

    def check(self) -> None:
        """Check that this machine can make them."""

    def build(self) -> Sequence[SimulatedNode]:
        """Make them, in a process that has one thread."""

    def prepare(self, made: Sequence[SimulatedNode], logs: Path) -> Sequence[str]:
        """Do what precedes the ranks; return modules that they import on cores they share."""

    def counters(self, logs: Path) -> Any:
        """Return what counts the epochs of a rank, by ``begin()`` and ``end(epoch, cold)``."""

    def facts(self, logs: Path) -> Any:
        """Return what the ranks have counted, as the record has it; None where no epoch counts."""

    def broken_rules(self, facts: Any) -> list[str]:
        """Return why the times of a completed run do not count."""


@dataclass(frozen=True)
class Command:
    """What starts the ranks of a run."""

    rank: tuple[str, ...]  # words of each rank's command
    ranks: int  # how many of them begin on this machine
    step: tuple[str, ...] = ()  # words of what starts them all inside a SLURM job
    simulated: SimulatedNodes | None = None

    def __str__(self) -> str:
        if self.step:
            return shlex.join(self.step)
        nodes = f" on {self.simulated}" if self.simulated else ""
        return f"{self.ranks} x {shlex.join(self.rank)}{nodes}"


def command(
    spec: RunSpec, worker: str, run_dir: Path, logs: Path, data_dir: Path | None = None
) -> Command:
    """Return what starts the ranks of a run, each a `worker`, a module with `run_dir` as argument.

    Their output goes to ``*/attempt_*/RANK/stderr.log`` in `logs`. In a container they see
    `data_dir`, too.
    """
    allocation = None if spec.launcher else Allocation.current()
    if allocation and allocation.container:
        python, before = allocation.container.python, _prefix(spec, logs)
    else:
        interpreters.require(spec.framework, spec.strategy)
        python, before = str(interpreters.python_of(spec.framework)), prefix(spec, logs)
    rank = [*before, python, "-m", worker, str(run_dir)]
    if spec.framework == COMMAND:  # which starts its own ranks
        here = ("/bin/sh", "-c", f"RANK=0{LOGGED}", _output(logs), *rank) if allocation else ()
        return Command(tuple(rank), 1, here)
    if simulated := spec.launcher:
        return Command(tuple(rank), spec.world_size, simulated=simulated)
    folders = [run_dir, *([data_dir] if data_dir else [])]
    words = step(spec, rank, logs, allocation, folders) if allocation else []
    return Command(tuple(rank), spec.gpus_per_node, tuple(words))


def step(
    spec: RunSpec,
    rank: list[str],
    logs: Path,
    allocation: Allocation,
    folders: Sequence[Path] = (),
) -> list[str]:
    """Return the job step of a run; in a container, ranks see `folders`."""
    begin = _srun(allocation.srun, spec.nodes, spec.gpus_per_node)
    inside, output = allocation.container, _output(logs)
    if inside is None:
        return [*begin, *allocation.srun[1:], "sh", "-c", TASK, output, *rank]
    if made := os.environ.get(CACHES):
        # The job has made it on its first node alone, where each node has its own.
        folders = [*folders, Path(made).parent]
    options, before = inside.words([HOME, *folders], os.environ)
    task = ["sh", "-c", INSIDE + TASK, output, str(HOME), *rank]
    return [*begin, *options, *allocation.srun[1:], *before, *task]


def _srun(words: Sequence[str], nodes: int, per_node: int) -> list[str]:
    """Return the path of srun, and how many tasks it starts."""
    if (program := shutil.which(words[0])) is None:
        raise LaunchError(f"cannot find {words[0]!r} on PATH, inside a SLURM job")
    size = [f"--nodes={nodes}", f"--ntasks={nodes * per_node}", f"--ntasks-per-node={per_node}"]
    return [program, *size]


def _output(logs: Path) -> str:
    """Return the folder in which each task of a job has a folder for its output."""
    return str(logs / "srun" / "attempt_0")


def command_step(spec: RunSpec) -> list[str]:
    """Return the words of srun before a command of the user's; none outside a SLURM job.

    srun starts a task for each rank, or one torchrun on each node. The command is in a step also
    where it is one process: some sites give GPUs to steps alone.

    `SpecError` where no rank could start.
    """
    allocation, node = Allocation.current(), spec.strategy == "torchrun"
    if allocation is None:
        if spec.strategy == "srun":
            raise SpecError(
                "strategy = 'srun', but this is no SLURM job; submit the study with "
                "`ddl study submit`, or choose 'torchrun'"
            )
        return []
    if allocation.container:
        raise SpecError(
            "framework = 'command', but the ranks of this site run in a container, in which no "
            "command of yours is started; use another site"
        )
    words = allocation.srun_node or allocation.srun if node else allocation.srun
    return [*_srun(words, spec.nodes, 1 if node else spec.gpus_per_node), "--label", *words[1:]]


def prefix(spec: RunSpec, logs: Path) -> list[str]:
    """Return the words before a rank's command; `logs` is the folder of logs of its attempt."""
    words = _prefix(spec, logs)
    if words and shutil.which(words[0]) is None:
        raise NotInstalledError(
            f"prefix: {words[0]!r} is not on PATH; load its module, or leave prefix out"
        )
    return words


def _prefix(spec: RunSpec, logs: Path) -> list[str]:
    return [word.replace("{logs}", str(logs)) for word in shlex.split(spec.prefix or "")]


def unbound(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the ranks of this machine do not bind themselves."""
    return {name: value for name, value in environment.items() if name not in BINDING}


def environment(spec: RunSpec) -> Mapping[str, str]:
    """Return the environment of the ranks: this package importable, threads as the run says.

    All ranks need the same one: it has a key that no other run has.
    """
    threads = str(spec.cpu_threads)
    variables = {
        **inherited(),
        **imports(),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",  # NumPy's; as in a fork of the server
        **compiled(),
        KEY: uuid.uuid4().hex,
    }
    if spec.framework == COMMAND:
        variables[COMMAND_STEP] = shlex.join(command_step(spec))
    allocation = None if spec.launcher else Allocation.current()
    if allocation and allocation.container:
        del variables["PYTHONPATH"]  # modules put packages for the Python outside there
        variables[CONTAINER] = str(allocation.container)
        if (known := code())["git_commit"] and not known["git_dirty"]:
            variables["DDL_COMMIT"] = known["git_commit"]  # an image need not have git
    return variables
