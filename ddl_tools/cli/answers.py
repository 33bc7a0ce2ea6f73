"""What commands print with ``--json``: models, of which docs/reference/json.md shows the fields."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, Field

from ddl_core.config import RunSpec
from ddl_core.errors import Category
from ddl_tools.records import agreement
from ddl_tools.records.ledger import Entry, State
from ddl_tools.records.paths import Tree

if TYPE_CHECKING:
    from ddl_tools.launch.slurm.expected import Expected
    from ddl_tools.launch.slurm.script import JobPlan
    from ddl_tools.launch.slurm.site import Site


def settings(spec: RunSpec) -> dict[str, Any]:
    """Return the fields of a run that are not at their defaults."""
    return spec.model_dump(mode="json", exclude_defaults=True)


class OneRun(BaseModel):
    """A run of a study."""

    run_id: str = Field(description="name of the run")
    state: State = Field(description="as `ddl study status` shows it")
    category: Category | None = Field(description="class of failure; null without one")
    reason: str = Field(description="why it ended badly; empty if it did not")
    job_id: str | None = Field(description="SLURM job that it was last submitted as")
    queued: bool | None = Field(
        description="whether the job is in the queue; null if SLURM was not asked"
    )
    directory: Path = Field(description="folder of its files")
    settings: dict[str, Any] = Field(description="run fields that are not at their defaults")

    @classmethod
    def of(cls, item: Entry) -> Self:
        """Return a run of the ledger."""
        known = {name: getattr(item, name) for name in cls.model_fields if hasattr(item, name)}
        return cls(**known, run_id=item.spec.run_id, settings=settings(item.spec))


class StudyStatus(BaseModel):
    """Answer of `ddl study status --json`."""

    study: str = Field(description="name of the study")
    counts: dict[State, int] = Field(description="number of runs in each state")
    runs: list[OneRun] = Field(description="all runs, in the order of the study")
    remedies: list[str] = Field(description="what to do about each class of failure")
    weights: list[str] = Field(description="statements on the equality of final weights")
    weights_differ: bool = Field(description="whether weights differ that must be equal")
    notes: list[str] = Field(description="other lines of the text")

    @classmethod
    def of(
        cls, study: str, entries: list[Entry], notes: Iterable[str | None] = (), **more: Any
    ) -> Self:
        """Return the state of the runs of a study."""
        from ddl_tools.records.ledger import remedies

        return cls(
            study=study,
            counts=Counter(item.state for item in entries),
            runs=[OneRun.of(item) for item in entries],
            remedies=remedies(entries),
            weights=agreement.statements(entries),
            weights_differ=bool(agreement.alarm(entries)),
            notes=[note for note in notes if note],
            **more,
        )


class Job(BaseModel):
    """A SLURM job that is submitted, or would be."""

    name: str = Field(description="name of the job")
    job_id: str | None = Field(None, description="number of the job; null before it is submitted")
    runs: list[str] = Field(description="`run_id` of its runs, in their order")
    nodes: int = Field(description="number of nodes")
    time_limit_s: int = Field(description="time limit of one start (s)")
    node_hours_at_most: float = Field(description="nodes × time limit × starts")
    expected_hours: float | None = Field(
        description="expected training time of all its runs (h); null if a rate is not known"
    )
    script: Path = Field(description="file of the script")
    script_text: str | None = Field(description="content of the script; null in `ddl study plan`")

    @classmethod
    def of(
        cls, plan: "JobPlan", site: "Site", expected: "Mapping[str, Expected]", text: str | None
    ) -> Self:
        """Return the job of a plan."""
        from ddl_tools.records.paths import RunFiles

        ids = [item.spec.run_id for item in plan.runs]
        hours = [expected[one].hours for one in ids if one in expected]
        return cls(
            name=plan.name,
            runs=ids,
            nodes=plan.spec.machines,
            time_limit_s=plan.limit_s(site),
            node_hours_at_most=plan.node_hours(site),
            expected_hours=sum(hours) if len(hours) == len(ids) else None,
            script=RunFiles(plan.runs[0].directory).script,
            script_text=text,
        )


def jobs(
    plans: "list[JobPlan]",
    site_name: str,
    site: "Site",
    tree: Tree,
    images: Mapping[str, int],
    text: "Callable[[JobPlan, Site], str] | None" = None,
) -> list[Job]:
    """Return the jobs of plans, with what their runs are expected to take.

    `text` returns the script of a job.
    """
    from ddl_tools.launch.slurm.expected import expected_times

    specs = [item.spec for plan in plans for item in plan.runs]
    expected = expected_times(specs, site_name, site, tree, images)
    return [Job.of(plan, site, expected, text(plan, site) if text else None) for plan in plans]


class StudyPlan(StudyStatus):
    """Answer of `ddl study plan --json`: that of `status`, with jobs if a site is named."""

    jobs: list[Job] = Field(
        description="jobs of the site that would be submitted; without a site, none"
    )


class StudySubmit(BaseModel):
    """Answer of `ddl study submit --json`."""

    study: str = Field(description="name of the study")
    site: str = Field(description="machine")
    dry_run: bool = Field(description="whether nothing was submitted")
    jobs: list[Job] = Field(description="the jobs")
    node_hours_at_most: float = Field(description="sum over the jobs")


class StudyCompare(BaseModel):
    """Answer of `ddl study compare --json`."""

    study: str = Field(description="name of the study")
    configurations: list[dict[str, Any]] = Field(
        description="rows of `comparison.csv`, which `ddl figures` writes"
    )
    sentences: list[str] = Field(description="the lines of the text")


class Advise(BaseModel):
    """Answer of `ddl advise --json`."""

    request: str = Field(description="the training")
    certain: bool = Field(
        description="whether the whole range of the advised option meets the limits"
    )
    advised: dict[str, Any] = Field(description="the advised row of `options`")
    options: list[dict[str, Any]] = Field(
        description="rows of the file that `--figure` writes, fastest first"
    )


class Proposal(BaseModel):
    """Answer of `ddl proposal --json`."""

    study: str = Field(description="name of the study")
    first: list[str] = Field(description="what readers must know before all else")
    tables: list[list[dict[str, str]]] = Field(
        description="rows of each table of the page, as its texts by heading"
    )
    files: list[str] = Field(description="what was written, the page as Markdown first")


class Ratio(BaseModel):
    """A ratio of two throughputs."""

    value: float | None = Field(description="the ratio")
    low: float | None = Field(description="lower end of the 95 % interval; null without one")
    high: float | None = Field(description="upper end")
    n: int = Field(description="number of starts")


class Recommend(BaseModel):
    """Answer of `ddl recommend --json`."""

    verdict: str = Field(description="whether a gain is proven")
    recommended: dict[str, Any] = Field(
        description="run fields of the recommended configuration that are not at their defaults"
    )
    default: dict[str, Any] = Field(
        description="the same of the default: what PyTorch does by itself, or a command with "
        "the first values to try"
    )
    unfit: list[str] = Field(
        description="what ran out of memory before a default was found that fits; else empty"
    )
    ratio: Ratio = Field(description="the fastest configuration to the default")
    hours: float | None = Field(
        description="time of the whole training (h); null for a command of your own"
    )
    command: str = Field(description="command that starts the whole training")
    lines: list[str] = Field(description="the text of the answer")
    stopped: bool = Field(description="whether Ctrl-C ended the search")


class OneFinding(BaseModel):
    """A line of the report of `ddl doctor`."""

    subject: str = Field(description="part of the machine")
    state: str = Field(description="`ok`, `warn`, `bad` or `unknown`")
    detail: str = Field(description="what was found")
    remedy: str = Field(description="what to do")


class Doctor(BaseModel):
    """Answer of `ddl doctor --json`."""

    ready: bool = Field(description="whether no finding is bad")
    findings: list[OneFinding] = Field(description="the report")


MODELS: tuple[type[BaseModel], ...] = (
    *(StudyStatus, StudyPlan, OneRun, Job, StudySubmit, StudyCompare),
    *(Advise, Proposal, Recommend, Ratio, Doctor, OneFinding),
)
