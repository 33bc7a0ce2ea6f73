"""What a script of the user's says of its images."""

import json

import pytest

from ddl_core import reports
from ddl_core.reports import first_batch, report


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a clock whose last item is the time now, and forget what was reported."""
    now = [0.0]
    monkeypatch.setattr(reports.time, "monotonic", lambda: now[-1])
    monkeypatch.setattr(reports, "_lines", reports._Lines())
    monkeypatch.setenv("RANK", "3")
    return now


def test_all_images_are_reported_in_few_lines(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for step in range(101):
        clock.append(step * 0.1)
        report(8)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(line["images"] for line in lines) == 101 * 8
    assert [line["images"] for line in lines] == [8, *[40] * 20]
    assert {line["rank"] for line in lines} == {3}


def test_a_slow_step_has_a_line_of_its_own(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for step in range(3):
        clock.append(2.0 * step)
        report(images_all=100)
    assert capsys.readouterr().out == '{"images_all": 100, "rank": 3}\n' * 3


@pytest.mark.parametrize("given", [{}, {"images": 1, "images_all": 2}])
def test_one_kind_of_images_is_reported(given: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="images or images_all"):
        report(**given)


def test_the_first_batch_comes_again_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [[1], [2], [3]]
    monkeypatch.delenv(reports.FIRST_BATCH, raising=False)
    assert first_batch(batches) is batches
    monkeypatch.setenv(reports.FIRST_BATCH, "1")
    again = first_batch(batches)
    assert [list(again), list(again)] == [[[1]] * 3] * 2
