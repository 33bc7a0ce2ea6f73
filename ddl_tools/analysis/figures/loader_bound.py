"""How close each training comes to what its loader alone and training alone allow.

T(real) >= max(T(loader), T(training)), so no throughput exceeds the smaller of the two. Loader
alone is a run with ``work = "load"``, training alone one on synthetic data. The smaller of two
measurements of alike halves is too small. So both are the bound where it is not sure which half is
smaller and they are less than `ALIKE` apart.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import ended_runs, starts
from ddl_tools.analysis.estimates import MARGIN
from ddl_tools.analysis.figures.columns import ORIGIN, VALUE, WHO, typed
from ddl_tools.analysis.interleaving import Interleaved, counted
from ddl_tools.analysis.plot import captions, style
from ddl_tools.analysis.plot.canvas import handles, styled
from ddl_tools.analysis.plot.curves import intervals, log_ticks
from ddl_tools.analysis.plot.rows import draw_values, named, row_figure
from ddl_tools.analysis.question import Question, Tables, question
from ddl_tools.estimate import Estimate
from ddl_tools.names import joined

BOUNDS = typed(
    "panel",
    WHO,
    "local_batch_size loader_workers world_size",
    VALUE,
    "loading_n loading loading_low loading_high training_n training training_low training_high",
    "bound in_turns ratio ratio_low ratio_high limit",
    ORIGIN,
    bound="float64",
)
ALIKE = 1.25
_SHARED = [*WHO.split(), "local_batch_size", "loader_workers", "world_size", "hardware", "on_cpu"]
_HALVES = {"loading": "loader alone", "training": "synthetic"}
_NAMES = {"loading": "loader alone", "training": "training on synthetic data"}
_COLOUR = "#333333"
# How each half is drawn.
_LOOKS: style.Looks = {
    "loading": {"marker": "|", "markersize": 11, "markeredgewidth": 2.0},
    "training": {"marker": "s", "markersize": 5, "markerfacecolor": "white"},
}


def points(runs: pd.DataFrame, windows: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per trained configuration that reads data, with its bound: `BOUNDS`.

    loading and training are the means (images/s) of the loader alone and of training on synthetic
    data, its halves: runs that agree in everything that these depend on. bound is the smaller one,
    or the geometric mean of alike ones where the interval of their ratio holds 1. in_turns is what
    is left if both share the same cores, 1 / (1/loading + 1/training). ratio is value / bound with
    its 95 % interval, from paired windows where known. limit is the smaller half if the whole
    interval lies within 5 % of the bound (``either`` if it is not sure which is smaller), and both
    or neither if it lies below. Without both halves, limit says why; the rest is missing.
    """
    both = pd.concat([ended_runs(runs), ended_runs(runs, "load")], ignore_index=True)
    trained, free = (both["work"] == "train"), (both["loader"] == "synthetic")
    found: dict[str, dict[Any, pd.DataFrame]] = {}
    for half, which in (("loading", ~trained), ("training", trained & free)):
        found[half] = dict(iter(both[which].groupby(half)))
    taken = Interleaved(windows)
    rows = [
        _row(own, {half: found[half].get(own[half].iloc[0]) for half in _HALVES}, taken)
        for own in starts(both[trained & ~free])
    ]
    return pd.DataFrame(rows, columns=list(BOUNDS)).astype(BOUNDS)


def _row(
    made: pd.DataFrame, halves: dict[str, pd.DataFrame | None], taken: Interleaved
) -> dict[str, Any]:
    first, own = made.iloc[0], taken.sample(made)
    samples = {
        half: taken.sample(made[:0] if runs is None else runs) for half, runs in halves.items()
    }
    every = pd.concat([made, *halves.values()])
    row: dict[str, Any] = {
        **first[_SHARED].to_dict(),
        "panel": f"{first['setting']}, {style.model_name(first['model'])}",
        "failed": int(made["lost"].sum()),
        "commit": ";".join(sorted(set(every.loc[~every["lost"], "commit"]))),
        "n": own.mean.n,
        "windows": counted(own.windows),
        **own.mean.columns(),
    }
    for half, sample in samples.items():
        row |= {f"{half}_n": sample.mean.n} | sample.mean.columns(half)
    missing = [half for half in _HALVES if not row[f"{half}_n"]]
    if missing:
        reasons = {
            "not measured": [_HALVES[half] for half in missing if halves[half] is None],
            "failed": [_HALVES[half] for half in missing if halves[half] is not None],
        }
        texts = [f"{why}: {', '.join(names)}" for why, names in reasons.items() if names]
        return row | {"limit": "; ".join(texts)}
    apart = taken.compare(samples["loading"], samples["training"])
    bounds = sorted(_HALVES, key=lambda half: row[half])
    if not (apart.low <= 1 <= apart.high and 1 / ALIKE < apart.value < ALIKE):
        bounds = bounds[:1]
    row |= {
        "bound": float(np.prod([row[half] for half in bounds]) ** (1 / len(bounds))),
        "in_turns": 1 / (1 / row["loading"] + 1 / row["training"]),
    }
    if not row["n"]:
        return row | {"limit": "no value of its own"}
    ratios = [taken.compare(own, samples[half]) for half in bounds]
    row |= {
        "ratio": float(np.prod([one.value for one in ratios]) ** (1 / len(ratios))),
        "ratio_low": min(one.low for one in ratios),
        "ratio_high": max(one.high for one in ratios),
    }
    return row | {"limit": _limit(row, apart)}


