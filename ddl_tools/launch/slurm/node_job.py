"""One command as one SLURM job on one whole node of a site.

The state of the job lies beside its answer, so that each call of the same command knows what is
due: to submit the job, to show its state, or to show the answer.
"""

import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, RecordError, SpecError
from ddl_core.files import describe
from ddl_tools.launch import preflight
from ddl_tools.launch.diagnose import tail
from ddl_tools.launch.slurm import script, slurm_cli
from ddl_tools.launch.slurm.script import JobPlan
from ddl_tools.launch.slurm.site import Site, clock, find_site, seconds
from ddl_tools.launch.slurm.slurm_cli import Queue, SlurmJob
from ddl_tools.processes import uninterrupted
from ddl_tools.records.ledger import exclusive
from ddl_tools.records.paths import SITES, Tree, portable
from ddl_tools.records.storage import Strict, now, read_text, write_atomically

TEMPLATE = "node.sh.j2"
MARGIN_S = 600  # of the job, for its start, figures and page

Show = Callable[[str], None]


class JobState(Strict):
    """The job that a command was submitted as."""

    job_id: str
    submitted_utc: str
    words: tuple[str, ...]  # after `python -m MODULE`, as the job executes it


class NodeJob(ABC):
    """A command on one node of a site; each call of `proceed` does what is due.

    Parameters
    ----------
    words
        Arguments of `module`, as the job executes them.
    name
        Tells this job apart from all others of the user.
    answer
        File that says that the command has ended; the state of the job lies beside it.
    tree
        Where the records go.
    site_name, asked
        The machine, and what the command line asks of the job.
    minutes
        What the command takes, without the job's start.
    """

    module: ClassVar[str]  # executed by `python -m`
    made_by: ClassVar[str]  # command of the user
    noun: ClassVar[str]
    kept: ClassVar[str]  # what a second job does not repeat

    def __init__(
        self,
        words: Sequence[str],
        name: str,
        answer: Path,
        tree: Tree,
        site_name: str,
        asked: JobPlan,
        minutes: float,
    ) -> None:
        self.words, self.name, self.answer, self.tree = tuple(words), name, answer, tree
        self.site_name, self.asked, self.minutes = site_name, asked, minutes
        self.site = _whole_node(find_site(site_name))
        self.limit_s = round(60 * minutes) + MARGIN_S

    @abstractmethod
    def preview(self) -> str:
        """Return what the job will do, as far as it is known without its node, and its cost."""

    @abstractmethod
    def show_answer(self, show: Show, dry_run: bool) -> None:
        """Show what the job has found."""

    def prepare(self) -> None:
        """Get ready for a new job: remove what an earlier one left."""
        self.answer.unlink(missing_ok=True)

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
        """Submit the job, or show its state or its answer.

        A dry run changes nothing and does not ask for the state.

        `SpecError` if the job may cost more than allowed or does not fit the site. `LaunchError` if
        the job ended without an answer, which the next call submits again, or if SLURM refuses it.
        """
        lock = self._beside(".lock")
        with nullcontext() if dry_run else exclusive(lock, f"{self.noun} {self.name!r}"):
            # An error ends this: no job is submitted twice.
            queue = None if dry_run else slurm_cli.queue()
            state = self._state(queue)
            job = _job_of(state, self.job_name, queue)
            answered = self.answer.exists()
            if job and state and not (answered and job.state == "COMPLETING"):
                self._show_job(state, job, show)
            elif answered:
                self.show_answer(show, dry_run)
            elif state and dry_run:
                show(
                    f"dry run: SLURM's queue was not read; job {state.job_id}, submitted "
                    f"{state.submitted_utc}, may still wait or run there"
                )
            elif state:
                raise self._failure(state, queue)
            else:
                self._submit(show, max_node_hours, dry_run)

    def script(self) -> str:
        """Return the script of the job; `SpecError` if it does not fit the site."""
        most_s = seconds(self.site.time_max) - MARGIN_S if self.site.time_max else 0
        lower = f"lower --minutes to at most {most_s // 60}, or " if most_s >= 60 else ""
        remedy = f"{lower}name a --partition that grants more"
        gpus = self.site.gpus_per_node
        spec = RunSpec(gpus_per_node=max(1, gpus), device="cuda" if gpus else "cpu")
        plan = replace(
            self.asked,
            time=clock(self.limit_s),
            spec=spec,
            name=self.job_name,
            log=self.log,
            notice="TERM",
            open_mode="truncate",  # the last lines are those of the last job
            remedy=remedy,
        )
        plan.check(self.site)
        return script.template(TEMPLATE).render(
            **script.job_environment(spec, self.site, plan.project),
            directives=script.directives(plan, self.site),
            gpus=gpus,
            gpus_in_step=self.site.gpu_request == "gpus_per_task",
            python=shlex.quote(plan.python),
            module=self.module,
            made_by=self.made_by,
            words=shlex.join(self.words),
        )

    def cost(self, parts: str) -> str:
        """Return the line about the limit of the job, and the parts of it."""
        return (
            f"cost: at most {self.node_hours:.2f} node-hours, one node for {clock(self.limit_s)} "
            f"({parts})"
        )

    def _beside(self, suffix: str) -> Path:
        """Return a file beside the answer."""
        return self.answer.with_name(self.name + suffix)

    def _state(self, queue: Queue | None) -> JobState | None:
        """Return the job of the search; one in the queue is it, also where no file says so."""
        path, state = self._beside(".job.json"), None
        if path.exists():
            try:
                state = JobState.model_validate_json(read_text(path))
            except ValidationError as error:
                text = f"{path} is not the state of a {self.noun}:\n{describe(error, JobState)}"
                raise RecordError(text, remedy="remove it, and call again") from None
        alive = [one for one, job in (queue or {}).items() if job.name == self.job_name]
        if alive and (state is None or state.job_id not in alive):
            return self._write_state(alive[0])
        return state

    def _write_state(self, job_id: str) -> JobState:
        state = JobState(job_id=job_id, submitted_utc=now(), words=self.words)
        write_atomically(self._beside(".job.json"), state.model_dump_json(indent=1) + "\n")
        return state

    def _submit(self, show: Show, max_node_hours: float, dry_run: bool) -> None:
        text = self.script()
        show(self.preview())
        for note in slurm_cli.notes(text):
            show(note)
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
        self.prepare()
        path = self._beside(".sh")
        write_atomically(path, text)
        with uninterrupted():  # else no file might name the job
            job_id = slurm_cli.submit(path, text)
            self._write_state(job_id)
        show(f"submitted: job {job_id}\n{self._how_to_look(job_id)}")
        for difference in slurm_cli.differences({job_id: text}):
            show(f"warning: {difference}")

    def _how_to_look(self, job_id: str) -> str:
        return (
            "call the same command again for its state and its answer; meanwhile:\n"
            f"  squeue --jobs {job_id}\n"
            f"  {shlex.join(['tail', '-f', str(self.log)])}\n"
            f"  scancel --batch --signal=TERM {job_id}    # ends it with what is known"
        )

    def _show_job(self, state: JobState, job: SlurmJob, show: Show) -> None:
        begun = job.state in slurm_cli.RUNNING
        why = f" ({job.reason})" if job.reason and not begun else ""
        said = tail(self.log) if begun else ""
        show(
            f"job {state.job_id}, submitted {state.submitted_utc}: {job.state}{why}{said}\n"
            f"{self._how_to_look(state.job_id)}"
        )

    def _failure(self, state: JobState, queue: Queue | None) -> LaunchError:
        """Return why there is no answer, and let the next call submit the job again."""
        if queue is None:
            return LaunchError(
                f"{self.noun} {self.name!r} has no answer yet, and there is no squeue here to ask "
                f"for its job {state.job_id}; call again on a login node of {self.site_name}"
            )
        job = (slurm_cli.ended([state.job_id]) or {}).get(state.job_id)
        ending = "left the queue"
        if job and job.name == self.job_name:
            ending = f"ended as {job.state}" + (f" ({job.exit_code})" if job.exit_code else "")
        self._beside(".job.json").unlink(missing_ok=True)
        said = tail(self.log) or f"\n  no log {self.log}: can the node of the job write there?"
        return LaunchError(
            f"job {state.job_id} {ending} without an answer. The next call submits the "
            f"{self.noun} again, which keeps its {self.kept}; if the log shows an error, "
            f"remove its cause first{said}"
        )

    def remove_words(self) -> str:
        """Return the shell command after which the next call submits the job again."""
        return shlex.join(["rm", "-f", str(self.answer), str(self._beside(".job.json"))])


