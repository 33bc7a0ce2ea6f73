"""The sentences below a figure: how many runs, which interval, which hardware, which commit."""

import pandas as pd

from ddl_tools.labels import called, plural

# By library and strategy, any if that is empty: what is not developed any more.
DISCONTINUED = {("mxnet", ""), ("tensorflow", "horovod")}
METHOD_ONLY = "overhead, not hardware"


def provenance(table: pd.DataFrame, interval_of: str = "the mean") -> list[str]:
    """Return the sentences about the measured rows: n, interval, lost runs, machine, commit.

    `table` has the columns n, failed, study, hardware, on_cpu and commit; low where there are
    intervals, and windows where configurations were interleaved.
    """
    measured = table[table["n"] > 0]
    if measured.empty:
        return lost(table)
    taken = measured["windows"].fillna(0) if "windows" in measured else 0 * measured["n"]
    starts = f"{counted('n', measured['n'])} start{'s' if measured['n'].max() > 1 else ''}"
    epochs = f" ({counted('', taken[taken > 0])} interleaved epochs)" if (taken > 0).any() else ""
    known = bool(interval_of) and measured["low"].notna().any()
    bars = f"; bars: 95 % interval of {interval_of}" if known else ""
    return [f"{starts}{epochs}{bars}.", *lost(table), *origin(measured)]


def lost(table: pd.DataFrame) -> list[str]:
    """Return the sentence on runs without a value, nothing if there are none."""
    failed = int(table["failed"].sum())
    return [f"Failed or diverged: {plural(failed, 'run')}."] if failed else []


def statements(paper: pd.DataFrame) -> list[str]:
    """Return the sentences that explain the paper's marks that are present."""
    if paper.empty:
        return []
    names = sorted({name for cell in paper["contradiction"].dropna() for name in cell.split(";")})
    pale = [f"Pale: contradicts another statement ({', '.join(names)})."] if names else []
    return ["Open marks: stated for JUWELS Booster; arrows: bounds.", *pale]


def not_drawn(what: str, rest: int) -> list[str]:
    """Return the sentence about what a figure has no room for, nothing if it has."""
    return [f"{what} not drawn (CSV): {rest}."] if rest > 0 else []


def origin(table: pd.DataFrame) -> list[str]:
    """Return the sentences on machines, discontinued frameworks and commits."""
    known = table[["hardware", "on_cpu"]].drop_duplicates().itertuples(index=False)
    texts = {name + (f" ({METHOD_ONLY})" if on_cpu else "") for name, on_cpu in known}
    found = set()
    if "framework" in table:
        pairs = set(zip(table["framework"], table["strategy"], strict=True))
        found = {called(*pair) for pair in pairs if {pair, (pair[0], "")} & DISCONTINUED}
    return [
        f"{'; '.join(_shortened(sorted(texts)))}.",
        *([f"Discontinued: {'; '.join(sorted(found))}."] if found else []),
        commits(table),
    ]


def commits(table: pd.DataFrame) -> str:
    """Return a sentence on the code that measured."""
    names = sorted({name for cell in table["commit"].dropna() for name in cell.split(";")} - {""})
    changed = " (+: changed files)" if any("+" in name for name in names) else ""
    return f"Commit {', '.join(_shortened(names))}{changed}."


def _shortened(texts: list[str], most: int = 2) -> list[str]:
    rest = len(texts) - most
    return texts if rest <= 0 else [*texts[:most], f"{rest} more"]


def counted(name: str, values: pd.Series) -> str:
    """Return e.g. ``"n = 3"`` or ``"n = 1 to 3"``; nothing without values."""
    if values.empty:
        return ""
    low, high = int(values.min()), int(values.max())
    text = str(low) if low == high else f"{low} to {high}"
    return f"{name} = {text}" if name else text


def span(values: pd.Series, form: str = "{:.2f}") -> str:
    """Return the least and the most of some values, e.g. ``"0.54 to 0.61"``; one if they agree."""
    ends = [form.format(values.min()), form.format(values.max())]
    return " to ".join(dict.fromkeys(ends))
