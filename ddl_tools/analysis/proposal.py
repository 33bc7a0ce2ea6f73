"""The page of scaling evidence that an application for computing time needs, of one study."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddl_core import __version__
from ddl_core.config import IMAGENET_TRAIN_IMAGES
from ddl_core.errors import DataError, RecordError
from ddl_core.spelling import choices
from ddl_tools.analysis import document
from ddl_tools.analysis.configurations import CONFIGURATION, configuration_table, specs
from ddl_tools.analysis.document import Block, Document, Heading, Items, Picture, Table, Text
from ddl_tools.analysis.estimates import LEAST
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.metrics import J_PER_KWH
from ddl_tools.analysis.plot.canvas import caption_of, require_our_figure, save_figure
from ddl_tools.analysis.question import Tables, largest, usable, with_line
from ddl_tools.analysis.redraw import require_no_link, tables_of
from ddl_tools.analysis.result_page import notes
from ddl_tools.analysis.tables import (
    WINDOW_COLUMNS,
    as_read,
    is_emulated,
    runs_table,
    whole,
    windows_table,
)
from ddl_tools.estimate import Estimate, three_digits
from ddl_tools.names import common, plural
from ddl_tools.records.ledger import study_folders
from ddl_tools.records.paths import Tree
from ddl_tools.records.storage import require_ours, write_atomically
from ddl_tools.scaling.amdahl import COVERAGE, Observation, fit_throughput
from ddl_tools.scaling.candidate import MAX_EXTRAPOLATION, hours
from ddl_tools.scaling.measured import throughputs
from ddl_tools.scaling.paper import EPOCHS

MARK = "written by `ddl proposal` from records, not by hand"
NAME = "proposal"
FIXED, SHARED = "fixed batch per rank", "fixed global batch"
_SETTINGS = ["command", "model", "dataset", "image_size", "local_batch_size", "precision"]
_OF_IMAGES = {"dataset", "image_size"}  # of emulated runs, which look at none

# What the public guidance of centres asks for, where this page has it, and the guidance itself.
# Each was read; where a form itself was not, the text says so.
FORMS = (
    (
        'NHR (the outline of NHR@ZIB): "Parallel efficiency, strong/weak scaling", "performance '
        'properties" and a "detailed plan for compute time". Here: Scaling, Computing time.',
        "https://user.nhr.zib.de/wiki/pages/diffpages.action?originalId=427092&pageId=427093",
    ),
    (
        "GCS: previous work with exploratory studies and their results; requests in units of each "
        "machine, such as node-hours on Hunter. Here: Scaling, Method, Computing time.",
        "https://www.gauss-centre.eu/for-users/hpc-access/dates-guidelines",
    ),
    (
        "GCS, of an earlier machine: good scaling under production conditions, with the parameters "
        "and sizes of the project and its input and output. Here: Method lists the settings.",
        "http://www.gauss-centre.eu/gauss-centre/EN/HPCservices/HowToApply/guidelinesJUQUEEN.html",
    ),
    (
        'EuroHPC, regular access: an online form and the document "Project Scope and Plan". Its '
        "template was not read; see the call. Here: all sections.",
        "http://www.prace-ri.eu/regular-access/",
    ),
    (
        "NERSC: CPU time and GPU time of Perlmutter's nodes, each allocated separately. Here: "
        "Computing time.",
        "https://www.nersc.gov/users/user-news/doe-issues-call-for-proposals-for-nersc-ay-2026",
    ),
    (
        "NERSC, an earlier form: how many cores or nodes a code uses, and why this number. Here: "
        "Scaling.",
        "https://www.nersc.gov/users/accounts/allocations/request-form/?start=8",
    ),
)


@dataclass(frozen=True)
class Request:
    """The trainings to apply for; `nodes` by default the most that were measured.

    ``only`` limits the runs: values of columns of a table of runs.
    """

    trainings: int = 1
    epochs: int = EPOCHS
    images: int = IMAGENET_TRAIN_IMAGES
    nodes: int | None = None
    only: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """A configuration on a number of ranks; `kwh` and hours are of all or one of the trainings."""

    nodes: int
    ranks: int
    batch: int
    rate: Estimate
    speed_up: Estimate
    efficiency: Estimate
    starts: int
    hours: Estimate
    node_hours: Estimate
    kwh: float | None
    forecast: bool = False


@dataclass(frozen=True)
class Curve:
    """Sizes of one configuration, of one `kind` of scaling; `lost` runs have no throughput."""

    kind: str
    sizes: Sequence[Size]
    lost: int

    @property
    def measured(self) -> list[Size]:
        """The sizes that are no forecast."""
        return [one for one in self.sizes if not one.forecast]


@dataclass(frozen=True)
class Proposal:
    """What the page says: `first` are reasons to doubt it, `points` and `figure` its figure."""

    study: str
    first: Sequence[str]
    curves: Sequence[Curve]
    points: pd.DataFrame
    figure: Figure | None
    page: Document


def proposal(tree: Tree, study: str, request: Request) -> Proposal:
    """Return the page of a study.

    `RecordError` if the tree has no such study, `DataError` if it has no throughput, or not on as
    many nodes as the request names.
    """
    if study not in (known := tree.studies()):
        raise RecordError(
            f"no runs of study {study!r} in {tree.runs}; "
            f"{choices(study, known, 'name your records with --results')}"
        )
    runs = as_read(runs_table(tree, studies=[study]))
    windows = as_read(windows_table(tree, [study]), WINDOW_COLUMNS)
    for name, value in request.only.items():
        runs = runs[runs[name] == value]
    tables = tables_of(tree, study, runs, windows)
    emulated = bool(is_emulated(whole(runs)).any())
    question = QUESTIONS[question_name(emulated)]
    points = question.points(tables)
    if emulated:
        curves: list[Curve] = []
        about = runs[runs["status"] == "completed"]
        chosen, lines = _emulated(points, study)
    else:
        points = points[points["source"] == "measured"]
        best, about, curves = _measured(tree, study, tables, request)
        chosen, lines = str(with_line(best.to_frame().T)["line"].iloc[0]), []
    figure = question.draw(points) if points["value"].notna().any() else None
    first = _first(tree, study, about, curves, points, emulated)
    blocks = [
        *(Text(text, strong=True) for text in first),
        Heading("Scaling"),
        Text(f"Configuration: {chosen}. {_what(about)}"),
        *lines,
        *(_scaling(curve, _unit(about)) for curve in curves),
        *([Picture(Path(question_name(emulated)), caption_of(figure))] if figure else []),
        Heading("Computing time"),
        *_costs(curves, request, _unit(about)),
        Heading("Method"),
        Text(_method(about, curves, emulated)),
        Heading("For you: what application forms ask for", apart=True),
        Items(FORMS),
    ]
    title = tables.study.question if tables.study else study
    page = Document(f"Scaling evidence: {title}", blocks)
    return Proposal(study, first, curves, points, figure, page)


def question_name(emulated: bool) -> str:
    """Return the name of the figure, as `ddl figures` has it."""
    return "efficiency_emulated" if emulated else "efficiency"


def _unit(runs: pd.DataFrame) -> str:
    return "ranks" if runs["accelerator"].isna().any() else "GPUs"


def _what(runs: pd.DataFrame) -> str:
    names = [name for name in _SETTINGS if runs[name].notna().all()]
    if is_emulated(runs).any():
        names = [name for name in names if name not in _OF_IMAGES]
    return f"All runs: {shared}." if (shared := common(specs(runs), names)) else ""


def _emulated(points: pd.DataFrame, study: str) -> tuple[str, list[Block]]:
    """Return the configuration that is the most efficient on the most nodes, and its tables."""
    known = points[points["value"].notna()]
    if known.empty:
        raise DataError(f"study {study!r} has no efficiency to show: no faithful run of one rank")
    ordered = largest(known).sort_values("emu_link_mbit", ascending=False, kind="stable")
    line = str(ordered["line"].iloc[0])
    own = known[known["line"] == line].sort_values(
        ["emu_link_mbit", "world_size"], ascending=[False, True]
    )
    rows = []
    for row in own.to_dict("records"):
        efficiency, nodes = Estimate.of(row), int(row["world_size"])
        calculated = "" if math.isnan(row["calculated"]) else three_digits(row["calculated"])
        cells = [three_digits(row["represents_gbit"]), str(nodes), str(efficiency.times(nodes))]
        rows.append([*cells, str(efficiency), calculated, str(row["n"])])
    head = ["link (Gbit/s)", "nodes", "speed-up", "efficiency", "calculated", "starts"]
    caption = f"EMULATED, {FIXED}: speed-up and efficiency relative to one node; 95 % intervals."
    return line, [Table(head, rows, caption)]


def _measured(
    tree: Tree, study: str, tables: Tables, request: Request
) -> tuple["pd.Series[Any]", pd.DataFrame, list[Curve]]:
    """Return the fastest configuration on the most ranks, its runs and its curves."""
    known = usable(tables.configurations[tables.configurations["n"] > 0])
    if known.empty:
        raise DataError(
            f"study {study!r} has no throughput of a training to show: studies of accuracy and of "
            "loaders have none, and each run needs a measured epoch"
        )
    several = known.groupby("curve")["world_size"].transform("nunique") > 1
    best = largest(known[several] if several.any() else known).iloc[0]
    mine = known[known["curve"] == best["curve"]].sort_values("world_size")
    same = (tables.runs[CONFIGURATION] == best[CONFIGURATION]).all(axis=1)
    runs, found = tables.runs[same & (tables.runs["status"] == "completed")], [mine]
    if mine["local_batch_size"].nunique() == 1:
        found += _with_shared_batch(runs, tables.windows)
    rates = {one.record.run_id: one.rate for one in throughputs(study_folders(study, tree))}
    curves = [_curve(one, runs, rates, request) for one in found]
    used = pd.concat(found)["configuration"]
    return best, runs[runs["configuration"].isin(used)], curves


def _with_shared_batch(runs: pd.DataFrame, windows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of runs that share a global batch on the most numbers of ranks, if any do."""
    parts = [part for _, part in runs.groupby("global_batch_size")]
    several = [part for part in parts if part["world_size"].nunique() > 1]
    tables = [configuration_table(part, windows) for part in several]
    curves = [
        own.sort_values("world_size")
        for table in tables
        for _, own in table[table["n"] > 0].groupby("curve")
        if own["world_size"].nunique() > 1 and own["local_batch_size"].nunique() > 1
    ]
    return [max(curves, key=len)] if curves else []


