"""All configurations of a study, best first: throughput, accuracy or memory, a row each.

Throughputs stand beside their ratio to one configuration, the baseline.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import ended_runs, numbered, specs, stack
from ddl_tools.analysis.estimates import MARGIN, Estimate
from ddl_tools.analysis.figures import naming
from ddl_tools.analysis.figures.columns import ORIGIN, WHO, typed
from ddl_tools.analysis.interleaving import (
    CPU,
    Interleaved,
    Sample,
    block_means,
    common_commits,
    counted,
    paired,
)
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import handles, styled
from ddl_tools.analysis.plot.rows import (
    count_text,
    draw_values,
    interval,
    percent,
    ratio_text,
    row_figure,
)
from ddl_tools.analysis.plot.style import three_digits
from ddl_tools.analysis.tables import whole
from ddl_tools.labels import plural
from ddl_tools.records.rounds import DISTURBED, FIRST

_WHO = f"question panel {WHO} world_size second_start label"
_REACHED = "n failed value low high"
COMPARISON = typed(
    _WHO, _REACHED, "windows base base_rule ratio ratio_low ratio_high start_ratios decision",
    "pairs cpu_ratio cpu_ratio_low cpu_ratio_high cpu_decision",
    "common unsaid left_out rounds_left_out", ORIGIN,
)  # fmt: skip
ACCURACY = typed(_WHO, "dataset", _REACHED, "repeats", ORIGIN)
MEMORY = typed(_WHO, _REACHED, "repeats state throughput", ORIGIN)

REFERENCE = "the reference that the study names"
FEWEST = "no reference is named: the first configuration that changes the fewest settings"
CONTROL = "control"  # a second start, whose ratio should be 1
WORDS = {
    estimates.GREATER: "faster",
    estimates.LESS: "slower",
    estimates.EQUIVALENT: f"equivalent within {MARGIN:.0%}",
    estimates.INCONCLUSIVE: estimates.INCONCLUSIVE,
}
GIB = 2**30
_BYTES = 4  # of a number in fp32, in which all strategies keep what they train

_BEYOND = 2.0  # an axis goes no further than this from the ratios for the sake of an interval
_BAND = f"within {100 * MARGIN:g} % of the baseline"
_STATE: dict[str, Any] = {"marker": "|", "markersize": 13, "markeredgewidth": 2.0}
_STATE_NAME = "share of weights, gradients, momenta"

Groups = Sequence[pd.DataFrame]
Summary = Callable[[Groups, pd.DataFrame], list[dict[str, Any]]]
"""From the runs of each configuration and one row of each to more columns of these rows."""


def points(
    runs: pd.DataFrame, windows: pd.DataFrame | None = None, question: str = ""
) -> pd.DataFrame:
    """Return one row per configuration of each study, best first.

    A panel is a study and, where its runs come from several, a machine with its software. `runs`
    and `windows` are as `runs_table` and `windows_table` have them, of one study or of several;
    `question` is what the study asks.

    Returns
    -------
    DataFrame
        label names the fields in which the configurations of a study differ. value (images/s) is
        the geometric mean over the n runs, over blocks of its ``windows`` where interleaved, low
        and high its 95 % interval. ratio is to the configuration called base, from ``pairs`` of
        windows of one block and round where known; start_ratios are those of each start, cpu_ratio
        is the same per CPU second. base is the study's reference; without one, the configuration
        that changes fewest defaults. decision is what the interval of the ratio says, see
        `estimates.decision`.
    """
    made = ended_runs(runs, second_starts=True)
    kept = made.loc[~made["lost"], ["study", "run_id"]]
    own = None if windows is None else windows.merge(kept, on=["study", "run_id"])
    wall, cpu = Interleaved(own), Interleaved(own, CPU)
    references = set() if windows is None else set(windows["reference"].dropna())

    def summary(groups: Groups, firsts: pd.DataFrame) -> list[dict[str, Any]]:
        is_reference = [bool(set(group["run_id"]) & references) for group in groups]
        base = _base(groups, firsts, is_reference)
        base_wall, base_cpu = wall.sample(groups[base]), cpu.sample(groups[base])
        rows = []
        for place, group in enumerate(groups):
            own = wall.sample(group)
            row = {
                **own.mean.columns(),
                "windows": counted(own.windows),
                "pairs": counted(own.windows.keys() & base_wall.windows.keys()),
                "base": firsts["label"][base],
                "base_rule": REFERENCE if is_reference[base] else FEWEST,
                "start_ratios": _listed(_start_ratios(own, base_wall)),
            }
            if place == base:
                row["ratio"] = 1.0 if len(own.values) else np.nan
            else:
                row |= _compared(wall.compare(own, base_wall), "ratio", "decision")
                by_cpu = cpu.ratio(cpu.sample(group).windows, base_cpu.windows)
                row |= _compared(by_cpu, "cpu_ratio", "cpu_decision") if by_cpu else {}
            rows.append(row)
        return rows

    table = _studies(made, runs, question, summary, COMPARISON)
    rounds = {} if windows is None else _rounds_left_out(windows)
    return table.assign(rounds_left_out=table["study"].map(rounds).astype("string"))


def accuracy_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each configuration that evaluated, of studies of several libraries.

    value is the mean of the last top-1 accuracies of the n runs, 0 to 1, low and high their range.
    """
    made = ended_runs(runs)
    made = made[made["top1"].notna() | made["lost"]]
    made = made.assign(value=made["top1"].mask(made["lost"]))
    several = made["framework"].where(made["value"].notna()).groupby(made["study"])

    def summary(groups: Groups, _: pd.DataFrame) -> list[dict[str, Any]]:
        return [_range(group["value"]) | {"value": group["value"].mean()} for group in groups]

    return _studies(made[several.transform("nunique") > 1], runs, "", summary, ACCURACY)


