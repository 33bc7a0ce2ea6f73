"""The answer of a search in ten lines, and the files that go with it, all from its records."""

import shlex
from functools import cached_property
from pathlib import Path

import yaml

from ddl_core.config import RunSpec
from ddl_core.errors import Interrupted, LaunchError
from ddl_core.files import some
from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import commits
from ddl_tools.analysis.estimates import Estimate
from ddl_tools.analysis.interleaving import WALL, Interleaved, Sample
from ddl_tools.analysis.metrics import J_PER_KWH
from ddl_tools.analysis.redraw import redraw
from ddl_tools.analysis.tables import write_tables
from ddl_tools.labels import plural
from ddl_tools.launch.report import write_study_page
from ddl_tools.recommend.candidates import describe, difference
from ddl_tools.recommend.search import Search, first
from ddl_tools.records import agreement
from ddl_tools.records.ledger import read_study
from ddl_tools.records.paths import Tree, results_words
from ddl_tools.records.storage import write_atomically
from ddl_tools.scaling.configuration import Span, digits
from ddl_tools.study import Study, YamlDumper

WORTH = 0.10  # gain that the removal of a part must promise to count as the limit
# Fields that shape the measurement and not the training.
_OF_SEARCH = {
    *("epochs", "train_images", "min_steps_per_epoch", "discard_steps"),
    *("eval_every", "checkpoint_every", "repeat"),
}
LOADER, COMMUNICATION, WAITING, COMPUTE = "loader", "communication", "waiting", "compute"
ADVICE = {
    LOADER: "smaller stored images, more cores, or one file for many images: `ddl data convert`",
    COMMUNICATION: "a larger --batch, or accumulation: gradients are sent less often",
    WAITING: "ranks that are equally fast: `ddl doctor --ranks N` compares them",
}


