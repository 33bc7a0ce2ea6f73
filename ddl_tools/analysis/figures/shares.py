"""Where time goes: of an epoch, of the steps a profiler watched, and of the paper's GPU kernels.

Times of an epoch are worker-seconds per image, so that sizes can be compared: with G workers and N
images in an epoch of T seconds, G T / N. The parts of an epoch add up to it, and so do the losses:

    1 - E_G = (t_G - t_G0) / t_G = sum over causes of (c_G - c_G0) / t_G

E itself is that of the arm table, from the same windows as in every other figure, so c_G and c_G0
enter as shares of their t: a loss is c_G / t_G - E_G c_G0 / t_G0.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ddl_core.timing import Spent
from ddl_tools.analysis.configurations import (
    CONFIGURATION,
    CONFIGURATION_TYPES,
    KEYS,
    ORIGIN_TYPES,
    commits,
    made_runs,
    with_settings,
)
from ddl_tools.analysis.paper import SYSTEM, Paper
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import STATED_ONLY, frame, handles, short_titles, styled
from ddl_tools.analysis.plot.rows import configuration_name, percent, stacked
from ddl_tools.analysis.plot.style import SEPARATOR
from ddl_tools.analysis.tables import WINDOW, not_emulated, whole

TRAINING = [name.removesuffix("_s") for name in Spent.model_fields]
CAUSES = [*TRAINING, "evaluation"]

BUDGET = {
    "panel": "string",
    **CONFIGURATION_TYPES,
    "local_batch_size": "Int64",
    "world_size": "Int64",
    "base_world_size": "Int64",
    "n": "Int64",
    "failed": "Int64",
    "cause": "string",
    "worker_s_per_image": "float64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "loss": "float64",
    "efficiency": "float64",
    **ORIGIN_TYPES,
}
_MOST_LOSSES = 3  # told beside a bar
_LEAST_LOSS = 0.01
_SHARED = [*(name for name in KEYS if name != "setting"), "study", "local_batch_size", "on_cpu"]
PROFILE = {
    "panel": "string",
    **CONFIGURATION_TYPES,
    "world_size": "Int64",
    "n": "Int64",
    "cause": "string",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "overlapped": "float64",
    "load_average": "float64",
    "own_load": "Int64",
    **ORIGIN_TYPES,
}
_ARM = ["panel", "study", *CONFIGURATION, "world_size", "hardware"]
KERNELS = {
    "allreduce": "all-reduce (NCCL)",
    "io": 'data ("I/O")',
    "cudnn": "cuDNN",
    "rest": "all other (our 100 % - the sum)",
}
COPY_ERROR = "C6"  # docs/reading_the_paper.md
_LOADERS = {
    name: {"marker": marker, "linestyle": style.loader_line(name)}
    for name, marker in (("native", "o"), ("dali", "s"))
}
_OPEN: dict[str, Any] = {"markerfacecolor": "white", "markersize": 4.5, "markeredgewidth": 1.0}


def epoch_points(runs: pd.DataFrame, arms: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm, number of workers and cause: `BUDGET`.

    Means over the n runs of an arm that say where their time went: means, unlike medians, add up.
    value is the share of an epoch with its evaluation, 0 to 1, low and high the extremes of the
    runs. loss is the share of the throughput of an ideal G workers that the cause takes, negative
    where it takes less than at the base; efficiency is 1 - the sum of losses, that of the arm
    table `arms`. Both are empty at the base itself, loss also for the evaluation, which no
    throughput contains, and where the base does not say where its time went. Beside arms that say
    it, one that does not has a row without a cause, so that the figure can name it. Runs whose
    backward pass waits for communication say nothing, whatever their records hold.
    """
    table = made_runs(runs)
    told = ~table["lost"] & table["spent_compute_s"].notna()
    if not told.any():
        return pd.DataFrame(columns=list(BUDGET)).astype(BUDGET)
    table["panel"] = table["setting"] + SEPARATOR + table["model"].map(style.model_name)
    reached = arms.set_index(KEYS)[["base_world_size", "efficiency"]].to_dict("index")
    rows: list[dict[str, Any]] = []
    sizes: dict[tuple[Any, ...], pd.Series] = {}  # training alone, in shares of its time
    for key, arm in table.groupby(KEYS):  # by world size last: the base of an arm comes first
        known = arm[told[arm.index]]
        shared = arm.iloc[0][[*_SHARED, "panel"]].to_dict() | {
            "n": len(known),
            "failed": int(arm["lost"].sum()),
            "commit": ";".join(sorted(set(arm["commit"]))),
            **reached.get(key, {}),
        }
        if known.empty:
            rows.append(shared)
            continue
        parts = _worker_seconds(known)
        training = parts[TRAINING].mean()
        sizes[key] = training / training.sum()
        base = sizes.get((*key[:-1], shared["base_world_size"]))
        rows += _causes(shared, parts, sizes[key], base)
    return pd.DataFrame(rows, columns=list(BUDGET)).astype(BUDGET)