def _curve(
    rows: pd.DataFrame, runs: pd.DataFrame, rates: dict[str, float | None], request: Request
) -> Curve:
    images = request.trainings * request.epochs * request.images
    joules = runs.groupby("configuration")["energy_j_per_image"]
    energy = joules.mean().where(joules.count() == joules.size())
    places = runs.drop_duplicates("configuration").set_index("configuration")["nodes"]
    sizes: list[Size] = []
    base = rows.iloc[0]

    def size(ranks: int, nodes: int, rate: Estimate, **other: Any) -> Size:
        time = hours(rate, request.epochs * request.images)
        return Size(
            ranks=ranks, nodes=nodes, rate=rate, hours=time,
            node_hours=time.times(request.trainings * nodes), **other,
        )  # fmt: skip

    for row in rows.to_dict("records"):
        own, ranks = Estimate.of(row, "efficiency"), int(row["world_size"])
        joule = energy[row["configuration"]]
        known = size(
            ranks, int(places[row["configuration"]]), Estimate.of(row),
            batch=int(row["local_batch_size"]), efficiency=own,
            speed_up=own.times(ranks / int(base["world_size"])), starts=int(row["n"]),
            kwh=None if pd.isna(joule) else float(joule) * images / J_PER_KWH,
        )  # fmt: skip
        sizes.append(known)
    shared = rows["local_batch_size"].nunique() > 1
    again = runs["second_start"].fillna(False).astype(bool)
    own = runs[runs["configuration"].isin(rows["configuration"]) & ~again]
    observed = [
        Observation(int(ranks), rate)
        for run, ranks in zip(own["run_id"], own["world_size"], strict=True)
        if (rate := rates.get(run))
    ]
    most = sizes[-1]
    if len(sizes) > 1 and most.nodes > 1 and observed:  # between nodes of which one is measured
        fitted = fit_throughput(observed)
        for factor in (2**power for power in range(1, int(math.log2(MAX_EXTRAPOLATION)) + 1)):
            ranks, batch = factor * most.ranks, most.batch
            if shared:
                batch, rest = divmod(most.batch, factor)
                if rest or not batch:
                    break
            beyond = fitted.throughput(ranks)
            speed_up = beyond.times(1 / float(base["value"]))
            less = int(base["world_size"]) / ranks
            sizes.append(
                size(
                    ranks,
                    factor * most.nodes,
                    beyond,
                    batch=batch,
                    speed_up=speed_up,
                    efficiency=speed_up.times(less),
                    starts=0,
                    kwh=None,
                    forecast=True,
                )
            )
    return Curve(SHARED if shared else FIXED, sizes, int(rows["failed"].sum()))


