"""Ratios of configurations to a baseline in words: sentences, and rows of a table."""

from typing import Any

import pandas as pd

from ddl_tools.analysis import estimates
from ddl_tools.analysis.confirmation import agree, doubtful
from ddl_tools.analysis.plot import captions
from ddl_tools.analysis.plot.captions import word
from ddl_tools.estimate import Estimate

REFERENCE = "the reference that the study names"
NEAREST = "of the same network: the configuration that differs least from the reference"
FEWEST = "no run of a named reference: the first configuration that changes the fewest settings"
CONTROL = "control"  # no configuration that one can use, see `controls`
SYNTHETIC = "synthetic"
LOST_STARTS = "; starts lost: "  # in the text of rounds that are left out
SHIFTED = (  # of a second start, see `shifted`
    "it is the baseline once more, and yet differs: all ratios share the starts of the "
    "baseline, so measure again"
)
# Lines of a terminal: of each panel the baseline, and below it the ratios to it.
_LINES = """
{% macro ratio(row, stem="") %}
{{ row | estimate(stem ~ "ratio", ".2f") }}
{%- if not row.control %}, {{ row | word(stem) }}{% elif not stem %}, {{ control }}
{%- if row.shifted %}; {{ shifted }}{% endif %}{% endif %}
{% endmacro %}
{% for panel in panels %}
{{ panel.name }}: throughput / throughput of {{ panel.base }}
{%- if not panel.named %} (the configuration that changes the fewest settings){% endif %}
, {{ panel.starts }}
{%- if panel.lost %}, lost as no undisturbed round was left: {{ panel.lost }}{% endif %},
{%- if panel.pairs %} {{ panel.pairs }} pairs of epochs{% else %} whole runs
{%- if panel.within_commits %}, within each commit{% endif %}{% endif %}

{% for row in panel.rows %}
  {{ row.label }}:
{%- if row | estimate("ratio") %} {{ ratio(row) }}
{%- elif row.windows %} no pairs{% else %} not measured{% endif %}
{% if row.of %}, of {{ row.of }}{% endif %}
{% if row | estimate("cpu_ratio") %}; per CPU second {{ ratio(row, "cpu_") }}{% endif %}

{% endfor %}
{% endfor %}
"""
_UNCONFIRMED = """
{{ row.label }} {{ row.ratio_to }} ({{ control if row.control else row | word }}), measured again
{{- " " ~ row | estimate("again_ratio", ".2f") }}
{%- if not row.control %} ({{ row | word("again_") }}{% if row.disjoint %}, {% endif %}
{% elif row.disjoint %} ({% endif %}
{% if row.disjoint %}intervals do not overlap{% endif %}
{% if row.disjoint or not row.control %}){% endif %}
"""
# Settings in which a configuration may differ from the baseline.
_FACTORS = {
    "strategy": ["framework", "strategy"],
    "loader": ["loader", "data_format"],
    "network": ["model"],
    "number of ranks": ["world_size"],
}


def controls(points: pd.DataFrame) -> "pd.Series[bool]":
    """Say which rows are controls: second starts, and synthetic data beside a baseline that reads.

    A second start is as fast as the first one; synthetic data is what an endless loader would give.
    """
    bases = points[points["label"] == points["base"]]
    reads = bases.groupby("panel")["loader"].agg(lambda own: bool((own != SYNTHETIC).any()))
    free = points["loader"].eq(SYNTHETIC) & points["panel"].map(reads).fillna(False).astype(bool)
    return _second_starts(points) | free


def _second_starts(points: pd.DataFrame) -> "pd.Series[bool]":
    return points["second_start"].fillna(False).astype(bool)


def shifted(points: pd.DataFrame) -> "pd.Series[bool]":
    """Say which rows are second starts that differ from the first ones, though they are the same.

    Of 95 % intervals, one in twenty does so by chance.
    """
    return _second_starts(points) & points["decision"].isin([estimates.GREATER, estimates.LESS])


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


def _lost_starts(panel: pd.DataFrame) -> list[str]:
    """Return how many starts were lost because all their rounds are left out, and which."""
    texts = panel["rounds_left_out"].dropna().unique()
    return [found for text in texts if (found := text.partition(LOST_STARTS)[2])]


def _differences(panel: pd.DataFrame) -> pd.DataFrame:
    """Say of each configuration of a panel in which factors it differs from the baseline."""
    base = panel[panel["label"] == panel["base"]].iloc[0]
    found = {
        factor: pd.concat([panel[name] != base[name] for name in names], axis=1).any(axis=1)
        for factor, names in _FACTORS.items()
    }
    table = pd.DataFrame(found)
    others = ~table.any(axis=1) & (panel["label"] != base["label"])
    return table.assign(settings=others & ~_second_starts(panel))


