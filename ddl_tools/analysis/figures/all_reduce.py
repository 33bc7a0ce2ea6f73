"""What an all-reduce costs between the ranks of each probe: table and figure."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import frame, handles, styled
from ddl_tools.records.paths import Tree
from ddl_tools.records.probe import ProbeRecord, read_probe, size_text

NAME = "all_reduce"
_COLOURS, _MARKERS = (
    [looks[name] for name in ("ddp", "horovod", "deepspeed", "single")]
    for looks in (style.STRATEGY_COLOURS, style.STRATEGY_MARKERS)
)
_LINES = ["solid", (0, (5, 2)), (0, (1, 1.5))]
MOST_LINES = len(_COLOURS) * len(_LINES)
_SIZES = [1024 * 4**power for power in range(10)]

COLUMNS = [
    *("probe", "nodes", "ranks", "interface", "device", "hardware", "commit"),
    *("bytes", "operations", "seconds", "seconds_min", "seconds_max"),
    *("algorithm_bytes_per_s", "bus_bytes_per_s"),
]


def points(tree: Tree) -> pd.DataFrame:
    """Return a row per message size of each probe in `tree` that came so far, oldest first.

    Raises
    ------
    RecordError
        If a record cannot be read.
    """
    records = [read_probe(path.parent) for path in tree.probes.glob("*/probe.json")]
    records.sort(key=lambda record: (record.created_utc, record.name))
    rows = [row for record in records for row in _rows(record)]
    return pd.DataFrame(rows, columns=COLUMNS)


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
    drawn = names[-MOST_LINES:]
    looks = {name: _look(number) for number, name in enumerate(drawn)}
    numbered = {  # their times are in the caption
        f"{number}: {name.rpartition('-')[0]}": looks[name]
        for number, name in enumerate(drawn, start=1)
    }
    fastest = table["bus_bytes_per_s"].max() / 1e9
    figure, axes = frame(
        f"An all-reduce reaches {fastest:.3g} GB/s of bus bandwidth",
        ["bus bandwidth", "time of one"],
        [2.6],
        handles(numbered, markersize=4),
        _caption(table, len(names) - len(drawn)),
    )
    scaled = table[table["probe"].isin(drawn)].assign(
        bandwidth=table["bus_bytes_per_s"] / 1e9, time=table["seconds"] * 1e3
    )
    for ax, column, label in zip(axes, ("bandwidth", "time"), ("GB/s", "ms"), strict=True):
        for name, part in scaled.groupby("probe", sort=False):
            part = part.sort_values("bytes")
            ax.plot(part["bytes"], part[column], markersize=4, **looks[name])
        _axis(ax, table["bytes"])
        ax.set_ylabel(label)
    return figure


def _look(number: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _LINES[number // len(_COLOURS)],
    }


def _axis(ax: Axes, sizes: pd.Series) -> None:
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=10)
    shown = [size for size in _SIZES if size <= sizes.max()][::3]
    ax.xaxis.set_major_locator(FixedLocator(shown))
    curves.plain_ticks(ax.xaxis, lambda value, _: size_text(value))
    curves.plain_ticks(ax.yaxis)
    ax.set_xlabel("message of each rank")


def _caption(table: pd.DataFrame, left_out: int) -> list[str]:
    """Return where the first probe was, the machines and the code of all that are drawn."""
    one = table.drop_duplicates("probe").tail(MOST_LINES)
    first = one.iloc[0]
    return [
        "Bus bandwidth = size / time x 2 (n - 1) / n (NCCL-tests); median, slowest rank, float32.",
        f"{first['ranks']} ranks on {first['nodes']} node(s), {first['device']}, over "
        f"{first['interface'] or 'an unknown interface'}.",
        f"{'; '.join(sorted(set(one['hardware'])))}.",
        captions.commits(one),
        *captions.not_drawn("Older probes", left_out),
    ]
