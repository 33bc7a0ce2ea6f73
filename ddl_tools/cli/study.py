"""``ddl run`` and ``ddl study``."""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddl_core.config import RunSpec
from ddl_core.errors import FairnessError, LaunchError
from ddl_core.files import writing_to
from ddl_tools.cli import options as common
from ddl_tools.cli.output import say, say_json, say_next
from ddl_tools.names import plural
from ddl_tools.records import ledger as state
from ddl_tools.records.agreement import statements
from ddl_tools.records.damage import checked, verify
from ddl_tools.records.ledger import Entry, counts, entry, ledger, put_aside, remedies
from ddl_tools.records.paths import RunFiles, Tree, committed, repeated, results_words
from ddl_tools.records.run import read_epochs
from ddl_tools.study import ADHOC, Study, is_name

if TYPE_CHECKING:
    from ddl_tools.launch.slurm.slurm_cli import Queue

WATCH_EVERY_S = 2.0
ASK_QUEUE_EVERY_S = 30.0
COUNTED = "for a throughput, raise --epochs or lower --discard-steps"
ENDED = (*state.SETTLED, "failed", "interrupted")


@click.command()
@common.spec_options
@click.option(
    "--study",
    "study_name",
    default=ADHOC,
    metavar="NAME",
    callback=common.checked_name,
    help="Folder the run is kept under.",
)
@common.data_option
@common.results_option
@common.dry_run_option
def run(study_name: str, data_dir: Path | None, tree: Tree, dry_run: bool, **fields: Any) -> None:
    """Train once and record how fast it was.

    For a first try:  ddl run --model resnet18 --loader synthetic --image-size 32
    --train-images 640 --eval-images 64 --local-batch-size 32 --epochs 3
    """
    from ddl_tools.analysis import metrics
    from ddl_tools.launch.plan_notes import bindings, commands, without_throughput
    from ddl_tools.launch.study import check_single, check_start, doubts, plan_run, run_one

    spec = RunSpec.parse(fields)
    directory = tree.study(study_name) / spec.run_id
    if dry_run:
        check_single(spec, study_name, tree)
        say(f"{entry(spec, directory).state}: {directory}")
        _say_all(commands([spec]))
        say(common.command_of(spec, directory))
        return
    images = check_start(spec, study_name, tree, data_dir)
    plan_run(spec, study_name, tree, data_dir)
    say(spec.run_id)
    discarded = without_throughput([spec], images=images, remedy=COUNTED)
    _say_all(discarded, commands([spec]), bindings())
    record = run_one(directory, spec.command)
    say(f"completed: {metrics.describe(read_epochs(directory))}")
    _say_all(*doubts([record]))
    say(f"executed notebook: {RunFiles(directory).notebook}")


def _say_all(*notes: str | None) -> None:
    """Print the notes that are not empty."""
    for note in notes:
        if note:
            say(note)


@click.group()
def study() -> None:
    """Plan, run and watch a study: a question and the grid of runs that answers it.

    STUDY is the name of a file in studies/ (laptop for studies/laptop.yaml), or a path to a .yaml.
    A study that was stopped continues: a completed run is never run again.
    """


