"""The text that `sbatch` gets: a pure function of a job's plan and a site."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_core.origin import HOME, IN_CLONE
from ddl_tools import consent
from ddl_tools.launch.slurm.site import Site, clock, seconds
from ddl_tools.processes import CACHES
from ddl_tools.records.ledger import Entry
from ddl_tools.records.paths import SITES, RunFiles, workplace

USER = "${USER:-$(id -un)}"  # a batch shell need not set it, and folders are named after it
TEMPLATE = "job.sh.j2"
NAME = re.compile(r"[\w.,@/-]+")
CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")  # a line break would end an #SBATCH line


def job_name(study: str, specs: Sequence[RunSpec]) -> str:
    """Return what the job of some runs of a study is called: a run alone, or a block."""
    return f"ddl-{specs[0].run_id if len(specs) == 1 else block_name(study, specs[0])}"


def block_name(study: str, spec: RunSpec) -> str:
    """Return what the block is called that a run may be part of: its study, size and repeat."""
    work = "" if spec.work == "train" else f"-{spec.work}"
    return f"{study}-{spec.nodes}x{spec.gpus_per_node}{work}-r{spec.repeat}"


def may_be_of(job: str, item: Entry) -> bool:
    """Say whether a job of this name may be that of a run, alone or in its block."""
    study = item.directory.parent.name
    return job in (job_name(study, [item.spec]), f"ddl-{block_name(study, item.spec)}")


@dataclass(frozen=True)
class JobPlan:
    """A job as it is to be submitted: its script is a pure function of this plan and a site.

    Parameters
    ----------
    account, partition, time
        What the command line asks for; None: as the site says.
    runs
        One run of a study, or those of a block in running order; none in a plan that only says what
        is asked for all jobs (`of` then makes that of each), or in a job of another command.
    spec
        The run whose nodes the job asks for.
    name, log
        What the job is called, and its output; %j is the number of the job.
    notice, open_mode
        The signal that announces the time limit, and how the log is opened.
    remedy
        For a time above the site's limit; None: that of `ddl study submit`.
    project, python
        Where the job works, in a clone also its code, and Python, on the shared file system.
    folder
        Where commands of the user's start.
    """

    account: str | None = None
    partition: str | None = None
    time: str | None = None
    runs: tuple[Entry, ...] = ()
    spec: RunSpec = field(default_factory=RunSpec)
    name: str = ""
    log: Path = Path()
    notice: str = "USR1"
    open_mode: str = "append"
    remedy: str | None = None
    project: Path = field(default_factory=workplace)
    python: str = sys.executable
    folder: Path = field(default_factory=Path.cwd)

    @property
    def commands(self) -> dict[str, None]:
        """Commands of the user's that its runs start, each once."""
        return dict.fromkeys(item.spec.command for item in self.runs if item.spec.command)

    def of(self, runs: Sequence[Entry]) -> "JobPlan":
        """Return the plan of a job that executes some runs, with the log beside the first one."""
        first, study = runs[0], runs[0].directory.parent.name
        name = job_name(study, [item.spec for item in runs])
        log = RunFiles(first.directory).logs / "slurm-%j.log"
        return replace(self, runs=tuple(runs), spec=first.spec, name=name, log=log)

    def limit_s(self, site: Site) -> int:
        """Return the time limit: what was asked for, else the sum of the runs' limits."""
        return seconds(self.time) if self.time else max(1, len(self.runs)) * seconds(site.time)

    def requeues(self, site: Site) -> int:
        """Return how often it may go on after its time limit; a single run needs checkpoints."""
        goes_on = len(self.runs) > 1 or any(item.spec.keeps_checkpoints for item in self.runs)
        return site.requeues if goes_on else 0

    def node_hours(self, site: Site) -> float:
        """Return what the job may cost at most: nodes x time limit x starts, in hours."""
        return self.spec.machines * (1 + self.requeues(site)) * self.limit_s(site) / 3600

    def check(self, site: Site) -> None:
        """Check what is asked for, and the runs, against a site."""
        if site.account_needed and not self.account:
            raise SpecError("this site bills jobs to a project; name it with --account PROJECT")
        for option, value in (("account", self.account), ("partition", self.partition)):
            if value is not None and not NAME.fullmatch(value):
                raise SpecError(
                    f"{option} = {value!r}: letters, digits and _ . , @ / - are allowed"
                )
        if seconds(self.time or site.time) <= site.signal_s:
            raise SpecError(
                f"time = {self.time or site.time!r}: a job is told to stop {site.signal_s} s "
                "before its limit (signal_s of the site); ask for more time than that"
            )
        if not self.name:
            return
        self._check_paths()
        if site.container and not IN_CLONE:
            raise SpecError(
                f"the ranks of this site run in a container, where {HOME} would bring them "
                "the packages of another Python; submit from a clone of the project"
            )
        for item in self.runs:
            site.check(item.spec)
        self._check_length(site)

    def _check_paths(self) -> None:
        """Check that the paths can stand in a script."""
        places = [item.directory for item in self.runs] or [self.log]
        places += [self.folder] if self.commands else []
        for path in (self.project, self.python, *places):
            if found := CONTROL.search(str(path)):
                raise SpecError(
                    f"{str(path)!r}: a job's script cannot name a path with {found[0]!r} in it; "
                    "rename that folder, or choose another place (of results: --results DIR or "
                    "DDL_RESULTS)"
                )

    def _check_length(self, site: Site) -> None:
        """Check that the job may last as long as it asks for."""
        limit_s, runs = self.limit_s(site), len(self.runs)
        if self.partition not in (None, site.partition) or site.time_max is None:
            return  # not known of another partition: sbatch has the word
        if limit_s > seconds(site.time_max):
            of = "" if self.time or runs <= 1 else f" ({runs} runs of {site.time} each)"
            apart = "" if runs <= 1 else ", or submit each run as a job of its own with --by run"
            remedy = self.remedy or (
                f"give it no more with --time {site.time_max}: what is then left goes on when the "
                f"study is submitted again{apart}"
            )
            raise SpecError(
                f"{self.name} asks for {clock(limit_s)}{of}, but a job of this site may last "
                f"{site.time_max} (time_max)",
                remedy=remedy,
            )