def _worker_seconds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run: worker-seconds per image of each cause."""
    names = [*(f"spent_{name}_s" for name in TRAINING), "evaluation_warm_epoch_s"]
    scale = runs["world_size"].astype(float) / runs["images_per_epoch"].astype(float)
    return runs[names].set_axis(CAUSES, axis=1).mul(scale, axis=0)


def _causes(
    shared: dict[str, Any], parts: pd.DataFrame, training: pd.Series, base: pd.Series | None
) -> list[dict[str, Any]]:
    shares = parts.div(parts.sum(axis=1), axis=0)
    grown = shared["world_size"] != shared["base_world_size"]
    told = grown and base is not None
    losses = training - shared["efficiency"] * base if told else pd.Series(dtype=float)
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


def draw_epochs(points: pd.DataFrame) -> Figure:
    """Return the shares of each arm's epoch, and what they cost against fewer workers."""
    told = points[points["cause"].notna()]
    one = (told["world_size"] == 1).any()
    zero = told["panel"].str.contains("ZeRO stage").any()
    return stacked(
        told,
        "Where does an epoch's time go, and what does that cost at this size?",
        style.SPENT_LOOKS,
        _losses,
        "share of an epoch with its evaluation, mean over workers",
        [
            "From marks in every step, without a profiler; warm epochs only. Communication: what "
            "backward does not hide; transfer is that of the worker that came last, the rest waits "
            "for slower workers.",
            *(["One worker: its framework copies gradients all the same."] if one else []),
            *(["Under ZeRO the update gathers the other workers' weights."] if zero else []),
            f"Beside the bars: parallel efficiency E against the arm's base{_bases(told)}, as in "
            "the figures of efficiency, and what each cause takes of the ideal throughput there "
            "(evaluation is in no throughput).",
            *_silent(points),
        ],
    )


def _silent(points: pd.DataFrame) -> list[str]:
    """Return the sentence on arms none of whose runs says where its time went."""
    panels = list(points["panel"].unique())
    settings = dict(zip(panels, short_titles(panels)[0], strict=True))
    arms = style.with_framework_strategy(points[points["cause"].isna()])
    formats = style.formats_differ(arms)
    names = []
    for _, arm in arms.iterrows():
        setting = settings[arm["panel"]]
        own = f" ({setting})" if setting != arm["panel"] else ""
        names.append(configuration_name(arm, formats) + own)
    return [f"There is no such account of: {'; '.join(names)}."] if names else []


def _bases(points: pd.DataFrame) -> str:
    named = captions.counted("G0", points.loc[points["efficiency"].notna(), "base_world_size"])
    return f" ({named})" if named else ""


def _losses(arm: pd.DataFrame) -> list[str]:
    """Return what is told beside a bar: E, and the causes that take most, largest first."""
    first = arm.iloc[0]
    count = f"n = {first['n']}" + (f", {first['failed']} lost" if first["failed"] else "")
    if pd.isna(first["efficiency"]):
        return [f"base, {count}"]
    large = arm[arm["loss"].abs() >= _LEAST_LOSS].sort_values("loss", key=abs, ascending=False)
    told = [
        f"{style.SPENT_LOOKS[row['cause']][0]} {percent(-row['loss'], signed=True)}"
        for row in large.head(_MOST_LOSSES).to_dict("records")
    ]
    return [f"E = {first['efficiency']:.2f}, {count}", ", ".join(told[:2]), *told[2:]]


