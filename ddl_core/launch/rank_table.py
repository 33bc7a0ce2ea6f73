"""Show in a notebook cell what every rank does while it trains."""

import time
from collections.abc import Callable
from typing import Any

from ddl_core.launch.screen import describe

EVERY_S = 0.5
BAR_WIDTH = 20


def show_ranks() -> Callable[[list[dict[str, Any]]], None]:
    """Return a callback that shows the states of all ranks as one output that is replaced."""
    from IPython.display import display

    handle = display({"text/plain": "starting the ranks"}, raw=True, display_id=True)
    shown = 0.0
    rates: dict[int, float] = {}

    def show(states: list[dict[str, Any]]) -> None:
        nonlocal shown
        rates.update(training_rates(states))
        if time.monotonic() - shown >= EVERY_S or _all_done(states):
            shown = time.monotonic()
            # What a cell shows at last is what the notebook keeps, so the last rates stay in it.
            kept = [{**state, "images_per_s": rates.get(state["rank"])} for state in states]
            handle.update({"text/plain": rank_table(kept)}, raw=True)

    return show


def rank_table(states: list[dict[str, Any]]) -> str:
    """Return a line per rank with its own images/s, and one with their sum.

    Parameters
    ----------
    states
        One per rank, as `interactive.Engines.run` reports them.
    """
    rates = [state.get("images_per_s") for state in states]
    known = [rate for rate in rates if rate]
    lines = [f"{'rank':>4}  {'host':<16} {'images/s':>9}  {'':<{BAR_WIDTH}}  where"]
    for state, rate in zip(states, rates, strict=True):
        bar = "#" * round(BAR_WIDTH * rate / max(known)) if rate else ""
        number = f"{rate:9.1f}" if rate else f"{'-':>9}"
        where = describe(None if "phase" not in state else {**state, "images_per_s": None})
        lines.append(
            f"{state['rank']:>4}  {state['host'][:16]:<16} {number}  {bar:<{BAR_WIDTH}}  {where}"
        )
    total = f"{sum(known):9.1f}" if known else f"{'-':>9}"
    return "\n".join([*lines, f" all  {'':<16} {total}"])


def training_rates(states: list[dict[str, Any]]) -> dict[int, float]:
    """Return the images/s of each rank that is training now."""
    found = {state["rank"]: state.get("images_per_s") for state in states if _trains(state)}
    return {rank: rate for rank, rate in found.items() if rate}


def _trains(state: dict[str, Any]) -> bool:
    return state.get("phase") == "train"


def _all_done(states: list[dict[str, Any]]) -> bool:
    return all(state.get("phase") == "done" for state in states)