def memory_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration of each study that shards, the least memory first.

    value is the most memory of any rank in a warm epoch, GiB, over the n runs; low is that of the
    run with the least. state is `state_bytes` in GiB, missing for networks of unknown size.
    throughput is the geometric mean, images/s.
    """
    made = ended_runs(runs)
    made = made[made["max_memory_bytes"].notna() | made["lost"]]
    memory = (made["max_memory_bytes"].astype("float64") / GIB).mask(made["lost"])
    known = made["strategy"].where(made["max_memory_bytes"].notna())
    sharded = made["strategy"].eq("fsdp") | (made["deepspeed_zero_stage"] > 0)
    asked = known.groupby(made["study"]).transform("nunique") > 1
    asked &= sharded.groupby(made["study"]).transform("any")
    made = made.assign(speed=made["value"], value=memory)

    def summary(groups: Groups, _: pd.DataFrame) -> list[dict[str, Any]]:
        return [
            _range(group["value"])
            | {
                "value": group["value"].max(),
                "state": _state(group.iloc[0]) / GIB,
                "throughput": np.exp(np.log(group["speed"].dropna().astype(float)).mean()),
            }
            for group in groups
        ]

    table = _studies(made[asked], runs, "", summary, MEMORY)
    return table.sort_values(["panel", "value", "label"], ignore_index=True, kind="stable")


def _studies(
    made: pd.DataFrame,
    runs: pd.DataFrame,
    question: str,
    summary: Summary,
    columns: dict[str, str],
) -> pd.DataFrame:
    """Return the rows of the configurations of each study, panel by panel."""
    tables = [pd.DataFrame(columns=list(columns))]
    for study, own in made.groupby("study"):
        numbers = numbered(own, naming.KEY)
        firsts = own[~numbers.duplicated()]
        common = naming.common(firsts)
        about = own.assign(
            label=numbers.map(dict(enumerate(naming.names(firsts)))),
            common=common,
            unsaid=naming.unsaid(firsts),
            left_out=naming.left_out(whole(runs[runs["study"] == study]), own),
            question=question,
        )
        texts = naming.place_texts(about.drop_duplicates(naming.PLACE))
        places = about.groupby(naming.PLACE, dropna=False, sort=False)
        for text, (_, place) in zip(texts, places, strict=True):
            groups = [group for _, group in place.groupby(naming.KEY, dropna=False)]
            firsts = pd.concat([group.head(1) for group in groups], ignore_index=True)
            firsts["label"] = naming.distinguished(firsts)
            found = zip(groups, summary(groups, firsts), strict=True)
            rows = pd.DataFrame([_reached(group) | more for group, more in found])
            table = firsts.assign(panel=": ".join(filter(None, [str(study), text or common])))
            table[list(rows)] = rows
            tables.append(table.sort_values(["value", "label"], ascending=[False, True]))
    return stack(tables, columns)


def _reached(group: pd.DataFrame) -> dict[str, Any]:
    known = group[group["value"].notna()]
    return {
        "n": len(known),
        "failed": int(group["lost"].sum()),
        "repeats": _listed(known["value"]),
        "commit": ";".join(sorted(set(known["commit"]))),
    }


def _start_ratios(own: Sample, base: Sample) -> list[float]:
    """Return the ratio of each start to the baseline; without pairs, to its mean of a commit."""
    if pairs := block_means(paired(own.windows, base.windows)):
        return pairs
    if commits := common_commits(own, base):
        sides = [(own.of(one), base.of(one)) for one in commits]
    else:
        sides = [(own.values, base.values)] if len(base.values) else []
    return [value / estimates.middle(to).ratio for values, to in sides for value in values]


def _listed(values: Iterable[float]) -> str:
    return ";".join(f"{one:.6g}" for one in values)


def _compared(ratio: Estimate, name: str, decision: str) -> dict[str, Any]:
    decided = None if np.isnan(ratio.low) else estimates.decision(ratio)
    return ratio.columns(name) | {decision: decided}


def _range(values: pd.Series) -> dict[str, Any]:
    return {"low": values.min(), "high": values.max()}


def _base(groups: Groups, firsts: pd.DataFrame, is_reference: Sequence[bool]) -> int:
    """Return the place of the configuration that all are compared with."""
    fields = specs(firsts)
    named = style.with_framework_strategy(firsts)["framework_strategy"]
    strategies, loaders = style.strategies(named), style.loaders(firsts["loader"])

    def order(place: int) -> tuple[Any, ...]:
        spec, known = fields[place], groups[place]["value"].notna().any()
        look = strategies.index(named.iloc[place]), loaders.index(spec["loader"])
        return (not is_reference[place], not known, naming.changes(spec), *look, place)

    return min(range(len(groups)), key=order)


def _rounds_left_out(windows: pd.DataFrame) -> dict[str, str]:
    """Return of each study how many rounds do not count, and which of them were disturbed."""
    texts: dict[str, str] = {}
    rounds = windows[windows["round"].notna()].drop_duplicates(["study", "block", "round"])
    for study, own in rounds.groupby("study"):
        gone = own[own["left_out"].eq(DISTURBED).fillna(False)].sort_values(["block", "round"])
        named = [
            f"{int(one)} of {block}"
            for one, block in zip(gone["round"], gone["block"], strict=True)
        ]
        first = int(own["left_out"].eq(FIRST).sum())
        texts[str(study)] = f"first of a start: {first}; disturbed: {len(named)}" + (
            f" (round {', '.join(named)})" if named else ""
        )
    return texts


def state_bytes(parameters: float, shards: int, ranks: int, momentum: bool) -> float:
    """Return what weights, gradients and momenta take on one of several ranks, bytes.

    Each of the three is four bytes a parameter. Momenta are divided among ranks from one kind of
    shards on, gradients from two, weights from three (Rajbhandari et al. 2020, ZeRO, section 5).
    Buffers and second copies of a framework are not in it.
    """
    shared = [shards >= 3, shards >= 2] + ([shards >= 1] if momentum else [])
    return _BYTES * parameters * sum(1 / ranks if part else 1 for part in shared)


def _state(run: pd.Series) -> float:
    """Return `state_bytes` of a run; NaN where its record lacks a part of it."""
    # FSDP keeps whole gradients until the last micro-batch.
    whole_gradients = run["strategy"] == "fsdp" and run["accumulation"] > 1
    if pd.isna(run["parameters"]) or run["optimizer"] != "sgd" or whole_gradients:
        return np.nan
    shards = 3 if run["strategy"] == "fsdp" else int(run["deepspeed_zero_stage"])
    return state_bytes(run["parameters"], shards, run["world_size"], run["momentum"] > 0)


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the ratio of each configuration to the baseline, that of every start a dot."""
    points = style.with_framework_strategy(points.fillna({"second_start": False}))
    looks = style.strategy_looks(points["framework_strategy"])
    cpu = bool(points["cpu_ratio"].notna().any())
    named = handles(style.strategies_named(looks)) if len(looks) > 1 else []
    band = [Patch(color=style.BOUND_COLOUR, label=_BAND)] if len(points) else []
    figure, panels = row_figure(
        finding(points),
        points,
        [*named, *band],
        _caption(points),
        ["n", "images/s", "ratio", *(["per CPU s"] if cpu else []), ""],
        lambda one: _cells(one.iloc[0], cpu),
        "throughput / throughput of the baseline",
    )
    for ax, table in panels:
        if table["ratio"].isna().all():
            continue
        table = table.assign(value=table["ratio"], low=table["ratio_low"], high=table["ratio_high"])
        dots = _draw_runs(ax, table, looks, "start_ratios")
        draw_values(ax, table, looks)
        ax.axvspan(1 / (1 + MARGIN), 1 + MARGIN, color=style.BOUND_COLOUR, linewidth=0, zorder=0)
        ax.axvline(1, **style.IDEAL)
        low, high = _ends(table)
        ax.set_xlim(max(min([low, *dots]), 0), max([high, *dots]))
    return figure


