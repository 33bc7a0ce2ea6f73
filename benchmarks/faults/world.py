"""A study at work that may be hit, in folders of its own, and what must not be found afterwards.

In one file: starting, waiting and looking all read and change one state, `World`.
"""

import json
import os
import re
import struct
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from benchmarks.faults.place import as_user, make_images, small_disk
from ddl_tools.launch.measuring import LOCK
from ddl_tools.processes import import_path
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.progress import read_progress
from ddl_tools.study import Study

MARK = "DDL_FAULTS"  # all that descends from this benchmark carries it
RUNS = 8  # of a study
BASE: dict[str, Any] = {
    "strategy": "ddp",
    "gpus_per_node": 2,
    "model": "resnet8",
    "loader": "native",
    "loader_workers": 1,
    "device": "cpu",
    "image_size": 32,
    "classes": 2,
    "train_images": 64,
    "eval_images": 32,
    "local_batch_size": 4,
    "epochs": 3,
    "warmup_epochs": 0,
    "discard_steps": 0,
    "checkpoint_every": 1,
}
LIMIT_S = 120.0  # after that a fault counts as a hang
GONE_S = 30.0  # until nothing of a study that has ended may be alive
POLL_S = 0.002
OUTPUT_OF_RANK = re.compile(r"/attempt_0/(\d+)/stdout\.log$")
SHOWN = ("Traceback (most recent call last)", "Exception ignored", "Exception in thread")


Damage = Generator[None, tuple[str, str], None]
"""Damages a run; then takes what is said of it by `ddl figures` and `ddl study status`."""


class Missed(Exception):
    """The phase was over before it was seen, or its target was not there."""


@dataclass
class Done:
    """A fault, and what became of it."""

    kind: str
    target: str
    way: str
    phase: str
    outcome: str

    def line(self) -> str:
        """Return it as text."""
        return f"{self.kind:<13} {self.way:<18} {self.target:<8} {self.phase:<11} {self.outcome}"


