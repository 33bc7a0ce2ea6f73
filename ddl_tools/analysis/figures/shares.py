"""Where time goes: of an epoch, of the steps a profiler watched, and of the paper's GPU kernels.

Times of an epoch are rank-seconds per image, so that sizes can be compared: with G ranks and N
images in an epoch of T seconds, G T / N. The parts of an epoch add up to it, and so do the losses:

    1 - E_G = (t_G - t_G0) / t_G = sum over causes of (c_G - c_G0) / t_G

E itself is that of `configuration_table`, from the same windows as in every other figure, so c_G
and c_G0 enter as shares of their t: a loss is c_G / t_G - E_G c_G0 / t_G0.
"""

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ddl_core.timing import Spent
from ddl_tools.analysis.configurations import (
    CONFIGURATION,
    KEYS,
    commits,
    ended_runs,
    starts,
    with_settings,
)
from ddl_tools.analysis.figures.columns import ORIGIN, WHO, typed
from ddl_tools.analysis.paper import SYSTEM, Paper
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import STATED_ONLY, panel_figure, styled
from ddl_tools.analysis.plot.labels import Name, name_curves
from ddl_tools.analysis.plot.rows import count_text, named, stacked
from ddl_tools.analysis.plot.style import SEPARATOR
from ddl_tools.analysis.question import (
    OF_NO_RUN,
    Question,
    Tables,
    in_percent,
    question,
    records,
    several_starts,
    usable,
    with_line,
)
from ddl_tools.analysis.tables import WINDOW, not_emulated, whole
from ddl_tools.estimate import percent

TRAINING = [name.removesuffix("_s") for name in Spent.model_fields]
CAUSES = [*TRAINING, "evaluation"]

BUDGET = typed(
    "panel",
    WHO,
    "local_batch_size world_size base_world_size n failed cause",
    "worker_s_per_image value low high loss efficiency",
    ORIGIN,
)
PROFILE = typed(
    "panel",
    WHO,
    "world_size n cause value low high overlapped load_average own_load",
    ORIGIN,
)
_MOST_LOSSES = 3  # named beside a bar
_LEAST_LOSS = 0.01
_MEANS = ("worker_s_per_image", "value", "loss", "low", "high")
# The parts of a bar, from the causes of a table.
_PARTS = {
    "start": "data",
    "waiting": "waiting for slower ranks",
    **dict.fromkeys(("update", "end", "evaluation"), "other"),
}
_PLACE = [*CONFIGURATION, "world_size", "hardware"]
_SHARED = [*_PLACE, "study", "local_batch_size", "on_cpu"]
_PROFILED = ["panel", "study", *_PLACE]
_OF_A_START = ["load_average_1min", "own_load"]
KERNELS = {
    "allreduce": "all-reduce",
    "io": '"I/O"',
    "cudnn": "cuDNN",
    "rest": "other",
}
_KERNEL: dict[str, Any] = {
    "marker": "o",
    "linestyle": "solid",
    "markerfacecolor": "white",
    "markeredgecolor": "auto",
    "markersize": 4,
    "markeredgewidth": 1.0,
}
_HIGH, _COLUMNS = 1.5, 3  # inches of a panel of kernels, and panels side by side
COPY_ERROR = "C6"  # docs/results/paper.md