def _draw_runs(
    ax: Axes, table: pd.DataFrame, looks: style.Looks, column: str = "repeats"
) -> list[float]:
    """Draw the runs as small dots where a configuration has several; return all values."""
    found: list[float] = []
    for row in table[table["n"] > 0].to_dict("records"):
        values = np.array(row[column].split(";"), dtype=float)
        found += values.tolist()
        if row["n"] > 1:
            ax.plot(values, np.full(len(values), row["row"] + 0.25), ".", markersize=3,
                    color=looks[row["framework_strategy"]]["color"], alpha=0.6)  # fmt: skip
    return found


@styled
def draw_accuracy(points: pd.DataFrame) -> Figure:
    """Return the accuracy of each configuration with the range of its runs, every run a dot."""
    points = style.with_framework_strategy(points)
    looks = style.strategy_looks(points["framework_strategy"])
    known = points[points["n"] > 0]
    title = "No study measured here has evaluated with several libraries"
    if len(known):
        reached = captions.span(100 * known["value"], "{:.1f}")
        names = ", ".join(map(style.dataset_name, known["dataset"].unique()))
        title = f"All libraries reach {reached} % of {names}"
    figure, panels = row_figure(
        title,
        points,
        handles(style.strategies_named(looks)),
        ["Mean of the last top-1 accuracies of n runs, dots: runs; bars: their range.",
         *captions.provenance(points, "")],
        ["n", "top-1 (%)"],
        lambda one: [count_text(one.iloc[0]), _percents(one.iloc[0])],
        "top-1 accuracy of the test images",
    )  # fmt: skip
    for ax, table in panels:
        _draw_runs(ax, table, looks)
        draw_values(ax, table, looks)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    return figure


