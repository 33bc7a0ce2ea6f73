"""The answer of a search, and the files that go with it, all from its records."""

import math
import shlex
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path

import yaml

from ddl_core.config import RunSpec
from ddl_core.errors import Interrupted, LaunchError
from ddl_core.files import some
from ddl_core.registry import title
from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import commits
from ddl_tools.analysis.interleaving import WALL, Interleaved, Sample
from ddl_tools.analysis.metrics import J_PER_KWH
from ddl_tools.analysis.redraw import redraw
from ddl_tools.analysis.tables import write_tables
from ddl_tools.estimate import Estimate, three_digits
from ddl_tools.launch.report import write_study_page
from ddl_tools.markdown import plain
from ddl_tools.recommend import plan
from ddl_tools.recommend.plan import STARTS, Verdict
from ddl_tools.recommend.search import Search, Starts, first
from ddl_tools.recommend.search_space import change, named, settings
from ddl_tools.records import agreement
from ddl_tools.records.ledger import read_study
from ddl_tools.records.paths import Tree, results_words
from ddl_tools.records.storage import write_atomically
from ddl_tools.scaling.candidate import Candidate
from ddl_tools.scaling.options import Option, options
from ddl_tools.scaling.render import WORDS
from ddl_tools.study import Study, YamlDumper

TEMPLATE = Path(__file__).with_name("answer.j2")
MEGABYTE = 1e6
# Fields that shape the measurement and not the training.
_OF_SEARCH = {
    *("epochs", "train_images", "min_steps_per_epoch", "discard_steps"),
    *("eval_every", "checkpoint_every", "repeat", "uncached"),
}
LOADER, COMMUNICATION, WAITING, COMPUTE = "loader", "communication", "waiting", "compute"


