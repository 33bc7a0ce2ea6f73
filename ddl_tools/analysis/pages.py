"""Generated pages: blocks of the README and docs/results/, figures/README.md, `ddl study compare`.

Blocks are written between markers, from records and from the CSVs of figures drawn from them.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.errors import DataError, RecordError
from ddl_core.registry import title
from ddl_tools.analysis import claims
from ddl_tools.analysis.figures import comparison
from ddl_tools.analysis.figures.comparison import ONE_START, WORDS
from ddl_tools.analysis.plot import style
from ddl_tools.analysis.questions import QUESTIONS
from ddl_tools.analysis.redraw import PAPER, notes
from ddl_tools.analysis.tables import counts, is_emulated, read_table, runs_table, windows_table
from ddl_tools.records import agreement
from ddl_tools.records.ledger import find_study
from ddl_tools.records.paths import README, RESULT_PAGES, Tree
from ddl_tools.records.run import read_record
from ddl_tools.records.storage import write_atomically
from ddl_tools.scaling import emulated
from ddl_tools.study import Study

HEADLINE = "laptop"  # the study whose figure the README begins with
PAGES = {
    "results": README,
    "ratios": RESULT_PAGES / "ratios.md",
    "statements": RESULT_PAGES / "statements.md",
}
Row = tuple[str, str, str, str]
_TWO = {"world_size": 2, "second_start": False}
_ENOUGH = 3  # runs of a configuration: below, another setting of the emulated network is shown
FIGURES_PAGE = "README.md"  # beside the figures
_FIGURES_HEAD = """\
# Results

<!-- written by `ddl figures` from data/, not by hand -->

