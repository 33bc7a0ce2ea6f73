"""Efficiency over the nodes of an emulation."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.analysis import estimates
from ddl_tools.analysis.configurations import (
    VALUE,
    commits,
    keyed,
    specs,
    stack,
    with_settings,
)
from ddl_tools.analysis.figures.columns import ORIGIN, WHO, typed
from ddl_tools.analysis.figures.scaling import line_looks
from ddl_tools.analysis.plot import captions, curves, style
from ddl_tools.analysis.plot.canvas import handles, panel_figure, styled
from ddl_tools.analysis.plot.labels import Name, have_room, name_curves
from ddl_tools.analysis.question import Question, Tables, largest, question, records
from ddl_tools.analysis.ratios import without
from ddl_tools.analysis.tables import is_emulated
from ddl_tools.emulation.options import Emulated
from ddl_tools.estimate import three_digits
from ddl_tools.names import joined, label, plural
from ddl_tools.records.identity import REPEATS, SERIES
from ddl_tools.scaling.emulated import calculated_s, represented_gbit, represented_ms

EMULATED = typed(
    "panel",
    WHO,
    "line emu_link_mbit emu_step_ms emu_shrink represents_gbit represents_ms world_size",
    "n failed unfaithful value low high calculated",
    ORIGIN,
)
# Fields of an emulated run that panel or axis name, or that change no ratio.
_NOT_NAMED = ("framework", "strategy", "nodes", "emu_link_mbit", "train_images", "epochs",
              "emu_straggler", "emu_jitter", *REPEATS)  # fmt: skip
_SHRUNK = ("ddp_bucket_mb", "ddp_first_bucket_mb", "horovod_fusion_mb")
# Links and the length of a run divide no series: what is drawn is a ratio over them.
_SHARED = {"emu_link_mbit": 0.0, "train_images": pd.NA, "epochs": 0}
_HIGH = 2.0  # inches of a panel
_NO_DELAYS = {"emu_straggler": 1.0, "emu_jitter": 0.0}


def emulated_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return parallel efficiency over emulated nodes: `EMULATED`.

    E = (throughput of G ranks / G) / throughput of one, of the same configuration; low and high
    are its 95 % interval over repeats. One rank sends nothing, so it is the base of all link rates.
    Delayed ranks without a run of one rank have the base of the configuration without delays.
    calculated is E by the calculator of `ddl_tools.scaling.communication`, from the step of one
    rank and the rate of the slowest link, which was measured before each run. represents_gbit is
    the link that an emulated one represents (Gbit/s), represents_ms the step, see
    `represented_gbit`. Rejected runs are counted and give no value.
    """
    made = _emulated(runs)
    rows = []
    for _, series in made.groupby("series", sort=True):
        alone = series[series["world_size"] == 1]
        base = alone if len(alone) else _without_delays(made, series.iloc[0])
        for _, panel in series[series["world_size"] > 1].groupby("emu_link_mbit"):
            sizes = [part for _, part in panel.groupby("world_size")]
            rows += [_row(part, base, panel) for part in ([alone] if len(alone) else []) + sizes]
    table = pd.DataFrame(rows, columns=list(EMULATED))
    if table["study"].nunique() > 1:
        table["panel"] += " (" + table["study"] + ")"
    order = ["study", "emu_link_mbit", "line", "world_size"]
    return stack([table.sort_values(order, ascending=[True, False, True, True])], EMULATED)


