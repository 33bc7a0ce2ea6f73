"""The answer of a search, and the files that go with it, all from its records."""

import math
import shlex
from functools import cached_property
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

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
from ddl_tools.names import plural
from ddl_tools.recommend import plan
from ddl_tools.recommend.candidates import describe, difference
from ddl_tools.recommend.plan import STARTS, Verdict
from ddl_tools.recommend.search import Search, first
from ddl_tools.records import agreement
from ddl_tools.records.ledger import read_study
from ddl_tools.records.paths import Tree, results_words
from ddl_tools.records.storage import write_atomically
from ddl_tools.study import Study, YamlDumper

CODE = Path(__file__).with_name("code.py.j2")
MEGABYTE = 1e6
WORTH = 0.10  # gain that the removal of a part must promise to count as the limit
# Fields that shape the measurement and not the training.
_OF_SEARCH = {
    *("epochs", "train_images", "min_steps_per_epoch", "discard_steps"),
    *("eval_every", "checkpoint_every", "repeat", "uncached"),
}
LOADER, COMMUNICATION, WAITING, COMPUTE = "loader", "communication", "waiting", "compute"
ADVICE = {
    LOADER: "smaller stored images, more cores, or one file for many images: `ddl data convert`",
    COMMUNICATION: "a larger --batch, or accumulation: gradients are sent less often",
    WAITING: "ranks that are equally fast: `ddl doctor --ranks N` compares them",
}


