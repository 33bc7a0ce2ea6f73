"""Ratios of configurations to a baseline, as sentences and as rows of a table."""

from typing import Any

import pandas as pd

from ddl_tools.analysis.confirmation import doubtful
from ddl_tools.analysis.figures import comparison
from ddl_tools.analysis.plot.rows import cell_text
from ddl_tools.estimate import Estimate, three_digits
from ddl_tools.names import plural

_MOST_NAMED = 4  # configurations in one sentence
_MOST_GROWN = 8  # the same for those with several numbers of ranks
# Settings in which a configuration may differ from the baseline.
_FACTORS = {
    "strategy": ["framework", "strategy"],
    "loader": ["loader", "data_format"],
    "network": ["model"],
    "number of ranks": ["world_size"],
}


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
        others = ~panel["second_start"].fillna(False) & (panel["label"] != base)
        others &= ~comparison.grown(panel)  # a sentence of their own
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
                how = ", within each commit" if comparison.within_commits(panel) else ""
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
        texts.append(
            f"{name} {Estimate.of(row, 'growth_ratio'):.2f} ({comparison.word(row, 'growth_')})"
        )
    sizes = f"Throughput on {plural(many, 'rank')}, relative to {plural(few, 'rank')}"
    return [f"{sizes} of the same configuration: {'; '.join(texts[:_MOST_GROWN])}."]


def _against(row: Any, base: str) -> str:
    """Return a ratio with what the label has and that of the baseline has not."""
    words = [comparison.word(row)]
    if again := _again(row):
        words.append(f"{again} when measured again")
    note = f" ({', '.join(words)})" if any(words) else ""
    return f"{comparison.without(row['label'], base)} {Estimate.of(row, 'ratio'):.2f}{note}"


def _again(row: Any) -> str:
    """Return what a second measurement says differently: its ratio if disjoint, its decision."""
    if pd.isna(row.get("again_decision")):
        return ""
    changed = row["again_decision"] != row["decision"]
    parts = [f"{Estimate.of(row, 'again_ratio'):.2f}"] if row["disjoint"] else []
    return " and ".join([*parts, *([comparison.word(row, "again_")] if changed else [])])


def unconfirmed(points: pd.DataFrame) -> list[str]:
    """Return each ratio that a second measurement does not confirm, beside the second one."""
    return [
        f"{row['label']} {_ratio_to(row, points)} ({comparison.word(row)}), measured again "
        f"{Estimate.of(row, 'again_ratio'):.2f} ({comparison.word(row, 'again_')}"
        f"{', intervals do not overlap' if row['disjoint'] else ''})"
        for row in doubtful(points).to_dict("records")
    ]


def _ratio_to(row: Any, points: pd.DataFrame) -> str:
    """Return a ratio, with the baseline unless all of a panel have it."""
    first = points["label"][points["label"] == points["base"]]
    own = "" if row["base"] in set(first) else comparison.without(row["base"], row["label"])
    return f"{Estimate.of(row, 'ratio'):.2f}" + (f" of {own}" if own else "")


def nearest(points: pd.DataFrame) -> pd.DataFrame:
    """Return the configurations by the number of factors in which they differ from the baseline."""
    counts = [_differences(panel).sum(axis=1) for _, panel in points.groupby("panel")]
    many = pd.concat(counts)[~points["second_start"].fillna(False)]
    table = points.loc[many.sort_index().sort_values(kind="stable").index]
    rows = table.to_dict("records")
    words = ["baseline" if row["label"] == row["base"] else comparison.word(row) for row in rows]
    again = [
        f"{Estimate.of(row, 'again_ratio'):.2f}, {comparison.word(row, 'again_')}"
        if not pd.isna(row.get("again_decision"))
        else ""
        for row in rows
    ]
    return table.assign(decision=words, ratio=[_ratio_to(row, points) for row in rows], again=again)