def epoch_points(runs: pd.DataFrame, configurations: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration, number of ranks and cause: `BUDGET`.

    Means over the n runs that say where their time went: means, unlike medians, add up. value is
    the share of an epoch with its evaluation, 0 to 1, low and high the extremes of the runs. loss
    is the share of the throughput of an ideal G ranks that the cause takes; efficiency is 1 - the
    sum of losses. Both are missing at the base, loss also for the evaluation, which no throughput
    contains, and where the base does not say where its time went. A configuration that does not
    say it has one row without a cause, if others do.
    """
    table = ended_runs(runs)
    recorded = ~table["lost"] & table["spent_compute_s"].notna()
    if not recorded.any():
        return pd.DataFrame(columns=list(BUDGET)).astype(BUDGET)
    table["panel"] = table["setting"] + SEPARATOR + table["model"].map(style.model_name)
    reached = configurations.set_index(KEYS)[["base_world_size", "efficiency"]].to_dict("index")
    rows: list[dict[str, Any]] = []
    sizes: dict[tuple[int, int], pd.Series] = {}  # training alone, in shares of its time
    for made in starts(table):
        first, known = made.iloc[0], made[recorded[made.index]]
        shared = first[[*_SHARED, "panel"]].to_dict() | {
            "n": len(known),
            "failed": int(made["lost"].sum()),
            "commit": ";".join(sorted(set(made["commit"]))),
            **reached.get(tuple(first[KEYS]), {}),
        }
        if known.empty:
            rows.append(shared)
            continue
        parts = _worker_seconds(known)
        training = parts[TRAINING].mean()
        own = sizes[first["curve"], first["world_size"]] = training / training.sum()
        base = sizes.get((first["curve"], shared["base_world_size"]))
        rows += _causes(shared, parts, own, base)
    return pd.DataFrame(rows, columns=list(BUDGET)).astype(BUDGET)


def _worker_seconds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run: rank-seconds per image of each cause."""
    names = [*(f"spent_{name}_s" for name in TRAINING), "evaluation_warm_epoch_s"]
    scale = runs["world_size"].astype(float) / runs["images_per_epoch"].astype(float)
    return runs[names].set_axis(CAUSES, axis=1).mul(scale, axis=0)


def _causes(
    shared: dict[str, Any], parts: pd.DataFrame, training: pd.Series, base: pd.Series | None
) -> list[dict[str, Any]]:
    shares = parts.div(parts.sum(axis=1), axis=0)
    grown = shared["world_size"] != shared["base_world_size"]
    compared = grown and base is not None
    losses = training - shared["efficiency"] * base if compared else pd.Series(dtype=float)
    return [
        shared
        | {
            "cause": cause,
            "worker_s_per_image": parts[cause].mean(),
            "value": shares[cause].mean(),
            "low": shares[cause].min(),
            "high": shares[cause].max(),
            "loss": losses.get(cause),
            "efficiency": shared["efficiency"] if grown else None,
        }
        for cause in CAUSES
    ]


def parts_of_epochs(points: pd.DataFrame) -> pd.DataFrame:
    """Return a row per part of a bar that is drawn, its value and loss the sums over causes."""
    known = points[points["cause"].notna()]
    grown = known["efficiency"].notna()
    known = known[grown] if grown.any() else known
    table = known.assign(cause=known["cause"].replace(_PARTS))
    keys = [name for name in table if name not in _MEANS]
    sums = table.groupby(keys, dropna=False, sort=False)[["value", "loss"]]
    return sums.sum(min_count=1).reset_index()


def costs(bar: pd.DataFrame) -> list[str]:
    """Return the parts of a bar that cost efficiency, largest first, e.g. "compute 25 %"."""
    large = bar[bar["loss"].abs() >= _LEAST_LOSS].sort_values("loss", key=abs, ascending=False)
    parts = large[["cause", "loss"]].itertuples(index=False)
    return [f"{cause.split()[0]} {percent(loss)}" for cause, loss in parts]


def _losses(bar: pd.DataFrame) -> list[str]:
    """Return what stands beside a bar: n, E, and the parts that cost most."""
    first = bar.iloc[0]
    if pd.isna(first["efficiency"]):
        return [count_text(first), "", ""]
    largest = ", ".join(costs(bar)[:_MOST_LOSSES])
    return [count_text(first), f"{first['efficiency']:.2f}", largest]


def profile_points(profiles: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration, number of ranks and share: `PROFILE`.

    value is the mean over ranks and runs, 0 to 1, low and high are the extremes of single ranks.
    overlapped, the share of the window in which communication was hidden by compute, is missing
    if any rank lacks it. load_average is the highest of the minute before a start; own_load
    is what the threads and loader processes of the study's largest run explain of it.

    `profiles` is as `profiles_table` has it, of some of `runs`.
    """
    runs = not_emulated(whole(runs))
    load = runs["world_size"] * (runs["cpu_threads"] + runs["loader_workers"])
    load = load.groupby(runs["study"]).transform("max")
    settings = with_settings(runs.assign(commit=commits(runs), own_load=load))
    settings = settings[["run_id", *KEYS, "framework", "setting", *_OF_A_START, *ORIGIN.split()]]
    table = profiles[profiles["of"] == WINDOW].merge(settings, on=["study", "run_id"])
    table["panel"] = table["setting"] + SEPARATOR + table["model"].map(style.model_name)
    rows: list[dict[str, Any]] = []
    for own in starts(table):
        hidden = own.loc[own["share"] == "overlapped", "value"]
        shared = own.iloc[0][_PROFILED].to_dict() | {
            "n": own["run_id"].nunique(),
            "overlapped": hidden.mean(skipna=False),
            "load_average": own["load_average_1min"].max(),
            "own_load": own["own_load"].iloc[0],
            "on_cpu": own["on_cpu"].iloc[0],
            "commit": ";".join(sorted(set(own["commit"]))),
        }
        for cause, part in own[own["share"] != "overlapped"].groupby("share", sort=False):
            value = {"value": part["value"].mean(), "low": part["value"].min()}
            rows.append({**shared, "cause": cause, **value, "high": part["value"].max()})
    return pd.DataFrame(rows, columns=list(PROFILE)).astype(PROFILE)


def parts_of_profiles(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with the causes of a profile called as the parts of a bar."""
    return points.assign(cause=points["cause"].replace(_PARTS))


def other_programs(points: pd.DataFrame) -> list[str]:
    """Return the sentence on what else kept the machine busy, where its load says so."""
    known = points.drop_duplicates(_PROFILED)
    busy = known[known["load_average"] > known["own_load"]]
    if busy.empty:
        return []
    load = captions.span(busy["load_average"], "{:.1f}")
    return [f"Other programs ran: load average {load}, own at most {busy['own_load'].max()}."]


def _hidden(bar: pd.DataFrame) -> list[str]:
    hidden = bar["overlapped"].iloc[0]
    return [f"{bar['n'].iloc[0]}", "unknown" if pd.isna(hidden) else percent(hidden)]


def kernel_points(paper: Paper) -> pd.DataFrame:
    """Return Table 2 in long form: one row per network, loader, number of GPUs and kind.

    value is a share of the time in CUDA kernels, 0 to 1; ``rest`` is what the table leaves to
    100 %. suspect says that two rows share the value, and one of them is probably a copying error.
    """
    table = paper.profile.rename(columns=lambda name: name.removesuffix("_percent"))
    table["rest"] = 100 - table[["allreduce", "io", "cudnn"]].sum(axis=1)
    keys = ["strategy", "loader", "model", "world_size", "place", "contradiction"]
    long = table.melt(keys, list(KERNELS), var_name="kind", value_name="value")
    # Two rows have these two in common; which of them is the copy is open.
    repeated = long["contradiction"].str.contains(rf"\b{COPY_ERROR}\b", na=False)
    suspect = repeated & long["kind"].isin(["io", "cudnn"])
    source = long["kind"].map(lambda kind: "derived" if kind == "rest" else "stated")
    return long.assign(value=long["value"] / 100, suspect=suspect, source=source, hardware=SYSTEM)


def _bars(parts: pd.DataFrame) -> pd.DataFrame:
    """Return a row per configuration with its parts of the time in percent."""
    table = named(in_percent(parts))
    bars = table.groupby("label", sort=False).first()
    for cause in style.TIME_COLOURS:
        own = table[table["cause"] == cause].groupby("label")["value"].sum()
        bars[cause.partition(" ")[0]] = own
    return bars.reset_index()


# The parts of a bar that are a percent of it or more.
_PARTS_OF = """
{% macro parts(row) %}
{% for name in names if row[name] >= 1 %}
{{ name }} {{ "%.0f" | format(row[name]) }} %{{ "" if loop.last else ", " }}
{% endfor %}
{% endmacro %}
"""
_NAMES = [name.partition(" ")[0] for name in style.TIME_COLOURS]


@question("kernel_shares")
class KernelShares(Question):
    """Shares of GPU time by kind of kernel, as the paper states them."""

    asks = "Which kernels take the time of a GPU?"
    notebook = "14_where_time_goes"
    needs = OF_NO_RUN
    columns = "line world_size allreduce io cudnn rest"
    text = """
- All-reduce grows from {{ least | span("{:.0f}") }} % of the kernel time on {{ sizes[0] }} GPUs
to {{ most | span("{:.0f}") }} % on {{ sizes[1] }}.
- "I/O" relative to cuDNN, with both loaders:
{% for network, values in fractions.items() %}
{{ network }} {{ values | span }}{{ "" if loop.last else "; " }}
{% endfor %}
. A loading time would depend on the loader.
- The share of the all-reduce falls in {{ falls | length }} of {{ steps }} steps to more GPUs, by
{{ falls | span }} points ({{ networks | join(", ") }}).
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return kernel_points(tables.paper)

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return the shares over GPUs, a panel per loader and network."""
        names = [points["model"].map(style.model_name), points["loader"].map(style.loader_name)]
        table = points.assign(panel=names[0] + ", " + names[1]).sort_values("loader", kind="stable")
        figure, panels = panel_figure(
            self.title(points),
            table,
            [],
            [
                "Table 2: PyTorch-DDP on JUWELS Booster, 64 images per GPU; other: 100 % - the "
                "sum. Kernels only: a GPU that waits for data is in no share, and ranks wait for "
                "each other in the all-reduce (C7). Crossed: two rows share these values (C6).",
            ],
            _HIGH,
            columns=_COLUMNS,
            note=STATED_ONLY,
        )
        for ax, part in panels:
            curves.rank_axis(ax, points["world_size"], most=2)
            curves.share_axis(ax, points["value"], most=1)
            ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            sns.lineplot(
                part,
                x="world_size",
                y="value",
                hue="kind",
                palette=style.KERNEL_COLOURS,
                estimator=None,
                legend=False,
                ax=ax,
                **_KERNEL,
            )
            doubted = part[part["suspect"]]
            ax.plot(doubted["world_size"], doubted["value"], "kx", markersize=8, linestyle="none")
        for number, (ax, part) in enumerate(panels):
            ax.set_ylabel("" if number % _COLUMNS else "share of kernel time")
            if number % _COLUMNS == _COLUMNS - 1:
                name_curves(ax, _ends(part), _HIGH)
        return figure

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return the shares at the most GPUs that all rows have."""
        table = _in_columns(points)
        sizes = table["world_size"].value_counts()
        return table[table["world_size"] == sizes.index[sizes == sizes.max()].max()]

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        own = in_percent(points[points["kind"] == "allreduce"])
        counts = own.groupby("world_size").size()
        sizes = counts.index[counts == counts.max()]  # that all rows have
        ends = (own.loc[own["world_size"] == size, "value"] for size in (sizes[0], sizes[-1]))
        wide = _in_columns(points[~points["suspect"]])
        networks = wide["line"].str.split(", ").str[-1]
        steps = wide.groupby("line")["allreduce"].diff().dropna()
        falls = -steps[steps < 0]
        return {
            "sizes": (sizes[0], sizes[-1]),
            **dict(zip(("least", "most"), ends, strict=True)),
            "fractions": dict(iter((wide["io"] / wide["cudnn"]).dropna().groupby(networks))),
            "steps": len(steps),
            "falls": falls,
            "networks": networks[falls.index].unique(),
        }


def _ends(part: pd.DataFrame) -> list[Name]:
    """Return the names of the curves of a panel, at their ends."""
    last = part[part["world_size"] == part["world_size"].max()].set_index("kind")
    return [
        Name.of(last.loc[kind, ["world_size", "value"]], name, style.KERNEL_COLOURS[kind])
        for kind, name in KERNELS.items()
    ]


def _in_columns(points: pd.DataFrame) -> pd.DataFrame:
    """Return a row per network, loader and number of GPUs with the shares in percent."""
    table = in_percent(with_line(points.assign(framework="torch")))
    return table.pivot(index=["line", "world_size"], columns="kind", values="value").reset_index()


@question("time_budget")
class TimeBudget(Question):
    """Parts of the time of an epoch, and what more ranks cost."""

    asks = "Where does the time of an epoch go?"
    notebook = "14_where_time_goes"
    needs = "runs with the parts of their time, at two numbers of ranks"
    also = "loss"
    columns = "label efficiency data compute transfer waiting other n"
    text = (
        _PARTS_OF
        + """
{% if worst %}
- {{ worst.label }} reaches an efficiency of {{ "%.2f" | format(worst.efficiency) }};
{{ worst.cause }} costs most ({{ worst.loss | percent }}).
{% elif rows %}
- {{ rows[0].label }} computes for {{ "%.0f" | format(rows[0].compute) }} % of an epoch.
{% else %}
- No run measured here says where its time went.
{% endif %}
{% for row in rows %}
- {{ row.label }}:
{% if row.losses is not none %}
efficiency {{ "%.2f" | format(row.efficiency) }};
lost to {{ row.losses | join(", ") or "nothing" }}; of an epoch
{% endif %}
{{ parts(row) }}.
{% endfor %}
"""
    )

    def points(self, tables: Tables) -> pd.DataFrame:
        return epoch_points(tables.runs, tables.configurations)

    def draw(self, points: pd.DataFrame) -> Figure:
        """Return the shares of each epoch, and their cost against fewer ranks.

        Rows without a base to be compared with are left out, unless there are no others.
        """
        known = parts_of_epochs(points)
        silent = len(points.loc[points["cause"].isna(), ["panel", *_PLACE]].drop_duplicates())
        return stacked(
            known,
            self.title(points),
            style.TIME_COLOURS,
            [
                "Measured epochs, no profiler. Compute contains communication that backward hides; "
                "transfer is the rest, of the rank that came last. Other: update, evaluation, end "
                "of epoch. Efficiency: against the fewest ranks of the same strategy.",
                *captions.provenance(known, ""),
                *captions.not_drawn("Without this account,", silent),
            ],
            ["n", "E", "costs against fewer ranks"],
            _losses,
            "share of an epoch, mean over ranks",
        )

    def enough(self, points: pd.DataFrame) -> bool:
        """Say whether there are bars to compare."""
        return several_starts(points) and len(self.rows(points)) > 1

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return _bars(parts_of_epochs(points))

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        facts, table = super().facts(points), named(parts_of_epochs(points))
        for row in facts["rows"]:
            known = not pd.isna(row["efficiency"])
            row["losses"] = costs(table[table["label"] == row["label"]]) if known else None
        lost = usable(table[table["efficiency"].notna()]).sort_values("loss").tail(1)
        return facts | {"worst": next(iter(records(lost)), None), "names": _NAMES}


@question("time_shares")
class TimeShares(Question):
    """Parts of the time of a step, from profiles."""

    asks = "Where does the time of a step go?"
    notebook = "14_where_time_goes"
    needs = "profiled runs"
    columns = "label compute transfer waiting other idle n"
    text = (
        _PARTS_OF
        + """
{% macro extremes(row) %}
single ranks {{ "{:.0f} to {:.0f}".format(row.low, row.high) }} %
{% endmacro %}
{% if not least %}
- No profiled run measured here.
{% else %}
- {{ least.label }} computes for {{ "%.0f" | format(least.value) }} % of its steps
({{ extremes(least) }})
{% if waiting and waiting.high >= 1 %}
; it waits for slower ranks for {{ "%.0f" | format(waiting.value) }} % ({{ extremes(waiting) }})
{% endif %}
.
{% endif %}
{% for row in rows %}
- {{ row.label }}, mean over ranks: {{ parts(row) }}.
{% endfor %}
{% for text in others %}
- {{ text }}
{% endfor %}
"""
    )

    def points(self, tables: Tables) -> pd.DataFrame:
        return profile_points(tables.profiles, tables.runs)

    def draw(self, points: pd.DataFrame) -> Figure:
        """Return the shares of the watched steps, and what communication was hidden."""
        table = parts_of_profiles(points)
        return stacked(
            table,
            self.title(points),
            style.TIME_COLOURS,
            [
                "torch.profiler. Bars: means over ranks. Transfer, waiting: communication alone; "
                "hidden: the rest. Idle: what the profiler does not see.",
                *captions.provenance(table.assign(failed=0), ""),
                *other_programs(points),
            ],
            ["n", "hidden"],
            _hidden,
            "share of the watched steps, mean over ranks",
        )

    def enough(self, points: pd.DataFrame) -> bool:
        return several_starts(points)

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return _bars(parts_of_profiles(points))

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        table, rows = named(in_percent(parts_of_profiles(points))), records(self.rows(points))
        compute = table[table["cause"] == "compute"].sort_values("value", kind="stable")
        least = records(compute.head(1))
        waiting = table["cause"].eq(_PARTS["waiting"]) & table["label"].isin(compute["label"][:1])
        return {
            "rows": [*rows[:1], *rows[1:][-1:]],
            "least": least[0] if least else None,
            "waiting": records(table[waiting])[0] if waiting.any() else None,
            "names": _NAMES,
            "others": other_programs(points),
        }
