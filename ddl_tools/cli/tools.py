"""Commands beside studies: doctor, figures, report, advise, proposal, kernel, profile, bench."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from ddl_core.config import RunSpec
from ddl_core.errors import NotInstalledError, RecordError, SpecError
from ddl_core.files import writing_to
from ddl_core.registry import FORMATS, LOADERS, MODELS
from ddl_tools.cli import options as common
from ddl_tools.cli.options import FILE, FOLDER, tree_of
from ddl_tools.cli.output import say, say_json, say_next
from ddl_tools.names import plural
from ddl_tools.records.paths import REPORT, ProbeFiles, Tree, committed, existing, results

if TYPE_CHECKING:
    import pandas as pd

    from ddl_tools.doctor.checks import Report

# On the CPU, without those that read no files in an epoch.
READERS = sorted({*LOADERS} - {"synthetic", "memory", "dali_gpu"})
_ABOVE_0 = common.Number(min_open=True)


@click.command()
@common.site_option("Machine to submit to: a name from slurm/, or a path.")
@click.option(
    "--ranks",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="Start N ranks on each node and test them together. [default: the GPUs of a "
    "node with --site, else none]",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="Nodes to probe. [default: 2 of a site]",
)
@click.option(
    "--loader-workers",
    type=click.IntRange(0, 10**6),
    default=8,
    help="Loader processes of each rank, as in the study.",
)
@click.option(
    "--data-format",
    type=common.Name(sorted(FORMATS)),
    default="folder",
    help="What the data folder holds.",
)
@common.account_option
@common.partition_option
@click.option("--time", metavar="HH:MM:SS", help="Time limit of the job. [default: 00:10:00]")
@click.option(
    "--wait",
    "wait_min",
    type=common.Number(),
    default=15.0,
    metavar="MINUTES",
    help="Longest wait for the job.",
)
@click.option("--show", type=FOLDER, metavar="DIR", help="Folder of an earlier probe to report on.")
@common.json_option
@common.data_option
@common.results_option
@common.dry_run_option
def doctor(
    site_name: str | None,
    account: str | None,
    partition: str | None,
    time: str | None,
    wait_min: float,
    show: Path | None,
    as_json: bool,
    tree: Tree,
    **request: Any,
) -> None:
    """Check a machine before a run, with a remedy for each problem.

    Without --site: this machine. With --site, on a login node: the site file against SLURM,
    modules, data and caches. Then a short job whose ranks check cores, devices, interfaces and
    data, and time the all-reduce. Exit code 1 if a finding is bad.
    """
    from ddl_tools.analysis.redraw import redraw_probes
    from ddl_tools.cli import answers
    from ddl_tools.doctor import checks
    from ddl_tools.launch.slurm.script import JobPlan

    nodes = request["nodes"] if request["ranks"] is None else None
    of_job = {"account": account, "partition": partition, "time": time, "nodes": nodes}
    for name, value in of_job.items():
        if value is not None and site_name is None:
            raise click.UsageError(f"--{name} is for a job; name its machine with --site as well")
    if show:
        report = checks.show(show)
    else:
        plan = JobPlan(account, partition, time or checks.JOB_TIME)
        asked = checks.Request(site_name=site_name, plan=plan, patience_s=60 * wait_min, **request)
        with tqdm(bar_format="{desc} [{elapsed}]", leave=False, disable=None) as bar:
            report = checks.examine(asked, tree, bar.set_description_str)
    ready = f"Ready for {site_name}" if site_name else "The laptop study can run here"
    bad = any(one.state == "bad" for one in report.findings)
    if as_json:
        findings = [answers.OneFinding(**asdict(one)) for one in report.findings]
        say_json(answers.Doctor(ready=not bad, findings=findings))
    else:
        say(_as_text(report, "" if show else ready))
    if report.directory and not show:
        drawn = redraw_probes(tree, figures=tree.figures)
        if not as_json:
            say(f"record: {ProbeFiles(report.directory).record}")
            for path in (path for path in drawn if path.suffix == ".png"):
                say(f"figure: {path}")
    if bad:
        sys.exit(1)
    if not (as_json or show or site_name):
        say_next(["ddl", "data", "sample"], ["ddl", "recommend", "--model", "resnet18"])


def _as_text(report: "Report", ready: str) -> str:
    from ddl_tools.doctor.finding import subjects, text

    lines = [f"would start:\n{report.would_start}\n"] if report.would_start else []
    lines.append(text(report.findings))
    if ready:
        verdict = "yes"
        if unclear := subjects(report.findings, "unknown"):
            verdict = f"as far as is known, but not: {', '.join(unclear)}"
        if lacking := subjects(report.findings, "bad"):
            verdict = f"no: {', '.join(lacking)}"
        lines.append(f"\n{ready}: {verdict}")
    return "\n".join(lines)


@click.command()
@click.option(
    "--results",
    "root",
    type=FOLDER,
    metavar="DIR",
    help="Draw the records below DIR into DIR/figures. [default: committed data/ into figures/]",
)
@click.option(
    "--to",
    type=FOLDER,
    metavar="DIR",
    callback=common.output,
    help="Write into DIR/figures and DIR/tables instead.",
)
@click.option(
    "--study", "studies", multiple=True, metavar="STUDY", help="Draw only this study; repeatable."
)
@click.option("--why", is_flag=True, help="Say why a figure is not drawn.")
@click.option(
    "--carbon-intensity",
    "carbon_g_per_kwh",
    type=common.Number(),
    metavar="G",
    help="g CO2e per kWh of electricity here, for the tables. [default: 458.29, the world in 2025]",
)
def figures(
    root: Path | None,
    to: Path | None,
    studies: tuple[str, ...],
    why: bool,
    carbon_g_per_kwh: float | None,
) -> None:
    """Rebuild all tables and draw all figures from records; needs no torch and no GPU.

    Each study has a folder of its own, and the paper's statements have one. Its README.md shows the
    figures with answers in numbers, captions and tables. A figure without anything to show is
    removed. A damaged record is named and not drawn, and the status is then 1. A file that the
    command did not write is not replaced. With the committed records and without --to, the command
    also writes the results in README.md and docs/results/.
    """
    from ddl_tools.analysis import pages
    from ddl_tools.analysis.metrics import WORLD_G_PER_KWH
    from ddl_tools.analysis.redraw import redraw

    if not (root or to):
        common.require_clone(
            "figures/", "name your records with --results DIR, or a place with --to"
        )
    carbon = WORLD_G_PER_KWH if carbon_g_per_kwh is None else carbon_g_per_kwh
    tree = tree_of(root) if root else committed()
    if to:
        tree = Tree(tree.root, to.absolute())
    done = redraw(tree, figures=tree.figures, studies=studies, carbon_g_per_kwh=carbon)
    for line in done.summary(reasons=why):
        say(line)
    if studies and done.reasons and not why:
        others = plural(len(done.reasons), "other figure")
        say(f"nothing to show in {others}; add --why to see why")
    say(f"{plural(len(done.files), 'file')} in {tree.figures}")
    for page in done.pages[-1:]:
        say(f"answers and figures: {page}")
    if done.damaged:
        head = f"{plural(len(done.damaged), 'record')} in no figure:"
        raise RecordError("\n".join([head, *done.damaged]))
    if root is None and to is None and not studies:
        pages.blocks(tree).write()


@click.command()
@click.option(
    "--results",
    "root",
    type=FOLDER,
    metavar="DIR",
    help="Report the records below DIR in DIR/report. [default: committed data/ in build/report/]",
)
@click.option(
    "--to",
    "folder",
    type=FOLDER,
    metavar="DIR",
    callback=common.output,
    help="Write the pages there instead.",
)
def report(root: Path | None, folder: Path | None) -> None:
    """Execute the notebooks that show results, and write one folder of HTML that you can send.

    Pictures are inside the pages, which load nothing from elsewhere. The executed notebook of each
    run is linked, if there is one. An older report in the folder is replaced. Takes some minutes.
    """
    from ddl_tools.analysis.redraw import redraw
    from ddl_tools.launch.report import require_report, write_report

    if not (root or folder):
        common.require_clone(
            "build/report/", "name a folder with --to, or your records with --results"
        )
    tree = tree_of(root) if root else committed()
    folder = folder or (tree.root / REPORT.name if root else REPORT)
    require_report(folder)
    if root and tree.studies():  # the index shows the figure that answers each study's question
        with writing_to(""):
            redraw(tree, figures=tree.figures)
    index = write_report(tree, folder)
    say(f"open {index} in a browser, or send the folder {index.parent}")


def _accuracy(
    context: click.Context, parameter: click.Parameter, percent: float | None
) -> float | None:
    from ddl_tools.scaling.options import Limits

    try:
        return Limits(accuracy=percent).accuracy
    except SpecError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "--site",
    "site_name",
    metavar="SITE",
    help="Machine: a name from slurm/, or a path. [default: this one]",
)
@click.option("--model", type=common.Name(sorted(MODELS)), default="resnet50", help="Network.")
@click.option("--dataset", metavar="NAME", default="imagenet", help="Data set, as records name it.")
@click.option(
    "--images",
    type=click.IntRange(1, 10**10),
    metavar="N",
    help="Training images of an epoch. [default: ImageNet's]",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, 10**6),
    default=90,
    metavar="N",
    help="Epochs of the whole training.",
)
@click.option("--deadline", type=_ABOVE_0, metavar="HOURS", help="Longest training time.")
@click.option("--node-hours", type=_ABOVE_0, metavar="N", help="Most node-hours of training.")
@click.option(
    "--accuracy",
    type=common.Number(0, 100, min_open=True),
    metavar="PERCENT",
    callback=_accuracy,
    help="Lowest top-1 accuracy in percent, e.g. 75 and not 0.75.",
)
@click.option(
    "--max-gpus",
    type=click.IntRange(1, 2**20),
    metavar="N",
    help="Largest number of GPUs (ranks). [default: a site 1024, this machine all]",
)
@click.option(
    "--gpus",
    type=click.IntRange(1, 2**20),
    metavar="N",
    help="Advise on exactly this number of GPUs (ranks); needs no limit.",
)
@click.option(
    "--results",
    "root",
    type=FOLDER,
    metavar="DIR",
    help="Folder of your records. [default: committed data/]",
)
@click.option(
    "--figure",
    "stem",
    type=FILE,
    metavar="FILE",
    callback=common.output,
    help="Write the options as FILE.csv; draw their known accuracies as FILE.svg, .pdf and .png.",
)
@common.overwrite_option
@common.json_option
def advise(
    site_name: str | None,
    model: str,
    dataset: str,
    images: int | None,
    epochs: int,
    max_gpus: int | None,
    gpus: int | None,
    root: Path | None,
    stem: Path | None,
    overwrite: bool,
    as_json: bool,
    **limits: float | None,
) -> None:
    """Recommend a strategy, a loader and a number of GPUs that meet some limits.

    With --gpus, the answer is the time and the node-hours on that number of GPUs.

    The evidence is runs of the same machine, and the paper's statements on its own machine. No
    option lies further than four times beyond the largest measured number of GPUs. Status 1 if
    nothing was measured, or if no option meets the limits; the message names limits that are met.
    """
    from ddl_tools.cli import answers
    from ddl_tools.launch.slurm.expected import machine_of
    from ddl_tools.launch.slurm.site import find_site
    from ddl_tools.scaling import advise as core
    from ddl_tools.scaling import render
    from ddl_tools.scaling.candidate import Machine
    from ddl_tools.scaling.options import Limits

    if stem:
        from ddl_tools.analysis.plot.canvas import require_our_figure

        how = {"overwrite": overwrite, "remedy": common.OVERWRITE}
        require_our_figure(stem, render.FIRST_COLUMNS, **how)
    machine = machine_of(site_name, find_site(site_name)) if site_name else Machine.here()
    sizes = {"max_gpus": max_gpus, "gpus": gpus}
    request = core.Request(machine, model, Limits(**limits), dataset, images, epochs, **sizes)
    found = core.advise(request, existing(tree_of(root)) if root else committed())
    if as_json:
        rows = render.rows(found)
        (advised,) = (row for row in rows if row["advised"])
        answer = answers.Advise(
            request=found.request.title, certain=found.certain, advised=advised, options=rows
        )
        say_json(answer)
    else:
        say(render.text(found), nl=False)
    if stem:
        from ddl_tools.analysis.figures import QUESTIONS
        from ddl_tools.analysis.figures.advice import points_of
        from ddl_tools.analysis.plot.canvas import save_figure, save_numbers

        points = points_of(found)
        figure = QUESTIONS["advice"].figure(points)
        if figure:
            paths = save_figure(figure, points, stem, known=True)
        else:
            paths = [save_numbers(points, stem, known=True)]
        for path in paths:
            say(f"written: {path}", err=as_json)


@click.command()
@click.argument("name", metavar="STUDY", callback=common.checked_name)
@click.option(
    "--trainings",
    type=click.IntRange(1, 10**6),
    default=1,
    metavar="N",
    help="Trainings.",
)
@click.option(
    "--images",
    type=click.IntRange(1, 10**10),
    metavar="N",
    help="Training images of an epoch. [default: ImageNet's]",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, 10**6),
    default=90,
    metavar="N",
    help="Epochs of a training.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="Nodes of a training, measured or forecast. [default: the most measured]",
)
@click.option("--strategy", metavar="NAME", help="Only runs with this strategy.")
@click.option("--loader", metavar="NAME", help="Only runs with this loader.")
@click.option("--model", metavar="NAME", help="Only runs with this network.")
@click.option(
    "--results",
    "root",
    type=FOLDER,
    metavar="DIR",
    help="Folder of your records. [default: committed data/]",
)
@click.option(
    "--to",
    type=FOLDER,
    metavar="DIR",
    callback=common.output,
    help="Write into DIR. [default: proposal/STUDY in the folder of results]",
)
@common.overwrite_option
@common.json_option
def proposal(
    name: str,
    trainings: int,
    images: int | None,
    epochs: int,
    nodes: int | None,
    root: Path | None,
    to: Path | None,
    overwrite: bool,
    as_json: bool,
    **only: str | None,
) -> None:
    """Write a page of scaling evidence for an application for computing time.

    It has throughput, speed-up and efficiency with intervals, node-hours and kWh, a figure, the
    method, and what application forms ask for: of the configuration that is the fastest on the most
    ranks, as Markdown, LaTeX and PDF. Reasons to doubt stand first. The PDF needs the package
    `fpdf2`.
    """
    from ddl_core.config import IMAGENET_TRAIN_IMAGES
    from ddl_tools.analysis import proposal as core
    from ddl_tools.cli import answers

    tree = existing(tree_of(root)) if root else committed()
    limits = {key: value for key, value in only.items() if value is not None}
    request = core.Request(trainings, epochs, images or IMAGENET_TRAIN_IMAGES, nodes, limits)
    found = core.proposal(tree, name, request)
    folder = to or (tree if root else results()).root / core.NAME / name
    files = core.write(found, folder, overwrite=overwrite, remedy=common.OVERWRITE)
    if as_json:
        answer = answers.Proposal(
            study=name, first=found.first, tables=core.tables(found), files=list(map(str, files))
        )
        say_json(answer)
        return
    for line in found.first:
        say(f"warning: {line}", err=True)
    for path in files:
        say(f"written: {path}")


@click.group()
def kernel() -> None:
    """Make this environment a kernel of JupyterLab, also of a JupyterHub portal."""


@kernel.command()
@click.option(
    "--name", default="ddl", help="Name of the kernel: small letters, digits and . _ - only."
)
@click.option(
    "--user", is_flag=True, help="Install in this user's Jupyter folder. [default without --prefix]"
)
@click.option(
    "--prefix",
    type=FOLDER,
    metavar="DIR",
    help="Install below DIR/share/jupyter, e.g. for a group.",
)
@common.site_option("Load the modules of this machine: a name from slurm/, or a file.")
@click.option("--dry-run", is_flag=True, help="Print the files; write nothing.")
def install(
    name: str, site_name: str | None, user: bool, prefix: Path | None, dry_run: bool
) -> None:
    """Install the kernel; replaces an older one of this command."""
    from ddl_tools.launch.kernelspec import Kernel

    if user and prefix:
        raise click.UsageError("--user and --prefix exclude each other; choose one")
    new = Kernel(name, site_name, prefix)
    if dry_run:
        description = json.dumps(new.description(), indent=1)
        say(f"# {new.folder}/kernel.json\n{description}\n\n# {new.folder}/kernel.sh")
        say(new.script(), nl=False)
        return
    say(f"installed {new.display_name!r} in {new.install()}")


@click.group()
def profile() -> None:
    """Read profiles of Nsight Systems."""


@profile.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE)
@click.option(
    "--csv",
    "csv",
    metavar="OUT",
    type=FILE,
    callback=common.output,
    help="Also write the table as CSV.",
)
@common.overwrite_option
def import_command(files: tuple[Path, ...], csv: Path | None, overwrite: bool) -> None:
    """Print the shares of kernel time in reports of Nsight Systems, a line for each rank.

    FILE is the output of `nsys stats --report cuda_gpu_kern_sum --format csv REPORT.nsys-rep`.
    docs/how-to/profile-a-run.md explains the shares.
    """
    from ddl_tools.analysis.csv_file import to_csv
    from ddl_tools.analysis.nsys import COLUMNS, table
    from ddl_tools.records.storage import require_ours, write_atomically

    if csv:
        header = ",".join(COLUMNS)
        require_ours(csv, header, overwrite=overwrite, remedy=common.OVERWRITE)
    once = list(dict.fromkeys(files))
    shares = table(tqdm(once, desc="files", unit="file", leave=False, disable=None))
    if csv:
        write_atomically(csv, to_csv(shares))
    say(_shares(shares))


def _shares(shares: "pd.DataFrame") -> str:
    """Return the table for people: shares in percent, what is not known as a dash."""
    percent = shares.astype({"rank": "object"}).assign(value=100 * shares["value"])
    names = list(percent["share"].unique())
    wide = percent.pivot(index=["file", "rank"], columns="share", values="value")[names]
    text = wide.reset_index().to_string(index=False, na_rep="-", float_format="%.1f")
    notes = shares.loc[shares["note"] != "", ["file", "note"]].drop_duplicates()
    lines = [f"{file}: {note}" for file, note in notes.itertuples(index=False)]
    return "\n".join(["Percent of the kernel time", text, *lines])


@click.group()
def bench() -> None:
    """Measure one part alone."""


@bench.command("loader")
@click.option(
    "--loader",
    "loaders",
    type=common.Name(READERS),
    multiple=True,
    help="Loader to measure, on the CPU; repeatable. [default: all]",
)
@click.option(
    "--data-format",
    "formats",
    type=common.Name(sorted(FORMATS)),
    multiple=True,
    help="Format of the data; repeatable. [default: folder]",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=1,
    help="Processes of the loader; of DALI, threads.",
)
@click.option("--image-size", type=int, default=224, help="Side of the images in pixels.")
@click.option("--local-batch-size", type=int, default=64, help="Images of a batch.")
@click.option(
    "--images", type=click.IntRange(1, 10**10), help="Number of images to use. [default: all]"
)
@click.option(
    "--epochs",
    type=click.IntRange(1, 1000),
    default=3,
    help="Passes from memory, after one from the disk.",
)
@common.json_option
@common.data_option
def loader_command(
    loaders: tuple[str, ...],
    formats: tuple[str, ...],
    as_json: bool,
    data_dir: Path | None,
    **settings: Any,
) -> None:
    """Measure how fast loaders could feed a training, and where their time goes.

    Each loader is measured alone: first with the files dropped from memory (cold), then from
    memory (the median of --epochs passes), then stage by stage in one thread.
    """
    from ddl_tools.launch.measuring import alone

    folder = data_dir or results().dataset("sample")
    cases = [(loader, form) for loader in loaders or READERS for form in formats or ("folder",)]
    with alone("ddl bench loader"):
        bar = tqdm(cases, desc="loaders", unit="loader", leave=False)
        found = [_measure(loader, form, folder, **settings) for loader, form in bar]
    say_json(found) if as_json else say(_rates(found))


def _measure(
    loader: str, form: str, folder: Path, threads: int, images: int | None, epochs: int, **rest: int
) -> dict[str, Any]:
    from ddl_core.loaders.base import open_loader
    from ddl_tools.datasets import bench as core

    case = {"loader": loader, "data_format": form}
    limit = {"train_images": images} if images else {}
    spec = RunSpec.parse({**case, **rest, **limit, "loader_workers": threads, "work": "load"})
    try:
        opened = open_loader(spec, folder, "train", 0, 1, core.CPU)
    except NotInstalledError as error:
        return {**case, "missing": str(error)}
    core.forget_files(folder, form)
    cold = core.measure_epoch(opened, 0, "cold")
    warm = [core.measure_epoch(opened, 1 + epoch, "warm") for epoch in range(epochs)]
    warm.sort(key=lambda rate: rate.images_per_core_s)
    rates = [cold, warm[len(warm) // 2], *core.stages(spec, folder)]
    return {**case, "threads": threads, "rates": [asdict(rate) for rate in rates]}


def _rates(found: list[dict[str, Any]]) -> str:
    """Return the report for people: a line per loader, its stages below."""
    lines = [f"{'loader':<24}{'':<12}{'images/s':>10}{'images/s per core':>20}"]
    for case in found:
        name = f"{case['loader']}, {case['data_format']}"
        if "missing" in case:
            lines.append(f"{name:<24}{case['missing']}")
        for rate in case.get("rates", ()):
            speeds = f"{rate['images_per_s']:>10.0f}{rate['images_per_core_s']:>20.0f}"
            lines.append(f"{name:<24}{rate['what']:<12}{speeds}")
            name = ""
    return "\n".join(lines)
