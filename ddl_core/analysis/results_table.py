"""The README's table of results: a question, its answer, the measurement and the details."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ddl_core.analysis.claims import CONTRADICTED, SUPPORTED, UNDECIDED
from ddl_core.analysis.figures.comparison import ONE_START, WORDS
from ddl_core.analysis.plot import style
from ddl_core.analysis.tables import is_emulated, read_table
from ddl_core.records import agreement
from ddl_core.records.paths import Tree
from ddl_core.records.run import read_record
from ddl_core.scaling import emulated
from ddl_core.spec.registry import title

_HEAD = ["Question", "Result", "Measured with", "Details"]
_TWO = {"world_size": 2, "second_start": False}
_ENOUGH = 3  # runs of a configuration: below, another setting of the emulated network is shown


def render(tree: Tree, statements: pd.DataFrame) -> str:
    """Return the table as Markdown, below a sentence on what is published.

    A row has its numbers from the CSV of a figure, from records, or from the validation of the
    communication model. What `tree` has no record of has no row.

    Parameters
    ----------
    tree
        The records, with their tables and figures drawn from them.
    statements
        What `claims.judged` says of each statement of the paper.
    """
    rows = [
        *_frameworks(tree),
        *_loaders(tree),
        *_weights(tree),
        *_sharding(tree),
        *_network(tree),
        *_prediction(tree),
        *_batches(tree),
        *_paper(statements),
    ]
    lines = [_HEAD, ["---"] * len(_HEAD), *rows]
    return "\n".join([_published(tree), "", *(f"| {' | '.join(line)} |" for line in lines)])


def _published(tree: Tree) -> str:
    runs = [read_table(tree.tables / f"{name}.csv") for name in tree.studies()]
    if not runs:
        return "No run is published."
    every = pd.concat(runs)
    emulated = int(is_emulated(every).sum())
    where = every[["machine", "cpu_cores"]].drop_duplicates().sort_values("machine")
    machines = ", ".join(f"{name} ({cores} cores)" for name, cores in where.to_numpy())
    return (
        f"{len(every)} runs of {len(runs)} studies are published in [data/runs/](data/runs), "
        f"{emulated} of them emulated. Machines: {machines}."
    )


def _points(tree: Tree, study: str, figure: str, /, **where: object) -> list[dict[str, Any]]:
    """Return the rows of a figure's CSV that hold some values; none where it is not drawn."""
    path = tree.figures / study / f"{figure}.csv"
    if not path.exists():
        return []
    table = pd.read_csv(path)
    for name, value in where.items():
        table = table[table[name] == value]
    return table.to_dict("records")


def _ratios(tree: Tree, study: str, /, **where: object) -> list[dict[str, Any]]:
    """Return the rows of a comparison that have a ratio of interleaved runs."""
    rows = _points(tree, study, "comparison", **where)
    return [row for row in rows if row["pairs"] > 0 and row["label"] != row["base"]]


def _frameworks(tree: Tree) -> Iterator[list[str]]:
    rows = _ratios(tree, "laptop", loader="native", **_TWO)
    told = [f"{title('strategy', row['strategy'])} {_ratio(row)}" for row in rows]
    if told:
        yield [
            "DDP, Horovod or DeepSpeed?",
            f"throughput relative to DDP: {'; '.join(told)}",
            f"{_model(rows[0])}, 2 ranks, native loader",
            "[notebook 11](notebooks/11_throughput.ipynb)",
        ]


def _loaders(tree: Tree) -> Iterator[list[str]]:
    pick = {"loader": "dali_cpu", "data_format": "folder"}
    ranks = _ratios(tree, "laptop", **pick, strategy="ddp", **_TWO)
    alone = _ratios(tree, "laptop_loaders", **pick, strategy="single", world_size=1)
    if ranks and alone:
        told = f"{_ratio(ranks[0])} with DDP; {_ratio(alone[0])} in a single process"
        yield [
            "DALI or the native loader?",
            f"throughput of DALI relative to native: {told}",
            f"{_model(ranks[0])} and {_model(alone[0])}, JPEG folders, decoded on the CPU",
            "[notebook 13](notebooks/13_loaders.ipynb)",
        ]


def _weights(tree: Tree) -> Iterator[list[str]]:
    studies = [[read_record(run) for run in tree.run_folders(name)] for name in tree.studies()]
    done = [
        [one for one in runs if one.status == "completed" and not one.spec.emulated]
        for runs in studies
    ]
    groups = [one for runs in done for one in agreement.groups(runs) if one.promised]
    if groups:
        yield [
            "Do the frameworks compute the same?",
            f"identical final weights in {sum(one.agrees for one in groups)} of {len(groups)} "
            "groups of runs that differ in the framework alone",
            "PyTorch frameworks, fp32, CPU, 1 and 2 ranks",
            "[method](docs/method.md#same-weights)",
        ]