Every published study: its question, its hardware and commit, and its figures. Each caption states
the number of runs, the confidence interval and the commit. CSV data and an SVG version are linked
below each figure. `make docs` executes the notebooks and builds a site from them.
Verdicts on the paper: [statements](../docs/results/statements.md).
"""


def texts(tree: Tree) -> dict[str, str]:
    """Return the text of each block of `PAGES`, from records and the figures drawn from them."""
    runs, windows = runs_table(tree.runs), windows_table(tree.runs)
    points = comparison.points(*(part[part["study"] == HEADLINE] for part in (runs, windows)))
    lines = comparison.sentences(points) or ["no configurations have been interleaved yet"]
    judged = claims.of_records(tree)
    return {
        "results": results(tree, judged),
        "ratios": "\n".join(["```text", *lines, "```"]),
        "statements": statements(judged),
    }


def write(tree: Tree) -> None:
    """Write each block into its page, see `update`."""
    for name, text in texts(tree).items():
        update(PAGES[name], name, text)


def update(page: Path, name: str, text: str) -> None:
    """Write a text between the markers of its name in `page`.

    Raises
    ------
    DataError
        If the file cannot be read, or does not hold each marker once.
    """
    before, _, after = _split(page, name)
    begin, end = _markers(name)
    write_atomically(page, f"{before}{begin}\n{text}\n{end}{after}")


def shown(page: Path, name: str) -> str:
    """Return the text between the markers of a name; errors as of `update`."""
    return _split(page, name)[1].strip("\n")


def _markers(name: str) -> tuple[str, str]:
    begin = f"<!-- {name}: written by `ddl figures` from data/, not by hand -->"
    return begin, f"<!-- end of {name} -->"


def _split(page: Path, name: str) -> tuple[str, str, str]:
    begin, end = _markers(name)
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"cannot read {page}: {error.strerror}; it belongs to the repository, "
            "restore it with `git checkout`"
        ) from None
    before, *rest = text.split(begin)
    inside, *after = rest[0].split(end) if rest else [""]
    if len(rest) != 1 or len(after) != 1 or end in before:
        raise DataError(
            f"{page} does not hold the line {begin!r} and then {end!r}, each once: put them back"
        )
    return before, inside, after[0]


def statements(table: pd.DataFrame) -> str:
    """Return judged statements of the paper as Markdown: counts, decided ones, then each line."""
    counts = claims.summary(table)
    of_paper = counts.drop("quoted")
    quoted = int((table["kind"] == "quoted").sum())
    undecided = table["verdict"] == claims.UNDECIDED
    verdicts = table["why"].where(undecided, table["verdict"] + ": " + table["why"])
    related = table["here"].map(lambda here: len(here.split("; ")) if here else 0)
    decided = [
        f"- {row['claim']} ({row['place']}): {row['verdict']}, {row['why']}."
        for row in table[~undecided].to_dict("records")
    ]
    parts = [
        f"{len(table) - quoted} statements of the paper: {of_paper[claims.SUPPORTED].sum()} "
        f"supported, {of_paper[claims.CONTRADICTED].sum()} contradicted, "
        f"{of_paper[claims.UNDECIDED].sum()} undecided. {of_paper[claims.SEEN].sum()} have related "
        "measurements at other sizes or on other hardware, which do not count as evidence. "
        f"{quoted} more are quoted from other sources, and not tested.",
        _markdown(["", *counts.columns], [(kind, *counts.loc[kind]) for kind in counts.index]),
        "\n".join(decided),
        _markdown(
            ["", "statement", "verdict, or why it is undecided", "related comparisons"],
            zip(table["statement"], table["claim"], verdicts, related, strict=True),
        ),
    ]
    return "\n\n".join(filter(None, parts))


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    table = [columns, ["---"] * len(columns), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in row] for row in table)
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def results(tree: Tree, judged: pd.DataFrame) -> str:
    """Return the README's table of results, below a sentence on what is published.

    A row has its numbers from the CSV of a figure, from records, or from the validation of the
    communication model. What `tree` has no record of has no row. `judged` is of `claims.judged`.
    """
    answers = (_frameworks, _loaders, _weights, _sharding, _network, _prediction, _batches)
    rows = [row for answer in answers if (row := answer(tree))]
    columns = ["Question", "Result", "Measured with", "Details"]
    return f"{_published(tree)}\n\n{_markdown(columns, [*rows, _paper(judged)])}"


def _published(tree: Tree) -> str:
    runs = [read_table(tree.tables / f"{name}.csv") for name in tree.studies()]
    if not runs:
        return "No run is published."
    every = pd.concat(runs)
    return (
        f"{len(every)} runs of {len(runs)} studies are published in [data/runs/](data/runs), "
        f"{int(is_emulated(every).sum())} of them emulated. Machines: {_machines(every)}."
    )


def _points(tree: Tree, study: str, figure: str, /, **where: object) -> list[dict[str, Any]]:
    """Return the rows of a figure's CSV that hold some values; none where it is not drawn."""
    path = tree.figures / study / f"{figure}.csv"
    if not path.exists():
        return []
    table = pd.read_csv(path)
    return table[(table[list(where)] == pd.Series(where)).all(axis=1)].to_dict("records")


def _ratios(tree: Tree, study: str, /, **where: object) -> list[dict[str, Any]]:
    """Return the rows of a comparison that have a ratio of interleaved runs."""
    rows = _points(tree, study, "comparison", **where)
    return [row for row in rows if row["pairs"] > 0 and row["label"] != row["base"]]


def _frameworks(tree: Tree) -> Row | None:
    rows = _ratios(tree, "laptop", loader="native", **_TWO)
    if not rows:
        return None
    ratios = "; ".join(f"{title('strategy', row['strategy'])} {_ratio(row)}" for row in rows)
    return (
        "DDP, Horovod or DeepSpeed?",
        f"throughput relative to DDP: {ratios}",
        f"{_model(rows[0])}, 2 ranks, native loader",
        "[notebook 11](notebooks/11_throughput.ipynb)",
    )


def _loaders(tree: Tree) -> Row | None:
    pick = {"loader": "dali_cpu", "data_format": "folder"}
    ranks = _ratios(tree, "laptop", **pick, strategy="ddp", **_TWO)
    alone = _ratios(tree, "laptop_loaders", **pick, strategy="single", world_size=1)
    if not (ranks and alone):
        return None
    ratios = f"{_ratio(ranks[0])} with DDP; {_ratio(alone[0])} in a single process"
    return (
        "DALI or the native loader?",
        f"throughput of DALI relative to native: {ratios}",
        f"{_model(ranks[0])} and {_model(alone[0])}, JPEG folders, decoded on the CPU",
        "[notebook 13](notebooks/13_loaders.ipynb)",
    )


