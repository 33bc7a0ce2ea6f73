"""All checks in order: first those that start no rank, then the probe."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.errors import DDLError, SpecError
from ddl_tools.doctor import login_node, machine
from ddl_tools.doctor.finding import Finding, subjects
from ddl_tools.doctor.judge import judge
from ddl_tools.doctor.probes import plan_probe, probe_name, read_settled, run_in_job, run_probe
from ddl_tools.launch import ranks
from ddl_tools.launch.commands import Allocation
from ddl_tools.launch.plan_notes import open_ports
from ddl_tools.launch.slurm.script import JobPlan, render
from ddl_tools.launch.slurm.site import Site, find_site
from ddl_tools.records.ledger import Entry
from ddl_tools.records.paths import STUDIES, RunFiles, Tree, portable
from ddl_tools.records.probe import ProbeRecord
from ddl_tools.study import Study

NODES = 2  # of a site: the fewest that have a network between them
JOB_TIME = "00:10:00"
LOGIN_NODE = Finding(
    "login node",
    "bad",
    "SLURM answers and this is no job: ranks are not started here",
    "--site NAME probes in a short job; or start ddl doctor inside an allocation",
)
NO_DATA = Finding("data", "warn", "none named, so not read", "--data DIR")


@dataclass(frozen=True)
class Request:
    """Options of ``ddl doctor``."""

    site_name: str | None  # machine of slurm/; None for this one
    ranks: int | None  # on each node; None: the site's GPUs; without a site no ranks are started
    nodes: int | None  # None: two of a site, else one
    loader_workers: int
    data_format: str
    data_dir: Path | None
    plan: JobPlan  # what is asked of the job
    patience_s: float  # how long a job is waited for
    dry_run: bool


@dataclass
class Report:
    """Result of the checks."""

    findings: list[Finding]
    would_start: str = ""
    directory: Path | None = None


def examine(request: Request, tree: Tree, on_state: Callable[[str], None]) -> Report:
    """Return all findings about a site, or about this machine.

    `SpecError` if there is no such site, or the request does not fit together.
    """
    site = find_site(request.site_name) if request.site_name else None
    on_state("packages, folders, scheduler")
    where, scheduler = login_node.where(request.dry_run)
    folder, data = request.data_dir or tree.dataset("sample"), NO_DATA
    if site is None or request.data_dir or folder.exists():
        data = machine.data(folder, request.data_format)
    # A site's ranks say themselves what they miss: its nodes may see another folder.
    readable = folder if data.state == "ok" or (site and data is not NO_DATA) else None
    record = None
    if site or request.ranks:
        record = _plan(request, site, where, readable)  # before time is spent on packages
    here = [machine.commit(), machine.results(tree), data]
    if site and record:
        inside = site.container is not None
        packages = machine.examine_outside() if inside else machine.examine_packages(())
        found = [*(login_node.of_site(one, site) for one in packages), *here, scheduler]
        found += login_node.examine(site, record.spec, tree, request.dry_run)
        if ports := open_ports([record.spec], site):
            found.append(Finding("ports", "warn", ports))
    else:
        runs = Study.load(STUDIES / "laptop.yaml").expand()
        found = machine.examine_packages({run.strategy for run in runs})
        found += [*machine.resources(runs), machine.emulation(), *here]
    report = Report([machine.imported(), *found])
    if record is None:
        return report
    directory = tree.probes / record.name
    if site and where != "job":
        _probe_in_job(request, site, record, directory, on_state, report)
    elif where == "login node":
        report.findings.append(LOGIN_NODE)
    elif request.dry_run:
        logs = RunFiles(directory).attempt(0)
        report.would_start = str(ranks.command(record.spec, directory, logs))
        if site is None and scheduler.state == "unknown":  # a login node would start none
            report.findings.append(scheduler)
    else:
        plan_probe(directory, record)
        report.findings += judge(run_probe(directory, on_state), directory)
        report.directory = directory
    return report


def show(directory: Path) -> Report:
    """Return the findings of a probe that was made before."""
    return Report(judge(read_settled(directory), directory), directory=directory)


def _plan(
    request: Request, site: Site | None, where: login_node.Where, data_dir: Path | None
) -> ProbeRecord:
    """Return the record of the probe: its ranks are those that a run would have."""
    spec = RunSpec.parse(
        {
            "strategy": "ddp",
            "nodes": request.nodes or (NODES if site and where != "job" else 1),
            "gpus_per_node": request.ranks or (site.gpus_per_node if site else 0) or 1,
            "loader_workers": request.loader_workers,
            "data_format": request.data_format,
            "device": "auto" if site is None else "cuda" if site.gpus_per_node else "cpu",
            "checkpoint_every": 0,
            "work": "probe",
        }
    )
    if site is None and spec.nodes > 1 and Allocation.current() is None:
        raise SpecError(
            f"nodes = {spec.nodes}: this is one machine; name a --site, or start this in a job of "
            "`ddl`"
        )
    name = Path(request.site_name).stem if request.site_name else None
    return ProbeRecord(
        name=probe_name(spec, name),
        site=name,
        spec=spec,
        cores_per_rank=site.cpus_per_rank if site else None,
        data_dir=portable(data_dir) if data_dir else None,
    )


def _probe_in_job(
    request: Request,
    site: Site,
    record: ProbeRecord,
    directory: Path,
    on_state: Callable[[str], None],
    report: Report,
) -> None:
    """Submit the probe's job and judge its result, unless something is bad already."""
    plan = request.plan.of([Entry(record.spec, directory.resolve(), "planned")])
    try:
        script = render(plan, site)
    except SpecError as error:
        remedy = "see the site's file, and ddl doctor --help"
        report.findings.append(Finding("request", "bad", str(error), remedy))
        return
    if "scheduler" not in subjects(report.findings, "bad"):
        report.findings.append(login_node.verdict(script, request.dry_run))
    if request.dry_run:
        report.would_start = script
        return
    if wrong := subjects(report.findings, "bad"):
        text = f"not probed, because of: {', '.join(wrong)}"
        report.findings.append(Finding("ranks", "unknown", text, "put that right first"))
        return
    plan_probe(directory, record)
    try:
        ended = run_in_job(plan, site, request.patience_s, on_state)
    except DDLError as error:
        report.findings.append(Finding("ranks", "bad", str(error), "see sbatch's own message"))
        return
    report.findings += judge(ended, directory)
    report.directory = directory
