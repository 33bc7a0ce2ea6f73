"""What differs between SLURM machines: one TOML file each in ``slurm/``, read as a `Site`."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    model_validator,
)

from ddl_core.config import MOST_NODES_OVER_GLOO, RunSpec
from ddl_core.errors import LaunchError, SpecError
from ddl_core.files import read_plain
from ddl_core.registry import PlugIn, plug_ins
from ddl_core.spelling import choices
from ddl_tools.records.paths import SITES
from ddl_tools.study import MOST_BYTES, reading

TIME = re.compile(r"(\d{1,5}):([0-5]\d):([0-5]\d)")

# $NAME, ${NAME}, ${NAME:-otherwise} and ${NAME:?}.
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::(?:\?|-([^{}$]*)))?\})")


def _checked_folder(text: str) -> str:
    if "$" in _VARIABLE.sub("", text):
        raise ValueError("a variable is written as $NAME, ${NAME}, ${NAME:-FOLDER} or ${NAME:?}")
    return text


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a text of a site file as a job's shell would expand it, without a shell.

    `KeyError` with the name of a variable that is not set.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not variables.get(name) and found[3] is not None:
            return str(found[3])
        if name not in variables or (found[0].endswith(":?}") and not variables[name]):
            raise KeyError(name)
        return variables[name]

    return _VARIABLE.sub(value, text)


_YOURS = "name a .toml file of your own (slurm/generic.toml is a start)"

# They stand in double quotes in the script, so that a value may name a variable of the machine.
Quoted = Annotated[str, Field(pattern=r'^[^"`\\\n]*$')]
Word = Annotated[str, Field(pattern=r"^[^\s'\"]+$")]
Folder = Annotated[Quoted, AfterValidator(_checked_folder)]
Module = Annotated[str, Field(pattern=r"^\w[\w./+:@=-]*$")]
Line = Annotated[str, Field(pattern=r"^[^\n]+$")]
Directive = Annotated[str, Field(pattern=r"^--[^\n]+$")]
Option = Annotated[str, Field(pattern=r"^-[^\s'\"]+$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
Name = Annotated[str, Field(pattern=r"^[^-\s'\"][^\s'\"]*$")]  # no option
Bind = Annotated[str, Field(pattern=r"^[^-,\s][^,\s]*$"), AfterValidator(_checked_folder)]


class Container(BaseModel):
    """An image in which the ranks of a site run; all else of a job runs outside of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runtime: Literal["apptainer", "singularity", "pyxis", "podman-hpc", "charliecloud", "ce"]
    image: Annotated[Name, AfterValidator(_checked_folder)] = Field(
        description="its path, or its name in a registry; of ce the environment definition file"
    )
    binds: tuple[Bind, ...] = Field((), description="SOURCE, or SOURCE:TARGET:OPTIONS")
    args: tuple[Option, ...] = Field((), description="further options of the runtime")
    gpu_option: bool = Field(True, description="pass --nv, --rocm or --gpu, where a runtime has it")
    python: Name = Field("python3", description="the one in the image")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.runtime == "ce" and self.binds:
            raise ValueError(
                f"binds = {self.binds!r} with runtime = 'ce': the environment definition file has "
                "the mounts; write them there"
            )
        return self

    def __str__(self) -> str:
        # Folders of the machine are of no concern to who reads a record.
        return f"{self.runtime} {self.image.rpartition('/')[2]}"

    def words(
        self, folders: Iterable[Path], variables: Mapping[str, str]
    ) -> tuple[list[str], list[str]]:
        """Return options of srun, and the words before a rank's command.

        `folders` are seen inside under their own names. `LaunchError` if one cannot be.
        """
        try:
            image, *own = (expand(one, variables) for one in (self.image, *self.binds))
        except KeyError as error:
            name = error.args[0]
            raise LaunchError(
                f"container: the variable {name} of the site's file is not set"
            ) from None
        binds = [one if ":" in one else f"{one}:{one}" for one in own]
        seen = [
            Path(source)
            for source, target, *_ in (one.split(":") for one in binds)
            if source == target
        ]
        for folder in sorted(set(folders)):
            if any(folder.is_relative_to(one) for one in seen):
                continue
            if found := set(str(folder)) & {":", ","}:
                raise LaunchError(
                    f"container: {folder} cannot be bound, because of the {found.pop()!r} in its "
                    "name; rename it, or bind a folder above it (binds in the site's file)"
                )
            seen.append(folder)
            binds.append(f"{folder}:{folder}")
        match self.runtime:
            case "pyxis":
                mounts = f"--container-mounts={','.join(binds)}"
                return [f"--container-image={image}", mounts, *self.args], []
            case "ce":
                return [f"--environment={image}", *self.args], []
            case "charliecloud":
                # It would show TMPDIR under the name of /tmp, which then hides what lies there.
                program = ["env", "-u", "TMPDIR", "ch-run"]
                return [], [*program, *(f"--bind={one}" for one in binds), *self.args, image, "--"]
            case "podman-hpc":
                # Ranks of a node meet as processes of the machine do.
                shared = ["--env-host", "--network=host", "--ipc=host", "--pid=host"]
                volumes = [f"--volume={one}" for one in binds]
                return [], ["podman-hpc", "run", "--rm", *shared, *volumes, *self.args, image]
        binding = (f"--bind={one}" for one in binds)
        return [], [self.runtime, "exec", *binding, *self.args, image]