class Outcome(ABC):
    """What a search has found; `lines` are the answer, `write` makes its files.

    `chosen` is the recommended configuration. `LaunchError` if nothing is known yet. `Interrupted`
    if nothing is known because the user ended the search.
    """

    def __init__(self, search: Starts) -> None:
        self.search, self.space, self.known = search, search.space, search.known
        self.default = self.space.default
        if not any(self.known.starts.values()):
            failure = search.first_failure()
            text = f"no configuration was started{failure and f'; {failure}'}"
            if search.stopped:
                raise Interrupted(text, remedy="the same command goes on")
            raise LaunchError(text, remedy="allow more --minutes")
        self._entries = search.entries()
        runs, windows = write_tables(search.tree, search.name)
        runs = runs.assign(value=runs[WALL], commit=commits(runs))
        self._runs = runs.set_index("run_id", drop=False)
        self._windows = Interleaved(windows)
        ranking = plan.ranking(self.space, self.known)
        self.leader = next(iter(ranking), self.default)
        self.ratio = self._ratio(self.leader, self.default)
        self.busy = search.load.others
        self.verdict = plan.verdict(self.ratio, self.busy or 0.0, len(ranking))
        moved = self.verdict in (Verdict.PROVEN, Verdict.UNPROVEN)
        self.chosen = self.leader if moved else self.default
        self.alarm = agreement.alarm(self._entries)
        self.page = search.tree.root / "recommend" / f"{search.name}.html"
        self._training_file = training_file(search.tree, search.name)

    @cached_property
    def lines(self) -> list[str]:
        """The answer, its parts, and how to use it."""
        return written(self)

    @property
    @abstractmethod
    def default_name(self) -> str:
        """The default in words."""

    @property
    @abstractmethod
    def start(self) -> str:
        """The command that starts the whole training."""

    @property
    @abstractmethod
    def training(self) -> Study | None:
        """The study of the whole training, if this project trains."""

    @property
    @abstractmethod
    def hours(self) -> float | None:
        """Time of the whole training, if it is known."""

    @property
    @abstractmethod
    def untried(self) -> list[str]:
        """What was not measured, and why."""

    def change(self, spec: RunSpec) -> str:
        """Return a configuration by what it changes of the default."""
        return change(spec, self.default)

    @property
    def minutes(self) -> int:
        """How many more minutes would prove what was found, if it is true."""
        starts = STARTS
        if self.ratio.n > 1:
            spread = self.ratio.log_se * math.sqrt(self.ratio.n)
            while starts < 100 and estimates.resolution(spread, starts) > self.ratio.value - 1:
                starts += 1
        block_s = self.search.block_s([self.default, self.leader])
        return max(1, math.ceil(max(1, starts - self.ratio.n) * block_s / 60))

    def write(self) -> Path | None:
        """Write the studies, of the search and of the training, the lines, and the page.

        Return the figure, if one is drawn.
        """
        tree = self.search.tree
        for study in (read_study(self.search.name, tree), self.training):
            if study:
                write_study_file(study, tree)
        redraw(tree, figures=tree.figures, studies=[self.search.name])
        write_study_page(tree, self.search.name, self.lines, self.page)
        # The last one: `ddl recommend --site` takes it for the end of the search.
        write_atomically(answer_file(tree, self.search.name), "\n".join([*self.lines, ""]))
        picture = tree.figures / self.search.name / "comparison.png"
        return picture if picture.exists() else None

    def rate(self, spec: RunSpec) -> Estimate:
        """Return the images per second of a configuration."""
        return self._sample(spec).mean

    @property
    def compared(self) -> dict[str, list[str]]:
        """The ratios of all others to what is recommended, by what they decide."""
        found: dict[str, list[str]] = {"equivalent": [], "slower": [], "inconclusive": []}
        names = {estimates.EQUIVALENT: "equivalent", estimates.LESS: "slower"}
        for spec in plan.ranking(self.space, self.known):
            if spec != self.chosen:
                ratio = self._ratio(spec, self.chosen)
                name = names.get(estimates.decision(ratio), "inconclusive")
                found[name].append(f"{change(spec, self.chosen)}: {ratio}")
        return found

    @property
    def failed(self) -> list[str]:
        """What failed, and why."""
        return [
            f"{self.change(spec) or 'the default'}: {why.partition(';')[0]:.100}"
            for spec, why in self.known.failed.items()
        ]

    @property
    def unfit(self) -> list[str]:
        """What was tried as the default before the one that fits into the memory, and why not."""
        return [f"{name}: {why}" for name, why in self.search.unfit.items()]

    def _ids(self, spec: RunSpec) -> list[str]:
        done = (item.spec for item in self._entries if item.state == "completed")
        return [one.run_id for one in done if first(one) == spec]

    def _sample(self, spec: RunSpec) -> Sample:
        """Return the throughputs of a configuration's starts."""
        return self._windows.sample(self._runs.loc[self._ids(spec)])

    def _ratio(self, one: RunSpec, other: RunSpec) -> Estimate:
        """Return the ratio of two throughputs."""
        return self._windows.compare(self._sample(one), self._sample(other))


