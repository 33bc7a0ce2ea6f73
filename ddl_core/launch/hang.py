"""Find the rank that a hanging run waits for, by asking every rank where it is.

A worker answers SIGUSR1 by writing its Python stack to standard error. A rank that waits for others
is inside its framework; the one they wait for is somewhere else, or does not answer at all.
"""

import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ddl_core import processes
from ddl_core.launch.diagnose import rank_log, tail
from ddl_core.records.run import Failure

ANSWER_S = 10.0  # a busy machine may need seconds; a rank that is stopped never answers
POLL_S = 0.1
SHOWN_RANKS = 8
FRAMEWORKS = ("/torch/", "/horovod/", "/deepspeed/")
INNERMOST = re.compile(r'\(most recent call first\):\n  File "([^"]+)", line (\d+) in (\S+)')


def diagnose(logs: Path, token: str, text: str) -> Failure:
    """Return the failure of a run that makes no progress, with the rank to blame where known."""
    ranks = _ranks(token)
    # Before they are asked: an answer may be complete before the next line runs.
    starts = {rank: _size(rank_log(logs, rank)) for rank in sorted(ranks)}
    for process in ranks.values():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGUSR1)
    places = _answers(logs, starts)
    absent = [rank for rank, place in places.items() if not _in_framework(place)]
    blamed = absent[0] if len(absent) == 1 and len(places) > 1 else None
    shown = [f"\n  rank {rank}: {place or 'does not answer'}" for rank, place in places.items()][
        :SHOWN_RANKS
    ]
    if blamed is not None:
        text += f"; the others wait for rank {blamed}"
        shown.append(tail(rank_log(logs, blamed)))
    return Failure.of("Timeout", text + "".join(shown), blamed)


def _ranks(token: str) -> dict[int, psutil.Process]:
    """Return the process of every rank, but not the processes of its loader."""
    found = {}
    for process in processes.carrying(token):
        with suppress(psutil.Error):
            if "RANK" in process.environ():
                found[process.pid] = process
    ranks = {}
    for process in found.values():
        with suppress(psutil.Error):
            if process.ppid() not in found:
                ranks[int(process.environ()["RANK"])] = process
    return ranks


def _answers(logs: Path, starts: dict[int, int]) -> dict[int, str | None]:
    """Return where each rank is, waiting until all have answered or the time is up."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        places = {rank: _place(rank_log(logs, rank), start) for rank, start in starts.items()}
        if all(places.values()) or time.monotonic() > deadline:
            return places
        time.sleep(POLL_S)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _place(log: Path, start: int) -> str | None:
    """Return the innermost frame that a rank wrote after position `start` of its log."""
    if not log.exists():
        return None
    with log.open("rb") as file:
        file.seek(start)
        found = INNERMOST.findall(file.read().decode(errors="replace"))
    return "{2} ({0}:{1})".format(*found[-1]) if found else None


def _in_framework(place: str | None) -> bool:
    return place is not None and any(name in place for name in FRAMEWORKS)