def _limit(row: dict[str, Any], halves: Estimate) -> str:
    """Return what limits a training whose bound is known, as far as the intervals decide it.

    `halves` is the ratio of loading to training.
    """
    least, most = 1 / (1 + MARGIN), 1 + MARGIN
    low, high = row["ratio_low"], row["ratio_high"]
    if low > most:
        return "unclear (above it)"
    if high < least:
        return "shared cores" if row["on_cpu"] else "neither alone"
    if not (least <= low and high <= most):
        return estimates.INCONCLUSIVE
    alike = least <= halves.low and halves.high <= most
    if not alike and (halves.high < 1 or halves.low > 1):
        return "loader" if halves.high < 1 else "training"
    return "either"


@question("loader_bound")
class LoaderBound(Question):
    """Throughput of training beside that of its loader alone and of synthetic data."""

    asks = "Is the data loader the bottleneck?"
    notebook = "13_loaders"
    needs = "a training, its loader alone, and the same on synthetic data"
    column = "bound"
    columns = "label value loading training share n"
    value = "throughput (images/s)"
    text = """
{% if rows %}
- {{ rows[0].label }} reaches {{ rows[0].share }} of its bound; limit: {{ rows[0].limit }}.
{% else %}
- No configuration was measured beside both of its halves.
{% endif %}
{% for row in rows %}
- {{ row.label }} reaches {{ row.share }} of its bound; its loader alone delivers
{{ row.ahead | number }} times the throughput of synthetic data.
{% endfor %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return points(tables.runs, tables.windows)

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return each throughput beside that of its halves, a row each, and what limits it.

        Rows without both halves are left out, unless there are no others.
        """
        table = named(points)
        known = table["bound"].notna()
        table = table[known] if known.any() else table
        rest = int((~known).sum()) if known.any() else 0
        table = table.assign(panel=[joined(*one) for one in table[["panel", "shared"]].to_numpy()])
        looks = style.strategy_looks(table["framework_strategy"])
        figure, panels = row_figure(
            self.title(points),
            table,
            [
                *handles(style.strategies_named(looks), markersize=5),
                *handles({_NAMES[half]: look for half, look in _LOOKS.items()}, color=_COLOUR),
            ],
            [
                "A limit is named if the whole interval of throughput / bound is within "
                f"{100 * MARGIN:g} % of 1, or below that.",
                *captions.provenance(table, "the mean"),
                *captions.not_drawn("Without both halves,", rest),
            ],
            ["limit"],
            lambda one: [one["limit"].iloc[0]],
            "throughput (images/s)",
        )
        for ax, part in panels:
            for half, look in _LOOKS.items():
                own = part.assign(
                    value=part[half], low=part[f"{half}_low"], high=part[f"{half}_high"]
                )
                ax.errorbar(
                    own["value"],
                    own["row"],
                    xerr=intervals(own),
                    linestyle="none",
                    color=_COLOUR,
                    elinewidth=0.8,
                    zorder=3,
                    **look,
                )
            draw_values(ax, part, looks)
            ax.set_xscale("log")
            log_ticks(ax.xaxis, *ax.get_xlim())
        return figure

    def enough(self, points: pd.DataFrame) -> bool:
        """Say whether the intervals decide what limits any configuration."""
        known = points.loc[points["ratio_low"].notna(), "limit"]
        return bool(known.ne(estimates.INCONCLUSIVE).any())

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        table = named(points[points["ratio"].notna()]).sort_values("ratio", kind="stable")
        shares = [f"{Estimate.of(row, 'ratio'):.2f}" for row in table.to_dict("records")]
        return table.assign(share=shares, ahead=table["loading"] / table["training"])
