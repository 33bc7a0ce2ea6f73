"""The whole examination: what costs nothing here first, then the ranks, where they may run."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.errors import DDLError, SpecError
from ddl_tools.doctor import login_node, machine, placement, traffic
from ddl_tools.doctor.finding import Finding, subjects
from ddl_tools.doctor.probes import plan_probe, probe_name, run_in_job, run_probe
from ddl_tools.launch import ranks
from ddl_tools.launch.commands import Allocation
from ddl_tools.launch.slurm.script import Options, Place, render
from ddl_tools.launch.slurm.site import Site, find_site
from ddl_tools.records.paths import PROJECT, STUDIES, RunFiles, Tree, portable
from ddl_tools.records.probe import ProbeRecord, read_probe
from ddl_tools.study import Study

NODES = 2  # of a site: the fewest that have a network between them
JOB_TIME = "00:10:00"
LOGIN_NODE = Finding(
    "login node",
    "bad",
    "SLURM answers and this is no job: ranks are not started here",
    "--site NAME probes in a short job; or start ddl doctor inside an allocation",
)


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes
    ----------
    site_name
        Machine of slurm/; None for this one.
    ranks
        On each node; None: the site's GPUs, or one; without a site no ranks are started.
    nodes
        None: two of a site, else one.
    patience_s
        How long a job is waited for.
    """

    site_name: str | None
    ranks: int | None
    nodes: int | None
    loader_workers: int
    data_format: str
    data_dir: Path | None
    options: Options
    patience_s: float
    dry_run: bool


@dataclass
class Report:
    """What came out."""

    findings: list[Finding]
    would_start: str = ""
    directory: Path | None = None


def examine(asked: Request, tree: Tree, on_state: Callable[[str], None]) -> Report:
    """Return all findings about a site, or about this machine.

    Raises
    ------
    SpecError
        If there is no such site, or the request does not fit together.
    KeyboardInterrupt
        If this process was interrupted; no rank and no job is left.
    """
    site = find_site(asked.site_name) if asked.site_name else None
    on_state("packages, folders, scheduler")
    place, scheduler = login_node.where()
    if site is None:
        return _here(asked, place, tree, on_state)
    return _site(asked, site, (place, scheduler), tree, on_state)


def show(directory: Path) -> Report:
    """Return the findings of a probe that was made before.

    Raises
    ------
    RecordError
        If there is none.
    """
    return Report(judge(read_probe(directory), directory), directory=directory)


def _here(
    asked: Request, where: login_node.Place, tree: Tree, on_state: Callable[[str], None]
) -> Report:
    runs = Study.load(STUDIES / "laptop.yaml").expand()
    folder = asked.data_dir or tree.dataset("sample")
    data = machine.data(folder, asked.data_format)
    record = _planned_here(asked, folder if data.state == "ok" else None)
    report = Report(
        [
            *machine.examine_packages({run.strategy for run in runs}),
            *machine.examine(runs),
            machine.box(),
            machine.results(tree),
            data,
        ]
    )
    if record is None:
        return report
    if where == "login node":
        report.findings.append(LOGIN_NODE)
        return report
    _probe_here(asked, record, tree, on_state, report)
    return report


def _planned_here(asked: Request, data_dir: Path | None) -> ProbeRecord | None:
    """Return the record of a probe of this machine, before time is spent on packages."""
    if asked.ranks is None:
        return None
    record = _planned(asked, None, asked.nodes or 1, data_dir)
    if record.spec.nodes > 1 and Allocation.current() is None:
        raise SpecError(
            f"nodes = {record.spec.nodes}: this is one machine; name a --site, or start this in "
            "a job of `ddl`"
        )
    return record


def _site(
    asked: Request,
    site: Site,
    found: tuple[login_node.Place, Finding],
    tree: Tree,
    on_state: Callable[[str], None],
) -> Report:
    where, scheduler = found
    folder = asked.data_dir or tree.dataset("sample")
    nodes = asked.nodes or (1 if where == "job" else NODES)
    record = _planned(asked, site, nodes, folder if asked.data_dir or folder.exists() else None)
    spec = record.spec
    report = Report([*machine.examine_packages(()), machine.results(tree)])
    if record.data_dir is None:
        report.findings.append(Finding("data", "warn", "none named, so not read", "--data DIR"))
    else:
        report.findings.append(machine.data(folder, spec.data_format))
    report.findings += [scheduler, *login_node.examine(site, spec, tree)]
    if where == "job":
        _probe_here(asked, record, tree, on_state, report)
    else:
        _probe_in_job(asked, site, record, tree, on_state, report)
    return report