class Answer:
    """What a search has found; `lines` are the answer, `write` makes its files.

    `LaunchError` if nothing is known yet. `Interrupted` if nothing is known because the user ended
    the search.
    """

    def __init__(self, search: Search) -> None:
        self.search, self._name, self._race = search, search.name, search.race()
        if not self._race.left:
            failure = search.first_failure()
            text = f"no start was completed{failure and f'; {failure}'}"
            if search.stopped:
                raise Interrupted(text, remedy="the same command goes on")
            raise LaunchError(text, remedy="allow more --minutes")
        self._entries = search.entries()
        runs, windows = write_tables(search.tree, search.name)
        runs = runs.assign(value=runs[WALL], commit=commits(runs))
        self._runs = runs.set_index("run_id", drop=False)
        self._windows = Interleaved(windows)
        self.leader, self.baseline = self._race.left[0], search.space.baseline
        self.alarm = agreement.alarm(self._entries)
        self._stem = search.tree.root / "recommend" / search.name
        self._training_file = self._stem.with_name(
            f"{self._name.replace('recommend', 'train')}.yaml"
        )

    @cached_property
    def lines(self) -> list[str]:
        """The ten lines."""
        return [f"{name:<10}{text}" for name, text in self._parts().items()]

    def _parts(self) -> dict[str, str]:
        limit, advice = self._limit()
        return {
            "use": f"{describe(self.leader)}; {self.leader.local_batch_size} images each and step",
            "speed": self._speed(),
            "equal": self._equal(),
            "slower": self._slower(),
            "checked": self._checked(),
            "limit": limit,
            "try next": advice,
            "training": self._training(),
            "start": self._start("run"),
            "page": f"{self._stem.with_suffix('.html')}; the same command goes on measuring",
        }

    def _start(self, how: str, *options: str) -> str:
        words = ("ddl", "study", how, self._training_file, "--data", self.search.request.data_dir)
        return shlex.join([*map(str, words), *results_words(self.search.tree), *options])

    def write(self) -> Path | None:
        """Write both studies, of the search and of the training, and the page.

        Return the figure, if one is drawn.
        """
        fields = self.leader.model_dump(exclude_defaults=True, exclude=_OF_SEARCH)
        training = Study(
            name=self._training_file.stem,
            question=f"The whole training, as the study {self._name} advises.",
            base=fields | {"epochs": self.search.request.epochs},
            repeats=1,
        )
        tree = self.search.tree
        searched = read_study(self._name, tree)
        for study in (searched, training):
            if study:
                write_study_file(study, tree)
        redraw(tree, figures=tree.figures, studies=[self._name])
        write_study_page(tree, self._name, self.lines, self._stem.with_suffix(".html"))
        picture = tree.figures / self._name / "comparison.png"
        return picture if picture.exists() else None

    def _speed(self) -> str:
        mean = self._sample(self.leader).mean
        interval = "95 % interval" if mean.n >= estimates.LEAST_SHOWN else "too few for an interval"
        text = f"{span(mean)} images/s ({plural(mean.n, 'start')}, {interval})"
        if self.leader == self.baseline:
            return f"{text}; this is the baseline, and no measured change of it is faster"
        ratio = self._ratio(self.leader, self.baseline)
        if not ratio.n:
            return f"{text}; the baseline has none"
        return f"{text}; {span(ratio)} times the baseline ({self._named(self.baseline)})"

    def _equal(self) -> str:
        equal, undecided = list[str](), list[str]()
        for spec in self._race.left[1:]:
            ratio = self._ratio(spec, self.leader)
            same = estimates.decision(ratio) == estimates.EQUIVALENT
            (equal if same else undecided).append(f"{self._named(spec)} ({span(ratio)})")
        parts = {"within 5 %": equal, "not decided yet": undecided}
        return "; ".join(f"{name}: {some(texts) or 'none'}" for name, texts in parts.items())

    def _slower(self) -> str:
        ratios = {spec: self._ratio(spec, self.leader).ratio for spec in self._race.dropped}
        order = sorted(ratios, key=lambda spec: -ratios[spec])
        failed = self.search.failed.items()
        lists = {
            "dropped": [f"{self._named(spec)} ({ratios[spec]:.2f})" for spec in order],
            "failed": [
                f"{self._named(spec)} ({why.partition(';')[0]:.100})" for spec, why in failed
            ],
            "no time for": [self._named(spec) for spec in self.search.left_out()],
        }
        parts = [f"{name}: {some(texts)}" for name, texts in lists.items() if texts]
        return "; ".join(parts) or "none"

    def _checked(self) -> str:
        parts = [one.replace(" (docs/explanation/fairness.md)", "")
                 for one in agreement.statements(self._entries)]  # fmt: skip
        if unread := int(self._runs["corrupt_images"].max() or 0):
            parts.append(f"{unread} images cannot be read: `ddl data verify`")
        return "; ".join(parts) or "no two strategies did the same work, so no weights to compare"

    def shares(self) -> dict[str, float] | None:
        """Return the parts of the leader's time, sum 1; None if its strategy hides them."""
        rows = self._runs.loc[self._ids(self.leader)]
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
        """Return what limits the leader, and the change most likely to help."""
        shares = self.shares() or {}
        loading, training = (
            self._ratio(one, self.leader) for one in self.search.halves(self.leader)
        )
        gains = {name: shares[name] / (1 - shares[name]) for name in ADVICE if name in shares}
        gains[LOADER] = training.ratio - 1 if training.n else gains.get(LOADER, 0.0)
        limit = max(gains, key=lambda name: gains[name])
        known = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
        parts = ["loader alone and training alone not measured"]
        if training.n and loading.n:
            parts = [f"the loader alone is {span(loading)} times as fast, training alone "
                     f"{span(training)} times"]  # fmt: skip
        parts.insert(0, f"time: {known or 'this strategy hides its parts'}")
        if gains[limit] >= WORTH:
            cause, part = limit, "it"
            if limit == LOADER and loading.n and loading.ratio >= 1 + WORTH:
                # Alone the loader is fast enough: the two slow each other.
                on_cpu, part = self.leader.device == "cpu", "the loader"
                cause = f"loader and training {'share the cores' if on_cpu else 'together'}"
            text = f"{cause}, without {part} up to {1 + gains[limit]:.2f} times as fast"
            return "; ".join([text, *parts]), ADVICE[limit]
        advice = "more or faster GPUs"
        if self.leader.device == "cpu":
            advice = "a GPU"
        elif self.leader.precision in ("fp32", "torch"):
            advice = "--precision bf16, which halves the work and rounds differently"
        return "; ".join([COMPUTE, *parts]), f"{advice}: the arithmetic takes most of the time"

    def _training(self) -> str:
        mean, images = self._sample(self.leader).mean, self.search.space.images
        epochs = self.search.request.epochs
        hours = estimates.scaled(mean, epochs * images / 3600, power=-1)
        short = hours.ratio < 1
        took = span(estimates.scaled(hours, 60) if short else hours)
        joules = self._runs.loc[self._ids(self.leader), "energy_j_per_image"].mean()
        energy = "energy not measured"
        if joules > 0:
            energy = f"{joules * images * epochs / J_PER_KWH:.3g} kWh"
        return (
            f"{plural(epochs, 'epoch')} of {images:,} images: {took} {'min' if short else 'h'} "
            f"without evaluation and start; {energy}"
        )

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
        return difference(spec, self.leader)


def write_study_file(study: Study, tree: Tree) -> Path:
    """Write the file of a study in the folder of the answers, and return its path."""
    path = tree.root / "recommend" / f"{study.name}.yaml"
    content = study.model_dump(exclude_none=True, exclude_defaults=True)
    write_atomically(path, yaml.dump(content, Dumper=YamlDumper, sort_keys=False))
    return path


def span(found: Estimate) -> str:
    """Return a value with three digits and, from enough starts, its interval."""
    if found.n < estimates.LEAST_SHOWN:
        return digits(found.ratio)
    return str(Span(found.ratio, found.low, found.high))