class Answer(Outcome):
    """What a search among the parts of this project has found."""

    search: Search

    WORTH = 0.10  # gain that the removal of a part must promise to count as the limit

    @property
    def default_name(self) -> str:
        """The default in words."""
        return named(self.default)

    @property
    def epochs(self) -> int:
        """Epochs of the whole training."""
        return self.search.request.epochs

    @property
    def hours(self) -> float | None:
        """Time of the whole training."""
        return self.option.deadline.value

    @property
    def option(self) -> Option:
        """The recommended configuration with the time of the whole training."""
        spec, mean = self.chosen, self.rate(self.chosen)
        candidate = Candidate(
            spec,
            self.space.hardware,
            sizes=(spec.world_size,),
            sources=(self.search.name,),
            throughput=lambda ranks: mean,
            details=settings(spec),
        )
        (found,) = options(candidate, candidate.sizes, 0, self.space.images, self.epochs, None)
        return found

    @property
    def start(self) -> str:
        """The command that starts the whole training."""
        words = ("ddl", "study", "run", self._training_file, "--data", self.search.request.data_dir)
        return shlex.join([*map(str, words), *results_words(self.search.tree)])

    @property
    def training(self) -> Study | None:
        """The study of the whole training."""
        fields = self.chosen.model_dump(exclude_defaults=True, exclude=_OF_SEARCH)
        return Study(
            name=self._training_file.stem,
            question=f"The whole training, as the study {self.search.name} advises.",
            base=fields | {"epochs": self.epochs},
            repeats=1,
        )

    @property
    def larger(self) -> RunSpec | None:
        """The recommended configuration with a larger batch, if that promises more."""
        return plan.larger_batch(self.space, self.known, self.chosen)

    @property
    def untried(self) -> list[str]:
        """Parts for which there was no time, and what is refused or not installed."""
        parts = [self.change(spec) for spec in plan.next_parts(self.space, self.known)]
        refused = [
            f"{title('strategy', name)} ({why.partition(';')[0]})"
            for name, why in plan.refused(self.space, self.known).items()
        ]
        late = [f"no time for {some(parts, '; ')}"] if parts else []
        return [*late, *refused, *self.space.missing]

    @property
    def agreement(self) -> list[str]:
        """Whether all strategies that did the same work ended with the same weights."""
        lines = agreement.statements(self._entries)
        return [one.replace(" (docs/explanation/fairness.md)", "") for one in lines]

    @property
    def unread(self) -> int:
        """How many images cannot be read."""
        return int(self._runs["corrupt_images"].max() or 0)

    @property
    def read_mb(self) -> float | None:
        """Megabytes read from disks; None if nothing was measured in this call."""
        return None if self.busy is None else self.search.load.read_bytes / MEGABYTE

    @property
    def shares(self) -> dict[str, float] | None:
        """The parts of the time of what is recommended, sum 1; None if not known."""
        rows = self._runs.loc[self._ids(self.chosen)]
        spent = rows[[name for name in rows if name.startswith("spent_")]].mean()
        if not spent.sum() > 0:
            return None
        part = (spent / spent.sum()).to_dict()
        return {
            LOADER: part["spent_start_s"] + part["spent_data_s"],
            COMMUNICATION: part["spent_transfer_s"],
            WAITING: part["spent_waiting_s"] + part["spent_end_s"],
            COMPUTE: part["spent_compute_s"] + part["spent_update_s"],
        }

    @property
    def limit(self) -> tuple[str, float]:
        """The part whose removal promises most, and how much; 0 for computing."""
        shares, (training, _) = self.shares or {}, self.alone
        parts = [name for name in (LOADER, COMMUNICATION, WAITING) if name in shares]
        gains = {name: shares[name] / (1 - shares[name]) for name in parts}
        if training:
            gains[LOADER] = training - 1
        limit = max(gains, key=lambda name: gains[name], default=COMPUTE)
        return (limit, gains[limit]) if gains.get(limit, 0.0) >= self.WORTH else (COMPUTE, 0.0)

    @property
    def alone(self) -> tuple[float, float]:
        """How fast training and loading alone are, as ratios; 0 where it is not known."""
        promised = plan.forecasts(self.space, self.known).get(self.chosen)
        mean = self.rate(self.chosen)
        if promised is None or not mean.n:
            return 0.0, 0.0
        rates = self.known.rates
        return rates[promised.training] / mean.value, rates[promised.loading] / mean.value

    @property
    def energy(self) -> str:
        """The energy of the whole training."""
        joules = self._runs.loc[self._ids(self.chosen), "energy_j_per_image"].mean()
        if not joules > 0:
            return "energy not measured"
        return f"{joules * self.space.images * self.epochs / J_PER_KWH:.3g} kWh"


def written(answer: Outcome) -> list[str]:
    """Return the lines of an answer."""
    words = {**WORDS, "least": estimates.LEAST}
    text = plain(TEMPLATE, answer=answer, three_digits=three_digits, **words)
    return text.rstrip().splitlines()


def answer_file(tree: Tree, name: str) -> Path:
    """Return the file of the lines of a search's answer."""
    return tree.root / "recommend" / f"{name}.txt"


def training_file(tree: Tree, name: str) -> Path:
    """Return the study file of the training that a search recommends."""
    return tree.root / "recommend" / f"{name.replace('recommend', 'train', 1)}.yaml"


def write_study_file(study: Study, tree: Tree) -> Path:
    """Write the file of a study in the folder of the answers, and return its path."""
    path = tree.root / "recommend" / f"{study.name}.yaml"
    content = study.model_dump(exclude_none=True, exclude_defaults=True)
    write_atomically(path, yaml.dump(content, Dumper=YamlDumper, sort_keys=False))
    return path