@study.command("plan")
@common.study_argument
@common.site_option("Also show the costs on this machine: a name from slurm/, or a path.")
@common.data_option
@common.results_option
@common.dry_run_option
@common.json_option
def plan_command(
    definition: Study,
    site_name: str | None,
    data_dir: Path | None,
    tree: Tree,
    dry_run: bool,
    as_json: bool,
) -> None:
    """List all runs of a study and write their records, without starting any.

    A forecast is the difference between two configurations that the study resolves, with the
    earlier studies whose variation it is from. With --site, you also see the
    maximum node-hours, what runs are expected to take, and open ports, as `ddl study submit` shows
    them.
    """
    from ddl_tools.analysis.design import resolves
    from ddl_tools.cli import answers
    from ddl_tools.launch.plan_notes import (
        commands,
        images_not_known,
        networks_not_found,
        open_ports,
        prefixes,
        short_windows,
        without_throughput,
    )
    from ddl_tools.launch.slurm import expected
    from ddl_tools.launch.slurm.script import JobPlan
    from ddl_tools.launch.slurm.site import find_site
    from ddl_tools.launch.slurm.submit import job_plans
    from ddl_tools.launch.study import check_folders, check_images, pending

    site = find_site(site_name) if site_name else None
    images = check_images(ledger(definition, tree), tree, data_dir)
    if not dry_run:
        state.plan(definition, tree, data_dir)
    entries, runs = ledger(definition, tree), definition.expand()
    interleaved = definition.interleave is not None
    discarded = without_throughput(runs, interleaved=interleaved, images=images)
    left = pending(entries, retry_failed=True)
    notes = (
        *(
            short_windows(runs, images),
            discarded,
            networks_not_found(runs),
            prefixes(runs),
            commands(runs),
        ),
        images_not_known([item.spec for item in left], images),
        put_aside(definition.name, tree),
    )
    plans = job_plans(pending(entries), site, JobPlan()) if site else []
    if as_json:
        jobs = answers.jobs(plans, site_name, site, tree, images) if site_name and site else []
        every = (*notes, resolves(definition, tree))
        say_json(answers.StudyPlan.of(definition.name, entries, every, jobs=jobs))
    else:
        say(common.show_entries(entries))
        say(counts(entries))
        _say_all(*notes)
    if site_name and site:
        common.warn(open_ports(runs, site))
        costs, slow = expected.show(entries, plans, site_name, site, tree, images)
        _say_all(None if as_json else costs)
        common.warn(slow)
        with common.warning("nothing could be submitted"):
            for item in left:
                site.check(item.spec)
    if not as_json:
        say(resolves(definition, tree))
    with common.warning("nothing could be started now"):
        check_folders(left, tree, data_dir)
        if not as_json:
            say_next(_after_plan(left, site_name, data_dir, tree))


def _after_plan(
    left: list[Entry], site_name: str | None, data_dir: Path | None, tree: Tree
) -> list[str]:
    """Return the command that starts what is left of a study, or shows the ratios of all."""
    data = ["--data", str(data_dir)] if data_dir else []
    failed = any(item.state == "failed" for item in left)
    if not left:
        words = ["compare", common.study_word()]
    elif site_name:
        again = ["--retry-failed"] if failed else []
        words = ["submit", common.study_word(), "--site", site_name, *again, *data]
    else:
        words = ["resume" if failed else "run", common.study_word(), *data]
    return ["ddl", "study", *words, *results_words(tree)]


def _start_options(command: common.Command) -> common.Command:
    command = common.data_option(common.results_option(common.dry_run_option(command)))
    parallel = click.option(
        "--parallel",
        type=click.IntRange(1, 1000),
        default=1,
        metavar="N",
        help="Runs at the same time, more than 1 for a study of accuracy alone.",
    )
    return click.argument("name", metavar="STUDY")(parallel(command))


@study.command("run")
@_start_options
def run_command(**options: Any) -> None:
    """Run the missing runs of a study; failed runs are left alone."""
    _start(**options, retry_failed=False)


@study.command("resume")
@_start_options
def resume_command(**options: Any) -> None:
    """Run the missing and the failed runs of a study."""
    _start(**options, retry_failed=True)


@study.command("status")
@common.study_argument
@click.option(
    "--watch",
    is_flag=True,
    help="Show each change until all runs have ended; status 1 if one is incomplete.",
)
@common.results_option
@common.json_option
def status_command(definition: Study, watch: bool, tree: Tree, as_json: bool) -> None:
    """Show which runs are complete, failed, running, in SLURM's queue or missing.

    A failed run has its class of failure in brackets; below is what to do about each class. If a
    job was killed, the record gets the state that SLURM reports. If jobs ended before their runs
    began, you see the last lines of the first one's log. Damaged runs do not count as complete: see
    `ddl study verify`. A line says whether the weights of the frameworks are equal.
    """
    from ddl_tools.cli import answers
    from ddl_tools.launch.study import live

    if watch and as_json:
        raise click.UsageError("--json is one answer; leave --watch out")
    watcher, shown = _Watcher(), ""
    while True:
        entries = watcher.look(definition, tree)
        if as_json:
            notes = (*live(entries), put_aside(definition.name, tree))
            notes = (*common.log_of_unstarted(entries), *notes)
            say_json(answers.StudyStatus.of(definition.name, entries, notes))
            return
        parts = [common.show_entries(entries), counts(entries), *common.log_of_unstarted(entries)]
        parts += [*remedies(entries), *live(entries), *statements(entries)]
        others = put_aside(definition.name, tree)
        text = "\n".join([*parts, *([others] if others else [])])
        if text != shown:
            if watch:
                click.clear()
            say(text)
            common.warn_of_disagreement(entries)
            shown = text
        complete = all(item.state == "completed" for item in entries)
        if complete:
            say_next(["ddl", "study", "compare", common.study_word(), *results_words(tree)])
        if not watch:
            return
        if all(item.state in ENDED for item in entries):
            sys.exit(not complete)
        time.sleep(WATCH_EVERY_S)


