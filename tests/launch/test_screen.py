import io
import math
from typing import Any

import pytest

from ddl_tools.launch.screen import LogScreen, TerminalScreen, in_notebook, rank_table, screen
from ddl_tools.records.progress import fraction


def state(**changes: Any) -> dict[str, Any]:
    start = {"phase": "train", "epoch": 1, "epochs": 4, "step": 5, "steps": 10}
    return {**start, "images_per_s": 87.25, **changes}


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        (None, 0.0),
        (state(phase="setup"), 0.0),
        (state(), 0.375),
        (state(steps=0, step=0), 0.25),
        (state(phase="eval", step=1), 0.5),
        (state(phase="eval", epoch=3), 1.0),
        (state(phase="done", steps=0), 1.0),
    ],
)
def test_fraction_of_a_run(progress: dict[str, Any] | None, share: float) -> None:
    assert fraction(progress) == share


def test_a_log_gets_a_line_per_change_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    shown = LogScreen(2)
    for _ in range(3):
        shown.show(0.375, "first", state())
    shown.show(0.99, "first", state(phase="done"))
    shown.show(0.99, "first", state(phase="done"))
    shown.show(1, "second", None)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("run 1/2 |####")
    assert lines[0].endswith("epoch 2/4 train, step 5/10, 87.2 images/s, first]")
    assert lines[1].endswith("done, first]")
    assert lines[2].startswith("run 2/2 |############")
    assert lines[2].endswith("starting the ranks, second]")


def test_a_bar_and_the_table_of_ranks_say_that_a_run_compiles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiling = state(stage="compiling", step=0, images_per_s=None)
    LogScreen(1).show(0, "a run", compiling)
    assert capsys.readouterr().err.strip().endswith("epoch 2/4 train, compiling, a run]")
    assert "epoch 2/4 train, compiling" in rank_table([{**compiling, "rank": 0, "host": "here"}])


def test_starts_at_another_pace_tell_no_time_to_go(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    shown = LogScreen(30, "epoch")
    shown._bar._time = lambda: clock[0]
    shown.restart_clock(math.inf)
    clock[0] = 100.0
    shown.show(10, "starting", None)
    shown.restart_clock(10)
    clock[0] = 110.0
    shown.show(15, "round 1", None)
    lines = capsys.readouterr().err.splitlines()
    assert "[00:00<?, " in lines[0]
    assert "[00:10<00:30, " in lines[1]


def test_the_screen_fits_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    assert isinstance(screen(1), LogScreen)
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    bar = screen(3)
    assert isinstance(bar, TerminalScreen)
    bar.show(1, "name", state())
    bar.say("a line that stays")
    bar.close()
    assert "run 2/3" in terminal.getvalue()
    assert "epoch 2/4 train, step 5/10, 87.2 images/s, na" in terminal.getvalue()
    assert "a line that stays\n" in terminal.getvalue()
