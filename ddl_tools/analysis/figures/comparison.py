"""All configurations of a study, best first: throughput, accuracy or memory, a row each.

Throughputs stand beside their ratio to one configuration, the baseline. Where the study is about
one number (a bucket's size, a batch), its configurations are curves over it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from ddl_tools.analysis import estimates, turns
from ddl_tools.analysis.configurations import made_runs, stack
from ddl_tools.analysis.estimates import MARGIN, Estimate
from ddl_tools.analysis.figures import study_arms
from ddl_tools.analysis.figures.columns import ORIGIN, WHO, typed
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import drawn_panels, frame, handles, styled
from ddl_tools.analysis.plot.rows import draw_values, interval, row_figure
from ddl_tools.analysis.plot.style import three_digits
from ddl_tools.analysis.tables import DISTURBED, FIRST, whole
from ddl_tools.analysis.turns import CPU, Turns

_WHO = f"question panel {WHO} world_size second_start label"
_REACHED = "n failed value low high repeats"
COMPARISON = typed(
    _WHO, "axis at line", _REACHED, "windows base base_rule ratio ratio_low ratio_high decision",
    "pairs cpu_ratio cpu_ratio_low cpu_ratio_high cpu_decision",
    "common unsaid left_out rounds_left_out", ORIGIN,
)  # fmt: skip
ACCURACY = typed(_WHO, "dataset", _REACHED, ORIGIN)
MEMORY = typed(_WHO, _REACHED, "state throughput", ORIGIN)

REFERENCE = "the study's reference arm"
FEWEST = "no arm is named as reference: the one that changes fewest defaults, the first of these"
ONE_START = "one start"  # so no interval, and nothing is sure
WORDS = {
    estimates.GREATER: "faster",
    estimates.LESS: "slower",
    estimates.EQUIVALENT: f"equivalent within {MARGIN:.0%}",
    estimates.CANNOT_SAY: "inconclusive",
}
GIB = 2**30
_BYTES = 4  # of a number in fp32, in which all strategies keep what they train

_MOST_CURVES = 4
_LEAST_PLACES = 3  # on an axis
_BEYOND = 2.0  # an axis goes no further than this from the values for the sake of an interval
_BAND = f"within {100 * MARGIN:g} % of the baseline"
_STATE: dict[str, Any] = {"marker": "|", "markersize": 13, "markeredgewidth": 2.0}
_STATE_NAME = "share of weights, gradients, momenta"

Groups = Sequence[pd.DataFrame]
Summary = Callable[[Groups, pd.DataFrame, Sequence[str]], dict[str, Any]]
"""From the runs of each configuration, the first of each and their names to columns."""


def points(
    runs: pd.DataFrame, windows: pd.DataFrame | None = None, question: str = ""
) -> pd.DataFrame:
    """Return one row per configuration of each study, best first.

    A configuration is all runs that agree in every field of `RunSpec` but seed and repeat, and in
    all that their records tell of machine, software and settings. label names the fields in which
    those of a study differ. value (images/s) is the geometric mean over the n runs, over blocks of
    its ``windows`` where they were interleaved, low and high its 95 % interval, repeats each run's.
    ratio is to the configuration called base, from ``pairs`` of windows of one block and round
    where these are known; cpu_ratio the same per CPU second. base is the study's reference; without
    one, that which changes fewest defaults. decision is what the interval of the ratio says, see
    `estimates.decision`; empty without one. Those that are curves over one field have its
    name as axis, and their place ``at`` it on a ``line``.

    A panel is a study and, where its runs come from several, a machine with its software.

    Parameters
    ----------
    runs
        See `runs_table`: those of one study, or of several.
    windows
        See `windows_table`; None where nothing was interleaved.
    question
        What the study asks.
    """
    made = made_runs(runs, second_starts=True)
    kept = made.loc[~made["lost"], ["study", "run_id"]]
    counted = None if windows is None else windows.merge(kept, on=["study", "run_id"])
    taken, by_cpu = Turns(counted), Turns(counted, CPU)
    references = set() if windows is None else set(windows["reference"].dropna())

    def summary(groups: Groups, firsts: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
        own = [_windows(group, taken) for group in groups]
        means = [turns.middle(one, _known(group)) for one, group in zip(own, groups, strict=True)]
        is_reference = [bool(set(group["run_id"]) & references) for group in groups]
        base = _base(groups, firsts, is_reference)
        ratios = [_ratio(one, base, groups, own, taken) for one in range(len(groups))]
        cpu = [_windows(group, by_cpu) for group in groups]
        cpu_ratios = [
            None if place == base else by_cpu.ratio(one, cpu[base]) for place, one in enumerate(cpu)
        ]
        return {
            **_interval("", means, "value"),
            "repeats": [_listed(_each(group, taken)) for group in groups],
            "windows": [sum(number != turns.WHOLE for _, number in one) for one in own],
            "base": names[base],
            "base_rule": REFERENCE if is_reference[base] else FEWEST,
            **_axis(firsts),
            **_interval("ratio_", ratios, "ratio"),
            "decision": [_decided(one) for one in ratios],
            "pairs": [
                sum(number != turns.WHOLE for _, number in one.keys() & own[base].keys())
                for one in own
            ],
            **_interval("cpu_ratio_", cpu_ratios, "cpu_ratio"),
            "cpu_decision": [_decided(one) for one in cpu_ratios],
        } | ({"ratio": _with_base(ratios, base, bool(len(_known(groups[base]))))})

    table = _studies(made, runs, question, summary, COMPARISON)
    rounds = _rounds_left_out(windows)
    return table.assign(rounds_left_out=table["study"].map(rounds).astype("string"))


def accuracy_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each configuration that evaluated, of studies of several libraries.

    value is the mean of the last top-1 accuracies of the n runs, 0 to 1, low and high their range.
    """
    made = made_runs(runs)
    made = made[made["top1"].notna() | made["lost"]]
    made = made.assign(value=made["top1"].mask(made["lost"]))
    several = made["framework"].where(made["value"].notna()).groupby(made["study"])
    ends = {"value": "mean", "low": "min", "high": "max"}

    def summary(groups: Groups, *_: Any) -> dict[str, Any]:
        return {name: [one["value"].agg(how) for one in groups] for name, how in ends.items()}

    return _studies(made[several.transform("nunique") > 1], runs, "", summary, ACCURACY)