def _scaling(curve: Curve, unit: str) -> Table:
    head = ["nodes", unit, "batch", "images/s", "speed-up", "efficiency", "starts"]
    rows = [
        [
            str(one.nodes), str(one.ranks), str(one.batch), str(one.rate), str(one.speed_up),
            str(one.efficiency), "forecast" if one.forecast else str(one.starts),
        ]
        for one in curve.sizes
    ]  # fmt: skip
    name = "Strong scaling" if curve.kind == SHARED else "Weak scaling"
    beyond = any(one.forecast for one in curve.sizes)
    caption = f"{name}, {curve.kind}: 95 % intervals in brackets; batch of a rank"
    return Table(head, rows, caption + (f"; forecast: {_band()} band." if beyond else "."))


def _band() -> str:
    return f"{COVERAGE:.0%}".replace("%", " %")


def _costs(curves: Sequence[Curve], request: Request, unit: str) -> list[Block]:
    if not curves:
        return [Text("None: emulated nodes say how efficiency falls, and no time of a machine.")]
    sizes = curves[0].sizes
    nodes = request.nodes or curves[0].measured[-1].nodes
    chosen = [one for one in sizes if one.nodes == nodes]
    if not chosen:
        raise DataError(
            f"--nodes {nodes}: neither measured nor forecast; choose from: "
            f"{', '.join(map(str, sorted({one.nodes for one in sizes})))}"
        )
    one = chosen[-1]
    energy = f" and {three_digits(one.kwh)} kWh" if one.kwh else ""
    what = (
        f"{plural(request.trainings, 'training')} of {plural(request.epochs, 'epoch')} of "
        f"{request.images:,} images"
    )
    said = f"{what} on {plural(nodes, 'node')}: {one.node_hours} node-hours{energy}"
    said += ", by the forecast." if one.forecast else "."
    head = ["nodes", unit, "hours of a training", "node-hours, all"]
    with_energy = any(one.kwh for one in sizes)
    rows = [
        [
            str(one.nodes), str(one.ranks), str(one.hours), str(one.node_hours),
            *([three_digits(one.kwh) if one.kwh else ""] if with_energy else []),
            "forecast" if one.forecast else "measured",
        ]
        for one in sizes
    ]  # fmt: skip
    head += [*(["kWh, all"] if with_energy else []), "rate"]
    caption = f"{what}: time of training alone, without evaluation, checkpoints, start and queue."
    return [Text(said), Table(head, rows, caption)]