@styled
def draw_memory(points: pd.DataFrame) -> Figure:
    """Return the peak memory of each configuration, the least on top, beside its arithmetic."""
    points = style.with_framework_strategy(points)
    looks = style.strategy_looks(points["framework_strategy"])
    known = points[points["n"] > 0]
    title = "No study measured here has recorded the memory of two strategies"
    if len(known):
        least, most = (known.loc[getattr(known["value"], f"idx{end}")()] for end in ("min", "max"))
        share = least["value"] / most["value"]
        runs = (np.array(one["repeats"].split(";"), dtype=float) for one in (least, most))
        doubt = captions.doubt(estimates.unpaired_ratio(*runs))
        title = f"{least['label']} needs {percent(share)} of the memory of {most['label']}"
        title += f": {doubt}" if doubt else ""
    figure, panels = row_figure(
        title,
        points,
        [*handles(style.strategies_named(looks)), *handles({_STATE_NAME: _STATE}, color="#555555")],
        ["The most of any rank in warm training epochs, bars down to the least of n runs. "
         "On a CPU: memory above that before the network.", *captions.provenance(points, "")],
        ["n", "GiB", "images/s"],
        lambda one: _memory_cells(one.iloc[0]),
        "peak memory of a rank (GiB)",
    )  # fmt: skip
    for ax, table in panels:
        ax.plot(table["state"], table["row"], linestyle="none", color="#555555", **_STATE)
        draw_values(ax, table, looks)
        ax.set_xlim(left=0)
    return figure