def memory_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration of each study that shards, the least memory first.

    value is the most memory of any rank in a warm epoch, GiB, over the n runs; low is that of the
    run with the least. state is `state_bytes` in GiB, missing for networks whose size no record
    tells. throughput is the geometric mean, images/s.
    """
    made = made_runs(runs)
    made = made[made["max_memory_bytes"].notna() | made["lost"]]
    memory = (made["max_memory_bytes"].astype("float64") / GIB).mask(made["lost"])
    told = made["strategy"].where(made["max_memory_bytes"].notna())
    sharded = made["strategy"].eq("fsdp") | (made["deepspeed_zero_stage"] > 0)
    asked = told.groupby(made["study"]).transform("nunique") > 1
    asked &= sharded.groupby(made["study"]).transform("any")
    made = made.assign(speed=made["value"], value=memory)

    def summary(groups: Groups, *_: Any) -> dict[str, Any]:
        ends = {"value": "max", "low": "min", "high": "max"}
        return {
            **{name: [one["value"].agg(how) for one in groups] for name, how in ends.items()},
            "state": [_state(one.iloc[0]) / GIB for one in groups],
            "throughput": [
                np.exp(np.log(one["speed"].dropna().astype(float)).mean()) for one in groups
            ],
        }

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
        arms = own.groupby(study_arms.KEY, dropna=False, sort=False).ngroup()
        firsts = own[~arms.duplicated()]
        common = study_arms.common(firsts)
        about = own.assign(
            label=arms.map(dict(enumerate(study_arms.names(firsts)))),
            common=common,
            unsaid=study_arms.unsaid(firsts),
            left_out=study_arms.left_out(whole(runs[runs["study"] == study]), own),
            question=question,
        )
        texts = study_arms.place_texts(about.drop_duplicates(study_arms.PLACE))
        places = about.groupby(study_arms.PLACE, dropna=False, sort=False)
        for text, (_, place) in zip(texts, places, strict=True):
            groups = [group for _, group in place.groupby(study_arms.KEY, dropna=False)]
            firsts = pd.concat([group.head(1) for group in groups], ignore_index=True)
            names = study_arms.told_apart(firsts, firsts["label"])
            reached = {
                "panel": ": ".join(filter(None, [str(study), text or common])),
                "label": names,
                "n": [len(_known(group)) for group in groups],
                "failed": [int(group["lost"].sum()) for group in groups],
                "repeats": [_listed(_known(group)) for group in groups],
                "commit": [
                    ";".join(sorted(set(group.loc[group["value"].notna(), "commit"])))
                    for group in groups
                ],
            }
            table = firsts.assign(**reached | summary(groups, firsts, names))
            tables.append(table.sort_values(["value", "label"], ascending=[False, True]))
    return stack(tables, columns)


def _known(group: pd.DataFrame) -> np.ndarray:
    """Return the values of the runs that have one."""
    return group["value"].dropna().to_numpy(dtype=float)


def _each(group: pd.DataFrame, taken: Turns) -> list[float]:
    """Return the throughput of each run, over its windows where it was interleaved."""
    known = group[group["value"].notna()]
    return [
        turns.middle(taken.of(study, [run_id]), [value]).ratio
        for study, run_id, value in known[["study", "run_id", "value"]].itertuples(index=False)
    ]


def _listed(values: Iterable[float]) -> str:
    return ";".join(f"{one:.6g}" for one in values)


def _windows(group: pd.DataFrame, taken: Turns) -> turns.Windows:
    return taken.of(group["study"].iloc[0], group.loc[group["value"].notna(), "run_id"])


def _interval(stem: str, found: Iterable[Estimate | None], value: str) -> dict[str, list[float]]:
    names = {value: "ratio", f"{stem}low": "low", f"{stem}high": "high"}
    known = list(found)
    return {new: [getattr(one, old, np.nan) for one in known] for new, old in names.items()}


def _ratio(
    place: int, base: int, groups: Groups, own: Sequence[turns.Windows], taken: Turns
) -> Estimate | None:
    if place == base:
        return None
    paired = taken.ratio(own[place], own[base])
    return paired or estimates.unpaired_ratio(_known(groups[place]), _known(groups[base]))


def _with_base(ratios: Sequence[Estimate | None], base: int, known: bool) -> list[float]:
    """Return the ratios with that of the base, which is 1 itself and without an interval."""
    own = 1.0 if known else np.nan
    return [own if place == base else one.ratio if one else np.nan
            for place, one in enumerate(ratios)]  # fmt: skip


def _decided(ratio: Estimate | None) -> str | None:
    return None if ratio is None or np.isnan(ratio.low) else estimates.decision(ratio)


def _base(groups: Groups, firsts: pd.DataFrame, is_reference: Sequence[bool]) -> int:
    """Return the place of the configuration that all are compared with."""
    specs = study_arms.specs(firsts)
    named = style.with_framework_strategy(firsts)["framework_strategy"]
    strategies, loaders = style.strategies(named), style.loaders(firsts["loader"])

    def order(place: int) -> tuple[Any, ...]:
        spec, known = specs[place], len(_known(groups[place]))
        look = strategies.index(named.iloc[place]), loaders.index(spec["loader"])
        return (not is_reference[place], not known, study_arms.changes(spec), *look, place)

    return min(range(len(groups)), key=order)


def _axis(firsts: pd.DataFrame) -> dict[str, Any]:
    """Return the columns axis, at and line: empty where there are no curves over one number.

    It is the number with most values, where the other fields make few lines of two or more.
    """
    numbers = filter(study_arms.is_number, study_arms.varied(firsts))
    for field in sorted(numbers, key=lambda name: -firsts[name].nunique()):
        line = study_arms.names(firsts, without=[field])
        alone = firsts.assign(line=line).drop_duplicates(["line", field])
        lengths = alone["line"].value_counts()
        enough = lengths.min() > 1 and lengths.max() >= _LEAST_PLACES
        if enough and len(alone) == len(firsts) and len(lengths) <= _MOST_CURVES:
            return {"axis": field, "at": firsts[field].to_list(), "line": line}
    return {"axis": None, "at": None, "line": None}


def _rounds_left_out(windows: pd.DataFrame | None) -> dict[str, str]:
    """Return of each study how many rounds do not count, and which of them were disturbed."""
    texts: dict[str, str] = {}
    if windows is None:
        return texts
    rounds = windows[windows["round"].notna()].drop_duplicates(["study", "block", "round"])
    for study, own in rounds.groupby("study"):
        # A block's name begins with the time of its start.
        number = own["block"].rank(method="dense").astype(int)
        gone = own.assign(number=number)[own["left_out"].eq(DISTURBED).fillna(False)]
        named = [
            f"{int(place['round']) + 1} of block {place['number']}"
            for place in gone.sort_values(["number", "round"]).to_dict("records")
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
    """Return `state_bytes` of a run; NaN where its record does not tell enough."""
    # FSDP keeps whole gradients until the last micro-batch.
    whole_gradients = run["strategy"] == "fsdp" and run["accumulation"] > 1
    if pd.isna(run["parameters"]) or run["optimizer"] != "sgd" or whole_gradients:
        return np.nan
    shards = 3 if run["strategy"] == "fsdp" else int(run["deepspeed_zero_stage"])
    return state_bytes(run["parameters"], shards, run["world_size"], run["momentum"] > 0)


@styled
def draw(points: pd.DataFrame) -> Figure:
    """Return the configurations as curves over one number, or else as rows, best first."""
    points = style.with_framework_strategy(points)
    axes = points["axis"]
    curved = len(points) > 0 and axes.notna().all() and axes.nunique() == 1
    return _curves(points) if curved and points["line"].nunique() <= _MOST_CURVES else _rows(points)


def _rows(points: pd.DataFrame) -> Figure:
    looks = style.strategy_looks(points["framework_strategy"])
    cpu = bool(points["cpu_ratio"].notna().any())
    figure, panels = row_figure(
        finding(points),
        points,
        [*(handles(style.strategies_named(looks)) if len(looks) > 1 else []), *_band(points)],
        _caption(points),
        ["n", "images/s", "ratio", *(["by CPU"] if cpu else []), ""],
        lambda one: _cells(one.iloc[0], cpu),
        "throughput / throughput of the baseline",
    )
    for ax, table in panels:
        base = _base_value(table)
        if np.isnan(base):
            continue
        ratios = dict(
            zip(("value", "low", "high"), ("ratio", "ratio_low", "ratio_high"), strict=True)
        )
        table = table.assign(**{new: table[old] for new, old in ratios.items()})
        _draw_runs(ax, table, looks, base)
        draw_values(ax, table, looks)
        ax.axvspan(1 / (1 + MARGIN), 1 + MARGIN, color=style.BOUND_COLOUR, linewidth=0, zorder=0)
        ax.axvline(1, **style.IDEAL)
        ends = _ends(table, 1.0)
        dots = [float(one) / base for cell in table["repeats"] for one in cell.split(";") if one]
        ax.set_xlim(max(min([ends[0], *dots]), 0), max([ends[1], *dots]))
    return figure


def _draw_runs(ax: Axes, table: pd.DataFrame, looks: style.Looks, scale: float = 1.0) -> None:
    """Draw every run as a small dot in the row of its configuration, where there are several."""
    for row in table[table["n"] > 1].to_dict("records"):
        values = np.array(row["repeats"].split(";"), dtype=float) / scale
        ax.plot(values, np.full(len(values), row["row"] + 0.25), ".", markersize=3,
                color=looks[row["framework_strategy"]]["color"], alpha=0.6)  # fmt: skip


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
        lambda one: [_count(one.iloc[0]), _percents(one.iloc[0])],
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
    title = "No study measured here has told the memory of two strategies"
    if len(known):
        least, most = (known.loc[getattr(known["value"], f"idx{end}")()] for end in ("min", "max"))
        share = least["value"] / most["value"]
        title = f"{least['label']} needs {share:.0%} of the memory of {most['label']}"
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


def _curves(points: pd.DataFrame) -> Figure:
    panels, looks = drawn_panels(points), _line_looks(points)
    figure, axes = frame(
        finding(points),
        panels,
        [2.6] * len(panels),
        [*(handles(looks, linestyle="solid") if len(looks) > 1 else []), *_band(points)],
        [*_caption(points), *captions.panels_not_drawn(points, panels)],
    )
    for ax, name in zip(axes, panels, strict=True):
        table = points[points["panel"] == name]
        base = _base_value(table)
        curves.value_axis(ax, table["at"], study_arms.axis_label(table["axis"].iloc[0]))
        ax.set_ylim(*_ends(table, base))
        ax.set_ylabel("throughput (images/s)")
        curves.lines(ax, table, "at", "line", looks, markersize=5)
        if not np.isnan(base):
            low, high = base / (1 + MARGIN), base * (1 + MARGIN)
            ax.axhspan(low, high, color=style.BOUND_COLOUR, linewidth=0, zorder=0)
            ax.axhline(base, **style.IDEAL)
            scale = (lambda value, base=base: value / base, lambda ratio, base=base: ratio * base)
            ax.secondary_yaxis("right", functions=scale).set_ylabel("ratio to the baseline")
    return figure


def _line_looks(points: pd.DataFrame) -> style.Looks:
    """Return how each line looks: as its framework, where it has one of its own."""
    found = points.groupby("line")["framework_strategy"].agg(["first", "nunique"])
    if found["nunique"].max() == 1 and found["first"].is_unique:
        known = style.strategy_looks(found["first"])
        return {str(line): known[strategy] for line, strategy in found["first"].items()}
    spare = style.strategy_looks(pd.Series(list(style.STRATEGY_COLOURS)))
    return dict(zip(map(str, found.index), spare.values(), strict=False))


def _band(points: pd.DataFrame) -> list[Patch]:
    return [Patch(color=style.BOUND_COLOUR, label=_BAND)] if len(points) else []


def _base_value(table: pd.DataFrame) -> float:
    """Return the throughput of a panel's base; NaN if it has none."""
    return float(table.loc[table["label"] == table["base"], "value"].iloc[0])


