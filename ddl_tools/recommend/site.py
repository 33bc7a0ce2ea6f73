"""The search as one SLURM job on one node of a site, and a study of its answer on more nodes.

The job executes `ddl recommend` without ``--site``; ``--as`` names its search. The state of the job
lies beside the answer, so that each call of the same command knows what is due.
"""

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, RecordError, SpecError
from ddl_core.files import describe
from ddl_core.registry import title
from ddl_tools.labels import plural
from ddl_tools.launch import preflight
from ddl_tools.launch.diagnose import tail
from ddl_tools.launch.slurm import script, slurm_cli
from ddl_tools.launch.slurm.script import Batch, JobPaths, Options
from ddl_tools.launch.slurm.site import Site, clock, find_site, seconds
from ddl_tools.launch.slurm.slurm_cli import Queue, QueuedJob
from ddl_tools.processes import uninterrupted
from ddl_tools.recommend.answer import answer_file, training_file, write_study_file
from ddl_tools.recommend.candidates import Request, search_name, site_space
from ddl_tools.records.ledger import exclusive
from ddl_tools.records.paths import PROJECT, SITES, Tree, portable, results_words
from ddl_tools.records.storage import Strict, now, read_text, write_atomically
from ddl_tools.study import Study

TEMPLATE = "recommend.sh.j2"
MARGIN_S = 600  # of the job, for its start, figures and page
NODES = (1, 2, 4)
# Of the study of more nodes: one warm-up epoch and two measured ones.
EPOCHS, STEPS, STARTS = 3, 50, 3

Show = Callable[[str], None]


class JobState(Strict):
    """The job that a search was submitted as."""

    job_id: str
    submitted_utc: str
    words: tuple[str, ...]  # of `ddl`, as the job executes it


