"""The caption of a figure, and the line drawn in it: hardware, number of starts, commit.

Also the filters of the templates that make sentences: estimates, decisions, numbers with words.
"""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd
from jinja2 import Template

from ddl_tools import markdown
from ddl_tools.analysis import estimates
from ddl_tools.estimate import Estimate, percent, three_digits
from ddl_tools.names import called, plural

# By library and strategy, any if that is empty: what is not developed any more.
DISCONTINUED = {("mxnet", ""), ("tensorflow", "horovod")}
METHOD_ONLY = "shows framework overhead, not GPU performance"
EMULATING = "emulated nodes"
TOO_FEW = f"fewer than {estimates.LEAST} starts"  # so no interval, and nothing is sure
_WORDS = {
    estimates.GREATER: "faster",
    estimates.LESS: "slower",
    estimates.EQUIVALENT: f"equivalent within {estimates.MARGIN:.0%}",
    estimates.INCONCLUSIVE: estimates.INCONCLUSIVE,
}


def say(text: str, **facts: Any) -> str:
    """Return the text that a Jinja template makes of facts; each of these stays on its line.

    Filters: ``row | estimate("ratio", ".2f")`` is the `Estimate` of columns, ``row | word`` its
    decision, ``x | number`` a number of three digits, ``n | plural("rank")``, ``x | percent`` and
    ``values | span("{:.1f}")``.
    """
    return _template(text).render(facts)


def word(row: Any, stem: str = "") -> str:
    """Return the decision of a row in words; nothing where it has none."""
    if not pd.isna(row[f"{stem}decision"]):
        return _WORDS[row[f"{stem}decision"]]
    return "" if math.isnan(row[f"{stem}ratio"]) else TOO_FEW


def doubt(ratio: Estimate) -> str:
    """Return why the interval of a ratio shows no difference; nothing if it shows one."""
    if math.isnan(ratio.low):
        return TOO_FEW
    decided = estimates.decision(ratio)
    return "" if decided in (estimates.GREATER, estimates.LESS) else decided


def provenance(table: pd.DataFrame, interval_of: str = "the mean") -> list[str]:
    """Return the sentences about the measured rows: epochs, interval, lost and discontinued.

    `table` has the columns n and failed; low where there are intervals, and windows where
    configurations were interleaved.
    """
    measured = table[table["n"] > 0]
    taken = measured["windows"].fillna(0) if "windows" in measured else 0 * measured["n"]
    epochs = f"{counted('', taken[taken > 0])} interleaved epochs." if (taken > 0).any() else ""
    known = bool(interval_of) and measured["low"].notna().any()
    bars = f"Bars: 95 % interval of {interval_of}." if known else ""
    return [*filter(None, [epochs, bars]), *lost(table), *discontinued(measured)]


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


def discontinued(table: pd.DataFrame) -> list[str]:
    """Return the sentence on frameworks that are not developed any more, if there are any."""
    if "framework" not in table:
        return []
    pairs = set(zip(table["framework"], table["strategy"], strict=True))
    found = {called(*pair) for pair in pairs if {pair, (pair[0], "")} & DISCONTINUED}
    return [f"Discontinued: {'; '.join(sorted(found))}."] if found else []


def line(table: pd.DataFrame) -> str:
    """Return the line in a figure: hardware, number of starts, commit; nothing without a run."""
    measured = table[(table["n"] > 0).fillna(False)] if "n" in table else table
    if measured.empty or "commit" not in measured:
        return ""
    on_cpu = measured.get("on_cpu", pd.Series(False, measured.index)).fillna(False)
    emulated = measured.get("represents_gbit", pd.Series(pd.NA, measured.index)).notna()
    machines = {
        name + (f" ({EMULATING if nodes else METHOD_ONLY})" if cpu else "")
        for name, cpu, nodes in zip(measured["hardware"], on_cpu, emulated, strict=True)
    }
    names = sorted({one for cell in measured["commit"].dropna() for one in cell.split(";")} - {""})
    changed = " (+: changed files)" if any("+" in name for name in names) else ""
    parts = [
        *_shortened(sorted(machines)),
        *([starts(measured["n"])] if "n" in measured else []),
        f"commit {', '.join(_shortened(names))}{changed}",
    ]
    return "; ".join(parts)


def undrawn(table: pd.DataFrame) -> str:
    """Return the sentences below an answer without a figure: what a caption says of any points."""
    about = line(table)
    return " ".join([*discontinued(table), *([f"{about}."] if about else [])])


def starts(numbers: pd.Series, name: str = "n") -> str:
    """Return e.g. ``"n = 3 starts"`` or ``"n = 1 to 3 starts"``."""
    return f"{counted(name, numbers)} start{'s' if numbers.max() > 1 else ''}"


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


def _estimate(row: Any, name: str = "value", form: str = "") -> str:
    return format(Estimate.of(row, name), form)


_FILTERS: dict[str, Callable[..., Any]] = {
    "estimate": _estimate,
    "number": three_digits,
    "percent": percent,
    "plural": plural,
    "span": span,
    "word": word,
}


@cache
def _template(text: str) -> Template:
    return markdown.sentences(text, lambda value: re.sub(r"\s+", " ", str(value)), _FILTERS)
