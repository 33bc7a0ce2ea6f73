"""Show how far a run is, in a terminal, a notebook or a log, and what each of its ranks does."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from ddl_core.records.progress import Standing, describe, fraction

LOG_EVERY_S = 30.0
CELL_EVERY_S = 1.0
BAR_WIDTH = 24

EVERY_S = 0.5
TABLE_BAR_WIDTH = 20


class Screen(Protocol):
    """Somewhere to show the progress of several runs."""

    def show(self, done: float, name: str, progress: Standing | None) -> None:
        """Show how many parts are done, the part of one too, and how far the run `name` is."""
        ...

    def say(self, line: str) -> None:
        """Show a line that stays."""
        ...

    def restart_clock(self, done: float) -> None:
        """Tell the time to go by what comes after `done` parts: it goes at another pace."""
        ...

    def close(self) -> None:
        """Leave the screen in order."""
        ...


def screen(total: int, part: str = "run") -> Screen:
    """Return the screen that fits the place this process runs in, for `total` runs or epochs."""
    if in_notebook():
        return CellScreen(total, part)
    return TerminalScreen(total, part) if sys.stderr.isatty() else LogScreen(total, part)


def follow(name: str) -> Callable[[Standing], None]:
    """Return a callback that shows the progress of the single run `name`."""
    shown = screen(1)
    return lambda progress: shown.show(fraction(progress), name, progress)


def in_notebook() -> bool:
    """Say whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class Silence:
    """A screen that shows nothing."""

    def show(self, done: float, name: str, progress: object) -> None:
        """Ignore it."""

    def say(self, line: str) -> None:
        """Ignore it."""

    def restart_clock(self, done: float) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Ignore it."""


class TerminalScreen:
    """One line that is rewritten: runs, time to go, the current run and its rate."""

    def __init__(self, total: int, part: str) -> None:
        from tqdm import tqdm

        self._part = part
        self._clock = _Clock(0.0)
        self._bar = tqdm(
            total=total,
            bar_format="{percentage:3.0f}%|{bar:12}| {desc} [{elapsed}]{postfix}",
            # Not tqdm's own guess: it shows nothing where the terminal does not tell its width.
            ncols=shutil.get_terminal_size().columns - 1,
        )

    def show(self, done: float, name: str, progress: Standing | None) -> None:
        """See `Screen`."""
        self._bar.n = done
        self._bar.set_description_str(_place(self._part, done, self._bar.total), refresh=False)
        # The name last: it is what a narrow terminal may cut.
        to_go = self._clock.to_go(done, self._bar.total)
        self._bar.set_postfix_str(f"{describe(progress)}{to_go}, {name}", refresh=False)
        self._bar.refresh()

    def say(self, line: str) -> None:
        """See `Screen`."""
        self._bar.write(line, file=sys.stderr)

    def restart_clock(self, done: float) -> None:
        """See `Screen`."""
        self._clock.restart(done)

    def close(self) -> None:
        """See `Screen`."""
        self._bar.close()


class LogScreen:
    """A line now and then, for output that goes to a file."""

    def __init__(self, total: int, part: str) -> None:
        self._total, self._part = total, part
        self._clock = _Clock(LOG_EVERY_S)

    def show(self, done: float, name: str, progress: Standing | None) -> None:
        """See `Screen`."""
        if self._clock.due(name, progress):
            self.say(_line(self._part, done, self._total, name, progress, self._clock))

    def say(self, line: str) -> None:
        """See `Screen`."""
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def restart_clock(self, done: float) -> None:
        """See `Screen`."""
        self._clock.restart(done)

    def close(self) -> None:
        """See `Screen`."""


class CellScreen:
    """One output of a notebook cell that is replaced; the saved notebook keeps the last state."""

    def __init__(self, total: int, part: str) -> None:
        from IPython.display import display

        self._total, self._part = total, part
        self._clock = _Clock(CELL_EVERY_S)
        self._lines: list[str] = []
        self._now = ""
        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, done: float, name: str, progress: Standing | None) -> None:
        """See `Screen`."""
        if self._clock.due(name, progress):
            self._now = _line(self._part, done, self._total, name, progress, self._clock)
            self._update()

    def say(self, line: str) -> None:
        """See `Screen`."""
        self._lines.append(line)
        self._update()

    def restart_clock(self, done: float) -> None:
        """See `Screen`."""
        self._clock.restart(done)

    def close(self) -> None:
        """See `Screen`."""
        self._now = ""
        self._update()

    def _update(self) -> None:
        text = "\n".join(filter(None, [*self._lines, self._now]))
        self._handle.update({"text/plain": text}, raw=True)


class _Clock:
    """Tells when to show again: at once for another run or at an end, else after `every_s`."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._shown: tuple[str, bool] = ("", False)
        self._last = time.monotonic()
        self.restart(0.0)

    def restart(self, done: float) -> None:
        """Tell the time to go by what comes after `done` parts."""
        self._started, self._before = time.monotonic(), done

    def due(self, name: str, progress: Standing | None) -> bool:
        now = time.monotonic()
        state = (name, progress is not None and progress["phase"] == "done")
        if state == self._shown and (state[1] or now - self._last < self._every_s):
            return False
        self._shown, self._last = state, now
        return True

    def to_go(self, done: float, total: int) -> str:
        """Return the time left if the rest goes like what is done, e.g. ``", 3 min to go"``."""
        if done <= self._before:
            return ""
        pace = (time.monotonic() - self._started) / (done - self._before)
        seconds = pace * (total - done)
        return f", {seconds / 60:.0f} min to go" if seconds >= 90 else f", {seconds:.0f} s to go"


def _line(
    part: str, done: float, total: int, name: str, progress: Standing | None, clock: _Clock
) -> str:
    filled = round(fraction(progress) * BAR_WIDTH)
    bar = "#" * filled + "-" * (BAR_WIDTH - filled)
    number = f"{_place(part, done, total)} " if total > 1 else ""
    return f"{number}{name} [{bar}] {describe(progress)}{clock.to_go(done, total)}"


def _place(part: str, done: float, total: int) -> str:
    """Return e.g. ``run 3/12``: the one at work."""
    return f"{part} {min(int(done) + 1, total)}/{total}"


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
    lines = [f"{'rank':>4}  {'host':<16} {'images/s':>9}  {'':<{TABLE_BAR_WIDTH}}  where"]
    for state, rate in zip(states, rates, strict=True):
        bar = "#" * round(TABLE_BAR_WIDTH * rate / max(known)) if rate else ""
        number = f"{rate:9.1f}" if rate else f"{'-':>9}"
        where = describe(None if "phase" not in state else {**state, "images_per_s": None})
        line = f"{state['rank']:>4}  {state['host'][:16]:<16} {number}"
        lines.append(f"{line}  {bar:<{TABLE_BAR_WIDTH}}  {where}")
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