@dataclass
class World:
    """A study in `folder`, started again whenever it has ended."""

    folder: Path
    done: list[Done] = field(default_factory=list)
    found: list[str] = field(default_factory=list)  # "what: where", of what must not be
    missed: Counter[str] = field(default_factory=Counter)
    finished: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    clear_errors: int = 0

    def __enter__(self) -> Self:
        self.token = uuid.uuid4().hex
        self.tree = Tree(self.folder / "results")
        self.temporary = self.folder / "tmp"
        self.waiting: list[Callable[[], Damage]] = []  # for the end of a study
        self.damaged: set[Path] = set()
        self.process: subprocess.Popen[bytes] | None = None
        self._used: set[tuple[Path, int]] = set()
        self._studies = self._starts = 0
        self.mounted = small_disk(self.tree.root)
        self.temporary.mkdir()
        make_images(self.folder / "images")
        self.environment = self._environment()
        self.begin_study()
        return self

    def __exit__(self, *reason: object) -> None:
        self.kill()
        if self.mounted:
            subprocess.run(["umount", "--lazy", self.tree.root], check=False)

    def _environment(self) -> dict[str, str]:
        own = {
            MARK: self.token,
            "PYTHONPATH": import_path(),
            "TMPDIR": str(self.temporary),
            LOCK: str(self.folder / "measuring.lock"),
            "DDL_STALL_TIMEOUT": "40",
            "DDL_SETUP_TIMEOUT": "90",
        }
        self.clock = self.folder / "clock"
        self.set_clock(0.0)
        shim = self.folder / "clock.so"
        source = Path(__file__).with_name("clock.c")
        with suppress(OSError, subprocess.CalledProcessError):
            command = ["cc", "-shared", "-fPIC", "-O2", "-o", shim, source, "-ldl"]
            subprocess.run(command, check=True, capture_output=True)
            own |= {"LD_PRELOAD": str(shim), "DDL_FAULT_CLOCK": str(self.clock)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DDL_")}
        return {**kept, **own}

    def set_clock(self, shift_s: float) -> None:
        """Move the clock of the day of all that was started."""
        file = os.open(self.clock, os.O_CREAT | os.O_WRONLY)  # they have it mapped: no truncation
        os.pwrite(file, struct.pack("d", shift_s), 0)
        os.close(file)

    def begin_study(self) -> None:
        """Write the next study."""
        self._studies += 1
        name = f"faults_{self._studies}"
        content = {"name": name, "question": "?", "base": BASE, "axes": {}, "repeats": RUNS}
        self.file = self.folder / f"{name}.yaml"
        self.file.write_text(yaml.safe_dump(content))
        self.study = Study.load(self.file)
        self.runs = [self.tree.study(name) / one.run_id for one in self.study.expand()]

    def command(self, *words: str) -> list[str]:
        """Return a call of `ddl`."""
        return [sys.executable, "-m", "ddl_tools.cli", *words]

    def resume(self, file: Path) -> list[str]:
        """Return the words that run a study."""
        own = ("--results", str(self.tree.root), "--data", str(self.folder / "images"))
        return self.command("study", "resume", str(file), *own)

    def popen(self, words: list[str], output: Path, **more: str) -> "subprocess.Popen[bytes]":
        """Start a command as a user would: without root's right to ignore the modes of files."""
        with output.open("wb") as file:
            return subprocess.Popen(
                words,
                env=self.environment | more,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=as_user,
            )

    def ask(self, *words: str) -> tuple[int, str]:
        """Return exit status and words of a `ddl` command that starts no run."""
        output = self.folder / "asked.log"
        asked = self.popen(self.command(*words), output)
        return self.status_of(asked, LIMIT_S, output, f"ddl {' '.join(words)}")

    def status_of(
        self, process: "subprocess.Popen[bytes]", seconds: float, output: Path, what: str
    ) -> tuple[int, str]:
        """Return exit status and words of a command that ends in time; a hang is noted."""
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
            self.found.append(f"hangs: {what}: {output.read_text()[-300:]}")
        return status, self.read(output, what)

    def read(self, output: Path, what: str) -> str:
        """Return what a command has said; a traceback in it is noted."""
        text = output.read_text(errors="replace")
        if any(one in text for one in SHOWN):
            place = min(text.find(one) for one in SHOWN if one in text)
            self.found.append(f"tracebacks: {what}: {text[place : place + 1500]}")
        return text

    def _damage_all(self) -> None:
        """Damage one run after the other; see what is said of all; let each judge, and restore."""
        damages = [damage() for damage in self.waiting]
        self.waiting = []
        done = [one for one in damages if next(one, "no run") != "no run"]
        told = self._told()
        for one in done:
            with suppress(StopIteration):
                one.send(told)

    def _told(self) -> tuple[str, str]:
        """Return what is said when the study's figures are drawn, and what its status says."""
        root = ("--results", str(self.tree.root))
        _, drawn = self.ask("figures", "--study", self.study.name, *root)
        _, named = self.ask("study", "status", str(self.file), *root)
        return drawn, named

    def ensure(self) -> bool:
        """Start the study unless it is at work; return whether it was started now."""
        if self.process is not None and self.process.poll() is None:
            return False
        if self.process is not None:
            self.after_end()
        if all(self.status(one) == "completed" for one in self.runs):
            self.end_study()
            self.begin_study()
        self._starts += 1
        self.output = self.folder / f"study_{self._starts}.log"
        self._since = time.time_ns()
        self.process = self.popen(self.resume(self.file), self.output)
        return True

    def status(self, run_dir: Path) -> str | None:
        """Return the status in a run's record, None where there is none now."""
        with suppress(OSError, ValueError):
            return str(json.loads(RunFiles(run_dir).record.read_text())["status"])
        return None

    def attempt(self, run_dir: Path) -> tuple[Path, int]:
        """Return what stands for the newest start of a run; all studies have runs of one name."""
        with suppress(OSError, ValueError):
            return run_dir, len(json.loads(RunFiles(run_dir).record.read_text())["attempts"])
        return run_dir, -1

    def at_work(self) -> Path | None:
        """Return the run of the study that began, or ended, last."""
        newest, found = self._since, None
        for one in self.runs:
            with suppress(OSError):
                changed = RunFiles(one).record.stat().st_mtime_ns
                if changed > newest:
                    newest, found = changed, one
        return found

    def phase(self, run_dir: Path) -> str | None:
        """Return where a run is now."""
        status = self.status(run_dir)
        if status in ("completed", "failed"):
            return "end"
        if status != "running":
            return None
        if _is_writing(run_dir):
            return "writing"
        progress = read_progress(run_dir)
        if progress is None:
            return "start"
        if progress["phase"] == "train":
            return "warm-up" if progress["epoch"] == 0 else "training"
        return {"setup": "set-up", "eval": "evaluation", "done": "end"}.get(progress["phase"])

    def until(self, phase: str, target: str = "study") -> Path:
        """Wait until a run that was not hit yet is in a phase, with a target; return it.

        Raises
        ------
        Missed
            If it ends before it is seen there.
        """
        self.ensure()
        moved, last, seen = time.monotonic(), None, None
        while time.monotonic() < moved + LIMIT_S:
            assert self.process is not None
            if self.process.poll() is not None:
                raise Missed("the study has ended before the phase")
            run_dir = self.at_work()
            key, now = (self.attempt(run_dir), self.phase(run_dir)) if run_dir else (None, None)
            if last != (last := (key, now)):
                moved = time.monotonic()
            if run_dir is not None and key is not None and key not in self._used:
                if now == phase and target in self.roles():
                    self._used.add(key)
                    return run_dir
                if seen is not None and key != seen:
                    raise Missed("the run has passed the phase")
                if now not in (None, "end"):
                    seen = key
            time.sleep(POLL_S)
        self.found.append(f"hangs: waiting for {phase}: {self.tail()}")
        self.kill()
        raise Missed("hung")

    def tail(self) -> str:
        """Return what the study said last."""
        return self.output.read_text(errors="replace")[-300:].replace("\n", " / ")

    def roles(self) -> dict[str, psutil.Process]:
        """Return the living processes of the study by what they are."""
        assert self.process is not None
        found: dict[str, psutil.Process] = {}
        with suppress(psutil.Error):
            study = found["study"] = psutil.Process(self.process.pid)
            for one in study.children(recursive=True):
                with suppress(psutil.Error):
                    found.setdefault(_role(one, found), one)
        return found

    def settle(self, run_dir: Path) -> str:
        """Wait until the newest start of a run, and a study that ends by it, is over."""
        before, deadline = self.attempt(run_dir), time.monotonic() + LIMIT_S
        assert self.process is not None
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.after_end()
                break
            if self.attempt(run_dir) != before or self.at_work() != run_dir:
                break
            if self.status(run_dir) in ("completed", "failed") and "kernel" not in self.roles():
                break
            time.sleep(0.05)
        else:
            self.found.append(f"hangs: {run_dir.name}: {self.tail()}")
            self.kill()
        self.look()
        return self.outcome(run_dir)

    def outcome(self, run_dir: Path) -> str:
        """Return how the newest start of a run ended, in its record's words."""
        (item,) = [one for one in ledger(self.study, self.tree) if one.directory == run_dir]
        if item.state in ("failed", "interrupted") and item.reason:
            self.clear_errors += 1
        return f"{item.state}: {item.reason.splitlines()[0][:90]}" if item.reason else item.state

    def look(self) -> None:
        """Note whose records are finished; report one that has changed since."""
        for one in self.runs:
            files = RunFiles(one)
            if self.status(one) != "completed" and str(one) not in self.finished:
                continue
            now = tuple(_content(path) for path in (files.record, files.epochs))
            if self.finished.setdefault(str(one), now) != now:  # type: ignore[arg-type]
                self.found.append(f"changed: {one.name}")

    def ended(self, limit_s: float = LIMIT_S) -> int:
        """Wait until the study ends; return its exit status."""
        assert self.process is not None
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.found.append(f"hangs: not ended: {self.tail()}")
            self.kill()
        return self.after_end()

    def after_end(self) -> int:
        """Look at what a study that has ended has said and left; return its exit status."""
        assert self.process is not None
        status, self.process = self.process.wait(), None
        self.read(self.output, f"study, status {status}")
        deadline = time.monotonic() + GONE_S
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            shown = ", ".join(f"{one.pid} {_words(one)}" for one in left)
            self.found.append(f"orphans: study ended with {status}: {shown}")
            self.kill()
        self.look()
        return status

    def alive(self) -> list[psutil.Process]:
        """Return the living processes that carry this benchmark's mark."""
        found = []
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if one.environ().get(MARK) == self.token and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
        return found

    def kill(self) -> None:
        """End all that is alive."""
        while found := self.alive():
            for one in found:
                with suppress(psutil.Error):
                    one.kill()
            psutil.wait_procs(found, timeout=1)
        if self.process is not None:
            self.process.wait()

    def end_study(self) -> None:
        """Damage what was drawn to be damaged; then see that all runs are drawn or named."""
        if self.waiting:
            self._damage_all()
        drawn, named = self._told()
        table = _content(self.tree.tables / f"{self.study.name}.csv").decode(errors="replace")
        for one in self.runs:
            known = table if self.status(one) == "completed" else named + drawn
            if one.name not in known:
                self.found.append(f"unnamed: {one.name}")

    def finish(self) -> None:
        """Let the last study come to its end, undisturbed; see that nothing is left of all."""
        for _ in range(2):
            self.ensure()
            self.ended(RUNS * LIMIT_S)
            if all(self.status(one) == "completed" for one in self.runs):
                break
        self.end_study()
        own = self.temporary / f"ddl-{os.geteuid()}"
        # A process that was killed leaves its private folder in `own`.
        left = [one for one in self.temporary.iterdir() if one != own]
        self.found += [f"left in the temporary directory: {one.name}" for one in left]


def _role(one: psutil.Process, found: dict[str, psutil.Process]) -> str:
    words, above = one.cmdline(), one.ppid()
    parent = next((name for name, process in found.items() if process.pid == above), "")
    if "ipykernel_launcher" in words:
        return "kernel"
    if parent == "leader":
        ranks = [OUTPUT_OF_RANK.search(file.path) for file in one.open_files()]
        return next((f"rank {rank[1]}" for rank in ranks if rank), "other")
    if parent.startswith("rank"):
        return "loader"
    if "ddl_tools.launch.local_ranks" in words:
        below = {"study": "subreaper", "subreaper": "server", "server": "leader"}
        return below.get(parent, "other")
    return "other"


def _is_writing(run_dir: Path) -> bool:
    """Say whether a record or a checkpoint is half written."""
    with suppress(OSError):
        return any(
            name.startswith(".") and name.endswith((".part", ".tmp")) and "progress" not in name
            for name in os.listdir(run_dir)  # noqa: PTH208
        )
    return False


def _content(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())[-80:]
    return "?"