def render(plan: JobPlan, site: Site) -> str:
    """Return the script of a job that executes one run or, one after the other, those of a block.

    `SpecError` if a run, the options or their time do not fit the site.
    """
    plan.check(site)
    # They need the same nodes; what one of them needs to use MPI hinders no other.
    widest = max((item.spec for item in plan.runs), key=site.over_mpi)
    return template(TEMPLATE).render(
        **job_environment(widest, site, plan.project),
        directives=directives(plan, site),
        python=shlex.quote(plan.python),
        commands=plan.commands,
        consent={
            name: shlex.quote(value)
            for name, value in consent.variables(plan.commands, plan.folder).items()
        },
        run_dirs=[shlex.quote(str(item.directory)) for item in plan.runs],
        requeues=plan.requeues(site),
    )


@cache  # each job of a study has the same
def template(name: str) -> Template:
    """Return a template of ``slurm/``."""
    environment = Environment(
        loader=FileSystemLoader(SITES),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # a shell script, not a web page
    )
    return environment.get_template(name)


def job_environment(spec: RunSpec, site: Site, project: Path) -> dict[str, Any]:
    """Return what a site needs around any run: modules, variables, and how ranks are started."""
    container = site.container_of(spec)
    return {
        "modules": site.modules,
        "environment": _variables(site, project),
        "setup": site.setup,
        "srun": shlex.quote(shlex.join(srun_argv(spec, site))),
        "srun_node": shlex.quote(shlex.join(srun_argv(spec, site, whole_node=True))),
        "container": container and shlex.quote(container.model_dump_json()),
        "master_address": site.master_address,
        "master_suffix": site.master_suffix,
    }