def _weights(tree: Tree) -> Row | None:
    groups = []
    for name in tree.studies():
        runs = [read_record(run) for run in tree.run_folders(name)]
        done = [one for one in runs if one.status == "completed" and not one.spec.emulated]
        groups += [one for one in agreement.groups(done) if one.promised]
    if not groups:
        return None
    return (
        "Do the frameworks compute the same?",
        f"identical final weights in {sum(one.agrees for one in groups)} of {len(groups)} "
        "groups of runs that differ in the framework alone",
        "PyTorch frameworks, fp32, CPU, 1 and 2 ranks",
        "[fairness](docs/explanation/fairness.md#same-weights)",
    )


def _sharding(tree: Tree) -> Row | None:
    ddp, fsdp = (
        _points(tree, "sharding", "memory_per_rank", strategy=name, world_size=2)
        for name in ("ddp", "fsdp")
    )
    ddp = [row for row in ddp if "default settings" in row["label"]]
    if not (ddp and fsdp):
        return None
    saved, whole = (
        f"{row['value']:.2f} GiB at {row['throughput']:.1f} images/s" for row in (fsdp[0], ddp[0])
    )
    return (
        "What does sharding save?",
        f"peak memory of a rank and throughput: FSDP {saved}; DDP {whole}",
        f"{_model(fsdp[0])}, 2 ranks, {_runs(fsdp[0]['n'])} each",
        "[notebook 20](notebooks/20_memory.ipynb)",
    )


def _network(tree: Tree) -> Row | None:
    """Return the row of the slowest emulated network with enough valid runs on 16 nodes."""
    rows = _points(tree, "cluster_in_a_box", "efficiency_emulated", world_size=16)
    for rate in sorted({row["emu_link_mbit"] for row in rows}):
        here = [row for row in rows if row["emu_link_mbit"] == rate and not np.isnan(row["value"])]
        fewest = min((row["n"] for row in here), default=0)
        if fewest >= _ENOUGH:
            here.sort(key=lambda row: -row["value"])
            values = "; ".join(f"{row['value']:.2f} with {row['line']}" for row in here)
            return (
                "What does a slow network cost?",
                f"parallel efficiency on 16 nodes: {values}",
                f"**emulated** nodes with links of {rate:g} Mbit/s, {_runs(fewest)} each",
                "[notebook 19](notebooks/19_scaling.ipynb)",
            )
    return None


def _prediction(tree: Tree) -> Row | None:
    if emulated.STUDY not in tree.studies():
        return None
    steps = emulated.validate(tree)
    errors = [100 * abs(one.error) for one in steps]
    sizes = [one.nodes for one in steps]
    return (
        "Can a formula predict communication?",
        f"step time on {min(sizes)} to {max(sizes)} nodes, nothing fitted: median error "
        f"{np.median(errors):.1f} %, at most {max(errors):.1f} %",
        f"**emulated** nodes, {len(steps)} settings of DDP, Horovod and DeepSpeed",
        "[scaling](docs/explanation/scaling-model.md#validation)",
    )


def _batches(tree: Tree) -> Row | None:
    study = "accuracy_laptop"
    rows = _points(tree, study, "accuracy_vs_batch_size", study=study, optimizer="sgd")
    if not rows:
        return None
    rows.sort(key=lambda row: row["global_batch_size"])
    ends = []
    for schedule in sorted({row["schedule"] for row in rows}):
        own = [100 * row["value"] for row in rows if row["schedule"] == schedule]
        ends.append(f"{schedule} {own[0]:.1f} % and {own[-1]:.1f} %")
    sizes = f"{rows[0]['global_batch_size']} and {rows[-1]['global_batch_size']}"
    return (
        "What do large batches cost?",
        f"top-1 accuracy with batches of {sizes}: {'; '.join(ends)}",
        f"Fashion-MNIST, {_model(rows[0])}, SGD, {_runs(min(row['n'] for row in rows))} each",
        "[notebook 16](notebooks/16_accuracy_vs_batch_size.ipynb)",
    )


