"""The only place that knows directories and file names."""

import os
from pathlib import Path

from ddl_core.errors import RecordError
from ddl_core.files import as_root, is_there, refuse_links, shown
from ddl_core.origin import FOLDERS, HOME, IN_CLONE
from ddl_tools.study import is_name

PROJECT = HOME if IN_CLONE else FOLDERS  # to read from; nothing is written into a wheel
STUDIES = PROJECT / "studies"
NOTEBOOKS = PROJECT / "notebooks"
SITES = PROJECT / "slurm"
REQUIREMENTS = PROJECT / "requirements"
FIGURES = PROJECT / "figures"
REPORT = PROJECT / "build" / "report"
README = PROJECT / "README.md"
RESULT_PAGES = PROJECT / "docs" / "results"
PAPER = PROJECT / "data" / "paper"
PUBLISHED = PROJECT / "data" / "published"
SEEDS = PROJECT / "data" / "seeds"
LICENCE = PROJECT / "data" / "LICENSE"

NAME_RESULTS = "name one that holds runs/, or measure something first: ddl study run laptop"
"""What to do about a wrong folder of results."""


class RunFiles:
    """Every file of one run; `directory` is the run's own folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.record = directory / "run.json"  # settings, where it ran, how it ended
        self.epochs = directory / "epochs.jsonl"  # one line per epoch and phase
        self.profile = directory / "profile.json"  # where the time of the watched steps went
        self.notebook = directory / "run.ipynb"  # the executed notebook
        self.checkpoint = directory / "checkpoint.pt"  # newest state that a run can continue from
        self.state = directory / "checkpoint.npz"  # the same of another library than torch
        self.initial = directory / "initial.npz"  # initial weights, of another library than torch
        self.progress = directory / "progress.json"  # where rank 0 is now; the sign of life
        self.logs = directory / "logs"  # output of the ranks
        self.script = directory / "job.sh"  # the script that was handed to SLURM
        self.error = directory / "error.json"  # what the first failing rank had to say
        self.lock = directory / ".lock"  # held by the process that executes the run

    def are_there(self) -> bool:
        """Say whether there is a record, an epoch, or a link in the place of the folder."""
        return self.directory.is_symlink() or is_there(self.record) or is_there(self.epochs)

    def trace(self, rank: int) -> Path:
        """Return the file of what the profiler saw, for ui.perfetto.dev."""
        return self.directory / "profile" / f"rank_{rank}.trace.json.gz"

    def attempt(self, number: int) -> Path:
        """Return the folder of the output of one start."""
        return self.logs / f"attempt_{number}"


class StudyFiles:
    """Files of a study that is published, or in an archive; `folder` is the study's own."""

    def __init__(self, folder: Path) -> None:
        self.definition = folder / "study.json"  # the study as it was planned last
        self.runs = folder / "runs.jsonl"  # one line per run: its record
        self.epochs = folder / "epochs.jsonl"  # one line per epoch and phase
        self.profiles = folder / "profiles.jsonl"  # one line per profile
        self.lines = (self.runs, self.epochs, self.profiles)


class EmulationFiles:
    """Counters of an emulated run; `logs` is the folder of one start."""

    def __init__(self, logs: Path) -> None:
        self.folder = logs / "emulation"
        self.links = self.folder / "links.json"  # rate of each link before the run

    def rank(self, number: int) -> Path:
        """Return the file of a rank: a line of counters for each epoch."""
        return self.folder / f"rank_{number}.jsonl"