# Options that give a container the GPUs of its node; other runtimes need none.
_NVIDIA = {"apptainer": "--nv", "singularity": "--nv", "podman-hpc": "--gpu"}
_AMD = {"apptainer": "--rocm", "singularity": "--rocm"}

# Options of a step that say how many ranks it has: those are the run's.
_SIZE = re.compile(r"--(nodes|ntasks|ntasks-per-node)(=.*)?|-[Nn].*")


class Site(BaseModel):
    """One machine: how it wants to be asked for nodes, and what its ranks need."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    description: Line
    account_needed: bool = Field(False, description="sbatch refuses a job without --account")
    partition: Word | None = Field(None, description="unless the command line names another")
    constraint: Word | None = None
    qos: Word | None = None
    time: str = Field("01:00:00", pattern=f"^{TIME.pattern}$", description="limit of a run")
    time_max: str | None = Field(
        None, pattern=f"^{TIME.pattern}$", description="longest limit that `partition` grants"
    )
    gpus_per_node: int = Field(0, ge=0, le=10**4, description="0: ranks compute on the CPU")
    gpu_request: Literal["none", "gres", "gres_typed", "gpus_per_node", "gpus_per_task"] = "none"
    gpu_type: Word | None = Field(None, description="the a100 of --gres=gpu:a100:4")
    cpus_per_rank: PositiveInt = Field(1, le=10**4)
    memory: str | None = Field(None, pattern=r"^\d+[KMGT]?$", description="of a node; 0: all")
    exclusive: bool = Field(False, description="share no node with other jobs")
    sbatch_lines: tuple[Directive, ...] = Field(
        (), description="further options of sbatch, which hold unless `ddl` gives its own"
    )
    srun_args: tuple[Option, ...] = Field(
        (), description="further options of srun for the ranks, under the same rule"
    )
    modules: tuple[Module, ...] = ()
    environment: dict[Variable, Quoted] = Field(default_factory=dict)
    setup: tuple[Line, ...] = Field((), description="shell lines between modules and run")
    caches: Folder = Field("${TMPDIR:-/tmp}/ddl-$USER", description="homes are small, or read-only")
    cpu_bind: Word | None = None
    gpu_bind: Word | None = None
    horovod_controller: Literal["gloo", "mpi"] = Field(
        "gloo", description="by what Horovod's ranks meet"
    )
    mpi: Word = Field("none", description="srun's --mpi, for Horovod over MPI only")
    master_suffix: str = Field("", pattern=r"^[\w.-]*$", description="of the fast network's name")
    master_address: Literal["host", "ip"] = "host"
    nccl_interface: Word | None = None
    gloo_interface: Word | None = Field(None, description="one alone: Horovod takes no list")
    visible_variable: Literal[
        "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
    ] = "CUDA_VISIBLE_DEVICES"
    visible_devices: str = Field(
        "leave",
        pattern=r"^(leave|unset|local_rank|\d+(,\d+)*)$",
        description="what a rank's `visible_variable` is made to be",
    )
    dali: bool = Field(True, description="NVIDIA DALI can run here")
    container: Container | None = Field(None, description="in which the ranks run")
    signal_s: PositiveInt = Field(120, le=10**6, description="notice before the time limit")
    requeues: int = Field(0, ge=0, le=100, description="times a job goes on after its time limit")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        request = f"gpu_request = {self.gpu_request!r}"
        if (self.gpu_request == "none") != (self.gpus_per_node == 0):
            raise ValueError(
                f"{request} with gpus_per_node = {self.gpus_per_node}: 'none' belongs to 0, and to "
                "nothing else"
            )
        if (self.gpu_request == "gres_typed") != (self.gpu_type is not None):
            raise ValueError(
                f"gpu_type = {self.gpu_type!r} with {request}: a type is given for 'gres_typed', "
                "and for nothing else"
            )
        if wrong := [one for one in self.srun_args if _SIZE.fullmatch(one)]:
            raise ValueError(
                f"srun_args = {wrong[0]!r}: a run says itself how many nodes and ranks it has; "
                "leave it out"
            )
        if "HOROVOD_CONTROLLER" in self.environment:
            raise ValueError(
                "environment.HOROVOD_CONTROLLER: a job also has to be started for it; set "
                "horovod_controller = 'gloo' or 'mpi' instead"
            )
        return self

    @classmethod
    def load(cls, path: Path) -> "Site":
        """Read a site from its TOML file; a `SpecError` names each wrong field."""
        with reading(path, cls):
            return cls.model_validate(
                tomllib.loads(read_plain(path, MOST_BYTES).decode("utf-8-sig"))
            )

    def check(self, spec: RunSpec) -> None:
        """Check that a run fits this machine."""
        gloo = spec.strategy == "horovod" and not self.over_mpi(spec)
        problem = ""
        if self.container and (spec.simulated or spec.framework != "torch"):
            what = "emulated nodes" if spec.simulated else f"framework = {spec.framework!r}"
            problem = (
                f"{what}, but this site runs ranks in a container, which is for real nodes and "
                "framework 'torch' alone; use another site"
            )
        elif spec.device == "cuda" and self.gpus_per_node == 0:
            problem = "device = 'cuda', but this site has no GPUs; use 'cpu'"
        elif self.wants_gpus(spec) and spec.gpus_per_node > self.gpus_per_node:
            problem = (
                f"gpus_per_node = {spec.gpus_per_node}, but a node of this site has "
                f"{self.gpus_per_node}; use at most {self.gpus_per_node}"
            )
        elif spec.loader.startswith("dali") and not self.dali:
            problem = (
                f"loader = {spec.loader!r}, but DALI does not run on this site's GPUs; use "
                "'native', 'turbo' or 'synthetic'"
            )
        elif gloo and spec.nodes > MOST_NODES_OVER_GLOO and spec.framework != "torch":
            problem = (
                f"nodes = {spec.nodes}, but with {spec.framework} Horovod runs over Gloo only, on "
                f"up to {MOST_NODES_OVER_GLOO}; use fewer nodes, or another strategy"
            )
        elif gloo and spec.nodes > MOST_NODES_OVER_GLOO:
            problem = (
                f"nodes = {spec.nodes}, but over Gloo, this site's horovod_controller, Horovod "
                f"runs on up to {MOST_NODES_OVER_GLOO}; set horovod_controller = 'mpi' and mpi in "
                "the site's file, and build Horovod with HOROVOD_WITH_MPI=1 "
                "(docs/how-to/install-horovod.md)"
            )
        if problem:
            raise SpecError(f"{spec.run_id}: {problem}")

    def over_mpi(self, spec: RunSpec) -> bool:
        """Say whether the ranks of a run meet over MPI: with PyTorch only."""
        over = self.horovod_controller == "mpi" and spec.strategy == "horovod"
        return over and spec.framework == "torch"

    def container_of(self, spec: RunSpec) -> Container | None:
        """Return the container of the ranks of a run, with the GPUs that it computes on."""
        options = _NVIDIA if self.visible_variable == "CUDA_VISIBLE_DEVICES" else _AMD
        option = self.container and options.get(self.container.runtime)
        if not self.container or not option or not self.wants_gpus(spec):
            return self.container
        if not self.container.gpu_option:
            return self.container
        return self.container.model_copy(update={"args": (option, *self.container.args)})

    def wants_gpus(self, spec: RunSpec) -> bool:
        """Say whether the ranks of a run compute on GPUs here."""
        return self.gpus_per_node > 0 and spec.device != "cpu"


def known_sites() -> list[str]:
    """Return the names of the files in ``slurm/``, and those that installed packages bring."""
    return sorted({*_own(), *brought_sites()[0]})


def brought_sites() -> tuple[dict[str, PlugIn], list[str]]:
    """Return the sites of installed packages, and a sentence on each that cannot be had."""
    return plug_ins("site", _own())


def _own() -> dict[str, Path]:
    return {path.stem: path for path in SITES.glob("*.toml")}


def _file_of(one: PlugIn) -> Path:
    """Return the file that a package announces as ``"package:file.toml"``."""
    module, _, name = one.code.partition(":")
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    for folder in (found and found.submodule_search_locations) or ():
        if (path := Path(folder) / name).suffix == ".toml" and path.is_file():
            return path
    raise SpecError(
        f"site {one.name!r} of package {one.package} is announced as {one.code}, but there is no "
        "such .toml file in that package"
    )


def find_site(name: str) -> Site:
    """Load a site by its name, or by the path of a .toml file."""
    if Path(name).suffix == ".toml":
        return Site.load(Path(name))
    if name in (own := _own()):
        return Site.load(own[name])
    if name in (brought := brought_sites()[0]):
        return Site.load(_file_of(brought[name]))
    raise SpecError(f"unknown site {name!r}; {choices(name, known_sites(), _YOURS)}")


def seconds(time: str) -> int:
    """Return the seconds of ``HH:MM:SS``."""
    if not (parts := TIME.fullmatch(time)):
        raise SpecError(f"time = {time!r} is not HH:MM:SS, e.g. 01:30:00")
    hours, minutes, rest = map(int, parts.groups())
    if not (total := 3600 * hours + 60 * minutes + rest):
        raise SpecError(f"time = {time!r} is no time at all; e.g. 01:30:00")
    return total


def clock(seconds: int) -> str:
    """Return seconds as ``HH:MM:SS``; hours may be more than 24."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
