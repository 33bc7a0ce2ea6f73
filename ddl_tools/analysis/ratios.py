"""Ratios of configurations to a baseline in words: sentences, and rows of a table."""

from typing import Any

import numpy as np
import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.confirmation import doubtful
from ddl_tools.analysis.estimates import MARGIN
from ddl_tools.analysis.plot import captions
from ddl_tools.analysis.plot.rows import cell_text
from ddl_tools.estimate import Estimate, three_digits
from ddl_tools.names import plural

REFERENCE = "the reference that the study names"
NEAREST = "of the same network: the configuration that differs least from the reference"
FEWEST = "no run of a named reference: the first configuration that changes the fewest settings"
CONTROL = "control"  # no configuration that one can use, see `controls`
WORDS = {
    estimates.GREATER: "faster",
    estimates.LESS: "slower",
    estimates.EQUIVALENT: f"equivalent within {MARGIN:.0%}",
    estimates.INCONCLUSIVE: estimates.INCONCLUSIVE,
}

SYNTHETIC = "synthetic"
_MOST_NAMED = 4  # configurations in one sentence
_MOST_GROWN = 8  # the same for those with several numbers of ranks
# Settings in which a configuration may differ from the baseline.
_FACTORS = {
    "strategy": ["framework", "strategy"],
    "loader": ["loader", "data_format"],
    "network": ["model"],
    "number of ranks": ["world_size"],
}


def word(row: Any, stem: str = "") -> str:
    """Return the decision of a row in words; nothing where it has none."""
    if not pd.isna(row[f"{stem}decision"]):
        return WORDS[row[f"{stem}decision"]]
    return "" if np.isnan(row[f"{stem}ratio"]) else captions.ONE_START


def controls(points: pd.DataFrame) -> "pd.Series[bool]":
    """Say which rows are controls: second starts, and synthetic data beside a baseline that reads.

    A second start is as fast as the first one; synthetic data is what an endless loader would give.
    """
    bases = points[points["label"] == points["base"]]
    reads = bases.groupby("panel")["loader"].agg(lambda own: bool((own != SYNTHETIC).any()))
    free = points["loader"].eq(SYNTHETIC) & points["panel"].map(reads).fillna(False).astype(bool)
    return points["second_start"].fillna(False).astype(bool) | free


def without(label: str, other: str) -> str:
    """Return what the label of a configuration has that another one has not; itself if nothing."""
    theirs = other.split(", ")
    return ", ".join(part for part in label.split(", ") if part not in theirs) or label


def grown(panel: pd.DataFrame) -> "pd.Series[bool]":
    """Say which rows of a panel are compared with the same configuration on fewer ranks.

    Of a single one, the ratio is that to the baseline of all.
    """
    first = panel[panel["label"] == panel["base"]].iloc[0]
    same = (panel["base"] != first["label"]) | (panel["growth_from"] == first["world_size"])
    more = panel["world_size"].gt(first["world_size"]) & same.fillna(False)
    return more & (more.sum() > 1)


def within_commits(panel: pd.DataFrame) -> bool:
    """Say whether ratios are of whole runs of several commits, each commit by itself."""
    base, others = commits_of(panel)
    return len(base.union(*others)) > 1 and any(base & one for one in others)


def commits_of(panel: pd.DataFrame) -> tuple[set[str], list[set[str]]]:
    """Return the commits of the baseline, and of each ratio to it that is not of pairs."""
    commits = panel["commit"].str.split(";").map(set)
    is_base = panel["label"] == panel["base"]
    others = panel["ratio"].notna() & (panel["pairs"] == 0) & ~is_base
    return set().union(*commits[is_base]), list(commits[others])


def _differences(panel: pd.DataFrame) -> pd.DataFrame:
    """Say of each configuration of a panel in which factors it differs from the baseline."""
    base = panel[panel["label"] == panel["base"]].iloc[0]
    found = {
        factor: pd.concat([panel[name] != base[name] for name in names], axis=1).any(axis=1)
        for factor, names in _FACTORS.items()
    }
    table = pd.DataFrame(found)
    others = ~table.any(axis=1) & (panel["label"] != base["label"])
    return table.assign(settings=others & ~panel["second_start"].fillna(False))


def compared(points: pd.DataFrame) -> list[str]:
    """Return the ratios of what differs from the baseline in one factor; else best and worst."""
    found = []
    for _, panel in points[points["ratio"].notna()].groupby("panel", sort=False):
        base = str(panel["base"][panel["label"] == panel["base"]].iloc[0])
        differs = _differences(panel)
        others = ~controls(panel) & (panel["label"] != base)
        others &= ~grown(panel)  # a sentence of their own
        alone = differs[others & (differs.sum(axis=1) == 1)]
        groups = {f"by {name}": panel.loc[alone.index[alone[name]]] for name in alone}
        if alone.empty and others.any():
            groups = {"of the fastest and the slowest": panel[others].iloc[[0, -1]]}
        for name, rows in groups.items():
            texts = [_against(row, base) for row in rows.to_dict("records")]
            if len(texts) > _MOST_NAMED:
                texts = [f"{len(texts)} configurations from {texts[-1]} to {texts[0]}"]
            if texts:
                rate = three_digits(panel.loc[panel["label"] == base, "value"].iloc[0])
                how = ", within each commit" if within_commits(panel) else ""
                text = f"relative to {base} ({rate} images/s){how}: {'; '.join(texts)}."
                found.append(f"Throughput {name}, {text}")
        if not others.any():
            found.append(f"{base}: {cell_text(panel.iloc[0], 'value')} images/s.")
    return [*found, *_growths(points)]