class SiteSearch:
    """A search on one node of a site; each call of `proceed` does what is due.

    Parameters
    ----------
    request
        Model, data and time of the search.
    words
        Options of `ddl recommend` that the job repeats; all of them tell searches apart.
    tree
        Where the records and the answer go.
    site_name, options
        The machine, and what the command line says about the job.
    """

    def __init__(
        self, request: Request, words: Sequence[str], tree: Tree, site_name: str, options: Options
    ) -> None:
        self.request, self.tree, self.site_name, self.options = request, tree, site_name, options
        self.site = _whole_node(find_site(site_name))
        # Two sites may have one description, and two files one name.
        file = Path(site_name).resolve()
        own = file.suffix != ".toml" or file.parent == SITES
        place = file.stem if own else portable(file)
        words = [*words, f"--data={request.data_dir}", f"--results={tree.root}"]
        text = shlex.join([place, options.partition or "", *words])
        self.name = search_name(request.model, text)
        self.words = ("recommend", *words, f"--as={self.name}")
        self.limit_s = round(60 * request.minutes) + MARGIN_S

    @property
    def job_name(self) -> str:
        """Name of the job in SLURM's queue."""
        return f"ddl-{self.name}"

    @property
    def log(self) -> Path:
        """Output of the job."""
        return self._beside(".log")

    @property
    def node_hours(self) -> float:
        """What the job may cost at most."""
        return self.limit_s / 3600

    def proceed(self, show: Show, max_node_hours: float, dry_run: bool = False) -> None:
        """Submit the search, or show its state or its answer; a dry run changes nothing.

        `SpecError` if the job may cost more than allowed or does not fit the site. `LaunchError` if
        the job ended without an answer, which the next call submits again, or if SLURM refuses it.
        """
        lock = self._beside(".lock")
        with nullcontext() if dry_run else exclusive(lock, f"search {self.name!r}"):
            queue = slurm_cli.queue()  # an error ends this: no search is submitted twice
            state = self._state(queue, dry_run)
            job = _job_of(state, self.job_name, queue)
            answered = answer_file(self.tree, self.name).exists()
            if job and state and not (answered and job.state == "COMPLETING"):
                self._show_job(state, job, show)
            elif answered:
                self._show_answer(show, dry_run)
            elif state:
                raise self._failure(state, queue, dry_run)
            else:
                self._submit(show, max_node_hours, dry_run)

    def script(self) -> str:
        """Return the script of the job; `SpecError` if it does not fit the site."""
        most_s = seconds(self.site.time_max) - MARGIN_S if self.site.time_max else 0
        lower = f"lower --minutes to at most {most_s // 60}, or " if most_s >= 60 else ""
        remedy = f"{lower}name a --partition that grants more"
        options = replace(self.options, time=clock(self.limit_s), too_long=remedy)
        options.check(self.site)
        options.check_length(self.site, self.job_name, runs=1)
        paths = JobPaths((self.log,), PROJECT, sys.executable)
        paths.check()
        gpus = self.site.gpus_per_node
        spec = RunSpec(gpus_per_node=max(1, gpus), device="cuda" if gpus else "cpu")
        batch = Batch(
            self.job_name,
            self.log.parent,
            self.log.name,
            self.limit_s,
            notice="TERM",
            open_mode="truncate",  # the last lines are those of the last job
        )
        return script.template(TEMPLATE).render(
            **script.job_environment(spec, self.site, PROJECT),
            directives=script.directives(batch, spec, self.site, options, PROJECT),
            gpus=gpus,
            gpus_in_step=self.site.gpu_request == "gpus_per_task",
            python=shlex.quote(sys.executable),
            words=shlex.join(self.words),
        )

    def preview(self) -> str:
        """Return what the job will try, as far as it is known without its node.

        `DataError` if the folder holds no data set, or too few images.
        """
        found, gpus = site_space(self.request, self.site), self.site.gpus_per_node
        if gpus and max(self.request.workers, default=1) > gpus:
            raise SpecError(
                f"--workers {max(self.request.workers)}: a node of this site has "
                f"{plural(gpus, 'GPU')}, and each rank needs one of its own"
            )
        strategies = ", ".join(title("strategy", name) for name in ("ddp", *found.strategies))
        loaders = dict.fromkeys(title("loader", level["loader"]) for level in found.loaders)
        parts = (
            f"{self.request.minutes:g} min of search, {MARGIN_S // 60} min for start and figures"
        )
        lines = [
            f"site: {self.site.description}; one node with "
            f"{plural(gpus, 'GPU') if gpus else 'all its cores'}",
            f"data: {found.images:,} training images in {self.request.data_dir}",
            f"strategies: {strategies}",
            f"loaders: {', '.join(loaders)}",
            "numbers of ranks and further settings: as the node of the job allows",
            *(f"not tried: {one}" for one in found.missing),
            f"cost: at most {self.node_hours:.2f} node-hours, one node for {clock(self.limit_s)} "
            f"({parts})",
        ]
        return "\n".join(lines)

    def _beside(self, suffix: str) -> Path:
        """Return a file in the folder of the answers."""
        return answer_file(self.tree, self.name).with_suffix(suffix)

    def _state(self, queue: Queue | None, dry_run: bool) -> JobState | None:
        """Return the job of the search; one in the queue is it, also where no file says so."""
        path, state = self._beside(".job.json"), None
        if path.exists():
            try:
                state = JobState.model_validate_json(read_text(path))
            except ValidationError as error:
                text = f"{path} is not the state of a search:\n{describe(error, JobState)}"
                raise RecordError(text, remedy="remove it, and call again") from None
        alive = [one for one, job in (queue or {}).items() if job.name == self.job_name]
        if alive and (state is None or state.job_id not in alive):
            return self._write_state(alive[0], dry_run)
        return state

    def _write_state(self, job_id: str, dry_run: bool = False) -> JobState:
        state = JobState(job_id=job_id, submitted_utc=now(), words=self.words)
        if not dry_run:
            write_atomically(self._beside(".job.json"), state.model_dump_json(indent=1) + "\n")
        return state

    def _submit(self, show: Show, max_node_hours: float, dry_run: bool) -> None:
        text = self.script()
        show(self.preview())
        if self.node_hours > max_node_hours:
            raise SpecError(
                f"this job may cost {self.node_hours:.2f} node-hours, more than --max-node-hours "
                f"{max_node_hours:g}; lower --minutes, or allow at least "
                f"{math.ceil(100 * self.node_hours) / 100:g}"
            )
        if dry_run:
            show(f"\n# {self._beside('.sh')}\n{text}\ndry run: nothing was submitted")
            return
        preflight.check_room(self.tree.root)
        self._nodes_file.unlink(missing_ok=True)
        path = self._beside(".sh")
        write_atomically(path, text)
        with uninterrupted():  # else no file might name the job
            job_id = slurm_cli.submit(path)
            self._write_state(job_id)
        show(f"submitted: job {job_id}\n{self._how_to_look(job_id)}")

    def _how_to_look(self, job_id: str) -> str:
        return (
            "call the same command again for its state and its answer; meanwhile:\n"
            f"  squeue --jobs {job_id}\n"
            f"  {shlex.join(['tail', '-f', str(self.log)])}\n"
            f"  scancel --batch --signal=TERM {job_id}    # ends the search with what is known"
        )

    def _show_job(self, state: JobState, job: QueuedJob, show: Show) -> None:
        begun = job.state in slurm_cli.RUNNING
        why = f" ({job.reason})" if job.reason and not begun else ""
        said = tail(self.log) if begun else ""
        show(
            f"job {state.job_id}, submitted {state.submitted_utc}: {job.state}{why}{said}\n"
            f"{self._how_to_look(state.job_id)}"
        )

    def _failure(self, state: JobState, queue: Queue | None, dry_run: bool) -> LaunchError:
        """Return why there is no answer, and let the next call submit the search again."""
        if queue is None:
            return LaunchError(
                f"search {self.name!r} has no answer yet, and there is no squeue here to ask for "
                f"its job {state.job_id}; call again on a login node of {self.site_name}"
            )
        job = (slurm_cli.ended([state.job_id]) or {}).get(state.job_id)
        ending = "left the queue"
        if job and job.name == self.job_name:
            ending = f"ended as {job.state}" + (f" ({job.exit_code})" if job.exit_code else "")
        if not dry_run:
            self._beside(".job.json").unlink(missing_ok=True)
        said = tail(self.log) or f"\n  no log {self.log}: can the node of the job write there?"
        return LaunchError(
            f"job {state.job_id} {ending} without an answer. The next call submits the search "
            "again, which keeps its completed starts; if the log shows an error, remove its cause "
            f"first{said}"
        )

    def _show_answer(self, show: Show, dry_run: bool) -> None:
        training = training_file(self.tree, self.name)
        study = nodes_study(Study.load(training), f"{self.name}_nodes")
        if not dry_run and not self._nodes_file.exists():
            write_study_file(study, self.tree)
        show(read_text(answer_file(self.tree, self.name)))
        nodes = ", ".join(map(str, NODES))
        state = [answer_file(self.tree, self.name), self._beside(".job.json")]
        show(
            f"on {self.site_name}, in place of the line start:\n"
            f"  {self._submission(training)}\n"
            f"the same configuration on {nodes} nodes, first the cost:\n"
            f"  {self._submission(self._nodes_file)} --dry-run\n"
            "to measure longer, in place of the line page: this, then the same command again\n"
            f"  {shlex.join(['rm', '-f', *map(str, state)])}"
        )

    @property
    def _nodes_file(self) -> Path:
        return answer_file(self.tree, self.name).with_name(f"{self.name}_nodes.yaml")

    def _submission(self, study_file: Path) -> str:
        given = self.options
        words = ["ddl", "study", "submit", str(study_file), "--data", str(self.request.data_dir)]
        words += ["--site", self.site_name, *results_words(self.tree)]
        words += ["--account", given.account] if given.account else []
        words += ["--partition", given.partition] if given.partition else []
        return shlex.join(words)