def compared(points: pd.DataFrame) -> list[dict[str, Any]]:
    """Return by panel what differs from the baseline in one factor; else best and worst.

    Each has the ``factor``, empty for best and worst, the baseline as ``first``, whether ratios are
    ``within_commits``, and its rows, the fastest first. Controls are in none.
    """
    found = []
    for _, panel in points[points["ratio"].notna()].groupby("panel", sort=False):
        first = panel[panel["label"] == panel["base"]].iloc[0]
        differs = _differences(panel)
        others = ~controls(panel) & (panel["label"] != first["label"])
        others &= ~grown(panel)  # a sentence of their own
        alone = differs[others & (differs.sum(axis=1) == 1)]
        groups = {str(name): panel.loc[alone.index[alone[name]]] for name in alone}
        if alone.empty:
            groups = {"": panel[others].iloc[[0, -1]] if others.any() else panel.iloc[:0]}
        shared = {"first": first.to_dict(), "within_commits": within_commits(panel)}
        found += [
            shared | {"factor": factor, "rows": _shortened(rows, first["label"])}
            for factor, rows in groups.items()
            if len(rows) or not factor
        ]
    return found


def _shortened(rows: pd.DataFrame, base: str) -> list[dict[str, Any]]:
    """Return rows with what their labels have and that of the baseline has not, as ``short``.

    ``changed`` says that a second measurement decides differently, ``apart`` that its ratio does
    not agree.
    """
    again = rows["again_decision"]
    short = [without(label, base) for label in rows["label"]]
    changed = again.notna() & again.ne(rows["decision"]).fillna(False)
    apart = again.notna() & rows["decision"].notna() & ~agree(rows)
    return rows.assign(short=short, changed=changed, apart=apart).to_dict("records")


def growths(points: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the configurations whose ratio on the most ranks to the fewest is known, best first.

    Nothing for a single one, whose ratio is that to the baseline.
    """
    few, many = points["world_size"].min(), points["world_size"].max()
    here = points["growth_ratio"].notna() & (points["growth_from"] == few)
    here &= (points["world_size"] == many) & ~controls(points)
    grown = points[here.fillna(False)].sort_values("growth_ratio", ascending=False)
    return grown.to_dict("records") if len(grown) > 1 else []


def unconfirmed(points: pd.DataFrame) -> list[str]:
    """Return each ratio that a second measurement does not confirm, beside the second one."""
    table = doubtful(points)
    texts = [_ratio_to(row, points) for row in table.to_dict("records")]
    table = table.assign(ratio_to=texts, control=controls(points)[table.index])
    return [
        captions.say(_UNCONFIRMED, row=row, control=CONTROL).strip()
        for row in table.to_dict("records")
    ]


def _ratio_to(row: Any, points: pd.DataFrame) -> str:
    """Return a ratio, with the baseline unless all of a panel have it."""
    first = points["label"][points["label"] == points["base"]]
    own = "" if row["base"] in set(first) else without(row["base"], row["label"])
    return f"{Estimate.of(row, 'ratio'):.2f}" + (f" of {own}" if own else "")


def nearest(points: pd.DataFrame) -> pd.DataFrame:
    """Return the configurations by the number of factors in which they differ from the baseline."""
    counts = pd.concat([_differences(panel).sum(axis=1) for _, panel in points.groupby("panel")])
    order = pd.DataFrame({"counts": counts, "again": _second_starts(points)}, index=points.index)
    table = points.loc[order.sort_values(["counts", "again"], kind="stable").index]
    rows = table.to_dict("records")
    words = [
        "baseline" if row["label"] == row["base"] else CONTROL if control else word(row)
        for row, control in zip(rows, controls(table), strict=True)
    ]
    again = [
        f"{Estimate.of(row, 'again_ratio'):.2f}" + ("" if control else f", {word(row, 'again_')}")
        if not pd.isna(row.get("again_decision"))
        else ""
        for row, control in zip(rows, controls(table), strict=True)
    ]
    return table.assign(decision=words, ratio=[_ratio_to(row, points) for row in rows], again=again)


def sentences(points: pd.DataFrame) -> list[str]:
    """Return what `points` say of each configuration, below a line on the baseline.

    E.g. ``Horovod, 2 ranks: 0.80 [0.76, 0.84], slower; per CPU second 0.97 [...], ...``. Whole
    runs are compared where none was interleaved; without any ratio, a panel has no lines.
    """
    panels = []
    points = points.assign(control=controls(points), shifted=shifted(points))
    for name, panel in points.groupby("panel", sort=False):
        others = panel[panel["label"] != panel["base"]]
        first = panel[panel["label"] == panel["base"]].iloc[0]
        if not panel["windows"].any() and others["ratio"].isna().all():
            continue
        known = others[others["n"] > 0]
        others = others.assign(
            of=[
                "" if base == first["label"] else without(base, label)
                for base, label in zip(others["base"], others["label"], strict=True)
            ]
        )
        panels.append(
            {
                "name": name,
                "base": first["label"],
                "named": first["base_rule"] == REFERENCE,
                "starts": captions.starts(known["n"]) if len(known) else "no starts",
                "lost": "; ".join(_lost_starts(panel)),
                "pairs": captions.counted("", known["pairs"]) if panel["windows"].any() else "",
                "within_commits": within_commits(panel),
                "rows": others.to_dict("records"),
            }
        )
    return captions.say(_LINES, panels=panels, control=CONTROL, shifted=SHIFTED).split("\n")[1:-1]