def profile_points(profiles: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm, number of workers and share: `PROFILE`.

    value is the mean over ranks and runs, 0 to 1, low and high are the extremes of single ranks.
    overlapped, the share of the window in which communication was hidden by compute, is missing
    if any rank could not tell. load_average is that of the minute in which a run began, the
    highest of an arm. Of it own_load is explained by the run that begins, or by one of its study
    that has just ended: compute threads and loader processes of the largest.

    Parameters
    ----------
    profiles
        See `profiles_table`.
    runs
        The same runs, and others.
    """
    runs = not_emulated(whole(runs))
    own = runs["world_size"] * (runs["cpu_threads"] + runs["loader_workers"])
    own = own.groupby(runs["study"]).transform("max")
    settings = with_settings(runs.assign(commit=commits(runs), own_load=own))[
        ["study", "run_id", "framework", "setting", "load_average_1min", "own_load", *ORIGIN_TYPES]
    ]
    table = profiles[profiles["of"] == WINDOW].merge(settings, on=["study", "run_id"])
    table["panel"] = table["setting"] + SEPARATOR + table["model"].map(style.model_name)
    rows: list[dict[str, Any]] = []
    for key, arm in table.groupby(_ARM):
        hidden = arm.loc[arm["share"] == "overlapped", "value"]
        shared = dict(zip(_ARM, key, strict=True)) | {
            "n": arm["run_id"].nunique(),
            "overlapped": hidden.mean(skipna=False),
            "load_average": arm["load_average_1min"].max(),
            "own_load": arm["own_load"].iloc[0],
            "on_cpu": arm["on_cpu"].iloc[0],
            "commit": ";".join(sorted(set(arm["commit"]))),
        }
        for cause, part in arm[arm["share"] != "overlapped"].groupby("share", sort=False):
            value = {"value": part["value"].mean(), "low": part["value"].min()}
            rows.append({**shared, "cause": cause, **value, "high": part["value"].max()})
    return pd.DataFrame(rows, columns=list(PROFILE)).astype(PROFILE)


def draw_profiles(points: pd.DataFrame) -> Figure:
    """Return the shares of the watched steps, and what communication was hidden."""
    return stacked(
        points,
        "What was each worker doing in the steps that a profiler watched?",
        style.SHARE_LOOKS,
        _hidden,
        "share of the watched steps, mean over workers",
        [
            "torch.profiler; each moment counts once. Transfer and waiting: communication with "
            "nothing else going on; hidden: the rest of it, a part of compute. On a CPU compute is "
            "operators of the training thread, and idle is whatever the profiler does not see, "
            "Python and other programs included.",
            *_others(points),
        ],
    )


def _others(points: pd.DataFrame) -> list[str]:
    """Return the sentence on what else kept the machine busy, where its load says so."""
    arms = points.drop_duplicates(_ARM)
    busy = arms[arms["load_average"] > arms["own_load"]]
    if busy.empty:
        return []
    load = " to ".join(sorted({f"{busy['load_average'].agg(end):.1f}" for end in ("min", "max")}))
    return [
        f"The machine had other work as well: a load average of {load} when "
        f"{len(busy)} of {len(arms)} arms began, of which runs of the study explain at most "
        f"{busy['own_load'].max()}."
    ]


def _hidden(arm: pd.DataFrame) -> list[str]:
    first = arm.iloc[0]
    hidden = "unknown" if pd.isna(first["overlapped"]) else percent(first["overlapped"])
    return [f"n = {first['n']}", f"hidden: {hidden}"]


def kernel_points(paper: Paper) -> pd.DataFrame:
    """Return Table 2 in long form: one row per network, loader, number of GPUs and kind.

    Parameters
    ----------
    paper
        Its ``profile`` has one row per row of Table 2, in percent.

    Returns
    -------
    pandas.DataFrame
        ``value`` is a share of the time in CUDA kernels, 0 to 1. ``suspect`` says that it or its
        twin in another row is probably a copying error; ``rest`` is what the table leaves to 100 %.
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


@styled
def draw_kernels(points: pd.DataFrame) -> Figure:
    """Return the shares over GPUs, a panel per network."""
    models = list(points["model"].unique())
    figure, axes = frame(
        "What does the GPU spend its time on, as workers are added? (Table 2)",
        [style.model_name(name) for name in models],
        [1.6] * ((len(models) + 1) // 2),
        _legend(points),
        [
            "Stated by the paper for PyTorch-DDP on JUWELS Booster, 64 images per GPU: shares of "
            "the time in CUDA kernels, Nsight Systems, 10 epochs (5 on 4 GPUs). Kernels only: time "
            "in which the GPU has nothing to do is in no share, so a loader that is too slow does "
            "not show as data; the others wait for the slowest rank in the all-reduce [C7].",
            "Crossed: two rows share these values, one of them probably by a copying error [C6]. "
            "[C...]: docs/reading_the_paper.md.",
        ],
        note=STATED_ONLY,
    )
    for name, ax in zip(models, axes, strict=True):
        _panel(ax, points[points["model"] == name])
    return figure


def _panel(ax: Axes, part: pd.DataFrame) -> None:
    curves.rank_axis(ax, part["world_size"])
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylabel("share of kernel time")
    for (loader, kind), line in part.groupby(["loader", "kind"]):
        look = _LOADERS[str(loader)] | {"color": style.KERNEL_COLOURS[str(kind)]}
        ax.plot(line["world_size"], line["value"], **look, **_OPEN)
    doubted = part[part["suspect"]]
    ax.plot(doubted["world_size"], doubted["value"], "kx", markersize=8, linestyle="none")


def _legend(points: pd.DataFrame) -> list[Line2D]:
    kinds = {
        name: {"color": style.KERNEL_COLOURS[kind], "linestyle": "solid"}
        for kind, name in KERNELS.items()
    }
    loaders = {style.loader_name(name): _LOADERS[name] for name in points["loader"].unique()}
    return [*handles(kinds), *handles(loaders, color="black", **_OPEN)]
