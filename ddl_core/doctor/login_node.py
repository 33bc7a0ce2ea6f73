"""What a login node can tell of a site: scheduler, modules, caches, and what jobs must also see.

The site's file is held against the nodes that SLURM says it has.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddl_core import private
from ddl_core.doctor.finding import Finding, State
from ddl_core.errors import LaunchError, SpecError
from ddl_core.launch.slurm import scheduler
from ddl_core.launch.slurm.script import USER, Options
from ddl_core.launch.slurm.site import Site
from ddl_core.records.paths import PROJECT, Tree
from ddl_core.records.provenance import file_system
from ddl_core.spec.run import RunSpec

SHELL_PATIENCE_S = 60.0
LATE = 124  # exit code of `timeout`
# Of these each machine has its own.
LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "devtmpfs"}
    | {"overlay", "aufs", "squashfs"}
)

Place = Literal["job", "login node", "machine"]

GPUS = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?:(?P<number>\d+)")
LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")  # [days-][hours:]minutes:seconds
MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def where() -> Place:
    """Say whether this is inside a SLURM job, a login node of SLURM, or a machine by itself."""
    if "SLURM_JOB_ID" in os.environ:
        return "job"
    try:
        scheduler.node_kinds()
    except LaunchError:
        return "machine"
    return "login node"


def examine(site: Site, options: Options, spec: RunSpec, tree: Tree) -> list[Finding]:
    """Return what can be found out about a site here, without starting anything on its nodes."""
    return [
        *_scheduler(site, options, spec),
        _modules(site),
        caches(site),
        *shared(spec, tree),
    ]


def _scheduler(site: Site, options: Options, spec: RunSpec) -> list[Finding]:
    try:
        kinds = parse_nodes(scheduler.node_kinds())
    except LaunchError as error:
        remedy = "run ddl doctor --site on a login node of the machine, where sbatch works"
        return [Finding("scheduler", "bad", str(error).splitlines()[0], remedy)]
    names = ", ".join(dict.fromkeys(kind.partition for kind in kinds))
    return [
        Finding("scheduler", "ok", f"SLURM with partitions {names}"),
        *examine_nodes(site, options, spec, kinds),
    ]


def verdict(script: str) -> Finding:
    """Ask `sbatch` itself whether it would take a job; it knows accounts and QOS as well."""
    with private.Passing() as folder:
        path = Path(folder) / "job.sh"
        path.write_text(script, encoding="utf-8")
        try:
            reason = scheduler.refusal(path)
        except LaunchError as error:
            return Finding("sbatch", "bad", str(error), "submit on a login node of the machine")
    if reason is None:
        return Finding("sbatch", "ok", "would take the job")
    last = reason.replace(str(path), "the job").splitlines()[0]
    remedy = "--account, --partition, --time; qos, constraint, sbatch_lines in the site's file"
    return Finding("sbatch", "bad", last, remedy)


def _modules(site: Site) -> Finding:
    """Load the site's modules in a shell of their own, as its jobs do."""
    names = " ".join(site.modules)
    if not names:
        return Finding("modules", "ok", "none needed")
    remedy = "modules in the site's file; what there is: module avail (or module spider NAME)"
    done = _shell(f"module purge; module load {names}")
    if done.returncode == LATE:
        return Finding("modules", "bad", f"{names}: over {SHELL_PATIENCE_S:.0f} s", remedy)
    # Older module systems report success whatever happens.
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    wrong = [line for line in said if "error" in line.lower() or "unable" in line.lower()]
    if done.returncode == 0 and not wrong:
        return Finding("modules", "ok", names)
    last = (wrong or said or [f"exit code {done.returncode}"])[0]
    return Finding("modules", "bad", f"{names}: {last}", remedy)


