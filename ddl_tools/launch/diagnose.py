"""Find out why the ranks of a run failed, or which of them hangs.

A worker answers SIGUSR1 by writing its Python stack to standard error. A rank that waits for others
is inside its framework; the one they wait for is somewhere else, or does not answer at all.
"""

import json
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from ddl_core.errors import Category
from ddl_core.files import job_log, open_plain, read_plain
from ddl_tools import limits
from ddl_tools.launch.commands import Allocation
from ddl_tools.records.failures import INTERRUPTIONS, OWN_SIGNALS, REMEDIES, classify
from ddl_tools.records.ledger import INTERRUPTED
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Failure
from ddl_tools.records.storage import MOST_RECORD

TAIL_LINES = 15
# What the leader of ranks on this machine says.
ENDED_FORK = re.compile(r"^rank (\d+) ended with (-?\d+)$", re.MULTILINE)
# The same by srun, e.g. "srun: error: n2: task 3: Killed", "... tasks 0-3: Exited with exit
# code 1". It then ends all other tasks and reports those likewise: only the first tells a cause.
ENDED_TASK = re.compile(
    r"^srun: error: \S+: tasks? (\d+)\S*: (Exited with exit code (\d+)|[A-Z][\w ]+)", re.MULTILINE
)
TASK_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Out Of Memory": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Aborted": signal.SIGABRT,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
}
# What a rank may get because another one failed: it is ended, or its library gives up.
CONSEQUENCES = (-signal.SIGTERM, -signal.SIGABRT)
OOM_KILLER = "; the system's out-of-memory killer was at work meanwhile"
REFUSED = "; a control group's limit of processes (pids.max) was reached meanwhile"
# Classes of what a rank raises that may have its cause elsewhere.
UNEXPLAINED = ("code", "collective", "rendezvous")
ANSWER_S = 10.0  # a busy machine may need seconds; a rank that is stopped never answers
POLL_S = 0.1
SHOWN_RANKS = 8
FRAMEWORKS = (
    *("/torch/", "/horovod/", "/deepspeed/", "/tensorflow/", "/jax/", "/keras/", "/mxnet/"),
    "/frameworks/rendezvous.py",
)
# What a rank writes to its output, see `processes.answer_where`.
PROCESS = re.compile(r"^process (\d+) of ", re.MULTILINE)
# A line of faulthandler's with all modules that are not Python, which says nothing.
MODULES = "Extension modules: "
INNERMOST = re.compile(r'\(most recent call first\):\n  File "([^"]+)", line (\d+) in (\S+)')


class Shortages(NamedTuple):
    """What the system has killed or refused, as far as this process can see."""

    oom_kills: int = 0
    refused_forks: int = 0

    @classmethod
    def now(cls) -> Self:
        """Return the counts since the machine or the control group began."""
        return cls(limits.oom_kills(), limits.refused_forks())

    def since(self) -> "Shortages":
        """Return what was added since this one was taken."""
        return Shortages(*(after - before for after, before in zip(self.now(), self, strict=True)))


NONE = Shortages()


def diagnose(
    files: RunFiles,
    logs: Path,
    exit_code: int,
    short: Shortages = NONE,
    ended: list[tuple[int, int]] | None = None,
) -> Failure:
    """Return the failure of a run whose ranks have ended.

    A killed rank comes first, because it makes the others raise that the connection is lost; then
    what the first failing rank wrote to ``error.json``; then exit codes.

    Parameters
    ----------
    files
        The run's files.
    logs
        Folder of this attempt's output: ``launcher.log`` and a folder for each rank.
    exit_code
        Of what started the ranks; negative where a signal ended it.
    short
        What the system has killed or refused meanwhile.
    ended
        Rank and exit code of what ended badly, in order; by default read from `logs`.
    """
    ended = ended_ranks(logs) if ended is None else ended
    killed = [(rank, code) for rank, code in ended if code < 0 and code not in CONSEQUENCES]
    if not killed and (failure := _from_rank(files.error)):
        if short.refused_forks > 0 and failure.category in UNEXPLAINED:
            text = f"{failure.message}{REFUSED}"
            return Failure.of(failure.kind, text, failure.rank, category="processes")
        return failure
    for rank, code in killed or ended:
        if code == -signal.SIGTERM:  # and nobody failed before; SLURM may have logged the reason
            found = classify("Killed", _text(launcher_log(logs)))
            why = found if found in INTERRUPTIONS else "cancelled"
            text = f"rank {rank} was told to end from outside"
            return Failure(kind=INTERRUPTED, message=text, category=why)
        cause, category = _shortage(code, short)
        log = rank_log(logs, rank)
        text = f"rank {rank} {_ending(code)}{_place(log, code)}{cause}{tail(log)}"
        return Failure.of("Killed" if code < 0 else "Crashed", text, rank, code, category)
    if exit_code == 0:
        text = "the ranks ended without an error, but also without completing the record"
        return Failure.of("Crashed", text + tail(rank_log(logs, 0)))
    launcher = "srun" if Allocation.current() else "the leader of the ranks"
    cause, category = _shortage(exit_code, short)
    text = f"{launcher} {_ending(exit_code)}{cause}{tail(launcher_log(logs))}"
    kind = "Killed" if exit_code < 0 else "NotStarted"
    return Failure.of(kind, text, exit_code=exit_code, category=category)


