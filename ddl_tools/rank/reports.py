"""Windows of a command that prints how many images it has trained on.

A line is one report: ``{"images": 256}`` are images of the process that prints, since its last
line; ``images_all`` are those of all. The clock is the arrival of the line.
"""

import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ddl_core.errors import DataError

WINDOW_S = 5.0  # at least: a line may come late by the time that the system takes to deliver it
LONG_S = 60.0  # of a window, whatever number of lines it is to have: a script may print an epoch
# What torchrun and srun put before a line of a rank: "[default1]:", " 3: ". Of several nodes, srun
# numbers the torchruns, and each of these the ranks of its node.
_OF_RANK = re.compile(r"\s*(?:(?P<task>\d+): )?(?:\[\D*(?P<local>\d+)\]:)?\s*(?P<text>\{.*\})\s*$")
_KEYS = ("images_all", "images")


@dataclass(frozen=True)
class Report:
    """One line: when it came, from which rank, how many images, and whether of all ranks."""

    at: float
    rank: int
    images: int
    of_all: bool


@dataclass
class Window:
    """What one window of a command has shown.

    `images` of all ranks that report; `wall_s` and `steps` of the slowest of them; `intervals` are
    the seconds between its lines. `ranks` are those that report, None of them where one reports for
    all.
    """

    images: int
    wall_s: float
    intervals: list[float]
    ranks: list[int] | None

    @property
    def steps(self) -> int:
        """Lines of the slowest rank."""
        return len(self.intervals)

    @property
    def median_s(self) -> float:
        """Median of the seconds between two lines."""
        return statistics.median(self.intervals)


def read(line: str, at: float, per_node: int = 1) -> Report | None:
    """Return the report that a line is, None if it is another line; `per_node` ranks have a node.

    `DataError` if it is one with a number that cannot be.
    """
    found = _OF_RANK.match(line)
    if found is None or '"images' not in line:
        return None
    try:
        said: dict[str, Any] = json.loads(found["text"])
    except ValueError:
        return None
    key = next((one for one in _KEYS if one in said), None)
    if key is None:
        return None
    task, local = int(found["task"] or 0), found["local"]
    place = task if local is None else task * per_node + int(local)
    images, rank = said[key], said.get("rank", place)
    if type(images) is not int or not 0 < images < 10**12:
        raise DataError(
            f"the command printed {key} = {images!r:.50}; it has to be a number of images above 0, "
            "since the last line"
        )
    return Report(at, int(rank or 0), images, key == "images_all")


@dataclass
class _Rank:
    """The reports of one rank in a window."""

    begun: float
    last: float
    images: int = 0
    intervals: list[float] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """Add a report to those after the first one."""
        self.intervals.append(report.at - self.last)
        self.last = report.at
        self.images += report.images

    def is_whole(self, least_s: float, least_steps: int) -> bool:
        """Say whether the window is long enough."""
        lasts = self.last - self.begun
        return lasts >= least_s and (len(self.intervals) >= least_steps or lasts >= LONG_S)


def window(
    reports: Iterator[Report],
    least_s: float = WINDOW_S,
    least_steps: int = 1,
    expected: Iterable[int] = (),
) -> Window:
    """Measure one window: from a first line of each rank to its first one after `least_s`.

    Parameters
    ----------
    reports
        As they come; ends with the command.
    least_s, least_steps
        How long the window lasts at least, for each rank; after a minute, one line is enough.
    expected
        Ranks that have reported before: without a line of each, the window is not over.

    Raises
    ------
    EOFError
        If the command ends before.
    """
    ranks: dict[int, _Rank] = {}
    missing = set(expected)
    for one in reports:
        if one.rank in ranks:
            if not ranks[one.rank].is_whole(least_s, least_steps):
                ranks[one.rank].add(one)
        else:
            ranks[one.rank] = _Rank(one.at, one.at)
            missing.discard(one.rank)
        if not missing and all(rank.is_whole(least_s, least_steps) for rank in ranks.values()):
            return _whole(ranks, one.of_all)
    raise EOFError


def _whole(ranks: dict[int, _Rank], of_all: bool) -> Window:
    slowest = max(ranks.values(), key=lambda one: one.last - one.begun)
    if of_all:
        return Window(slowest.images, slowest.last - slowest.begun, slowest.intervals, None)
    # Each over its own time: two ranks need not print at the same moment.
    rate = sum(one.images / (one.last - one.begun) for one in ranks.values())
    wall_s = slowest.last - slowest.begun
    return Window(math.ceil(rate * wall_s), wall_s, slowest.intervals, sorted(ranks))
