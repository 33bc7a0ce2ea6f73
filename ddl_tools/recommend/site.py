"""The search as SLURM jobs on 1, 2 and 4 nodes of a site, and a forecast for more nodes.

The records are the state of the search. A first round starts all configurations twice, a second one
those that are left; all runs of a start and size share the nodes of one job.
"""

import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, SpecError
from ddl_tools.analysis.interleaving import WALL
from ddl_tools.labels import plural
from ddl_tools.launch.slurm import slurm_cli, submit
from ddl_tools.launch.slurm.reconcile import reconciled, with_queue
from ddl_tools.launch.slurm.script import Options
from ddl_tools.launch.slurm.site import clock, find_site
from ddl_tools.launch.slurm.submit import Choice, SubmitPlan
from ddl_tools.recommend.answer import Answer, span, write_study_file
from ddl_tools.recommend.candidates import Request, site_space
from ddl_tools.recommend.race import Race
from ddl_tools.recommend.search import FAILED, Search, study_of
from ddl_tools.records.ledger import counts, ledger, read_study
from ddl_tools.records.paths import SITES, Tree, portable, results_words
from ddl_tools.scaling.accuracy import of_paper, of_records
from ddl_tools.scaling.amdahl import Observation, fit_throughput
from ddl_tools.scaling.configuration import MAX_EXTRAPOLATION, Span
from ddl_tools.scaling.measured import trained
from ddl_tools.study import Study

NODES = (1, 2, 4)
STARTS = 2  # of a round; an interval needs both rounds


