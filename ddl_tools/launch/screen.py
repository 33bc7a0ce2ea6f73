"""Show how far a run is, in a terminal, a notebook or a log, and what each of its ranks does."""

import io
import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from ddl_tools.records.progress import Standing, describe, fraction
from ddl_tools.visible import visible

FORMAT = "{desc} |{bar:24}| {percentage:3.0f}% [{elapsed}<{remaining}{postfix}]"
EVERY_S = 0.5
TABLE_BAR_WIDTH = 20


class _Bar(tqdm):
    monitor_interval = 0  # no thread: this process may fork


class Screen:
    """Progress of several runs. This class shows nothing, its subclasses do."""

    _every_s = 0.0

    def __init__(self, total: int, part: str = "run") -> None:
        self._part, self._has_pace = part, True
        self._shown: tuple[str, bool] | None = None
        self._shown_at = 0.0
        self._bar = self._new_bar(total=total, bar_format=FORMAT, ascii=True)

    def show(self, done: float, name: str, progress: Standing | None) -> None:
        """Show how many parts are done, the part of one too, and how far the run `name` is."""
        now = (name, progress is not None and progress["phase"] == "done")
        if now == self._shown and time.monotonic() - self._shown_at < self._every_s:
            return
        self._shown, self._shown_at = now, time.monotonic()
        if not self._has_pace:
            self._restart(done)
        bar = self._bar
        bar.n = done
        number = f"{self._part} {min(int(done) + 1, bar.total)}/{bar.total}"
        bar.set_description_str(number, refresh=False)
        # The name last: it is what a narrow terminal may cut.
        bar.set_postfix_str(visible(f"{describe(progress)}, {name}"), refresh=False)
        self._draw()

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def restart_clock(self, done: float) -> None:
        """Estimate the time to go from what comes after `done` parts; not at all if infinite."""
        self._has_pace = math.isfinite(done)
        if self._has_pace:
            self._restart(done)

    def close(self) -> None:
        """Leave the screen in order."""
        self._bar.close()

    def _restart(self, done: float) -> None:
        bar = self._bar
        bar.initial, bar.start_t = done, time.time()
        bar.last_print_t = bar.start_t

    def _new_bar(self, **settings: Any) -> _Bar:
        return _Bar(file=io.StringIO(), **settings)

    def _draw(self) -> None:
        pass


class LogScreen(Screen):
    """A line now and then, for output that goes to a file."""

    _every_s = 30.0

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self._bar.write(visible(line), file=sys.stderr)

    def _draw(self) -> None:
        self.say(str(self._bar))


class TerminalScreen(LogScreen):
    """One line that is rewritten."""

    _every_s = 0.0

    def _new_bar(self, **settings: Any) -> _Bar:
        # Not tqdm's own guess: it shows nothing where the terminal does not tell its width.
        return _Bar(file=sys.stderr, ncols=shutil.get_terminal_size().columns - 1, **settings)

    def _draw(self) -> None:
        self._bar.refresh()


class CellScreen(Screen):
    """One output of a notebook cell that is replaced; the saved notebook keeps the last state."""

    _every_s = 1.0

    def __init__(self, total: int, part: str = "run") -> None:
        from IPython.display import display

        super().__init__(total, part)
        self._lines: list[str] = []
        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self._lines.append(line)
        self._update()

    def close(self) -> None:
        """Leave the lines that stay."""
        super().close()
        self._update()

    def _draw(self) -> None:
        self._update(str(self._bar))

    def _update(self, *last: str) -> None:
        self._handle.update({"text/plain": "\n".join([*self._lines, *last])}, raw=True)


def screen(total: int, part: str = "run") -> Screen:
    """Return the screen that fits the place this process runs in, for `total` runs or epochs."""
    if in_notebook():
        return CellScreen(total, part)
    return TerminalScreen(total, part) if sys.stderr.isatty() else LogScreen(total, part)


def in_notebook() -> bool:
    """Say whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def follow(name: str) -> Callable[[Standing], None]:
    """Return a callback that shows the progress of the single run `name`."""
    shown = screen(1)
    return lambda progress: shown.show(fraction(progress), name, progress)


def show_ranks() -> Callable[[list[dict[str, Any]]], None]:
    """Return a callback that shows the states of all ranks as one output that is replaced."""
    from IPython.display import display

    handle = display({"text/plain": "starting the ranks"}, raw=True, display_id=True)
    shown = 0.0
    rates: dict[int, float | None] = {}

    def show(states: list[dict[str, Any]]) -> None:
        nonlocal shown
        for state in states:  # the last rates in training stay in the saved notebook
            if state.get("phase") == "train" and state.get("images_per_s"):
                rates[state["rank"]] = state["images_per_s"]
        done = all(state.get("phase") == "done" for state in states)
        if done or time.monotonic() - shown >= EVERY_S:
            shown = time.monotonic()
            kept = [{**state, "images_per_s": rates.get(state["rank"])} for state in states]
            handle.update({"text/plain": rank_table(kept)}, raw=True)

    return show


def rank_table(states: list[dict[str, Any]]) -> str:
    """Return a line per rank with its own images/s, and one with their sum.

    `states` are those that `interactive.Engines.run` reports.
    """
    known = [state["images_per_s"] for state in states if state.get("images_per_s")]
    lines = [f"{'rank':>4}  {'host':<16} {'images/s':>9}  {'':<{TABLE_BAR_WIDTH}}  where"]
    for state in states:
        rate = state.get("images_per_s")
        bar = "#" * round(TABLE_BAR_WIDTH * rate / max(known)) if rate else ""
        where = describe(None if "phase" not in state else {**state, "images_per_s": None})
        line = f"{state['rank']:>4}  {state['host'][:16]:<16} {_number(rate)}"
        lines.append(f"{line}  {bar:<{TABLE_BAR_WIDTH}}  {where}")
    return "\n".join([*lines, f" all  {'':<16} {_number(sum(known))}"])


def _number(rate: float | None) -> str:
    return f"{rate:9.1f}" if rate else f"{'-':>9}"