def _ends(table: pd.DataFrame, base: float) -> tuple[float, float]:
    """Return the ends of an axis: values, intervals and margin, but no endless interval."""
    values = table["value"].dropna()
    if values.empty:
        return 0.0, 1.0
    reach = [base / (1 + MARGIN), base * (1 + MARGIN), *values]
    low = max(np.nanmin([*reach, *table["low"]]), values.min() / _BEYOND)
    high = min(np.nanmax([*reach, *table["high"]]), values.max() * _BEYOND)
    room = 0.04 * (high - low)
    return float(low - room), float(high + room)


def finding(points: pd.DataFrame) -> str:
    """Return how many configurations are faster than the baseline, and the largest ratio."""
    others = points[points["ratio"].notna() & (points["label"] != points["base"])]
    if others.empty:
        known = points[points["n"] > 0]
        if known.empty:
            return "No training measured here yet"
        return f"{known['label'].iloc[0]} trains {three_digits(known['value'].iloc[0])} images/s"
    base = f"{others['base'].iloc[0]}" if others["base"].nunique() == 1 else "the baseline"
    best = others.loc[others["ratio"].idxmax()]
    decided = others["decision"].dropna()
    if decided.empty:
        return f"{best['label']} reaches {best['ratio']:.2f} times the throughput of {base}"
    if not decided.isin([estimates.GREATER, estimates.LESS]).any():
        return f"No difference to {base} is conclusive in {len(others)} configurations"
    faster, slower = (int((decided == one).sum()) for one in (estimates.GREATER, estimates.LESS))
    return (
        f"{faster} of {len(others)} configurations are faster than {base}, {slower} slower; "
        f"the fastest reaches {best['ratio']:.2f} times its throughput"
    )


