"""Find out why the ranks of a run failed, from what they and their launcher left behind."""

import json
import re
import signal
from pathlib import Path

from ddl_core.errors import Category
from ddl_tools.launch.commands import Allocation
from ddl_tools.records.failures import INTERRUPTIONS, classify
from ddl_tools.records.ledger import INTERRUPTED
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Failure

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


def diagnose(
    files: RunFiles,
    logs: Path,
    exit_code: int,
    oom_kills: int = 0,
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
        Of what started them; negative where a signal ended it.
    oom_kills
        How many processes of this machine the system ended meanwhile because memory ran out.
    ended
        Rank and exit code of what ended badly, the first one first; by default as `logs` tell.
    """
    ended = ended_ranks(logs) if ended is None else ended
    killed = [(rank, code) for rank, code in ended if code < 0 and code not in CONSEQUENCES]
    if not killed and (failure := _from_rank(files.error)):
        return failure
    for rank, code in killed or ended:
        if code == -signal.SIGTERM:  # and nobody failed before: all were told to end
            return _told_to_end(f"rank {rank} was told to end from outside", launcher_log(logs))
        oom = oom_kills > 0 and code == -signal.SIGKILL
        cause = OOM_KILLER if oom else ""
        text = f"rank {rank} {_ending(code)}{cause}{tail(rank_log(logs, rank))}"
        category: Category | None = "out_of_memory" if oom else None
        return Failure.of("Killed" if code < 0 else "Crashed", text, rank, code, category)
    if exit_code == 0:
        text = "the ranks ended without an error, but also without completing the record"
        return Failure.of("Crashed", text + tail(rank_log(logs, 0)))
    launcher = "srun" if Allocation.current() else "the leader of the ranks"
    text = f"{launcher} {_ending(exit_code)}{tail(launcher_log(logs))}"
    return Failure.of("Killed" if exit_code < 0 else "NotStarted", text, exit_code=exit_code)


def _told_to_end(text: str, log: Path) -> Failure:
    """Return an interruption; SLURM may have written the reason into the log."""
    found = classify("Killed", _text(log))
    category = found if found in INTERRUPTIONS else "cancelled"
    return Failure(kind=INTERRUPTED, message=text, category=category)


def ended_ranks(logs: Path) -> list[tuple[int, int]]:
    """Return rank and exit code of what ended badly, a signal as its negative number."""
    text = _text(launcher_log(logs))
    found = ENDED_FORK.findall(text)
    return [(int(rank), int(code)) for rank, code in found] or _first_task(text)


def _first_task(text: str) -> list[tuple[int, int]]:
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


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last `lines` of a log, headed by its name; nothing if there are none."""
    last = [line for line in _text(log).splitlines() if line.strip()][-lines:]
    place = "/".join(log.parts[log.parts.index("logs") :]) if "logs" in log.parts else log.name
    return "".join(f"\n  {line}" for line in (f"last lines of {place}:", *last)) if last else ""


def _from_rank(path: Path) -> Failure | None:
    """Read ``error.json``; a rank that was killed while writing it leaves it unreadable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Failure.of(content["kind"], content["message"], content.get("rank"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = " (often the system, when memory runs out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