def _sharding(tree: Tree) -> Iterator[list[str]]:
    ddp, fsdp = (
        _points(tree, "sharding", "memory_per_rank", strategy=name, world_size=2)
        for name in ("ddp", "fsdp")
    )
    whole = [row for row in ddp if "default settings" in row["label"]]
    if whole and fsdp:
        told = [
            f"{row['value']:.2f} GiB at {row['throughput']:.1f} images/s"
            for row in (fsdp[0], whole[0])
        ]
        yield [
            "What does sharding save?",
            f"peak memory of a rank and throughput: FSDP {told[0]}; DDP {told[1]}",
            f"{_model(fsdp[0])}, 2 ranks, {_runs(fsdp[0]['n'])} each",
            "[notebook 20](notebooks/20_memory.ipynb)",
        ]


def _network(tree: Tree) -> Iterator[list[str]]:
    """Return the row of the slowest emulated network with enough valid runs on 16 nodes."""
    rows = _points(tree, "cluster_in_a_box", "efficiency_emulated", world_size=16)
    for rate in sorted({row["box_link_mbit"] for row in rows}):
        here = [row for row in rows if row["box_link_mbit"] == rate and not np.isnan(row["value"])]
        fewest = min((row["n"] for row in here), default=0)
        if fewest >= _ENOUGH:
            here.sort(key=lambda row: -row["value"])
            told = "; ".join(f"{row['value']:.2f} with {row['line']}" for row in here)
            yield [
                "What does a slow network cost?",
                f"parallel efficiency on 16 nodes: {told}",
                f"**emulated** nodes with links of {rate:g} Mbit/s, {_runs(fewest)} each",
                "[notebook 19](notebooks/19_scaling.ipynb)",
            ]
            return


def _prediction(tree: Tree) -> Iterator[list[str]]:
    if emulated.STUDY not in tree.studies():
        return
    steps = emulated.validate(tree)
    errors = [100 * abs(one.error) for one in steps]
    sizes = [one.nodes for one in steps]
    yield [
        "Can a formula predict communication?",
        f"step time on {min(sizes)} to {max(sizes)} nodes, nothing fitted: median error "
        f"{np.median(errors):.1f} %, at most {max(errors):.1f} %",
        f"**emulated** nodes, {len(steps)} settings of DDP, Horovod and DeepSpeed",
        "[scaling](docs/scaling.md#validation)",
    ]


def _batches(tree: Tree) -> Iterator[list[str]]:
    study = "accuracy_laptop"
    rows = _points(tree, study, "accuracy_vs_batch_size", study=study, optimizer="sgd")
    told = []
    for schedule in sorted({row["schedule"] for row in rows}):
        own = [row for row in rows if row["schedule"] == schedule]
        ends = [pick(own, key=lambda row: row["global_batch_size"]) for pick in (min, max)]
        told.append(f"{schedule} " + " and ".join(f"{100 * row['value']:.1f} %" for row in ends))
    if rows:
        sizes = [row["global_batch_size"] for row in rows]
        yield [
            "What do large batches cost?",
            f"top-1 accuracy with batches of {min(sizes)} and {max(sizes)}: {'; '.join(told)}",
            f"Fashion-MNIST, {_model(rows[0])}, SGD, {_runs(min(row['n'] for row in rows))} each",
            "[notebook 16](notebooks/16_accuracy_vs_batch_size.ipynb)",
        ]


def _paper(statements: pd.DataFrame) -> Iterator[list[str]]:
    own = statements[statements["kind"] != "quoted"]
    many = own["verdict"].value_counts()
    told = [f"{many.get(word, 0)} {word}" for word in (SUPPORTED, CONTRADICTED)]
    yield [
        "Does the paper hold?",
        f"of {len(own)} statements: {', '.join(told)}, {many.get(UNDECIDED, 0)} undecided",
        "runs under the conditions of each statement; most need GPUs",
        "[statements](docs/results/statements.md)",
    ]


def _ratio(row: dict[str, Any]) -> str:
    low, high = row["ratio_low"], row["ratio_high"]
    if np.isnan(low):
        return f"{row['ratio']:.2f} ({ONE_START})"
    return f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}] ({WORDS[row['decision']]})"


def _model(row: dict[str, Any]) -> str:
    return style.model_name(row["model"])


def _runs(number: float) -> str:
    return f"{number:.0f} run{'s' if number > 1 else ''}"