def distinguish(site_name: str, asked: JobPlan, words: Sequence[str]) -> str:
    """Return a text that tells a job apart: its site, partition and words.

    `SpecError` if there is no such site.
    """
    find_site(site_name)
    # Two sites may have one description, and two files one name.
    file = Path(site_name).resolve()
    own = file.suffix != ".toml" or file.parent == SITES
    place = file.stem if own else portable(file)
    return shlex.join([place, asked.partition or "", *words])


def _job_of(state: JobState | None, name: str, queue: Queue | None) -> SlurmJob | None:
    """Return the job of a command, if it is in the queue."""
    job = (queue or {}).get(state.job_id) if state else None
    # Another cluster may have given the number to another job.
    return job if job and job.name == name else None


def _whole_node(site: Site) -> Site:
    """Return a site as one node of it is asked for; `SpecError` if the command finds no GPU there.

    A site without GPUs does not say how many cores a node has: only a node alone has them all.
    """
    if site.gpus_per_node and site.visible_variable != "CUDA_VISIBLE_DEVICES":
        raise SpecError(
            f"visible_variable = {site.visible_variable!r}: `ddl recommend` finds NVIDIA's GPUs "
            "only; measure this site with a study and `ddl study submit`"
        )
    if site.container:
        raise SpecError(
            "the ranks of this site run in a container, and this command starts them outside; "
            "measure this site with a study and `ddl study submit`"
        )
    exclusive_node = site.exclusive or not site.gpus_per_node
    # Ranks of one node meet without MPI.
    return site.model_copy(update={"exclusive": exclusive_node, "horovod_controller": "gloo"})
