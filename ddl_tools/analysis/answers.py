"""Answers to the questions of figures: sentences with numbers, and a table of ten rows at most.

Both are made of the points of a figure. Result pages and notebooks show them beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd

from ddl_tools.analysis.figures import shares
from ddl_tools.analysis.figures.accuracy_differences import answers, lost
from ddl_tools.analysis.figures.memory import least_of_each
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.rows import cell_text, named
from ddl_tools.analysis.ratio_answers import compared, nearest
from ddl_tools.estimate import Estimate, three_digits
from ddl_tools.names import plural

MOST_ROWS, MOST_SENTENCES = 10, 3
_LIMITS = ["met", "uncertain", "violated"]

Points: TypeAlias = pd.DataFrame
# What columns are called in tables; the others have their own names.
_HEADS = {
    "label": "configuration",
    "line": "configuration",
    "n": "runs",
    "ratio": "relative to the baseline",
    "again": "measured again",
    "world_size": "ranks",
    "local_batch_size": "batch of a rank",
    "global_batch_size": "global batch (images)",
    "emu_link_mbit": "link (Mbit/s)",
    "emu_step_ms": "step (ms)",
    "represents_gbit": "represents (Gbit/s)",
    "calculated": "E calculated",
    "state": "share by arithmetic (GiB)",
    "throughput": "throughput (images/s)",
    "loading": "loader alone (images/s)",
    "training": "synthetic data (images/s)",
    "hours": "time (h)",
    "node_hours": "cost (node-hours)",
    "accuracy": "top-1 accuracy (%)",
    "share": "share of the bound",
    "allreduce": "all-reduce (%)",
    "io": '"I/O" (%)',
    "cudnn": "cuDNN (%)",
    "rest": "other (%)",
    **{name: f"{name} (%)" for name in ("data", "compute", "transfer", "waiting", "other", "idle")},
    **{name: f"rate, {name}" for name in ("step", "cosine", "exponential")},
}


@dataclass(frozen=True)
class Answer:
    """How the points of a figure become a table and sentences.

    `columns` are those of the table, separated by spaces; if empty, all of `rows`. `rows` chooses
    the rows, the best first.
    `value` is the heading of the column of this name. `line` is the sentence on a row, with the
    names of columns: sentences are on the first two rows and the last, if `say` has no others.
    """

    columns: str
    rows: Callable[[Points], Points]
    value: str = ""
    line: str = ""
    say: Callable[[Points], list[str]] | None = None

    def sentences(self, points: Points) -> list[str]:
        """Return at most three sentences with numbers, from points that hold an answer."""
        if self.say:
            return self.say(points)[:MOST_SENTENCES]
        rows = self.rows(points).to_dict("records")
        texts = [{str(name): cell_text(row, str(name)) for name in row} for row in rows]
        lines = [self.line.format_map(row) for row in [*texts[:2], *texts[2:][-1:]]]
        return [line[:1].upper() + line[1:] for line in lines]

    def table(self, points: Points) -> pd.DataFrame:
        """Return at most ten rows as texts, numbers with their intervals."""
        rows = self.rows(points).head(MOST_ROWS).to_dict("records")
        heads = _HEADS | {"value": self.value}
        texts = {
            heads.get(name, name): [cell_text(row, name) for row in rows]
            for name in self.columns.split() or map(str, rows[0])
        }
        table = pd.DataFrame(texts, dtype=str)
        return table.loc[:, (table != "").any()]


def _with_line(points: Points) -> Points:
    """Return points with what a configuration is called, without its number of ranks: `line`."""
    table = style.with_framework_strategy(points)
    strategies = table["framework_strategy"].map(style.strategy_name, na_action="ignore")
    names = strategies.fillna(style.UNNAMED) + ", " + table["loader"].map(style.loader_name)
    if table["model"].nunique() > 1:
        models = table["model"].map(style.model_name, na_action="ignore")
        names += (", " + models).fillna("")
    return table.assign(line=names)


def _in_percent(points: Points) -> Points:
    shares = points.columns.intersection(["value", "low", "high"])
    return points.assign(**{name: 100 * points[name] for name in shares})


def _largest(points: Points, size: str = "world_size") -> Points:
    """Return the rows with a value at the largest size, the largest value first."""
    known = points[points["value"].notna()]
    return known[known[size] == known[size].max()].sort_values("value", ascending=False)


# --- the rows of tables ---


def _bounded(points: Points) -> Points:
    table = named(points[points["ratio"].notna()]).sort_values("ratio", kind="stable")
    shares_of_bound = [f"{Estimate.of(row, 'ratio'):.2f}" for row in table.to_dict("records")]
    return table.assign(share=shares_of_bound, ahead=table["loading"] / table["training"])


def _efficiencies(points: Points) -> Points:
    """Return measured efficiencies on the most ranks; without any, each statement of the paper."""
    table = _with_line(points)
    if len(ours := _largest(table[table["source"] == "measured"])):
        texts = [cell_text(row, "value") for row in ours.to_dict("records")]
        return ours.assign(efficiency=texts)
    stated = table[table["source"] == "stated"].drop_duplicates(["statement", "world_size"])
    stated = stated.sort_values(["world_size", "value"], ascending=False)
    return stated.assign(efficiency=stated["printed"])


def _emulated(points: Points) -> list[str]:
    """Return E on the most nodes: at the rate with the most runs first, of these the slowest."""
    parts = [part for _, part in _largest(points).groupby(["emu_link_mbit", "emu_step_ms"])]
    found = []
    for part in sorted(parts, key=lambda part: -part["n"].min()):
        texts = [f"{row['line']} {cell_text(row, 'value')}" for row in part.to_dict("records")]
        first = part.iloc[0]
        found.append(
            f"Efficiency on {first['world_size']} emulated nodes with links of "
            f"{first['emu_link_mbit']:g} Mbit/s and steps of {first['emu_step_ms'] / 1e3:g} s: "
            f"{'; '.join(texts)}."
        )
    return found


def _memory(points: Points) -> list[str]:
    """Return the least memory of all configurations and of each strategy, and the fastest."""
    known = points[points["n"] > 0]
    rows = least_of_each(known).to_dict("records")
    each = [f"{style.strategy_name(row['framework_strategy'])} {row['value']:.2f}" for row in rows]
    fastest = known.loc[known["throughput"].idxmax()]
    least, highest = (
        f"{row['label']}, {row['value']:.2f} GiB at {three_digits(row['throughput'])} images/s."
        for row in (rows[0], fastest)
    )
    return [
        f"Least memory: {least}",
        f"Least memory of each strategy (GiB): {'; '.join(each)}.",
        f"Highest throughput: {highest}",
    ]


def _kernels(points: Points) -> list[str]:
    wide = _kernel_table(points[~points["suspect"]])
    networks = wide["line"].str.split(", ").str[-1]
    steps = wide.groupby("line")["allreduce"].diff().dropna()
    falls = -steps[steps < 0]
    fractions = (wide["io"] / wide["cudnn"]).dropna().groupby(networks)
    texts = [f"{network} {captions.span(values)}" for network, values in fractions]
    return [
        f'"I/O" relative to cuDNN, with both loaders: {"; ".join(texts)}. A loading time would '
        "depend on the loader.",
        f"The share of the all-reduce falls in {len(falls)} of {len(steps)} steps to more GPUs, by "
        f"{captions.span(falls)} points ({', '.join(networks[falls.index].unique())}).",
    ]


def _kernel_table(points: Points) -> Points:
    """Return a row per network, loader and number of GPUs with the shares in percent."""
    table = _in_percent(_with_line(points.assign(framework="torch")))
    return table.pivot(index=["line", "world_size"], columns="kind", values="value").reset_index()


def _kernel_rows(points: Points) -> Points:
    """Return the shares at the most GPUs that all rows have."""
    table = _kernel_table(points)
    sizes = table["world_size"].value_counts()
    return table[table["world_size"] == sizes.index[sizes == sizes.max()].max()]


def _options(points: Points) -> Points:
    """Return the advised option, then those that meet the limits."""
    limits = points["limits"].map(_LIMITS.index)
    order = limits.mask(points["advised"].astype(bool), -1)
    table = _with_line(points.assign(framework="torch", model="", order=order))
    return table.sort_values(["order", "node_hours", "hours"], kind="stable")


def _bars(parts: Points) -> Points:
    """Return a row per configuration with its parts of the time in percent.

    `parts` has them as text, after the efficiency and what it was lost to, where that is known.
    """
    table = named(_in_percent(parts))
    bars = table.groupby("label", sort=False).first()
    names = {name: name.partition(" ")[0] for name in style.TIME_COLOURS}
    for cause, name in names.items():
        bars[name] = table[table["cause"] == cause].groupby("label")["value"].sum()
    texts = []
    for label, row in zip(bars.index, bars.to_dict("records"), strict=True):
        kept, start = row.get("efficiency"), ""
        if not pd.isna(kept):
            lost = ", ".join(shares.costs(table[table["label"] == label])) or "nothing"
            start = f"efficiency {kept:.2f}; lost to {lost}; of an epoch "
        shown = [f"{name} {row[name]:.0f} %" for name in names.values() if row[name] >= 1]
        texts.append(start + ", ".join(shown))
    return bars.assign(parts=texts).reset_index()


def _profiles(points: Points) -> list[str]:
    """Return the parts of the first and the last configuration, and what else ran."""
    rows = _bars(shares.parts_of_profiles(points)).to_dict("records")
    ends = dict.fromkeys((0, len(rows) - 1))
    lines = [f"{rows[one]['label']}, mean over ranks: {rows[one]['parts']}." for one in ends]
    return [*(line[:1].upper() + line[1:] for line in lines), *shares.other_programs(points)]


def _rates(points: Points) -> Points:
    """Return the rates of the schedules at every tenth epoch."""
    wide = points.pivot(index="epoch", columns="schedule", values="value").reset_index()
    return wide[(wide["epoch"] > 0) & (wide["epoch"] % 10 == 0)].astype({"epoch": int})


def _losses(points: Points) -> list[str]:
    """Return the accuracy that each way to learn loses; without runs, what the paper states."""
    if lost(points).empty:
        stated = points[points["source"] == "stated"].groupby("global_batch_size")["value"]
        return [
            f"The paper states {captions.span(100 * values, '{:.0f}')} % for a batch of {batch:,}."
            for batch, values in stated
        ]
    return answers(points)


def _by_ranks(points: Points) -> list[str]:
    """Return the accuracies that the libraries reach on each number of ranks."""
    known = points[points["n"] > 0]
    names = ", ".join(map(style.dataset_name, known["dataset"].unique()))
    return [
        f"Top-1 accuracy of the libraries on {names} with {plural(ranks, 'rank')}: "
        f"{captions.span(100 * values, '{:.1f}')} %."
        for ranks, values in known.groupby("world_size")["value"]
    ]


def _by_batch(points: Points) -> Points:
    """Return a row per way to learn and evaluation, with a column for each batch.

    The ways with the most batches come first.
    """
    ours = points[(points["source"] == "measured") & (points["n"] > 0)]
    shown = _in_percent(ours if len(ours) else points[points["source"] == "stated"])
    sizes = sorted(shown["global_batch_size"].unique())
    heads = {size: f"top-1 (%), batch {size}" for size in sizes}
    rows = []
    keys = ["study", "label", "evaluation"]
    for name, own in shown.groupby(keys, dropna=False):
        texts = [cell_text(row, "value") for row in own.to_dict("records")]
        known = dict(zip(own["global_batch_size"].map(heads), texts, strict=True))
        runs = captions.counted("", own["n"].dropna())
        rows.append(dict(zip(keys, name, strict=True)) | known | {"n": runs})
    rows.sort(key=len, reverse=True)
    return pd.DataFrame(rows, columns=["label", "evaluation", *heads.values(), "n"])


# --- the answers, by question ---

_SPEED, _ACCURACY = "throughput (images/s)", "top-1 accuracy (%)"

ANSWERS = {
    "comparison": Answer("label value ratio decision again n", nearest, _SPEED, say=compared),
    "throughput_vs_workers": Answer(
        "line world_size value n",
        lambda points: _largest(_with_line(points)),
        _SPEED,
        "{line}: {value} images/s on {world_size} ranks.",
    ),
    "throughput_vs_batch_size": Answer(
        "line local_batch_size value n",
        lambda points: _largest(points, "local_batch_size"),
        _SPEED,
        "{line}: {value} images/s at batch {local_batch_size}.",
    ),
    "memory_per_rank": Answer(
        "label value state throughput n",
        lambda points: points[points["n"] > 0],
        "peak memory of a rank (GiB)",
        say=_memory,
    ),
    "loader_bound": Answer(
        "label value loading training share n",
        _bounded,
        _SPEED,
        "{label} reaches {share} of its bound; its loader alone delivers {ahead} times the "
        "throughput of synthetic data.",
    ),
    "efficiency": Answer(
        "line world_size efficiency statement",
        _efficiencies,
        line="{line} on {world_size} ranks: E {efficiency}.",
    ),
    "efficiency_emulated": Answer(
        "line emu_link_mbit emu_step_ms represents_gbit world_size value calculated n",
        lambda points: _largest(points).sort_values(
            "emu_link_mbit", ascending=False, kind="stable"
        ),
        "efficiency E",
        say=_emulated,
    ),
    "kernel_shares": Answer("line world_size allreduce io cudnn rest", _kernel_rows, say=_kernels),
    "advice": Answer(
        "line world_size hours node_hours accuracy limits",
        _options,
        line="{line} on {world_size} GPUs: {hours} h, {node_hours} node-hours; limits: {limits}.",
    ),
    "time_budget": Answer(
        "label efficiency data compute transfer waiting other n",
        lambda points: _bars(shares.parts_of_epochs(points)),
        line="{label}: {parts}.",
    ),
    "time_shares": Answer(
        "label compute transfer waiting other idle n",
        lambda points: _bars(shares.parts_of_profiles(points)),
        say=_profiles,
    ),
    "time_to_accuracy": Answer(
        "line world_size value epochs n",
        lambda points: _with_line(points[points["value"].notna()]).sort_values("value"),
        "time (s)",
        "{line} on {world_size} ranks: {value} s.",
    ),
    "accuracy_by_library": Answer(
        "label value n",
        lambda points: _in_percent(points[points["n"] > 0]).sort_values("value", ascending=False),
        _ACCURACY,
        say=_by_ranks,
    ),
    "schedules": Answer(
        "epoch step cosine exponential",
        _rates,
        line="Rate after epoch {epoch}: step {step}, cosine {cosine}, exponential {exponential}.",
    ),
    "accuracy_vs_batch_size": Answer("", _by_batch, say=_losses),
}