class Answer:
    """What a search has found; `lines` are the answer, `write` makes its files.

    `chosen` is the recommended configuration. `LaunchError` if nothing is known yet. `Interrupted`
    if nothing is known because the user ended the search.
    """

    def __init__(self, search: Search) -> None:
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
        self.verdict = plan.verdict(self.ratio, search.load.others or 0.0, len(ranking))
        moved = self.verdict in (Verdict.PROVEN, Verdict.UNPROVEN)
        self.chosen = self.leader if moved else self.default
        self.alarm = agreement.alarm(self._entries)
        self._stem = search.tree.root / "recommend" / search.name
        self._training_file = training_file(search.tree, search.name)

    @cached_property
    def lines(self) -> list[str]:
        """The answer, its parts, and how to use it."""
        parts = {name: text for name, text in self._parts().items() if text}
        told = [f"{name:<12}{text}" for name, text in parts.items()]
        return [self.head, *told, "in your own code:", *(f"    {line}" for line in self._code())]

    @property
    def head(self) -> str:
        """The answer in a sentence."""
        change = difference(self.leader, self.default)
        match self.verdict:
            case Verdict.PROVEN:
                return f"{self.verdict}: {change}, {estimates.shown(self.ratio)} times the default"
            case Verdict.UNPROVEN:
                return (
                    f"{self.verdict}: {change}, {estimates.shown(self.ratio)} times the default; "
                    f"{plural(self._minutes(), 'more minute')} would do"
                )
            case Verdict.DISTURBED:
                return (
                    f"{self.verdict}: {self._machine()}; the fastest so far, {change}, reached "
                    f"{estimates.shown(self.ratio)} times the default; call again on a quiet "
                    "machine"
                )
        return f"{self.verdict}" + (
            f"; the fastest other one, {change}, reached {estimates.shown(self.ratio)} of it"
            if self.ratio.n
            else ""
        )

    def _minutes(self) -> int:
        """Return how many more minutes would prove what was found, if it is true."""
        starts = STARTS
        if self.ratio.n > 1:
            spread = self.ratio.log_se * math.sqrt(self.ratio.n)
            while starts < 100 and estimates.resolution(spread, starts) > self.ratio.value - 1:
                starts += 1
        block_s = self.search.block_s([self.default, self.leader])
        return max(1, math.ceil(max(1, starts - self.ratio.n) * block_s / 60))

    def _parts(self) -> dict[str, str]:
        limit, advice = self._limit()
        batch = f"{self.chosen.local_batch_size} images per rank and step"
        return {
            "use": f"{describe(self.chosen)}; {batch}",
            "speed": self._speed(),
            "default": f"{describe(self.default)}: {self._rate(self.default)}",
            "larger batch": self._larger(),
            "others": self._others(),
            "failed": some([f"{difference(spec, self.default) or 'the default'} "
                            f"({why.partition(';')[0]:.100})"
                            for spec, why in self.known.failed.items()]),
            "not tried": "; ".join(self._untried()),
            "checked": self._checked(),
            "limit": limit,
            "data": self._data(),
            "machine": self._machine(),
            "try next": advice,
            "training": self._training(),
            "start": self._start(),
            "page": f"{self._stem.with_suffix('.html')}; the same command goes on measuring",
        }  # fmt: skip

    def _start(self) -> str:
        words = ("ddl", "study", "run", self._training_file, "--data", self.search.request.data_dir)
        return shlex.join([*map(str, words), *results_words(self.search.tree)])

    def write(self) -> Path | None:
        """Write both studies, of the search and of the training, the lines, and the page.

        Return the figure, if one is drawn.
        """
        tree = self.search.tree
        fields = self.chosen.model_dump(exclude_defaults=True, exclude=_OF_SEARCH)
        training = Study(
            name=self._training_file.stem,
            question=f"The whole training, as the study {self.search.name} advises.",
            base=fields | {"epochs": self.search.request.epochs},
            repeats=1,
        )
        for study in (read_study(self.search.name, tree), training):
            if study:
                write_study_file(study, tree)
        redraw(tree, figures=tree.figures, studies=[self.search.name])
        write_study_page(tree, self.search.name, self.lines, self._stem.with_suffix(".html"))
        # The last one: `ddl recommend --site` takes it for the end of the search.
        write_atomically(answer_file(tree, self.search.name), "\n".join([*self.lines, ""]))
        picture = tree.figures / self.search.name / "comparison.png"
        return picture if picture.exists() else None

    def _rate(self, spec: RunSpec) -> str:
        mean = self._sample(spec).mean
        if not mean.n:
            return "not measured"
        interval = "95 % interval" if mean.n >= estimates.LEAST_SHOWN else "too few for an interval"
        return f"{estimates.shown(mean)} images/s ({plural(mean.n, 'start')}, {interval})"

    def _speed(self) -> str:
        text = self._rate(self.chosen)
        if self.chosen != self.default:
            return f"{text}; {estimates.shown(self.ratio)} times the default"
        return text

    def _larger(self) -> str:
        """Return what a larger batch brings."""
        larger = plan.larger_batch(self.space, self.known, self.chosen)
        if larger is None:
            return ""
        return (
            f"{larger.local_batch_size} images per rank and step: {self._rate(larger)}; learning "
            f"rate {larger.base_lr:g} per rank (linear rule); accuracy at this batch was not "
            "measured"
        )

    def _others(self) -> str:
        """Return the ratios of all others to what is recommended."""
        lists: dict[str, list[str]] = {"within 5 %": [], "slower": [], "not decided": []}
        for spec in plan.ranking(self.space, self.known):
            if spec == self.chosen:
                continue
            ratio = self._ratio(spec, self.chosen)
            said = estimates.decision(ratio)
            name = {estimates.EQUIVALENT: "within 5 %", estimates.LESS: "slower"}.get(said)
            lists[name or "not decided"].append(f"{self._named(spec)} ({estimates.shown(ratio)})")
        return "; ".join(f"{name}: {some(texts)}" for name, texts in lists.items() if texts)

    def _untried(self) -> list[str]:
        """Return parts for which there was no time, and what is refused or not installed."""
        parts = [difference(spec, self.default) for spec in plan.next_parts(self.space, self.known)]
        refused = [f"{title('strategy', name)} ({why.partition(';')[0]})"
                   for name, why in plan.refused(self.space, self.known).items()]  # fmt: skip
        late = [f"no time for {some(parts)}"] if parts else []
        return [*late, *refused, *self.space.missing]

    def _checked(self) -> str:
        parts = [one.replace(" (docs/explanation/fairness.md)", "")
                 for one in agreement.statements(self._entries)]  # fmt: skip
        if unread := int(self._runs["corrupt_images"].max() or 0):
            parts.append(f"{unread} images cannot be read: `ddl data verify`")
        return "; ".join(parts) or "no two strategies did the same work, so no weights to compare"

    def _data(self) -> str:
        if self.search.load.others is None:
            return ""  # nothing was measured in this call
        read = self.search.load.read_bytes
        if read < MEGABYTE and self.default.uncached:
            return "read without the system's cache; yet no disk of this machine was read"
        if read < MEGABYTE:
            return "read from memory, not from a disk: a set larger than the memory may be slower"
        return f"{read / MEGABYTE:,.0f} MB were read from disks"

    def _machine(self) -> str:
        others = self.search.load.others
        return "" if others is None else f"other programs took {100 * others:.0f} % of the cores"

    def shares(self) -> dict[str, float] | None:
        """Return the parts of the time of what is recommended, sum 1; None if not known."""
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

    def _limit(self) -> tuple[str, str]:
        """Return what limits what is recommended, and the change most likely to help."""
        shares = self.shares() or {}
        training, loading = self._alone()
        gains = {name: shares[name] / (1 - shares[name]) for name in ADVICE if name in shares}
        if training:
            gains[LOADER] = training - 1
        known = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
        parts = [f"time: {known or 'this strategy hides its parts'}"]
        if training and loading:
            parts.append(
                f"{100 / training:.0f} % of its training alone; the loader alone is "
                f"{three_digits(loading)} times as fast"
            )
        limit = max(gains, key=lambda name: gains[name], default=COMPUTE)
        if gains.get(limit, 0.0) >= WORTH:
            cause, part = limit, "it"
            if limit == LOADER and loading and loading >= 1 + WORTH:
                # Alone the loader is fast enough: the two slow each other.
                on_cpu, part = self.chosen.device == "cpu", "the loader"
                cause = f"loader and training {'share the cores' if on_cpu else 'together'}"
            text = f"{cause}, without {part} up to {1 + gains[limit]:.2f} times as fast"
            return "; ".join([text, *parts]), ADVICE[limit]
        device = "a GPU" if self.chosen.device == "cpu" else "more or faster GPUs"
        return "; ".join([COMPUTE, *parts]), f"{device}: the arithmetic takes most of the time"

    def _alone(self) -> tuple[float, float]:
        """Return how fast training and loading alone are, as ratios; 0 where it is not known."""
        promised = plan.forecasts(self.space, self.known).get(self.chosen)
        mean = self._sample(self.chosen).mean
        if promised is None or not mean.n:
            return 0.0, 0.0
        rates = self.known.rates
        return rates[promised.training] / mean.value, rates[promised.loading] / mean.value

    def _training(self) -> str:
        mean, images = self._sample(self.chosen).mean, self.space.images
        if not mean.n:
            return ""
        epochs = self.search.request.epochs
        hours = estimates.scaled(mean, epochs * images / 3600, power=-1)
        short = hours.value < 1
        took = estimates.shown(hours.times(60) if short else hours)
        joules = self._runs.loc[self._ids(self.chosen), "energy_j_per_image"].mean()
        energy = "energy not measured"
        if joules > 0:
            energy = f"{joules * images * epochs / J_PER_KWH:.3g} kWh"
        return (
            f"{plural(epochs, 'epoch')} of {images:,} images: {took} {'min' if short else 'h'} "
            f"without evaluation and start; {energy}"
        )

    def _code(self) -> list[str]:
        """Return the recommended configuration as lines of one's own program."""
        source = Environment(
            loader=FileSystemLoader(CODE.parent),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # Python, not a web page
        ).get_template(CODE.name)
        text = source.render(spec=self.chosen)
        return text.strip().splitlines()

    def _ids(self, spec: RunSpec) -> list[str]:
        done = (item.spec for item in self._entries if item.state == "completed")
        return [one.run_id for one in done if first(one) == spec]

    def _sample(self, spec: RunSpec) -> Sample:
        """Return the throughputs of a configuration's starts."""
        return self._windows.sample(self._runs.loc[self._ids(spec)])

    def _ratio(self, one: RunSpec, other: RunSpec) -> Estimate:
        """Return the ratio of two throughputs."""
        return self._windows.compare(self._sample(one), self._sample(other))

    def _named(self, spec: RunSpec) -> str:
        return difference(spec, self.chosen)


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