def nodes_study(training: Study, name: str) -> Study:
    """Return the study of a training's configuration on 1, 2 and 4 nodes, in short epochs."""
    base = {field: value for field, value in training.base.items() if field != "nodes"}
    if base.get("strategy", "single") == "single":
        base["strategy"] = "ddp"  # of one rank a node
    short = {"epochs": EPOCHS, "min_steps_per_epoch": STEPS, "eval_every": 0, "checkpoint_every": 0}
    return Study(
        name=name,
        question="How does the throughput of the recommended configuration grow with the nodes?",
        base=base | short,
        axes=[{"nodes": [*NODES]}],
        repeats=STARTS,
    )


def _job_of(state: JobState | None, name: str, queue: Queue | None) -> QueuedJob | None:
    """Return the job of a search, if it is in the queue."""
    job = (queue or {}).get(state.job_id) if state else None
    # Another cluster may have given the number to another job.
    return job if job and job.name == name else None


def _whole_node(site: Site) -> Site:
    """Return a site as one node of it is asked for; `SpecError` if the search finds no GPU there.

    A site without GPUs does not say how many cores a node has: only a node alone has them all.
    """
    if site.gpus_per_node and site.visible_variable != "CUDA_VISIBLE_DEVICES":
        raise SpecError(
            f"visible_variable = {site.visible_variable!r}: `ddl recommend` finds NVIDIA's GPUs "
            "only; measure this site with a study and `ddl study submit`"
        )
    exclusive_node = site.exclusive or not site.gpus_per_node
    # Ranks of one node meet without MPI.
    return site.model_copy(update={"exclusive": exclusive_node, "horovod_controller": "gloo"})
