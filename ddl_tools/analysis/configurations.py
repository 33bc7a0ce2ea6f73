"""Configurations and their throughput, interval and efficiency at each number of ranks.

A configuration is library x strategy x loader x format of the data x model. The format belongs to
it: the paper's loaders read different ones and stand in one panel. A setting is everything else
that speed depends on: runs of two settings never share a median or a line.

In one file, because what divides settings and what pools runs must never part.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ddl_core.config import run_fields
from ddl_core.registry import COMMAND
from ddl_tools.analysis import estimates
from ddl_tools.analysis.interleaving import WALL, Interleaved, Sample, counted
from ddl_tools.analysis.tables import is_emulated, not_emulated
from ddl_tools.names import describe, differing, hardware, joined, label, phrase
from ddl_tools.records import identity
from ddl_tools.records.software import ALONE, UNKNOWN

CONFIGURATION = ["framework", "strategy", "loader", "data_format", "model"]


def with_model(table: pd.DataFrame) -> pd.Series:
    """Return the setting of each row with the name of its network."""
    models = [phrase("model", name) for name in table["model"]]
    return table["setting"].astype("string") + ", " + pd.array(models, dtype="string")


def stack(parts: Sequence[pd.DataFrame], types: dict[str, str]) -> pd.DataFrame:
    """Return the parts as one table of these columns, panel by panel as they come."""
    table = pd.concat([part.reindex(columns=list(types)).astype(types) for part in parts])
    order = {name: number for number, name in enumerate(table["panel"].unique())}
    return table.sort_values(
        "panel", key=lambda panel: panel.map(order), kind="stable", ignore_index=True
    )


# What may differ within a setting: its configurations, and how many ranks they have.
_WITHIN = {*CONFIGURATION, *identity.SIZE, *identity.REPEATS, "second_start"}
# What a library brings with it: another library has another, which divides nothing.
_OF_LIBRARY = ["software", "environment", "threads", "switches"]
_MACHINE = ["device_used", "accelerator", "machine", "cpu_cores", "memory_gib", *_OF_LIBRARY]
# What one strategy, one loader or the data in one format have of their own: see `_apart`.
_OWN = {"communication": ["strategy"], "loader_software": ["loader"]}
_OWN |= {column: ["data_format", "loader"] for column in identity.DATA}
_SETTING = ["study", *identity.dividing({*_WITHIN, *_OWN, "cores_shared"})]
# How ranks lie on nodes and cores, which depends on their number; see `_full_nodes` and `_bound`.
_SPREAD = ["ranks_per_node", "cores_shared"]
# What a setting's name always contains; a switch only where it is on.
_SHOWN = ["image_size", "global_batch_size", "local_batch_size", "precision"]
_SHOWN += ["channels_last", "compile"]
# What it contains only where its study has several.
_WORK = [name for name in _SETTING if name in run_fields() and name not in _SHOWN]
_PLACE = ["hardware", "method_version", "memory_gib", "ranks_per_node", "device_used", "machine"]
_PLACE += ["cpu_cores", *_OF_LIBRARY, "cores_shared", "apart"]
_SAME = {
    "single": identity.SINGLE,
    "loading": identity.LOADING,
    "training": identity.TRAINING,
    "batches": identity.REPEATS | {"local_batch_size"},
}

VALUE = WALL

KEYS = ["study", "configuration"]
"""Starts of one configuration agree in these columns."""
_ORDER = ["setting", "hardware", *CONFIGURATION, "world_size"]
_SHARED = [*_ORDER, *KEYS, "curve", "batches", "local_batch_size", "on_cpu"]
COLUMNS = [
    *[*_SHARED, "base_world_size", "n", "windows", "failed", "value", "low", "high"],
    *["efficiency", "efficiency_low", "efficiency_high"],
    *["against_single", "against_single_low", "against_single_high", "commit"],
]


def with_settings(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `runs` with the columns setting (a short text), differs, hardware and on_cpu.

    More columns say what is the same, see `identity`: curve (a series on nodes that are filled
    in one way), single, loading, training, and batches (all but the images of a rank).

    A setting ends with what differs in its machine and software from others of its study. Of what a
    library brings with it, such as ``software``, only that is left in which runs of this library
    differ: settings of two libraries are the same, if nothing else differs. A run that failed
    before it knew its machine gets that of its study, if the study has only one. `ValueError` if
    measured and emulated runs are among them: nothing may show both.
    """
    if is_emulated(runs).nunique() > 1:
        raise ValueError("measured and emulated runs are never shown together; choose one kind")
    table = runs.copy()
    _fill_identity(table)
    _fill_machine(table)
    for column, free in _SAME.items():
        table[column] = keyed(table, free)
    _keep_differing(table)
    table["hardware"] = [
        hardware(**row) for row in rows(table, ["accelerator", "machine", "cpu_cores"])
    ]
    table["hardware"] = table["hardware"].astype("string")
    table["on_cpu"] = table["accelerator"].isna()
    placed = table.assign(ranks_per_node=_full_nodes(table), cores_shared=_bound(table))
    shared = _shared_batch(table)
    placed["global_batch_size"] = table["global_batch_size"].where(shared.notna())
    placed["local_batch_size"] = table["local_batch_size"].mask(shared.notna())
    placed["series"] = table["series"].mask(shared.notna(), shared)
    table["curve"] = numbered(placed, ["study", "series", *_SPREAD])
    placed["alike"] = numbered(placed, [*_SETTING, "global_batch_size", *_SPREAD])
    placed["apart"] = _apart(placed)
    numbers = numbered(placed, ["alike", "apart"])
    names: dict[int, str] = {}
    places: dict[int, str] = {}
    for study, own in placed.assign(number=numbers).groupby("study"):
        settings = own.drop_duplicates("number")
        works, found = (label(rows(settings, columns)) for columns in (_WORK, _PLACE))
        parts = zip(settings["number"], _always(settings), works, found, strict=True)
        for number, always, work, place in parts:
            names[number] = f"{study}: {joined(always, work, place)}"
            places[number] = place
    return table.assign(
        setting=numbers.map(names).astype("string"), differs=numbers.map(places).astype("string")
    )


