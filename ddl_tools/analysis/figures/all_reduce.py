"""What an all-reduce costs between the ranks of each probe: table and figure."""

from collections.abc import Iterator

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from ddl_core.errors import RecordError
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import frame, handles, styled
from ddl_tools.names import plural
from ddl_tools.records.paths import Tree
from ddl_tools.records.probe import ProbeRecord, read_probe, size_text
from ddl_tools.records.storage import unexpected

NAME = "all_reduce"
MOST_LINES = len(style.STRATEGY_COLOURS)

COLUMNS = [
    *("probe", "nodes", "ranks", "interface", "device", "hardware", "commit"),
    *("bytes", "operations", "seconds", "seconds_min", "seconds_max"),
    *("algorithm_bytes_per_s", "bus_bytes_per_s"),
]


def points(tree: Tree) -> pd.DataFrame:
    """Return a row per message size of each probe in `tree` that came so far, oldest first.

    A damaged probe has none; `damaged` names it.
    """
    records = [one for one in _probes(tree) if isinstance(one, ProbeRecord)]
    records.sort(key=lambda record: (record.created_utc, record.name))
    rows = [row for record in records for row in _rows(record)]
    return pd.DataFrame(rows, columns=COLUMNS)


def damaged(tree: Tree) -> list[str]:
    """Return a line on each probe whose record cannot be read."""
    return [one for one in _probes(tree) if isinstance(one, str)]


def _probes(tree: Tree) -> Iterator[ProbeRecord | str]:
    """Yield the record of each probe, or what is wrong with it."""
    for path in sorted(tree.probes.glob("*/probe.json")):
        try:
            record = read_probe(path.parent)
            _rows(record)
        except Exception as error:  # whatever is in one record, the others are drawn
            text = error.detail if isinstance(error, RecordError) else unexpected(error)
            where = "" if str(path.parent) in text else f"{path}: "
            yield f"{where}{text}; remove the probe, or ask `ddl doctor` again"
        else:
            yield record


def _rows(record: ProbeRecord) -> list[dict[str, object]]:
    if not record.answers or not record.answers[0].all_reduce:
        return []
    first, ranks = record.answers[0], record.spec.world_size
    provenance, system = record.provenance or {}, record.system or {}
    commit = (provenance.get("git_commit") or "unknown")[:7]
    used = {name for one in record.answers for name in one.used_interfaces}
    whole = {
        "probe": record.name,
        "nodes": record.spec.nodes,
        "ranks": ranks,
        "interface": " ".join(sorted(used)),
        "device": first.device.get("device", ""),
        "hardware": first.device.get("accelerator") or system.get("cpu", "unknown"),
        "commit": commit + ("+" if provenance.get("git_dirty") else ""),
    }
    return [
        {
            **whole,
            **size.model_dump(),
            "algorithm_bytes_per_s": size.algorithm_bytes_per_s,
            "bus_bytes_per_s": size.bus_bytes_per_s(ranks),
        }
        for size in first.all_reduce
    ]


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Return bus bandwidth and time over message size, a line per probe: the newest ones."""
    names = list(table["probe"].unique())
    newest = names[-MOST_LINES:]
    colours = dict(zip(newest, style.STRATEGY_COLOURS.values(), strict=False))
    markers = dict(zip(newest, style.STRATEGY_MARKERS.values(), strict=False))
    looks = {  # their times are in the CSV
        f"{number}: {name.rpartition('-')[0]}": {"color": colours[name], "marker": markers[name]}
        for number, name in enumerate(newest, start=1)
    }
    drawn = table[table["probe"].isin(newest)]
    first = drawn.loc[drawn.index.min()]
    drawn = drawn.assign(bandwidth=drawn["bus_bytes_per_s"] / 1e9, time=drawn["seconds"] * 1e3)
    figure, axes = frame(
        f"An all-reduce reaches {table['bus_bytes_per_s'].max() / 1e9:.3g} GB/s of bus bandwidth",
        ["bus bandwidth", "time of one"],
        [2.6],
        handles(looks, linestyle="solid", markersize=4),
        [
            "Bus bandwidth = size / time x 2 (n - 1) / n (NCCL-tests); median, slowest rank, "
            "float32.",
            f"{plural(first['ranks'], 'rank')} on {plural(first['nodes'], 'node')}, "
            f"{first['device']}, over "
            f"{first['interface'] or 'an unknown interface'}.",
            *captions.not_drawn("Older probes", len(names) - len(newest)),
        ],
        line=captions.line(drawn),
    )
    for ax, column, label in zip(axes, ("bandwidth", "time"), ("GB/s", "ms"), strict=True):
        sns.lineplot(
            drawn,
            x="bytes",
            y=column,
            hue="probe",
            palette=colours,
            style="probe",
            markers=markers,
            dashes=False,
            markersize=4,
            markeredgecolor="auto",
            estimator=None,
            legend=False,
            ax=ax,
        )
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(sorted(drawn["bytes"].unique())[::3]))
        curves.plain_ticks(ax.xaxis, lambda value, _: size_text(value))
        ax.set_xlabel("message of each rank")
        curves.rate_axis(ax, drawn[column], label)
    return figure