def _paper(judged: pd.DataFrame) -> Row:
    own = judged[judged["kind"] != "quoted"]
    many = own["verdict"].value_counts()
    decided = ", ".join(f"{many.get(word, 0)} {word}" for word in claims.DECIDED)
    return (
        "Does the paper hold?",
        f"of {len(own)} statements: {decided}, {many.get(claims.UNDECIDED, 0)} undecided",
        "runs under the conditions of each statement; most need GPUs",
        "[statements](docs/results/statements.md)",
    )


def _ratio(row: dict[str, Any]) -> str:
    low, high = row["ratio_low"], row["ratio_high"]
    if np.isnan(low):
        return f"{row['ratio']:.2f} ({ONE_START})"
    return f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}] ({WORDS[row['decision']]})"


def _model(row: dict[str, Any]) -> str:
    return style.model_name(row["model"])


def _runs(number: float) -> str:
    return f"{number:.0f} run{'s' if number > 1 else ''}"


def write_figures_page(tree: Tree, figures: Path) -> None:
    """Write the page beside the figures."""
    write_atomically(figures / FIGURES_PAGE, figures_page(tree, figures))


def figures_page(tree: Tree, figures: Path) -> str:
    """Return the page of all studies of a tree and of the paper; it lies beside `figures`."""
    studies = [part for name in tree.studies() for part in _study(tree, figures, name)]
    paper = "## The paper's statements, Amdahl's law and advice"
    return "\n\n".join([_FIGURES_HEAD.rstrip(), *studies, paper, *_shown(figures / PAPER)]) + "\n"


def _study(tree: Tree, figures: Path, name: str) -> Iterator[str]:
    runs, study = read_table(tree.tables / f"{name}.csv"), find_study(name, tree)
    yield f"## {study.question if study else name}"
    table = f"[{counts(runs)}](../{tree.tables.relative_to(tree.root.parent)}/{name}.csv)"
    commits = ", ".join(f"`{one[:8]}`" for one in sorted(runs["git_commit"].dropna().unique()))
    made = f"Study `{name}`, {table}, on {_machines(runs)}; code {commits}."
    yield " ".join([made + _emulated(runs), *notes(tree, name)])
    yield from _shown(figures / name)


def _emulated(runs: pd.DataFrame) -> str:
    if not is_emulated(runs).any():
        return ""
    unfaithful = int(runs["unfaithful"].notna().sum())
    drawn = f"; {unfaithful} runs were unfaithful and are not drawn" if unfaithful else ""
    return f" Emulated, not measured on a cluster ([how](../docs/explanation/emulation.md)){drawn}."


def _machines(runs: pd.DataFrame) -> str:
    known = runs[["machine", "cpu_cores", "accelerator"]].drop_duplicates().dropna(how="all")
    cores = known["machine"] + " (" + known["cpu_cores"].astype("string") + " cores)"
    names = known["accelerator"].fillna(cores).dropna()
    return ", ".join(sorted(set(names))) or "an unknown machine"


def _shown(folder: Path) -> Iterator[str]:
    for name in QUESTIONS:
        if (folder / f"{name}.png").exists():
            place = f"{folder.name}/{name}"
            yield f"![{name}]({place}.png)\n\n[numbers]({place}.csv), [vectors]({place}.svg)"


def compare(study: Study, tree: Tree) -> str:
    """Return how fast each configuration is against the baseline, with intervals.

    Raises
    ------
    RecordError
        If the study is not interleaved, or nothing has been measured yet.
    """
    if study.interleave is None:
        raise RecordError(
            f"study {study.name!r} is not interleaved; give it `interleave` with a reference, or "
            "see its medians with `ddl figures`"
        )
    runs, windows = runs_table(tree.runs), windows_table(tree.runs)
    own = runs[runs["study"] == study.name]
    points = comparison.points(own, windows[windows["study"] == study.name])
    lines = comparison.sentences(points)
    if not lines:
        raise RecordError(
            f"study {study.name!r} has no epochs to compare in {tree.runs}: run it with `ddl study "
            "run`; if it has run, give it more epochs, or a smaller discard_steps (the first steps "
            "and the first round of each start do not count)"
        )
    return "\n".join(lines)