def _emulated(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the emulated runs that have ended, with what pools them and what they are called."""
    ended = runs["status"].isin(["completed", "failed"]) & (runs["world_size"] > 0)
    emulated = runs[is_emulated(runs) & ended]
    made = with_settings(emulated.assign(**_SHARED)).assign(
        **emulated[list(_SHARED)],
        commit=commits(emulated),
        series=keyed(emulated, SERIES | set(_SHARED)),
        undisturbed=keyed(emulated, SERIES | {*_SHARED, *_NO_DELAYS}),
    )
    real = {name: emulated[name] * emulated["emu_shrink"] for name in _SHRUNK}
    made["line"] = pd.Series("", made.index, dtype="string")
    for _, study in emulated.assign(**real).groupby("study"):  # of the network that is emulated
        strategies = study["strategy"].map(style.strategy_name)
        named = label(specs(study), _NOT_NAMED)
        parts = strategies, named, _delays(study), made.loc[study.index, "differs"]
        made.loc[study.index, "line"] = [joined(*texts) for texts in zip(*parts, strict=True)]
    faithful = (made["status"] == "completed") & made["unfaithful"].isna()
    return made.assign(value=made[VALUE].where(faithful))


def _delays(study: pd.DataFrame) -> list[str]:
    """Return of each run which delays it has; nothing where all of the study have the same."""
    delays = study[list(_NO_DELAYS)]
    if len(delays.drop_duplicates()) < 2:
        return [""] * len(study)
    return [_delay(*one) for one in delays.itertuples(index=False)]


def _delay(straggler: float, jitter: float) -> str:
    slow = f"one rank {100 * (straggler - 1):.6g} % slower" if straggler > 1 else ""
    return joined(slow, f"{100 * jitter:.6g} % jitter" if jitter else "") or "no delay"


def _without_delays(made: pd.DataFrame, delayed: pd.Series) -> pd.DataFrame:
    """Return the runs of one rank that are like `delayed`, but for its delays."""
    alike = made["undisturbed"] == delayed["undisturbed"]
    without = (made[list(_NO_DELAYS)] == pd.Series(_NO_DELAYS)).all(axis=1)
    return made[alike & without & (made["world_size"] == 1)]


def _row(runs: pd.DataFrame, base: pd.DataFrame, panel: pd.DataFrame) -> dict[str, Any]:
    first, ranks = runs.iloc[0], int(runs["world_size"].iloc[0])
    emulated = RunSpec(**specs(panel.iloc[:1])[0])
    asked, gbit = emulated.of(Emulated), represented_gbit(emulated)
    mbit = asked.emu_link_mbit
    known, bases = (part["value"].dropna().to_numpy(float) for part in (runs, base))
    row = {name: first[name] for name in EMULATED if name in first} | {
        "panel": f"links of {mbit:g} Mbit/s, step {asked.emu_step_ms / 1e3:g} s "
        f"({three_digits(gbit)} Gbit/s)",
        "emu_link_mbit": mbit,
        "represents_gbit": gbit,
        "represents_ms": represented_ms(emulated),
        "n": len(known),
        "failed": int((runs["status"] == "failed").sum()),
        "unfaithful": int(runs["unfaithful"].notna().sum()),
        "commit": ";".join(sorted(set(runs["commit"]))),
        **dict.fromkeys(["value", "low", "high", "calculated"], np.nan),
    }
    if ranks == 1 and len(known):
        row["value"] = 1.0
    elif len(known) and len(bases):
        row |= estimates.scaled(estimates.unpaired_ratio(known, bases), 1 / ranks).columns()
        mbit = runs["link_mbit_least"].min()
        row["calculated"] = _calculated(RunSpec(**specs(runs.iloc[:1])[0]), bases.mean(), mbit)
    return row


def _calculated(spec: RunSpec, rate: float, link_mbit: float) -> float:
    """Return E of an emulated run from the throughput of one rank and the rate of its links.

    nan where nothing models it.
    """
    alone_s = spec.local_batch_size / rate
    try:
        return alone_s / calculated_s(spec, alone_s, link_mbit)
    except SpecError:
        return float("nan")


def _single(points: pd.DataFrame) -> "pd.Series[bool]":
    """Say which values rest on a single run; the base is 1 by definition."""
    return (points["n"] == 1) & (points["world_size"] > 1)


def _ends(part: pd.DataFrame, looks: style.Looks) -> list[Name]:
    """Return the names of the curves of a panel, at their ends."""
    last = part.sort_values("world_size").groupby("line").last()
    places = last[["world_size", "value"]].itertuples()
    return [Name(x, y, line, looks[line]["color"]) for line, x, y in places]


@question("efficiency_emulated")
class EmulatedEfficiency(Question):
    """Parallel efficiency over emulated nodes."""

    asks = "How efficient are more emulated nodes?"
    notebook = "12_scaling"
    needs = "emulated runs on one node and on several"
    columns = "line emu_link_mbit emu_step_ms represents_gbit world_size value calculated n"
    value = "efficiency E"
    text = """
{% macro like(row) %}
like {{ row.represents_gbit | number }} Gbit/s, {{ row.represents_ms | number }} ms
{% endmacro %}
{% macro where(row) %}
{{ row.world_size }} emulated nodes with links of {{ "%g" | format(row.emu_link_mbit) }} Mbit/s and
steps of {{ "%g" | format(row.emu_step_ms / 1000) }} s ({{ like(row) }})
{% endmacro %}
{% for rows in links[:1] %}
- EMULATED: {{ rows[0].line }} reaches efficiency {{ rows[0] | estimate }}
{{ ", " ~ other ~ " " ~ rows[-1] | estimate if rows | length > 1 else "" }}
on {{ rows[0].world_size }} nodes; {{ "%g" | format(rows[0].emu_link_mbit) }} Mbit/s,
{{ "%g" | format(rows[0].emu_step_ms / 1000) }} s steps ({{ like(rows[0]) }}).
{% else %}
- EMULATED: nothing measured here yet.
{% endfor %}
{% for rows in links %}
- Efficiency on {{ where(rows[0]) }}:
{% for row in rows %}
{{ row.line }} {{ row | estimate }}{{ "" if loop.last else "; " }}
{% endfor %}
.
{% endfor %}
"""

    def points(self, tables: Tables) -> pd.DataFrame:
        return emulated_points(tables.runs)

    @styled
    def draw(self, points: pd.DataFrame) -> Figure:
        """Return E over emulated nodes, in the colours of the frameworks, dashed."""
        drawn = points[points["value"].notna()]
        looks = line_looks(drawn, first=1)
        smaller = captions.counted("", drawn["emu_shrink"])
        calculated = drawn["calculated"].notna().any()
        horovod = drawn["strategy"].eq("horovod").any()
        alone = points["world_size"] == 1  # the base, which stands in each panel
        once = points[~alone | ~points.duplicated(["study", "line", "world_size"])]
        rejected = int(once["unfaithful"].sum())
        baseless = sorted(set(points.loc[points["n"] > 0, "line"]) - set(drawn["line"]))
        direct = points["panel"].nunique() == 1 and have_room(looks)
        figure, panels = panel_figure(
            self.title(points),
            points,
            [] if direct else handles(looks),
            [
                "Nodes are network namespaces of one machine; ResNet50's gradients "
                f"{smaller} times smaller. In brackets: the link that it stands for.",
                *captions.provenance(points, "the ratio"),
                *(["Crosses: calculated, nothing fitted."] if calculated else []),
                *(["Open: one run."] if _single(drawn).any() else []),
                *([f"Rejected: {plural(rejected, 'run')}."] if rejected else []),
                *[f"No run of one rank: {name}." for name in baseless],
                *(["Horovod's negotiation is not scaled."] if horovod else []),
            ],
            _HIGH,
            columns=3,
        )
        for ax, part in panels:
            part = part[part["value"].notna()]
            curves.rank_axis(ax, part["world_size"], "emulated nodes G")
            ax.set_ylabel("parallel efficiency E")
            curves.share_axis(ax, drawn[["value", "low", "high"]].stack())
            ax.axhline(1, **style.IDEAL)
            for number, (line, look) in enumerate(looks.items()):
                own = part[part["line"] == line].sort_values("world_size")
                x = own["world_size"]
                if not direct:
                    x = curves.apart(ax, x, number, len(looks))
                curves.line(ax, x, own, look | {"markersize": 5})
                ax.plot(x, own["calculated"], "x", color="black", markersize=3.5, zorder=7)
                one = _single(own)
                ax.plot(
                    x[one],
                    own.loc[one, "value"],
                    zorder=6,
                    markersize=5,
                    **look | {"linestyle": "none", "markerfacecolor": "white"},
                )
            if direct:
                name_curves(ax, _ends(part, looks), _HIGH)
        return figure

    def enough(self, points: pd.DataFrame) -> bool:
        """Say whether any panel compares curves: the answer has all that a single one shows."""
        return bool(points.groupby("panel")["line"].nunique().max() > 1)

    def rows(self, points: pd.DataFrame) -> pd.DataFrame:
        return largest(points).sort_values("emu_link_mbit", ascending=False, kind="stable")

    def facts(self, points: pd.DataFrame) -> dict[str, Any]:
        """Return E on the most nodes: at the rate with the most runs first, the slowest first."""
        links = [part for _, part in largest(points).groupby(["emu_link_mbit", "emu_step_ms"])]
        links.sort(key=lambda part: -part["n"].min())
        ends = links[0]["line"].iloc[[0, -1]] if links else ["", ""]
        return {"links": [records(part) for part in links], "other": without(*reversed([*ends]))}