def directives(plan: JobPlan, site: Site) -> list[str]:
    """Return the options of `sbatch` for a job."""
    spec = plan.spec
    # A % would be a placeholder to sbatch.
    folder = str(plan.log.parent).replace("%", "%%")
    values = {
        "job-name": plan.name,
        "output": shlex.quote(f"{folder}/{plan.log.name}"),
        "open-mode": plan.open_mode,
        "chdir": shlex.quote(str(plan.project)),
        "account": plan.account,
        "partition": plan.partition or site.partition,
        "constraint": site.constraint,
        "qos": site.qos,
        "time": clock(plan.limit_s(site)),
        "nodes": spec.machines,
        # Simulated nodes share the cores that there are.
        "ntasks-per-node": 1 if spec.simulated else spec.gpus_per_node,
        "cpus-per-task": site.cpus_per_rank,
        **_gpus(spec, site),
        "mem": site.memory,
        "signal": f"B:{plan.notice}@{site.signal_s}",
    }
    flags = ["--requeue" if plan.requeues(site) else "--no-requeue"]
    flags += ["--exclusive"] if site.exclusive else []
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [*site.sbatch_lines, *given, *flags]  # the last one counts


def _gpus(spec: RunSpec, site: Site) -> dict[str, str | int]:
    number = spec.gpus_per_node
    if not site.wants_gpus(spec) or site.gpu_request == "gpus_per_task":
        return {}  # gpus_per_task: the whole node is granted; the step divides it
    if site.gpu_request == "gpus_per_node":
        return {"gpus-per-node": number}
    return {"gres": f"gpu:{site.gpu_type}:{number}" if site.gpu_type else f"gpu:{number}"}


def _variables(site: Site, project: Path) -> dict[str, str]:
    """Return what the job exports: what the site says may be more, and has the last word."""
    caches = site.caches
    quoted = re.sub(r'(["\\`$])', r"\\\1", str(project))  # to stand in double quotes of a shell
    interfaces = {
        "NCCL_SOCKET_IFNAME": site.nccl_interface,
        "GLOO_SOCKET_IFNAME": site.gloo_interface,
        "HOROVOD_GLOO_IFACE": site.gloo_interface,
    }
    return {
        "USER": USER,
        **({"PYTHONPATH": f"{quoted}${{PYTHONPATH:+:$PYTHONPATH}}"} if IN_CLONE else {}),
        CACHES: caches,
        "XDG_CACHE_HOME": caches,
        "MPLCONFIGDIR": f"{caches}/matplotlib",
        "TORCH_HOME": f"{caches}/torch",
        "TORCH_EXTENSIONS_DIR": f"{caches}/torch_extensions",
        "TRITON_CACHE_DIR": f"{caches}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torchinductor",
        **{name: value for name, value in interfaces.items() if value},
        **({"HOROVOD_CONTROLLER": "mpi"} if site.horovod_controller == "mpi" else {}),
        **site.environment,
    }


def srun_argv(spec: RunSpec, site: Site, whole_node: bool = False) -> list[str]:
    """Return the step's command up to the rank itself, without the number of tasks.

    A task for a `whole_node` has what all ranks of it have, and divides it among them.
    """
    ranks = spec.gpus_per_node if whole_node else 1
    cpu_bind, gpu_bind = ("none", "none") if whole_node else (site.cpu_bind, site.gpu_bind)
    words = [
        "srun",
        *site.srun_args,  # the last one counts
        "--kill-on-bad-exit=1",
        "--distribution=block",
        f"--cpus-per-task={ranks * site.cpus_per_rank}",
        f"--mpi={site.mpi if site.over_mpi(spec) and not whole_node else 'none'}",
    ]
    words += [f"--cpu-bind={cpu_bind}"] if cpu_bind else []
    if site.wants_gpus(spec):
        words += [f"--gpus-per-task={ranks}"] if site.gpu_request == "gpus_per_task" else []
        words += [f"--gpu-bind={gpu_bind}"] if gpu_bind else []
        of_rank = site.visible_devices == "local_rank"
        words += [] if whole_node and of_rank else _visible(site, spec.gpus_per_node)
    return words


def _visible(site: Site, gpus: int) -> list[str]:
    """Return the command that gives a rank its view of the GPUs, then becomes the rank."""
    variable, devices = site.visible_variable, site.visible_devices
    if devices == "leave":
        return []
    if devices == "unset":
        return ["env", "-u", variable]
    if devices == "local_rank":
        return ["sh", "-c", f'export {variable}=$SLURM_LOCALID; exec "$@"', "rank"]
    # A device that the job was not granted would hide all those after it.
    granted = [one for one in devices.split(",") if int(one) < gpus]
    return ["env", f"{variable}={','.join(granted)}"]