def _cells(row: pd.Series, by_cpu: bool) -> list[str]:
    """Return n, throughput, ratio, ratio per CPU second if `by_cpu`, and the word of a row."""
    value = three_digits(row["value"]) if row["n"] else "none"
    if row["label"] == row["base"]:
        return [_count(row), value, "baseline", *([""] if by_cpu else []), ""]
    cpu = "" if np.isnan(row["cpu_ratio"]) else f"{row['cpu_ratio']:.2f}"
    word = _word(row).partition(" within")[0]
    return [_count(row), value, _ratio_text(row), *([cpu] if by_cpu else []), word]


def _ratio_text(row: Any, stem: str = "ratio") -> str:
    if np.isnan(row[stem]):
        return ""
    ends = (f"{stem}_low", f"{stem}_high")
    return f"{row[stem]:.2f}" + interval(row, ends, "{:.2f}".format)


def _word(row: Any, stem: str = "") -> str:
    if not pd.isna(row[f"{stem}decision"]):
        return WORDS[row[f"{stem}decision"]]
    return ONE_START if row["pairs"] and not np.isnan(row[f"{stem}ratio"]) else ""


def _count(row: pd.Series) -> str:
    return f"{row['n']}" + (f", {row['failed']} lost" if row["failed"] else "")


def _percents(row: pd.Series) -> str:
    scaled = 100 * row[["value", "low", "high"]].astype(float)
    form = "{:.1f}".format
    return f"{form(scaled['value'])}{interval(scaled, form=form)}" if row["n"] else "none"


