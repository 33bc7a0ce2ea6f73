"""What an all-reduce costs between the ranks of each probe: table and figure."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import frame, handles, styled
from ddl_tools.records.paths import Tree
from ddl_tools.records.probe import ProbeRecord, read_probe, size_text

NAME = "all_reduce"
_LOOKS = [
    {"color": colour, "marker": style.STRATEGY_MARKERS[name], "linestyle": "solid"}
    for name, colour in style.STRATEGY_COLOURS.items()
]
MOST_LINES = len(_LOOKS)

COLUMNS = [
    *("probe", "nodes", "ranks", "interface", "device", "hardware", "commit"),
    *("bytes", "operations", "seconds", "seconds_min", "seconds_max"),
    *("algorithm_bytes_per_s", "bus_bytes_per_s"),
]


def points(tree: Tree) -> pd.DataFrame:
    """Return a row per message size of each probe in `tree` that came so far, oldest first.

    `RecordError` if a record cannot be read.
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
    looks = dict(zip(names[-MOST_LINES:], _LOOKS, strict=False))
    drawn = table[table["probe"].isin(looks)]
    first = drawn.loc[drawn.index.min()]
    numbered = {  # their times are in the CSV
        f"{number}: {name.rpartition('-')[0]}": look
        for number, (name, look) in enumerate(looks.items(), start=1)
    }
    table = table.sort_values("bytes").assign(
        bandwidth=table["bus_bytes_per_s"] / 1e9, time=table["seconds"] * 1e3
    )
    figure, axes = frame(
        f"An all-reduce reaches {table['bandwidth'].max():.3g} GB/s of bus bandwidth",
        ["bus bandwidth", "time of one"],
        [2.6],
        handles(numbered, markersize=4),
        [
            "Bus bandwidth = size / time x 2 (n - 1) / n (NCCL-tests); median, slowest rank, "
            "float32.",
            f"{first['ranks']} ranks on {first['nodes']} node(s), {first['device']}, over "
            f"{first['interface'] or 'an unknown interface'}.",
            *captions.not_drawn("Older probes", len(names) - len(looks)),
        ],
        line=captions.line(drawn),
    )
    for ax, column, label in zip(axes, ("bandwidth", "time"), ("GB/s", "ms"), strict=True):
        for name, look in looks.items():
            own = table[table["probe"] == name]
            ax.plot(own["bytes"], own[column], markersize=4, **look)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(sorted(table["bytes"].unique())[::3]))
        curves.plain_ticks(ax.xaxis, lambda value, _: size_text(value))
        ax.set_xlabel("message of each rank")
        curves.rate_axis(ax, table[column], label)
    return figure
