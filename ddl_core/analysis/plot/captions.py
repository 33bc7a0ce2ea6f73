"""What stands under a figure: how often, how sure, on what, which commit, what is not ours."""

from collections.abc import Sequence

import pandas as pd

from ddl_core.analysis.plot import style
from ddl_core.analysis.plot.canvas import LeftOut
from ddl_core.spec.labels import called

# By library and strategy, any if that is empty: what is not developed any more.
HISTORICAL = {
    ("mxnet", ""): "MXNet was retired in 2023",
    ("tensorflow", "horovod"): "Horovod's last release, of 2023, is not one for today's TensorFlow",
}
METHOD_ONLY = "shows method and overhead, not hardware"


def runs(table: pd.DataFrame, interval_of: str = "the mean") -> list[str]:
    """Return the sentences about the measured rows: n, interval, lost runs, machine, commit.

    `table` has the columns n, failed, study, hardware, on_cpu and commit, and low and high of the
    interval; windows too, if arms may have taken turns.
    """
    measured = table[table["n"] > 0]
    if measured.empty:
        return lost(table)
    return [
        f"Measured: {averaged(measured['n'], 'geometric mean')}, warm epochs only.",
        *_bars(measured, interval_of),
        *lost(table),
        *machines(measured),
        commits(measured),
    ]


def _bars(measured: pd.DataFrame, interval_of: str) -> list[str]:
    """Return the sentence on the intervals that are there: over starts, over runs, or both."""
    known = measured[measured["low"].notna()]
    if known.empty:
        return []
    taken = known["windows"].fillna(0).astype(int) if "windows" in known else 0 * known["n"]
    over = ["starts whose windows took turns"] if (taken > 0).any() else []
    over += ["runs"] if (taken == 0).any() else []
    return [f"Bars: 95 % interval of {interval_of} (t on logs, over {' or '.join(over)})."]


def lost(table: pd.DataFrame) -> list[str]:
    """Return the sentence on runs without a value, nothing if there are none."""
    failed = int(table["failed"].sum())
    return [f"Without a value, because failed or diverged: {_runs(failed)}."] if failed else []


def scaling(measured: pd.DataFrame) -> str:
    """Return the sentence that says which kind of scaling this is."""
    batches = counted("", measured["local_batch_size"].dropna())
    text = "Strong scaling (same images per epoch) with a fixed batch per worker"
    return f"{text} ({batches} images; the paper: 64)." if batches else f"{text} (64 images)."


def base(measured: pd.DataFrame) -> str:
    """Return the sentence that defines E and names its base."""
    text = "E = (throughput / G) / (throughput at G0 / G0); "
    if measured.empty:
        return text + "G0 = 4 (the paper)."
    named = counted("G0", measured["base_world_size"])
    return f"{text}{named} of the same arm (measured), 4 (the paper). A slow base flatters E."


def statements(paper: pd.DataFrame) -> list[str]:
    """Return the sentences that explain the paper's marks that are present."""
    sentences = ["The paper's machine: JUWELS Booster, 4 A100 a node."] if len(paper) else []
    if (paper["source"] == "stated").any():
        sentences.append("Open marks: values that it states.")
    if (paper["bound"] != "value").any():
        sentences.append("Arrows: its bounds.")
    if (paper["source"] == "derived").any():
        sentences.append("Crosses: our arithmetic on its rounded runtimes.")
    if paper["contradiction"].notna().any():
        sentences.append("[C...]: the paper contradicts itself, see docs/reading_the_paper.md.")
    return sentences


def formats(ours: pd.DataFrame, paper: pd.DataFrame) -> list[str]:
    """Return the sentences about what the loaders read, where that is not folders throughout."""
    if not style.formats_differ(ours):
        return []
    sentences = ["Large marks, thick lines: read from TFRecord; small and thin: image folders."]
    if len(paper):
        sentences.append("The paper's native loader reads folders, its DALI TFRecord.")
    return sentences


def not_drawn(what: str, rest: int, names: Sequence[str] = ()) -> list[LeftOut]:
    """Return the sentence about what a figure has no room for, nothing if it has."""
    if rest <= 0:
        return []
    named = f" No room for: {'; '.join(_shortened(list(names)))}." if names else ""
    return [LeftOut(f"{what} not drawn, see the CSV: {rest}.{named}")]


def panels_not_drawn(points: pd.DataFrame, drawn: Sequence[str]) -> list[LeftOut]:
    """Return the sentence about panels that a figure has no room for."""
    names = [name for name in points["panel"].unique() if name not in drawn]
    return not_drawn("Panels", len(names), names)


def _runs(number: int) -> str:
    return f"{number} run{'s' if number > 1 else ''}"


def machines(table: pd.DataFrame) -> list[str]:
    """Return a sentence on the machines, each after its study where there are several.

    And the one of `historical`: no figure that names a machine goes without it.
    """
    machines = table[["study", "hardware", "on_cpu"]].drop_duplicates()
    several = machines["hardware"].nunique() > 1
    texts = {
        (f"{study}: " if several else "") + name + (f" ({METHOD_ONLY})" if on_cpu else "")
        for study, name, on_cpu in machines.itertuples(index=False)
    }
    return [f"Hardware: {'; '.join(_shortened(sorted(texts)))}.", *historical(table)]


def historical(table: pd.DataFrame) -> list[str]:
    """Return the sentence on arms that nobody should begin with today, nothing without any."""
    if "library" not in table:
        return []
    arms = table[["library", "strategy"]].drop_duplicates().itertuples(index=False)
    found: dict[str, list[str]] = {}
    for library, strategy in sorted(arms):
        why = HISTORICAL.get((library, strategy)) or HISTORICAL.get((library, ""))
        if why:
            found.setdefault(why, []).append(called(library, strategy))
    texts = [f"{'; '.join(names)} ({why})" for why, names in found.items()]
    several = "s" if sum(map(len, found.values())) > 1 else ""
    return [f"Historical arm{several}: {'; '.join(texts)}."] if texts else []


def commits(table: pd.DataFrame) -> str:
    """Return a sentence on the code that measured."""
    names = sorted({name for cell in table["commit"].dropna() for name in cell.split(";")} - {""})
    changed = " (+: with uncommitted changes)" if any("+" in name for name in names) else ""
    return f"Commit: {', '.join(_shortened(names))}{changed}."


def _shortened(texts: list[str], most: int = 4) -> list[str]:
    rest = len(texts) - most
    return texts if rest <= 0 else [*texts[:most], f"{rest} more"]


def averaged(n: pd.Series, mean: str = "mean") -> str:
    """Return e.g. ``"mean of n = 3 runs"``; there is none of a single run."""
    return f"{mean} of {counted('n', n)} runs" if n.max() > 1 else "one run (n = 1)"


def counted(name: str, values: pd.Series) -> str:
    """Return e.g. ``"n = 3"`` or ``"n = 1 to 3"``; nothing without values."""
    if values.empty:
        return ""
    low, high = int(values.min()), int(values.max())
    text = str(low) if low == high else f"{low} to {high}"
    return f"{name} = {text}" if name else text