def _memory_cells(row: pd.Series) -> list[str]:
    told = [f"{row['value']:.2f}", three_digits(row["throughput"])] if row["n"] else ["none", ""]
    return [_count(row), *told]


def _caption(points: pd.DataFrame) -> list[str]:
    if points.empty:
        return []
    panels = points.drop_duplicates("panel")
    bases = f"Baseline: {'; '.join(panels['base'].unique())}. " if len(panels) == 1 else ""
    told = [*captions.provenance(points, "the ratio")]
    rounds = [text for text in points["rounds_left_out"].dropna().unique() if text]
    return [
        bases.strip(),
        *told,
        *[f"Rounds left out: {text.partition(' (')[0]}." for text in rounds],
        *[f"Not drawn: {text}." for text in panels["left_out"].dropna().unique() if text],
    ]


def sentences(points: pd.DataFrame) -> list[str]:
    """Return what interleaved `points` say of each configuration, below a line on the baseline.

    E.g. ``Horovod, 2 ranks: 0.80 [0.76, 0.84], slower; per CPU second 0.97 [...], ...``.
    """
    lines: list[str] = []
    taken = points.groupby("panel")["windows"].transform("sum") > 0
    for name, panel in points[taken].groupby("panel", sort=False):
        others = panel[panel["label"] != panel["base"]]
        starts = captions.counted("n", others.loc[others["n"] > 0, "n"])
        pairs = captions.counted("", others.loc[others["n"] > 0, "pairs"])
        lines.append(
            f"{name}: throughput / throughput of {panel['base'].iloc[0]}, "
            f"starts: {starts}, pairs of windows: {pairs}"
        )
        for row in others.to_dict("records"):
            wall, cpu = (_told(row, stem) for stem in ("", "cpu_"))
            lines.append(f"  {row['label']}: {wall}" + (f"; per CPU second {cpu}" if cpu else ""))
    return lines


def _told(row: dict[str, Any], stem: str) -> str:
    if np.isnan(row[f"{stem}ratio"]):
        return "" if stem else "no pairs"
    return ", ".join(filter(None, [_ratio_text(row, f"{stem}ratio"), _word(row, stem)]))