class SiteSearch(Search):
    """A search on a SLURM machine; each call of `proceed` submits what is missing."""

    def __init__(
        self, request: Request, tree: Tree, site_name: str, options: Options, max_node_hours: float
    ) -> None:
        site = find_site(site_name)
        found = site_space(request, site, max(NODES))
        # Two sites may have one description, and two files one name.
        file = Path(site_name).resolve()
        own = file.suffix != ".toml" or file.parent == SITES
        place = file.stem if own else portable(file)
        found = replace(found, hardware=f"{place}: {found.hardware}")
        super().__init__(request, tree, found)
        self.site_name, self._max_node_hours = site_name, max_node_hours
        remedy = "lower --minutes, or --max-node-hours for fewer configurations"
        self.options = replace(options, too_long=remedy)
        limit = clock(round(60 * request.minutes))  # of a run; a job has the sum of its runs'
        # Nothing is saved at the notice of the limit, and the next call submits what was cut off.
        self._site = site.model_copy(update={"time": limit, "signal_s": 30, "requeues": 0})

    def race(self, nodes: int | None = None) -> Race[RunSpec]:
        """Return what is left on some nodes; by default on the most that have anything."""
        for size in [nodes] if nodes else NODES[::-1]:
            found = super().race(size)
            if found.left:
                break
        return found

    def proceed(self, show: Callable[[str], None], dry_run: bool = False) -> bool:
        """Submit what is missing of the round that is due; return whether both rounds have ended.

        `show` gets the state, the costs and the jobs. `SpecError` if these may cost more than
        allowed, `LaunchError` if no configuration ran or SLURM refuses a job.
        """
        queue = slurm_cli.queue()
        settled = with_queue if dry_run else reconciled
        if entries := settled(self.entries(), queue):
            show(f"state: {counts(entries)}")
        study = self._due()
        if study is None:
            return True

        def check(plan: SubmitPlan) -> None:
            hours = sum(job.node_hours for job in plan.jobs)
            if plan.jobs:
                show(submit.show_costs(plan.entries, plan.jobs))
            for job in plan.jobs:
                show(f"{job.name}: {plural(len(job.entries), 'run')}, at most {clock(job.limit_s)}")
            if hours > self._max_node_hours:
                raise SpecError(
                    f"these jobs may cost {hours:.1f} node-hours, more than --max-node-hours "
                    f"{self._max_node_hours:g}; allow at least {math.ceil(10 * hours) / 10:g}"
                )

        site, options, choice = self._site, self.options, Choice(by_block=True)
        if dry_run:
            entries = with_queue(ledger(study, self.tree), queue)
            check(submit.prepare(entries, site, options, queue, choice))
            show("dry run: nothing was submitted")
            return False
        data_dir = self.request.data_dir
        jobs = submit.submit(study, self.tree, site, options, choice, data_dir=data_dir, show=check)
        if numbers := list(dict.fromkeys(job_id for _, job_id in jobs)):
            show(f"submitted: {plural(len(numbers), 'job')}, {', '.join(numbers)}")
        study_file = str(write_study_file(study, self.tree))
        words = shlex.join([study_file, *results_words(self.tree)])
        show(f"call again once all jobs have ended; until then: ddl study status {words}")
        return False

    def _due(self) -> Study | None:
        """Return the study with the round that is due; None if all has ended."""
        # Configurations that both rounds together can start.
        room = int(60 * self._max_node_hours / (STARTS * sum(NODES) * self.request.minutes))
        study, entries = read_study(self.name, self.tree), self.entries()
        if study is None:
            chosen = self.space.single_changes()[: max(2, room - 2)]
            sizes = [_on(one, nodes) for one in chosen for nodes in NODES]
            return study_of(self.name, self.request.model, sizes, STARTS).model_copy(
                update={"interleave": None}
            )
        for item in entries:
            if item.state in FAILED:
                reason = f"on {plural(item.spec.nodes, 'node')}: {item.reason}"
                self.failed.setdefault(_on(item.spec), reason)
        if any(item.state not in ("completed", *FAILED) for item in entries):
            return study
        if not (left := self.race().left):
            raise LaunchError(
                f"no configuration ran on {self.site_name}; {'; '.join(self.failed.values())}",
                remedy=f"repair that, remove {self.tree.study(self.name)}, and call again",
            )
        before = [_on(one) for one in study.expand() if one.repeat == 0]
        room = max(0, room - len(before) // len(NODES))
        if study.repeats > STARTS or not room:
            return None
        again = [_on(one) for one in left[:room]]
        axes = [axis if one in again else {**axis, "repeat": [*range(STARTS)]}
                for axis, one in zip(study.axes, before, strict=True)]  # fmt: skip
        return study.model_copy(update={"repeats": 2 * STARTS, "axes": axes})


class SiteAnswer(Answer):
    """The answer of a `SiteSearch`; its configuration is the fastest on most nodes."""

    search: SiteSearch

    def _parts(self) -> dict[str, str]:
        parts = super()._parts()
        given = self.search.options
        options = ["--site", self.search.site_name]
        options += ["--account", given.account] if given.account else []
        options += ["--partition", given.partition] if given.partition else []
        head = {
            "use": f"{parts.pop('use')}; on {plural(self.leader.nodes, 'node')}",
            "speed": parts.pop("speed"),
            **self._sizes(),
            "accuracy": self._accuracy(),
        }
        page = str(self._stem.with_suffix(".html"))
        return head | parts | {"start": self._start("submit", *options), "page": page}

    def _sizes(self) -> dict[str, str]:
        """Return the leader's throughput on each size, and a forecast for more nodes."""
        sizes = [spec for nodes in NODES if self._ids(spec := _on(self.leader, nodes))]
        texts = [f"{plural(one.nodes, 'node')} {span(self._sample(one).mean)}" for one in sizes]
        larger = "unknown: runs of one size only were completed"
        if len(sizes) > 1:
            posterior = fit_throughput([
                Observation(one.world_size, float(self._runs[WALL][run_id]))
                for one in sizes
                for run_id in self._ids(one)
            ])  # fmt: skip
            bands = []
            for one in self._beyond():
                rate = Span(*(float(part[0]) for part in posterior.throughput([one.world_size])))
                bands.append(f"{one.nodes} nodes {rate}")
            larger = f"{', '.join(bands)} images/s (Amdahl's law, 90 % bands); unknown beyond"
        return {"sizes": f"{', '.join(texts)} images/s", "larger": larger}

    def _beyond(self) -> list[RunSpec]:
        """Return the leader on more nodes than were measured."""
        return [_on(self.leader, factor * self.leader.nodes) for factor in (2, MAX_EXTRAPOLATION)]

    def _accuracy(self) -> str:
        """Return what is known of the accuracy with the batches of these sizes."""
        of = self.leader.model, self.leader.dataset, self.search.request.epochs
        known = of_records(trained(self.search.tree, *of[:2]), of[2]) or of_paper(*of)
        if known is None:
            return f"unknown: no training of {of[2]} epochs of this network on {of[1]} is recorded"
        texts = []
        for spec in (self.leader, *self._beyond()):
            schedules, reached = known.at(spec.global_batch_size)
            best = f"{reached} % ({', '.join(schedules)})" if reached else "unknown"
            texts.append(f"batch {spec.global_batch_size:,} {best}")
        return f"{'; '.join(texts)}; from {known.source}"


def _on(spec: RunSpec, nodes: int = max(NODES)) -> RunSpec:
    """Return the first start of a configuration on some nodes."""
    return spec.model_copy(update={"nodes": nodes, "repeat": 0})