def _planned(asked: Request, site: Site | None, nodes: int, data_dir: Path | None) -> ProbeRecord:
    """Return the record of the probe: its ranks are those that a run would have."""
    spec = RunSpec.parse(
        {
            "strategy": "ddp",
            "nodes": nodes,
            "gpus_per_node": asked.ranks or (site.gpus_per_node if site else 0) or 1,
            "loader_workers": asked.loader_workers,
            "data_format": asked.data_format,
            "device": "auto" if site is None else "cuda" if site.gpus_per_node else "cpu",
            "checkpoint_every": 0,
            "work": "probe",
        }
    )
    name = Path(asked.site_name).stem if asked.site_name else None
    return ProbeRecord(
        name=probe_name(spec, name),
        site=name,
        spec=spec,
        cores_per_rank=site.cpus_per_rank if site else None,
        data_dir=portable(data_dir) if data_dir else None,
    )


def _probe_here(
    asked: Request, record: ProbeRecord, tree: Tree, on_state: Callable[[str], None], report: Report
) -> None:
    directory = tree.probes / record.name
    if asked.dry_run:
        logs = RunFiles(directory).attempt(0)
        report.would_start = str(ranks.command(record.spec, directory, logs))
        return
    directory = plan_probe(tree, record)
    report.findings += judge(run_probe(directory, on_state), directory)
    report.directory = directory


def _probe_in_job(
    asked: Request,
    site: Site,
    record: ProbeRecord,
    tree: Tree,
    on_state: Callable[[str], None],
    report: Report,
) -> None:
    directory = tree.probes / record.name
    place = Place((directory.resolve(),), PROJECT, sys.executable)
    try:
        script = render([record.spec], site, asked.options, place)
    except SpecError as error:
        remedy = "see the site's file, and ddl doctor --help"
        report.findings.append(Finding("request", "bad", str(error), remedy))
        return
    if "scheduler" not in subjects(report.findings, "bad"):
        report.findings.append(login_node.verdict(script))
    if asked.dry_run:
        report.would_start = script
        return
    if wrong := subjects(report.findings, "bad"):
        text = f"not probed, because of: {', '.join(wrong)}"
        report.findings.append(Finding("ranks", "unknown", text, "put that right first"))
        return
    directory = plan_probe(tree, record)
    try:
        ended = run_in_job(directory, script, asked.patience_s, on_state)
    except DDLError as error:
        report.findings.append(Finding("ranks", "bad", str(error), "see sbatch's own message"))
        return
    report.findings += judge(ended, directory)
    report.directory = directory


def judge(record: ProbeRecord, directory: Path) -> list[Finding]:
    """Return what a probe found; of one that failed, what its ranks could still tell.

    Parameters
    ----------
    record
        Of the probe.
    directory
        Its folder, for the messages.
    """
    found = [_answers(record, directory)]
    if record.answers:
        found += [*placement.judge(record), *traffic.judge(record)]
    return found


def _answers(record: ProbeRecord, directory: Path) -> Finding:
    hosts = len({one.host for one in record.answers})
    if record.status == "completed":
        return Finding("ranks", "ok", f"{record.spec.world_size} on {hosts} host(s), all answered")
    if record.status == "planned":
        job = f"job {record.job_id} has not ended" if record.job_id else "has not ended"
        return Finding("ranks", "unknown", job, f"later: ddl doctor --show {directory}")
    assert record.error is not None
    place = "" if record.error.rank is None else f"rank {record.error.rank}: "
    text = f"{place}{record.error.message}{_steps(record)}"
    return Finding("ranks", "bad", text, f"logs in {directory / 'logs'}")


def _steps(record: ProbeRecord) -> str:
    """Return which ranks never began, and at what step the others ended."""
    steps = {one.rank: one.step for one in record.answers if one.step != "done"}
    begun = {one.rank for one in record.answers}
    steps |= {n: "no step at all" for n in range(record.spec.world_size) if n not in begun}
    text = ""
    for name in dict.fromkeys(steps.values()):
        there = placement.span([rank for rank, at in steps.items() if at == name])
        text += f"\nrank(s) {there} at {name!r}"
    return text