def _ends(table: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of an axis: ratios, intervals and margin, but no endless interval."""
    values = table["value"].dropna()
    reach = [1 / (1 + MARGIN), 1 + MARGIN, *values]
    low = max(np.nanmin([*reach, *table["low"]]), values.min() / _BEYOND)
    high = min(np.nanmax([*reach, *table["high"]]), values.max() * _BEYOND)
    room = 0.04 * (high - low)
    return float(low - room), float(high + room)


def finding(points: pd.DataFrame) -> str:
    """Return how many configurations are faster than the baseline, and the largest such ratio.

    A second start is a control and does not count. Where none is faster, the ratio is that of the
    slowest.
    """
    others = points[points["ratio"].notna() & (points["label"] != points["base"])]
    others = others[~others["second_start"].fillna(False)]
    if others.empty:
        known = points[points["n"] > 0]
        if known.empty:
            return "No training measured here yet"
        return f"{known['label'].iloc[0]} trains {three_digits(known['value'].iloc[0])} images/s"
    base = f"{others['base'].iloc[0]}" if others["base"].nunique() == 1 else "the baseline"
    best = others.loc[others["ratio"].idxmax()]
    decided = others["decision"].dropna()
    if decided.empty or len(others) == 1:
        reached = f"{best['label']} reaches {best['ratio']:.2f} times the throughput of {base}"
        return f"{reached}: {word(best)}"
    if not decided.isin([estimates.GREATER, estimates.LESS]).any():
        return f"No difference to {base} is conclusive in {len(others)} configurations"
    faster, slower = (
        others.loc[others["decision"] == one, "ratio"]
        for one in (estimates.GREATER, estimates.LESS)
    )
    end = ("fastest", faster.max()) if len(faster) else ("slowest", slower.min())
    return (
        f"{len(faster)} of {len(others)} configurations are faster than {base}, {len(slower)} "
        f"slower; the {end[0]} reaches {end[1]:.2f} times its throughput"
    )


def _cells(row: pd.Series, by_cpu: bool) -> list[str]:
    """Return n, throughput, ratio, ratio per CPU second if `by_cpu`, and the word of a row."""
    value = three_digits(row["value"]) if row["n"] else "none"
    if row["label"] == row["base"]:
        return [count_text(row), value, "baseline", *([""] if by_cpu else []), ""]
    cpu = "" if np.isnan(row["cpu_ratio"]) else f"{row['cpu_ratio']:.2f}"
    decision = CONTROL if row["second_start"] else word(row).partition(" within")[0]
    return [count_text(row), value, ratio_text(row), *([cpu] if by_cpu else []), decision]


def word(row: Any, stem: str = "") -> str:
    """Return the decision of a row in words; nothing where it has none."""
    if not pd.isna(row[f"{stem}decision"]):
        return WORDS[row[f"{stem}decision"]]
    return "" if np.isnan(row[f"{stem}ratio"]) else captions.ONE_START


def _percents(row: pd.Series) -> str:
    scaled = 100 * row[["value", "low", "high"]].astype(float)
    return f"{scaled['value']:.1f}{interval(scaled, '{:.1f}')}" if row["n"] else "none"


def _memory_cells(row: pd.Series) -> list[str]:
    if not row["n"]:
        return [count_text(row), "none", ""]
    return [count_text(row), f"{row['value']:.2f}", three_digits(row["throughput"])]


def _caption(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return []
    bases = points["base"].unique()
    to = "" if points["pairs"].any() else ", relative to the baseline's mean"
    panels = [panel for _, panel in points.groupby("panel")]
    other = sum(not base & one for base, others in map(_commits, panels) for one in others)
    again = points["second_start"].any()
    rounds = [
        text.partition(" (")[0].replace(" of a start", "")
        for text in points["rounds_left_out"].dropna().unique()
    ]
    return [
        *([f"Baseline: {bases[0]}."] if points["panel"].nunique() == 1 else []),
        *captions.provenance(points, f"the ratio; dots: starts{to}"),
        *(["Ratios within each commit."] if any(map(within_commits, panels)) else []),
        *([f"Without a common commit: {plural(other, 'ratio')}."] if other else []),
        *(["Second start: same settings."] if again else []),
        *[f"Rounds left out: {text}." for text in rounds],
        *[f"Not drawn: {text}." for text in points["left_out"].dropna().unique() if text],
    ]


def within_commits(panel: pd.DataFrame) -> bool:
    """Say whether ratios are of whole runs of several commits, each commit by itself."""
    base, others = _commits(panel)
    return len(base.union(*others)) > 1 and any(base & one for one in others)


def _commits(panel: pd.DataFrame) -> tuple[set[str], list[set[str]]]:
    """Return the commits of the baseline, and of each ratio to it that is not of pairs."""
    commits = panel["commit"].str.split(";").map(set)
    is_base = panel["label"] == panel["base"]
    others = panel["ratio"].notna() & (panel["pairs"] == 0) & ~is_base
    return set().union(*commits[is_base]), list(commits[others])


def sentences(points: pd.DataFrame) -> list[str]:
    """Return what `points` say of each configuration, below a line on the baseline.

    E.g. ``Horovod, 2 ranks: 0.80 [0.76, 0.84], slower; per CPU second 0.97 [...], ...``. Whole
    runs are compared where none was interleaved; without any ratio, a panel has no lines.
    """
    lines: list[str] = []
    for name, panel in points.groupby("panel", sort=False):
        others, first = panel[panel["label"] != panel["base"]], panel.iloc[0]
        interleaved = panel["windows"].any()
        if not interleaved and others["ratio"].isna().all():
            continue
        known = others[others["n"] > 0]
        named = first["base_rule"] == REFERENCE
        rule = "" if named else " (the configuration that changes the fewest settings)"
        pairs = f"pairs of windows: {captions.counted('', known['pairs'])}"
        lines.append(
            f"{name}: throughput / throughput of {first['base']}{rule}, starts: "
            f"{captions.counted('n', known['n'])}, {pairs if interleaved else 'whole runs'}"
        )
        for row in others.to_dict("records"):
            wall, cpu = (_compared_text(row, stem) for stem in ("", "cpu_"))
            lines.append(f"  {row['label']}: {wall}" + (f"; per CPU second {cpu}" if cpu else ""))
    return lines


def _compared_text(row: dict[str, Any], stem: str) -> str:
    if np.isnan(row[f"{stem}ratio"]):
        return "" if stem else "no pairs" if row["windows"] else "not measured"
    return f"{ratio_text(row, f'{stem}ratio')}, {word(row, stem)}"