def _shortage(code: int, short: Shortages) -> tuple[str, Category | None]:
    """Return what the system lacked where that explains an exit code, and its class."""
    if code == -signal.SIGKILL and short.oom_kills > 0:
        return OOM_KILLER, "out_of_memory"
    if short.refused_forks > 0:
        return REFUSED, "processes"
    return "", None


def _place(log: Path, code: int) -> str:
    """Return where a rank was when a fault of its own ended it, as far as it could say."""
    frame = _innermost(_text(log)) if -code in OWN_SIGNALS else None
    return f" in {frame}" if frame else ""


def ended_ranks(logs: Path) -> list[tuple[int, int]]:
    """Return rank and exit code of what ended badly, a signal as its negative number."""
    text = _text(launcher_log(logs))
    if found := ENDED_FORK.findall(text):
        return [(int(rank), int(code)) for rank, code in found]
    if not (first := ENDED_TASK.search(text)):
        return []
    rank, ending, code = first.groups()
    number = next((sign for name, sign in TASK_SIGNALS.items() if ending.startswith(name)), None)
    return [(int(rank), int(code) if code else -number if number else 1)]


def launcher_log(logs: Path) -> Path:
    """Return the output of what started the ranks: their leader here, or srun."""
    return logs / "launcher.log"


def rank_log(logs: Path, rank: int) -> Path:
    """Return the file of what a rank wrote to standard error (its launcher chooses the folder)."""
    found = sorted(logs.glob(f"*/attempt_*/{rank}/stderr.log"))
    return found[-1] if found else launcher_log(logs)


def tail(log: Path) -> str:
    """Return the last lines of a log, headed by its name; nothing if there are none."""
    lines = (line for line in _text(log).splitlines() if not line.startswith(MODULES))
    last = [line for line in lines if line.strip()][-TAIL_LINES:]
    name = "/".join(log.parts[log.parts.index("logs") :]) if "logs" in log.parts else log.name
    return "".join(f"\n  {line}" for line in (f"last lines of {name}:", *last)) if last else ""


def _from_rank(path: Path) -> Failure | None:
    """Read ``error.json``; a rank that was killed while writing it leaves it unreadable."""
    try:
        content = json.loads(read_plain(path, MOST_RECORD))
        category = content.get("category")
        known = category if category in REMEDIES else None
        return Failure.of(content["kind"], content["message"], content.get("rank"), category=known)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"


def _text(path: Path) -> str:
    """Return the end of a log; nothing where it cannot be read."""
    try:
        with open_plain(job_log(path)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_RECORD))
            return file.read(MOST_RECORD).decode(errors="replace")
    except OSError:
        return ""


def ask_ranks(
    logs: Path, world_size: int, text: str | None, short: Shortages = NONE
) -> Failure | None:
    """Return the failure of a run that makes no progress, with the rank to blame where known.

    `text` says so; None without one. `short` is what the system has refused meanwhile.
    """
    if text is None:
        return None
    ranks = _ranks(logs, world_size)
    starts = {rank: _size(rank_log(logs, rank)) for rank in sorted(ranks)}  # before they are asked
    for process in ranks.values():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGUSR1)
    frames = _answers(logs, starts)
    absent = [
        rank
        for rank, frame in frames.items()
        if frame is None or not any(name in frame for name in FRAMEWORKS)
    ]
    blamed = absent[0] if len(absent) == 1 and len(frames) > 1 else None
    shown = [f"\n  rank {rank}: {frame or 'does not answer'}" for rank, frame in frames.items()]
    text += REFUSED if short.refused_forks > 0 else ""
    text += "" if blamed is None else f"; the others wait for rank {blamed}"
    text += "".join(shown[:SHOWN_RANKS])
    text += "" if blamed is None else tail(rank_log(logs, blamed))
    category: Category | None = "processes" if short.refused_forks > 0 else None
    return Failure.of("Timeout", text, blamed, category=category)


def _ranks(logs: Path, world_size: int) -> dict[int, psutil.Process]:
    """Return the living ranks of this machine, by the process that each has named."""
    ranks = {}
    for rank in range(world_size):
        log = rank_log(logs, rank)
        for number in PROCESS.findall(_text(log.with_name("stdout.log"))):
            with suppress(psutil.Error, OSError):
                process = psutil.Process(int(number))
                # Else another one has its number now, or the rank is on another machine.
                if any(log.samefile(file.path) for file in process.open_files()):
                    ranks[rank] = process
    return ranks


def _answers(logs: Path, starts: dict[int, int]) -> dict[int, str | None]:
    """Return where each rank is, waiting until all have answered or the time is up."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        frames = {rank: _frame(rank_log(logs, rank), start) for rank, start in starts.items()}
        if all(frames.values()) or time.monotonic() > deadline:
            return frames
        time.sleep(POLL_S)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _frame(log: Path, start: int) -> str | None:
    """Return the innermost frame that a rank wrote after position `start` of its log."""
    if not log.exists():
        return None
    with log.open("rb") as file:
        file.seek(start)
        return _innermost(file.read().decode(errors="replace"))


def _innermost(text: str) -> str | None:
    """Return the innermost frame of the last stack in a log."""
    found = INNERMOST.findall(text)
    return "{2} ({0}:{1})".format(*found[-1]) if found else None