def _growths(points: pd.DataFrame) -> list[str]:
    """Return how much the most ranks raise the throughput of each configuration, most first.

    Nothing for a single one, whose ratio is that to the baseline.
    """
    few, many = points["world_size"].min(), points["world_size"].max()
    grown = points[points["growth_ratio"].notna() & (points["growth_from"] == few)]
    grown = grown[grown["world_size"] == many].sort_values("growth_ratio", ascending=False)
    if len(grown) < 2:
        return []
    texts = []
    for row in grown.to_dict("records"):
        name = row["label"].rpartition(", ")[0]
        texts.append(f"{name} {Estimate.of(row, 'growth_ratio'):.2f} ({word(row, 'growth_')})")
    sizes = f"Throughput on {plural(many, 'rank')}, relative to {plural(few, 'rank')}"
    return [f"{sizes} of the same configuration: {'; '.join(texts[:_MOST_GROWN])}."]


def _against(row: Any, base: str) -> str:
    """Return a ratio with what the label has and that of the baseline has not."""
    words = [word(row)]
    if again := _again(row):
        words.append(f"{again} when measured again")
    note = f" ({', '.join(words)})" if any(words) else ""
    return f"{without(row['label'], base)} {Estimate.of(row, 'ratio'):.2f}{note}"


def _again(row: Any) -> str:
    """Return what a second measurement says differently: its ratio if disjoint, its decision."""
    if pd.isna(row.get("again_decision")):
        return ""
    changed = row["again_decision"] != row["decision"]
    parts = [f"{Estimate.of(row, 'again_ratio'):.2f}"] if row["disjoint"] else []
    return " and ".join([*parts, *([word(row, "again_")] if changed else [])])


def unconfirmed(points: pd.DataFrame) -> list[str]:
    """Return each ratio that a second measurement does not confirm, beside the second one."""
    return [
        f"{row['label']} {_ratio_to(row, points)} ({word(row)}), measured again "
        f"{Estimate.of(row, 'again_ratio'):.2f} ({word(row, 'again_')}"
        f"{', intervals do not overlap' if row['disjoint'] else ''})"
        for row in doubtful(points).to_dict("records")
    ]


def _ratio_to(row: Any, points: pd.DataFrame) -> str:
    """Return a ratio, with the baseline unless all of a panel have it."""
    first = points["label"][points["label"] == points["base"]]
    own = "" if row["base"] in set(first) else without(row["base"], row["label"])
    return f"{Estimate.of(row, 'ratio'):.2f}" + (f" of {own}" if own else "")


def nearest(points: pd.DataFrame) -> pd.DataFrame:
    """Return the configurations by the number of factors in which they differ from the baseline."""
    counts = [_differences(panel).sum(axis=1) for _, panel in points.groupby("panel")]
    many = pd.concat(counts)[~points["second_start"].fillna(False)]
    table = points.loc[many.sort_index().sort_values(kind="stable").index]
    rows = table.to_dict("records")
    words = [
        "baseline" if row["label"] == row["base"] else CONTROL if control else word(row)
        for row, control in zip(rows, controls(table), strict=True)
    ]
    again = [
        f"{Estimate.of(row, 'again_ratio'):.2f}, {word(row, 'again_')}"
        if not pd.isna(row.get("again_decision"))
        else ""
        for row in rows
    ]
    return table.assign(decision=words, ratio=[_ratio_to(row, points) for row in rows], again=again)


def sentences(points: pd.DataFrame) -> list[str]:
    """Return what `points` say of each configuration, below a line on the baseline.

    E.g. ``Horovod, 2 ranks: 0.80 [0.76, 0.84], slower; per CPU second 0.97 [...], ...``. Whole
    runs are compared where none was interleaved; without any ratio, a panel has no lines.
    """
    lines: list[str] = []
    for name, panel in points.groupby("panel", sort=False):
        others = panel[panel["label"] != panel["base"]]
        first = panel[panel["label"] == panel["base"]].iloc[0]
        interleaved = panel["windows"].any()
        if not interleaved and others["ratio"].isna().all():
            continue
        known = others[others["n"] > 0]
        named = first["base_rule"] == REFERENCE
        rule = "" if named else " (the configuration that changes the fewest settings)"
        how = "whole runs" + (", within each commit" if within_commits(panel) else "")
        if interleaved:
            how = f"pairs of windows: {captions.counted('', known['pairs'])}"
        lines.append(
            f"{name}: throughput / throughput of {first['base']}{rule}, starts: "
            f"{captions.counted('n', known['n'])}, {how}"
        )
        for row in others.to_dict("records"):
            wall, cpu = (_compared_text(row, stem) for stem in ("", "cpu_"))
            if row["base"] != first["label"]:
                wall += f", of {without(row['base'], row['label'])}"
            lines.append(f"  {row['label']}: {wall}" + (f"; per CPU second {cpu}" if cpu else ""))
    return lines


def _compared_text(row: dict[str, Any], stem: str) -> str:
    if np.isnan(row[f"{stem}ratio"]):
        return "" if stem else "no pairs" if row["windows"] else "not measured"
    return f"{Estimate.of(row, f'{stem}ratio'):.2f}, {word(row, stem)}"
