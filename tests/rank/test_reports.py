"""Lines of a command: what counts, and what a window of them shows."""

import random
from collections.abc import Iterator

import pytest

from ddl_core.errors import DataError
from ddl_tools.rank.reports import Report, read, window


@pytest.mark.parametrize(
    ("line", "rank", "images", "of_all"),
    [
        ('{"images": 256}\n', 0, 256, False),
        ('{"images": 256, "rank": 3}', 3, 256, False),
        ('{"images_all": 512, "loss": 0.1}', 0, 512, True),
        ('[default1]:{"images": 8}', 1, 8, False),
        ('5: {"images": 8}', 5, 8, False),
        (' 5: {"images": 8}', 5, 8, False),  # of ten tasks or more
        ('1: [default2]:{"images": 8}', 6, 8, False),
        ('1: [default0]:{"images": 8, "rank": 4}', 4, 8, False),
    ],
)
def test_a_line_with_images_is_a_report(line: str, rank: int, images: int, of_all: bool) -> None:
    assert read(line, 1.0, per_node=4) == Report(1.0, rank, images, of_all)


@pytest.mark.parametrize(
    "line", ["", "images: 3", "{broken", '{"loss": 1}', "{}", '["images", 3]', '{"images"', "\x00"]
)
def test_other_lines_are_none(line: str) -> None:
    assert read(line, 1.0) is None


@pytest.mark.parametrize("value", ["-1", "0", "1.5", "true", '"8"', "null", "1e3", "[1]", "NaN"])
def test_a_number_that_cannot_be_is_named(value: str) -> None:
    with pytest.raises(DataError, match="has to be a number of images above 0"):
        read(f'{{"images": {value}}}', 1.0)


def lines(ranks: int, step_s: float, images: int, jitter: float = 0.0) -> Iterator[Report]:
    """Yield what ranks print that train so many images a step each."""
    noise, now = random.Random(0), 0.0
    while True:
        now += step_s * (1 + noise.uniform(-jitter, jitter))
        for rank in range(ranks):
            yield Report(now + 0.001 * rank, rank, images, False)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("step_s", [0.01, 0.7, 9.0])
def test_a_window_has_the_rate_of_all_ranks(ranks: int, step_s: float) -> None:
    found = window(lines(ranks, step_s, 32))
    assert found.images / found.wall_s == pytest.approx(ranks * 32 / step_s, rel=0.01)
    assert found.wall_s >= 5
    assert found.ranks == [*range(ranks)]
    assert found.median_s == pytest.approx(step_s)


def test_one_rank_may_report_for_all() -> None:
    found = window(Report(0.5 * n, 0, 100, True) for n in range(1, 100))
    assert (found.images / found.wall_s, found.ranks) == (200, None)


def test_a_window_waits_for_a_rank_that_reported_before() -> None:
    one = (item for item in lines(2, 1.0, 8) if item.rank == 0 or item.at > 20)
    found = window(one, expected=[0, 1])
    assert found.ranks == [0, 1]


def test_a_command_that_ends_has_no_window() -> None:
    with pytest.raises(EOFError):
        window(iter([Report(1.0, 0, 8, False), Report(2.0, 0, 8, False)]))


@pytest.mark.parametrize(("step_s", "steps"), [(1.0, 20), (9.0, 7), (100.0, 1)])
def test_a_first_window_has_many_lines_or_a_minute(step_s: float, steps: int) -> None:
    assert window(lines(1, step_s, 8), least_steps=20).steps == steps