class ProbeFiles(RunFiles):
    """Every file of one probe; its logs, script and error are where those of a run are."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.record = directory / "probe.json"  # what was asked for, and what the ranks found

    def answer(self, rank: int) -> Path:
        """Return the file of what a rank has found so far; doubles as its sign of life."""
        return self.directory / f"rank_{rank}.json"

    def nccl_log(self, rank: int) -> Path:
        """Return the file in which NCCL says what it chooses."""
        return self.logs / f"nccl_{rank}.log"

    def answers(self) -> list[Path]:
        """Return the files of the ranks that have begun."""
        return list(self.directory.glob("rank_*.json"))


class Tree:
    """A root of runs, tables and datasets: `data/` (committed) or `results/` (this machine).

    What is drawn lies there too, or in `to`. Below either, no symbolic link is followed, except to
    datasets.
    """

    def __init__(self, root: Path, to: Path | None = None, *, within: Path | None = None) -> None:
        self.root = root
        self._within = as_root(within or root)
        self.runs = root / "runs"  # runs/<study>/<run_id>/, or runs/<study>/*.jsonl
        self.tables = (to or root) / "tables"  # tables/<study>.csv
        self.probes = root / "probes"  # probes/<name>/: measurements of `ddl doctor`
        self.figures = (to or root) / "figures"
        if to:
            as_root(to)
        elif root == PROJECT / "data":
            self.figures = as_root(FIGURES)
        self.lock = root / ".lock"  # held by the process that publishes to this tree
        self.notes = root / "notes.csv"  # optional remarks on runs, for readers of the figures

    def second(self) -> "Tree":
        """Return the tree of second measurements of the studies of this one."""
        return Tree(self.root / "second", within=self._within)

    def old(self) -> "Tree":
        """Return the tree of runs that newer measurements have replaced; nothing draws it."""
        return Tree(self.root / "old", within=self._within)

    def study(self, name: str) -> Path:
        """Return the folder of the runs of one study."""
        return self.runs / name

    def asked(self, study: str) -> Path:
        """``runs/<study>/study.json``: what the study asked for when it was last planned."""
        return StudyFiles(self.study(study)).definition

    def studies(self) -> list[str]:
        """Return the studies that have at least one run here, by name.

        Also those whose folder is a link: readers of its runs get a `RecordError`.
        """
        return [name for name in self._with_runs() if is_name(name)]

    def no_studies(self) -> list[str]:
        """Return the folders that have runs, and a name that no study may have."""
        return [name for name in self._with_runs() if not is_name(name)]

    def _with_runs(self) -> list[str]:
        return [
            folder.name
            for folder in _folders(self.runs)
            if folder.is_symlink()
            or any(map(is_there, StudyFiles(folder).lines))
            or self.folders(folder.name)
        ]

    def folders(self, study: str) -> list[Path]:
        """Return the folders of a study that hold a run, or what is left of one; links to some.

        Published runs have none: `stored.run_dirs` names the runs of either form. `RecordError` if
        the folder of the study is a link.
        """
        found = map(RunFiles, _folders(self.study(study)))
        return [run.directory for run in found if run.are_there()]

    def dataset(self, name: str) -> Path:
        """Return the default folder of a dataset; ``DDL_DATA`` moves all datasets."""
        return (_named_by("DDL_DATA") or self.root / "datasets") / name


def _folders(place: Path) -> list[Path]:
    """Return the folders in one of a tree, and the links but those to files.

    `RecordError` if the one is a link. Of a link in it, only its reader says so.
    """
    try:
        refuse_links(place)
    except OSError as error:
        raise RecordError(f"cannot read {place}: {error.strerror}") from None
    found = place.iterdir() if place.is_dir() else ()
    return sorted(path for path in found if _is_folder(path))


def _is_folder(path: Path) -> bool:
    return not os.path.isfile(path) if path.is_symlink() else path.is_dir()  # noqa: PTH113


def results() -> Tree:
    """Return the tree this machine writes to: ``DDL_RESULTS``, else ``results/`` in `workplace`."""
    _named_by("DDL_DATA")  # here already: a kernel or a job inherits it and works elsewhere
    if not IN_CLONE:
        os.environ.setdefault("DDL_RESULTS", "results")
    return Tree((_named_by("DDL_RESULTS") or PROJECT / "results").resolve())


def workplace() -> Path:
    """Return the folder in which jobs and notebooks work: the clone, else the current folder."""
    return PROJECT if IN_CLONE else Path.cwd()


def results_words(tree: Tree) -> list[str]:
    """Return the words of a command that name a tree; none for the default one."""
    return [] if tree.root == results().root else ["--results", str(tree.root)]


def existing(tree: Tree) -> Tree:
    """Return a tree to read from; `RecordError` if its folder does not exist."""
    if not tree.root.is_dir():
        raise RecordError(f"there is no folder of results {tree.root}; {NAME_RESULTS}")
    return tree


def _named_by(variable: str) -> Path | None:
    """Return the folder that an environment variable names; None if it is unset or empty.

    A relative path is resolved once: the variable is made absolute, also for child processes.
    """
    text = os.environ.get(variable)
    if not text:
        return None
    path = Path(text).absolute()
    os.environ[variable] = str(path)
    return path


def committed() -> Tree:
    """Return the tree of the published records, tables and figures."""
    return Tree(PROJECT / "data")


def repeated() -> Tree:
    """Return the tree of second measurements of published studies."""
    return committed().second()


def portable(path: Path) -> str:
    """Return `path` relative to the project when it lies inside, for records that travel."""
    path = path.resolve()
    text = path.relative_to(PROJECT).as_posix() if path.is_relative_to(PROJECT) else str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecordError(
            f"{shown(text)} is not UTF-8, and a record cannot name it; rename that folder"
        ) from None
    return text


def locate(text: str) -> Path:
    """Undo `portable`."""
    return PROJECT / text