def numbered(table: pd.DataFrame, names: list[str]) -> pd.Series:
    """Return a number for each row, the same for rows that agree in all of these columns.

    It is what `ngroup` returns, in a tenth of the time where the columns are many and the rows few.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    values = map(tuple, table[names].to_numpy(dtype=object, na_value=None).tolist())
    return pd.Series(
        [numbers.setdefault(row, len(numbers)) for row in values], table.index, dtype=int
    )


def keyed(table: pd.DataFrame, free: Collection[str]) -> "pd.Series[str]":
    """Return the study and the key of each row, which rows of another table may share."""
    names = ["study", *identity.dividing(free)]
    numbers = numbered(table, names)
    abouts = rows(table[~numbers.duplicated()], names)
    keys = [f"{about['study']} {identity.key(about, free)}" for about in abouts]
    return numbers.map(dict(enumerate(keys))).astype("string")


def _full_nodes(table: pd.DataFrame) -> pd.Series:
    """Return how many ranks a full node has, in the series of sizes that each run belongs to.

    A series fills one node, then takes more of them: 1x1, 1x2, 2x2, 4x2 have two. Runs on several
    nodes show it themselves. Those on one node begin the series of the fullest nodes in their
    study, or are apart if they have more ranks than these. So within a series, a number of ranks
    always lies on the nodes in one way: 1x2 and 2x1 are not of the same.
    """
    own = table["gpus_per_node"]
    most = own.where(table["nodes"] > 1).groupby(table["study"]).transform("max")
    most = most.fillna(own.groupby(table["study"]).transform("max"))
    return own.mask((table["nodes"] == 1) & (own <= most), most)


def _shared_batch(table: pd.DataFrame) -> "pd.Series[str]":
    """Return the curve of each run of a study whose ranks share a fixed global batch, else nothing.

    These are the studies in which no series has two numbers of ranks, but would have them if the
    images of a rank were free.
    """
    curves = keyed(table, identity.SHARED_BATCH)
    curves += " " + table["global_batch_size"].astype("string")
    several = {
        name: table["world_size"].groupby(by).transform("nunique").gt(1).groupby(table["study"])
        for name, by in (("fixed", table["series"]), ("shared", curves))
    }
    of_study = several["shared"].transform("any") & ~several["fixed"].transform("any")
    return curves.where(of_study)


def _bound(table: pd.DataFrame) -> pd.Series:
    """Return whether ranks share cores; for one that is alone, what its study does elsewhere."""
    known = table["cores_shared"].replace(ALONE, pd.NA)
    values = known.groupby(table["study"])
    single = (table["cores_shared"] == ALONE) & (values.transform("nunique") == 1)
    return table["cores_shared"].mask(single.fillna(False), values.transform("first"))


def _apart(table: pd.DataFrame) -> pd.Series:
    """Return, of each run, what sets it apart from most runs of its strategy, loader and setting.

    ``alike`` numbers the settings, before what is told here.

    Empty for most. How strategies communicate differs between them and divides no setting, but runs
    of one strategy that communicate in two ways must not meet. So it is with loaders.
    """
    found = pd.Series("", index=table.index, dtype="string")
    for column, (part, *parts) in _OWN.items():
        for (*_, name), runs in table.groupby(["alike", "framework", *parts, part], sort=False):
            values = runs[column].fillna(UNKNOWN)
            counts = values.value_counts()
            if len(counts) > 1:
                usual = min(counts[counts == counts.max()].index)
                more = {
                    value: f"{phrase(part, name)}: {items or 'no more'}"
                    for value, items in differing(counts.index).items()
                }
                texts = values.map(more | {usual: ""})
                found.loc[runs.index] = [
                    joined(*pair) for pair in zip(found.loc[runs.index], texts, strict=True)
                ]
    return found


def _fill_identity(table: pd.DataFrame) -> None:
    """Count runs that failed before they knew their machine to those that ask for the same."""
    unknown = table["machine"].isna()
    for column, free in (("configuration", identity.CONFIGURATION), ("series", identity.SERIES)):
        fields = [name for name in identity.dividing(free) if name in run_fields()]
        known = table[column].mask(unknown).groupby(numbered(table, ["study", *fields]))
        one = unknown & (known.transform("nunique") == 1)
        table[column] = table[column].mask(one, known.transform("first"))


def _fill_machine(table: pd.DataFrame) -> None:
    unknown = table["machine"].isna()
    if not unknown.any():
        return
    for by, columns in ([], _MACHINE), *((parts, [own]) for own, parts in _OWN.items()):
        for _, runs in table.groupby(["study", "framework", *by]):
            lost = unknown[runs.index]
            known = runs.loc[~lost, columns].drop_duplicates()
            if len(known) == 1:
                for column in columns:
                    table.loc[runs.index[lost], column] = known[column].iloc[0]
    known = (~unknown & table["cores_shared"].notna()).groupby(table["study"]).transform("any")
    table.loc[unknown & known, "cores_shared"] = ALONE


def _keep_differing(table: pd.DataFrame) -> None:
    """Leave of what a library brings with it only that in which runs of this library differ."""
    for _, runs in table.groupby(["study", "framework"]):
        for name in _OF_LIBRARY:
            own = runs[name]
            known = own.map(differing(own)).astype("string") if own.notna().any() else ""
            table.loc[runs.index, name] = known


def _always(settings: pd.DataFrame) -> list[str]:
    """Return what the name of each setting contains whether it varies or not."""
    return [
        describe({name: row[name] for name in _SHOWN if row[name] not in (None, False)})
        if row["framework"] != COMMAND
        else ""
        for row in rows(settings, ["framework", *_SHOWN])
    ]


def ended_runs(
    runs: pd.DataFrame, work: str = "train", second_starts: bool = False
) -> pd.DataFrame:
    """Return the runs that were made to their end, good or bad, with what pools and judges them.

    Only those of one kind of `work`: the throughput of a loader by itself is no training's. None
    of a study of accuracy, and none that was emulated. A second start of a run is there to be
    compared with the first, and is left out unless `second_starts` asks for it.

    Added columns: those of `with_settings`; ``lost`` (failed, or a loss that is not finite: no
    throughput counts); ``value`` (throughput, missing if lost); ``commit`` (eight digits, ``+`` if
    files were changed).
    """
    runs = not_emulated(runs)
    runs = runs[(runs["work"] == work) & ~asks_for_accuracy(runs)]
    runs = runs if second_starts else runs[~runs["second_start"].fillna(False).astype(bool)]
    diverged = runs["diverged"].fillna(False).astype(bool)
    lost = (runs["status"] == "failed") | diverged
    measured = (runs["status"] == "completed") & runs[VALUE].notna()
    table = with_settings(runs.assign(lost=lost, value=runs[VALUE].mask(lost))[measured | lost])
    return table.assign(commit=commits(table), lost=table["lost"].astype(bool))


def specs(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the fields of some runs, with None where one has no value."""
    return rows(runs, list(run_fields()))