def caches(site: Site) -> Finding:
    """Say whether the site's folder for caches can be written here, and on what it is."""
    remedy = "caches in the site's file: a folder that jobs may write, e.g. on the scratch disk"
    # With a variable that is not set, the folder would be another one: e.g. in the system's root.
    name = f'set -u; USER="{USER}"; d="{site.caches}"'
    done = _shell(f'{name} && printf "%s" "$d" && mkdir -p -m 700 "$d" && test -w "$d"')
    if done.returncode == LATE:
        return Finding("caches", "bad", f"over {SHELL_PATIENCE_S:.0f} s", remedy)
    folder = Path(done.stdout or site.caches)
    if done.returncode:
        said = (done.stderr.strip() or "may not be written").splitlines()[-1]
        return Finding("caches", "bad", f"{folder}: {said}", remedy)
    try:
        private.require(folder)
    except LaunchError as error:
        return Finding("caches", "bad", str(error), remedy)
    return Finding("caches", "ok", f"{folder} on {file_system(folder)}")


def _shell(line: str) -> "subprocess.CompletedProcess[str]":
    """Run a line in a login shell; `timeout` ends it with all that it started."""
    limited = ["timeout", "--kill-after=5", f"{SHELL_PATIENCE_S}", "bash", "-lc", line]
    return subprocess.run(
        limited, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


def shared(spec: RunSpec, tree: Tree) -> list[Finding]:
    """Say of what every node must see whether it lies on a file system of this machine alone."""
    found = []
    places = {"environment": Path(sys.prefix), "project": PROJECT, "results": tree.root}
    for subject, place in places.items():
        kind = file_system(place)
        state: State = "warn" if kind in LOCAL and spec.nodes > 1 else "ok"
        detail = f"{place} on {kind}"
        if state == "warn":
            detail += ", a file system that machines do not share as a rule"
        remedy = "if nodes do not see it, the probe's job fails: put it on a shared file system"
        found.append(Finding(f"{subject} shared", state, detail, remedy))
    return found


@dataclass(frozen=True)
class Kind:
    """Nodes of one kind in one partition, as `sinfo` describes them."""

    partition: str
    default: bool
    up: bool
    limit_s: float
    nodes: int
    cpus: int
    memory_mb: int
    gpus: tuple[tuple[str, int], ...]  # type ("" where it has none), number
    features: frozenset[str]

    @classmethod
    def parse(cls, line: str) -> "Kind":
        """Read a line in the format `scheduler.KINDS`."""
        name, state, limit, nodes, cpus, memory, gres, features = line.strip().split("|")
        return cls(
            partition=name.rstrip("*"),
            default=name.endswith("*"),
            up=state == "up",
            limit_s=_limit_s(limit),
            nodes=int(nodes),
            cpus=int(cpus.rstrip("+")),
            memory_mb=int(memory.rstrip("+")),
            gpus=tuple((one["type"] or "", int(one["number"])) for one in GPUS.finditer(gres)),
            features=frozenset(features.split(",")),
        )

    def gpus_of(self, kind: str | None) -> int:
        """Return how many GPUs a node has, of one type or of any."""
        return sum(number for name, number in self.gpus if kind in (None, name))


def _limit_s(text: str) -> float:
    """Return a partition's time limit in seconds."""
    if not (found := LIMIT.fullmatch(text)):
        return float("inf")  # "infinite", "n/a"
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 86400 * days + 3600 * hours + 60 * minutes + seconds


def parse_nodes(listing: str) -> list[Kind]:
    """Read what `scheduler.node_kinds` returns."""
    return [Kind.parse(line) for line in listing.splitlines() if line.count("|") == 7]


def examine_nodes(site: Site, options: Options, spec: RunSpec, kinds: list[Kind]) -> list[Finding]:
    """Say of each thing a job asks for whether the partition has nodes with it.

    Nodes have to fit everything, so each check looks at those that fitted the ones before.
    """
    try:
        options.check(site)
        site.check(spec)
        limit_s = options.limit_s(site)
    except SpecError as error:
        return [Finding("request", "bad", str(error), "see the site's file, and ddl doctor --help")]
    name = options.partition or site.partition
    left = [one for one in kinds if (one.partition == name if name else one.default)]
    if not left:
        known = ", ".join(dict.fromkeys(one.partition for one in kinds)) or "none"
        text = f"{name!r} is not known to SLURM" if name else "none named, and SLURM has no default"
        remedy = f"partition in the site's file, or --partition; there are: {known}"
        # Some sites choose nodes by constraint or QOS, and place jobs themselves.
        state: State = "bad" if name or not (site.constraint or site.qos) else "unknown"
        return [Finding("partition", state, text, remedy)]
    found = [_partition(left)]
    for want in _wants(site, spec, limit_s):
        fitting = [one for one in left if want.fits(one)]
        if fitting:
            left = fitting
            found.append(Finding(want.subject, "ok", want.asked))
        else:
            there = ", ".join(sorted({want.shown(one) for one in left}))
            detail = f"{want.asked} asked for, but {left[0].partition!r} has {there}"
            found.append(Finding(want.subject, "bad", detail, f"{want.field} in the site's file"))
    return [*found, _number(spec, left)]


def _partition(kinds: list[Kind]) -> Finding:
    if any(one.up for one in kinds):
        return Finding("partition", "ok", kinds[0].partition)
    detail = f"{kinds[0].partition!r} takes no jobs now"
    return Finding("partition", "bad", detail, "another one with --partition, or wait")


def _number(spec: RunSpec, kinds: list[Kind]) -> Finding:
    there = sum(one.nodes for one in kinds)
    state: State = "ok" if there >= spec.nodes else "bad"
    return Finding("nodes", state, f"{spec.nodes} of {there} such nodes", "fewer --nodes")


@dataclass(frozen=True)
class _Want:
    subject: str
    asked: str
    fits: Callable[[Kind], bool]
    shown: Callable[[Kind], str]
    field: str


def _wants(site: Site, spec: RunSpec, limit_s: int) -> list[_Want]:
    cores = site.cpus_per_rank * spec.gpus_per_node
    found = [
        _Want(
            "time",
            f"{limit_s} s",
            lambda kind: kind.limit_s >= limit_s,
            lambda kind: f"a limit of {kind.limit_s:.0f} s",
            "--time, or time",
        ),
        _Want(
            "cpus",
            f"{cores} cores a node",
            lambda kind: kind.cpus >= cores,
            lambda kind: f"nodes of {kind.cpus}",
            "cpus_per_rank",
        ),
    ]
    if constraint := site.constraint:
        wanted = set(re.split(r"[&|]", constraint))
        every = "|" not in constraint
        found.append(
            _Want(
                "constraint",
                constraint,
                lambda kind: wanted <= kind.features if every else bool(wanted & kind.features),
                lambda kind: ",".join(sorted(kind.features)) or "none",
                "constraint",
            )
        )
    if site.wants_gpus(spec):
        typed = f" of type {site.gpu_type}" if site.gpu_type else ""
        found.append(
            _Want(
                "gpus per node",
                f"{spec.gpus_per_node}{typed}",
                lambda kind: kind.gpus_of(site.gpu_type) >= spec.gpus_per_node,
                lambda kind: ", ".join(f"{n} {t}".strip() for t, n in kind.gpus) or "none",
                "gpus_per_node or gpu_type",
            )
        )
    if memory := _megabytes(site.memory):
        found.append(
            _Want(
                "memory of a node",
                f"{memory:.0f} MB",
                lambda kind: kind.memory_mb >= memory,
                lambda kind: f"{kind.memory_mb} MB",
                "memory",
            )
        )
    return found


def _megabytes(text: str | None) -> float:
    """Return a request for memory in MB; 0 is "all of it", or none."""
    if not text:
        return 0
    unit = text[-1] if text[-1].isalpha() else "M"
    return int(text.rstrip("KMGT")) * MEGABYTES[unit]