def _first(
    tree: Tree,
    study: str,
    runs: pd.DataFrame,
    curves: Sequence[Curve],
    points: pd.DataFrame,
    emulated: bool,
) -> list[str]:
    """Return what readers must know before all else; nothing of a study without a doubt."""
    found = []
    sizes = [one for curve in curves for one in curve.measured]
    if emulated:
        found.append(
            "EMULATED: nodes are parts of one machine with slowed links. This is no measurement of "
            "a cluster."
        )
    elif len(curves[0].measured) == 1:
        found.append("ONE SIZE: nothing here says how the training scales; measure more nodes.")
    elif max(one.nodes for one in sizes) == 1:
        found.append("ONE NODE: nothing here was sent between nodes, so there is no forecast.")
    starts = points.loc[points["n"] > 0, "n"] if emulated else [one.starts for one in sizes]
    if (least := int(min(starts))) < LEAST:
        found.append(
            f"NO INTERVALS: some rows rest on {plural(least, 'start')}; an interval needs {LEAST}."
        )
    if not emulated and runs["accelerator"].isna().any():
        found.append("ON PROCESSORS: measured without a GPU, this says nothing of GPUs.")
    if runs["loader"].eq("synthetic").all() and not emulated:
        found.append("SYNTHETIC IMAGES: no data were read, so storage may slow the training.")
    if runs["git_dirty"].fillna(False).any():
        found.append("CHANGED FILES: the code had changes that its commit does not contain.")
    lost = int(points["failed"].sum()) if emulated else max(one.lost for one in curves)
    if lost:
        found.append(f"LOST: {plural(lost, 'run')} failed or diverged, and count in no row.")
    return [*found, *notes(tree, study)]