class _Watcher:
    """Reader of the runs of a study: it reads only changed records, and asks SLURM seldom."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], Entry]] = {}
        self._states: list[str] = []
        self._queue: Queue | None = None
        self._due = 0.0

    def look(self, definition: Study, tree: Tree) -> list[Entry]:
        """Return the ledger, joined with what SLURM says of its jobs."""
        from ddl_tools.launch.slurm import reconcile

        entries = ledger(definition, tree, self._entry)
        before, self._states = self._states, [item.state for item in entries]
        # The queue says nothing of other runs.
        if not any(item.job_id and item.state not in state.SETTLED for item in entries):
            return entries
        if self._states == before and time.monotonic() < self._due:
            return reconcile.with_queue(entries, self._queue)
        self._due = time.monotonic() + ASK_QUEUE_EVERY_S
        self._queue = common.ask_queue()
        return reconcile.settle(reconcile.with_queue(entries, self._queue))

    def _entry(self, spec: RunSpec, directory: Path) -> Entry:
        try:
            now = RunFiles(directory).record.stat()
        except OSError:  # missing, or published
            return checked([entry(spec, directory)])[0]
        stamp = (now.st_mtime_ns, now.st_ino)
        if (known := self._known.get(directory)) and known[0] == stamp:
            return known[1]
        (found,) = checked([entry(spec, directory)])
        # These also depend on who holds a lock.
        if found.state not in ("running", "interrupted", "unknown"):
            self._known[directory] = (stamp, found)
        return found


@study.command("verify")
@click.argument("name", metavar="STUDY")
@common.results_option
def verify_command(name: str, tree: Tree) -> None:
    """Check the records of a study for damage; status 1 if there is any.

    Checks that each run ID matches its settings, that all expected lines are present, and that the
    values are possible. STUDY may also be a study without a file here.
    """
    from ddl_tools.analysis.tables import used

    if Path(name).suffix in (".yaml", ".yml"):
        name = Study.load(Path(name)).name
    runs = [used(run) for run in verify(tree, name)]
    _say_all(*(line for run in runs for line in run.lines()))
    damaged = sum(bool(run.damages) for run in runs)
    unknown = sum(run.is_unknown for run in runs)
    text = (
        f"{plural(len(runs), 'record')} of {name}: {len(runs) - damaged} whole, "
        f"{damaged - unknown} damaged"
    )
    say(f"{text}, {unknown} of plug-ins that are not installed here" if unknown else text)
    sys.exit(damaged > 0)


@study.command("compare")
@common.study_argument
@common.results_option
@common.json_option
def compare_command(definition: Study, tree: Tree, as_json: bool) -> None:
    """Compare each configuration of a study with its baseline.

    Prints ratios of epochs of the same round, with 95 % intervals over starts. Without `interleave`
    in the study file, these are ratios of whole runs, to the configuration that changes the fewest
    settings. If the study is published, the last line says how many of its decided ratios your
    measurement confirms.
    """
    from ddl_tools.analysis.pages import compare
    from ddl_tools.cli import answers

    points, lines = compare(definition, tree)
    if as_json:
        rows = points.to_dict(orient="records")
        say_json(answers.StudyCompare(study=definition.name, configurations=rows, sentences=lines))
    else:
        say("\n".join(lines))


def _study_or_file(context: click.Context, parameter: click.Parameter, value: str) -> str | Path:
    """Return the name of a study, or the path of a file of records."""
    if not is_name(value) and (value.endswith(".zip") or Path(value).is_file()):
        return Path(value)
    return common.checked_name(context, parameter, value)


@study.command("publish")
@click.argument("source", metavar="NAME|FILE", callback=_study_or_file)
@click.option(
    "--second", is_flag=True, help="As a second measurement of a published study, to data/second/."
)
@common.results_option
def publish_command(source: str | Path, second: bool, tree: Tree) -> None:
    """Append the records of completed runs to the files of data/runs/, to be committed.

    NAME is a study in the folder of the records. FILE is a zip file with records of one or more
    studies, which `make gpu` wrote on any machine. If one of its records cannot be published, none
    is copied.
    """
    from ddl_tools.records.archive import publish_file
    from ddl_tools.records.publish import publish_all

    common.require_clone("data/", "publish these records from one: ddl study publish --results DIR")
    target = repeated() if second else committed()
    with writing_to(""):  # the place is fixed
        if isinstance(source, Path):
            found = publish_file(source, target)
        else:
            found = publish_all([source], tree, target)
    for name, done in found.items():
        for doubt in done.warnings:
            common.warn(doubt)
        for skipped in done.skipped:
            say(f"not published: {skipped}", err=True)
        text = f"{len(done.new)} published, {len(done.unchanged)} published before"
        say(text if name == source else f"{name}: {text}")
    if any(done.new for done in found.values()):
        say_next(["ddl", "figures"], ["git", "add", "data", "figures", "docs", "README.md"])


@study.command("export")
@click.argument("name", metavar="NAME", callback=common.checked_name)
@click.argument("folder", metavar="DIR", type=common.FOLDER, callback=common.output)
def export_command(name: str, folder: Path) -> None:
    """Write a published study as an RO-Crate, to be deposited in a research data repository.

    DIR must be new or empty. It gets the files of the study in data/runs/, the licence of the
    data, and ro-crate-metadata.json. Needs the package `rocrate`, of requirements/export.txt.
    """
    from ddl_tools.datasets.output import is_made, new_folder
    from ddl_tools.records.crate import require_published, write_crate

    require_published(name, committed())
    is_made(folder, None, {})
    with new_folder(folder, 0) as part:
        runs = write_crate(name, committed(), part)
    say(f"{plural(runs, 'run')} of {name} exported to {folder}")


def _start(
    name: str, parallel: int, data_dir: Path | None, tree: Tree, dry_run: bool, retry_failed: bool
) -> None:
    from ddl_tools.launch.plan_notes import bindings, commands, prefixes, without_throughput
    from ddl_tools.launch.study import find_study, pending, run_study, summary

    definition = find_study(name)
    options = {
        "--parallel": parallel if parallel > 1 else None,
        "--data": data_dir,
    }
    given = [str(part) for pair in options.items() if pair[1] for part in pair]
    same = shlex.join([name, *given, *results_words(tree)])
    interleaved = definition.interleave is not None
    runs = definition.expand()
    _say_all(
        without_throughput(runs, interleaved=interleaved),
        prefixes(runs),
        commands(runs),
        bindings(),
    )
    if dry_run:
        entries = ledger(definition, tree)
        todo = pending(entries, retry_failed)
        say(common.show_entries(entries))
        say(counts(entries))
        how = f"{parallel} at the same time" if parallel > 1 else "one after the other"
        say(f"would run {len(todo)}, {'interleaved' if interleaved else how}:")
        for item in todo:
            say(f"  {common.command_of(item.spec, item.directory)}")
        return
    try:
        entries = run_study(
            definition, tree, retry_failed=retry_failed, data_dir=data_dir, parallel=parallel
        )
        entries = checked(entries)
    except KeyboardInterrupt:
        say(summary(checked(ledger(definition, tree))), err=True)
        again = "resume" if retry_failed else "run"
        say(f"stopped; go on with: ddl study {again} {same}", err=True)
        raise
    say(summary(entries))
    _say_all(put_aside(definition.name, tree))
    disagree = common.warn_of_disagreement(entries)
    if open_runs := sum(item.state != "completed" for item in entries):
        raise LaunchError(
            f"not complete: {open_runs} of {plural(len(entries), 'run')}; the output of each rank "
            f"is in logs/ of the run's folder below {tree.study(definition.name)}; "
            f"try them again with: ddl study resume {same}"
        )
    if disagree:
        raise FairnessError(
            "the weights of some frameworks differ, see above: these runs are not comparable"
        )
    say_next(
        ["ddl", "study", "compare", name, *results_words(tree)],
        ["ddl", "figures", "--study", definition.name, "--results", tree.root],
    )