def rows(table: pd.DataFrame, names: list[str]) -> list[dict[str, Any]]:
    """Return some columns of each row, with None where one has no value."""
    values = table[names].to_numpy(dtype=object, na_value=None).tolist()  # faster than `to_dict`
    return [dict(zip(names, row, strict=True)) for row in values]


def commits(runs: pd.DataFrame) -> pd.Series:
    """Return the code of each run: eight digits, ``+`` if files were changed."""
    dirty = runs["git_dirty"].fillna(False).astype(bool).map({True: "+", False: ""})
    return runs["git_commit"].fillna("unknown").str[:8] + dirty.astype("string")


class _Pool(NamedTuple):
    """Throughputs of a configuration at one number of ranks, and its row of the table."""

    single: int  # the same for `single` with this loader, model and setting
    sample: Sample
    row: dict[str, Any]


def configuration_table(runs: pd.DataFrame, windows: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per setting, configuration and world size: `COLUMNS`.

    value, low and high are the geometric mean of its throughputs (images/s) and its 95 % interval:
    over n blocks of ``windows`` if its study was interleaved (their number), else over its n runs.
    efficiency is relative to the smallest measured world size of the same configuration,
    base_world_size, where it is 1 by definition and has no interval. against_single is the same
    relative to one rank of strategy ``single`` with the same loader, model and setting: it shows
    a slow base. Both are of paired windows where these are known. A row whose runs were all lost
    has n = 0 and no value.
    """
    interleaved = Interleaved(windows)
    pools = _pools(ended_runs(runs), interleaved)

    def efficiency(name: str, one: _Pool, base: _Pool) -> dict[str, float]:
        """Return E_G = (DT_G / G) / (DT_G0 / G0) with its interval; the base itself has none.

        Aach et al. 2023, eq. 3, with the factor G0 that the printed equation omits and the paper's
        figures contain, has runtimes: E_G = G0 T_G0 / (G T_G). For equal work DT T is constant, so
        this is the same. Throughputs leave the cold epoch and dropped last batches out.
        """
        if one is base:
            return {name: 1.0}
        ratio = interleaved.compare(one.sample, base.sample)
        fewer = base.row["world_size"] / one.row["world_size"]
        return estimates.scaled(ratio, fewer).columns(name)

    known = [one for one in pools if len(one.sample.values)]
    singles = {
        one.single: one
        for one in known
        if (one.row["strategy"], one.row["world_size"]) == ("single", 1)
    }
    bases: dict[int, _Pool] = {}
    for one in known:  # by world size last: the first of a curve is its base
        base = bases.setdefault(one.row["curve"], one)
        one.row["base_world_size"] = base.row["world_size"]
        one.row.update(efficiency("efficiency", one, base))
        if one.single in singles:
            one.row.update(efficiency("against_single", one, singles[one.single]))
    return pd.DataFrame([one.row for one in pools], columns=COLUMNS)


def starts(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the runs of each configuration; those on the fewest ranks come first in a curve."""
    return [table.iloc[members] for members in _members(table)]


def _members(table: pd.DataFrame) -> list[np.ndarray]:
    """Return the places of the runs of each configuration, in the order of `_ORDER`."""
    order = table.reset_index().groupby(KEYS)[_ORDER].first().sort_values(_ORDER).index
    places = table.groupby(KEYS).indices
    return [places[key] for key in order]


def _pools(table: pd.DataFrame, interleaved: Interleaved) -> list[_Pool]:
    # What counts of all runs as arrays: a study may have ten thousand.
    values, lost, commits, ids = (
        table[name].to_numpy() for name in ("value", "lost", "commit", "run_id")
    )
    single = table["single"].to_numpy()
    shared = table[_SHARED].to_dict("records")
    found: list[_Pool] = []
    for members in _members(table):
        known = members[~np.isnan(values[members])]
        row = shared[members[0]] | {
            "failed": int(lost[members].sum()),
            "commit": ";".join(sorted(set(commits[members][~lost[members]]))),
        }
        windows = interleaved.of(row["study"], ids[known])
        sample = Sample(values[known], windows, list(commits[known]))
        row["n"] = sample.mean.n
        if len(known):
            row |= sample.mean.columns() | {"windows": counted(sample.windows)}
        found.append(_Pool(single[members[0]], sample, row))
    return found


def asks_for_accuracy(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Say of each run whether its study varies what changes no speed, such as the schedule.

    Such a study shows accuracies; its throughputs stand in no figure.
    """
    return varies(runs, identity.LEARNING)


def varies(runs: pd.DataFrame, fields: Collection[str]) -> "pd.Series[bool]":
    """Say of each run whether its study varies any of these fields."""
    known = runs[sorted(fields)].groupby(runs["study"])  # a damaged record has no value
    return (known.transform("nunique") > 1).any(axis=1)