def _method(runs: pd.DataFrame, curves: Sequence[Curve], emulated: bool) -> str:
    """Return how the numbers were made, by which code and on what."""
    steps = sorted(set(runs["discard_steps"].dropna()))
    dirty = " (with changed files)" if runs["git_dirty"].fillna(False).any() else ""
    code = ", ".join(sorted(set(runs["git_commit"].dropna()))) or "unknown"
    machines = sorted(set(runs["accelerator"].fillna(runs["machine"]).dropna()))
    software = sorted(set(runs["software"].dropna()))
    texts = [
        f"Measured by ddl {__version__}.",
        "A start is a new process of each rank; a value is the geometric mean of its starts.",
        "A bracket holds the 95 % interval by Student's t on logarithms.",
        "Efficiency is throughput per rank relative to the smallest number of ranks.",
        "Speed-up is efficiency times the growth in ranks.",
        "Left out as warm-up: the first epoch of each start, and epochs that begin before "
        f"optimiser step {' or '.join(map(str, steps))}.",
    ]
    if emulated:
        texts.append("Calculated: from the step of one rank and the rate of the link, not fitted.")
    if any(one.forecast for curve in curves for one in curve.sizes):
        texts.append(
            "Forecasts are Amdahl's law, fitted to all starts, with the band of one more run; they "
            f"end at {MAX_EXTRAPOLATION} times the most ranks measured."
        )
    texts += [
        f"Hardware: {', '.join(machines) or 'unknown'}.",
        f"Software: {' | '.join(software) or 'unknown'}.",
        f"Commit: {code}{dirty}.",
    ]
    if energy := sorted(set(runs["energy_method"].dropna())):
        texts.append(f"Energy: {', '.join(energy)}.")
    return " ".join(texts)


def tables(found: Proposal) -> list[list[dict[str, str]]]:
    """Return the rows of each table of the page by heading."""
    return [
        [dict(zip(one.head, row, strict=True)) for row in one.rows]
        for one in found.page.blocks
        if isinstance(one, Table)
    ]


def write(
    found: Proposal, folder: Path, *, overwrite: bool = False, remedy: str = ""
) -> list[Path]:
    """Write the page in its three forms, and its figure; return the paths, the page first.

    `RecordError` if a file is there that is none of an older page, unless `overwrite`.
    """
    import fpdf  # noqa: F401  # without it, nothing is written

    require_no_link(folder)
    page, latex, pdf = (folder / f"{NAME}.{kind}" for kind in ("md", "tex", "pdf"))
    how: dict[str, Any] = {"overwrite": overwrite, "remedy": remedy}
    own = page.exists()  # it says whose the files are that cannot say it themselves
    require_ours(page, f"<!-- {MARK}", **how)
    require_ours(latex, f"% {MARK}", **how)
    require_ours(pdf, "%PDF" if own else None, **how)
    paths: list[Path] = []
    if found.figure:
        (stem,) = (folder / one.stem for one in found.page.blocks if isinstance(one, Picture))
        if not own:
            require_our_figure(stem, ",".join(found.points.columns), **how)
        paths = save_figure(found.figure, found.points, stem, known=True)
    content = document.as_pdf(found.page, folder)
    write_atomically(page, document.as_markdown(found.page, MARK))
    write_atomically(latex, document.as_latex(found.page, MARK))
    write_atomically(pdf, content)
    return [page, latex, pdf, *paths]
