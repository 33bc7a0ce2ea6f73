"""What is done to a study at work: one function per kind of fault."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.faults.place import DISK_MIB
from benchmarks.faults.world import BASE, LIMIT_S, Damage, Done, Missed, World
from ddl_tools.launch.measuring import LOCK
from ddl_tools.records.paths import RunFiles

TARGETS = ("study", "kernel", "subreaper", "server", "leader", "rank 0", "rank 1", "loader")
CONTINUED = "STOP and CONT"
SIGNALS = ("TERM", "KILL", "INT", "HUP", CONTINUED)
PHASES = ("start", "set-up", "warm-up", "training", "evaluation", "writing", "end")
# Of a run that begins or ends there are not all processes.
ABSENT = {
    "loader": ("start", "set-up", "end"),
    "rank 0": ("start", "end"),
    "rank 1": ("start", "end"),
    "leader": ("end",),
}
SHIFTS = ("+3600 s", "-3600 s", "+86400 s", "-86400 s")
WRITERS = ("same study", "same run", "other study")
STOPPED_S = 1.0
BIRTHS, BIRTH_S = 10, 0.2  # moments of a study's own start, before any of its runs
REFUSED_S = 60.0  # what a command that is to be refused may take on a busy machine


@dataclass(frozen=True)
class Fault:
    """One thing to be done, at a phase of a run."""

    kind: str
    target: str
    way: str
    phase: str

    def done(self, outcome: str) -> Done:
        """Return it with what became of it."""
        return Done(self.kind, self.target, self.way, self.phase, outcome)


def send(world: World, fault: Fault) -> None:
    """Send a signal to one process of the run."""
    if (fault.target, fault.phase) == ("study", "start") and world.ensure():
        time.sleep(len(world.done) % BIRTHS * BIRTH_S)
        _hit(world, fault)
        status = None if fault.way == CONTINUED else world.ended()
        world.done.append(fault.done("goes on" if status is None else f"ended with {status}"))
        return
    run_dir = world.until(fault.phase, fault.target)
    _hit(world, fault)
    world.done.append(fault.done(world.settle(run_dir)))


def _hit(world: World, fault: Fault) -> None:
    process = world.roles().get(fault.target)
    if process is None:
        raise Missed("the target is not there in this phase")
    try:
        if fault.way == CONTINUED:
            process.suspend()
            time.sleep(STOPPED_S)
            process.resume()
        else:
            process.send_signal(getattr(signal, f"SIG{fault.way}"))
    except psutil.Error:
        raise Missed("the target has just ended") from None


def fill(world: World, fault: Fault) -> None:
    """Let the disk of the results be full for a while."""
    if not world.mounted:
        raise Missed("needs root, to mount a small disk")
    run_dir = world.until(fault.phase)
    _resize(world, full=True)
    try:
        time.sleep(STOPPED_S)
        outcome = world.settle(run_dir)
    finally:
        _resize(world, full=False)
    world.done.append(fault.done(outcome))


def _resize(world: World, full: bool) -> None:
    """Make the disk as small as what is on it, or as large as before."""
    place = world.tree.root
    now = os.statvfs(place)
    used = (now.f_blocks - now.f_bfree) * now.f_frsize
    size = used if full else DISK_MIB * 2**20
    subprocess.run(["mount", "-o", f"remount,size={size}", place], check=not full)


def forbid(world: World, fault: Fault) -> None:
    """Let the folder of the run, and those in it, be read-only for a while."""
    run_dir = world.until(fault.phase)
    folders = [run_dir, *(one for one in run_dir.rglob("*") if one.is_dir())]
    for one in folders:
        one.chmod(0o500)
    try:
        time.sleep(STOPPED_S)
        outcome = world.settle(run_dir)
    finally:
        for one in folders:
            one.chmod(0o700)
    world.done.append(fault.done(outcome))


def shift(world: World, fault: Fault) -> None:
    """Move the clock of the day while a run is at work, and back after it."""
    if "LD_PRELOAD" not in world.environment:
        raise Missed("needs a C compiler, to move the clock of some processes alone")
    run_dir = world.until(fault.phase)
    world.set_clock(float(fault.way.split()[0]))
    try:
        outcome = world.settle(run_dir)
    finally:
        world.set_clock(0.0)
    world.done.append(fault.done(outcome))


def write_too(world: World, fault: Fault) -> None:
    """Start a second writer; it must be refused at once, or wait and say for whom."""
    run_dir = world.until(fault.phase)
    output, other = world.folder / "second.log", world.folder / "other.yaml"
    if fault.way == "same study":
        second = world.popen(world.resume(world.file), output)
        said = _refused(world, second, output, "by another process")
    elif fault.way == "same run":
        own = [f"--{name.replace('_', '-')}={value}" for name, value in BASE.items()]
        number = run_dir.name.rpartition("-r")[2].partition("-")[0]
        own += [f"--repeat={number}", f"--study={world.study.name}"]
        places = ["--results", str(world.tree.root), "--data", str(world.folder / "images")]
        # With a lock of its own, or it would wait for the study before it sees the run.
        elsewhere = {LOCK: str(world.folder / "other.lock")}
        second = world.popen(world.command("run", *own, *places), output, **elsewhere)
        said = _refused(world, second, output, "by another process", "is complete")
    else:
        other.write_text(world.file.read_text().replace(world.study.name, "faults_other"))
        second = world.popen(world.resume(other), output)
        said = _waits(world, second, output)
    outcome = world.settle(run_dir)
    world.done.append(fault.done(f"{said}; {outcome}"))


def _refused(world: World, second: "subprocess.Popen[bytes]", output: Path, *reasons: str) -> str:
    status, text = world.status_of(second, REFUSED_S, output, "a second writer")
    if status == 1 and any(one in text for one in reasons):
        world.clear_errors += 1
        return "refused"
    return f"status {status}: {text[-100:]}"


def _waits(world: World, second: "subprocess.Popen[bytes]", output: Path) -> str:
    """See that a study waits for the machine, and that Ctrl-C ends that."""
    deadline = time.monotonic() + REFUSED_S
    while time.monotonic() < deadline and second.poll() is None:
        if "measures on this machine" in output.read_text():
            second.send_signal(signal.SIGINT)
            second.wait(LIMIT_S)
            world.clear_errors += 1
            world.read(output, "a study that waits")
            return "waited, and said for whom"
        time.sleep(0.1)
    second.send_signal(signal.SIGINT)
    second.wait(LIMIT_S)
    return f"did not wait: {world.read(output, 'another study')[-100:]}"


def damage(world: World, fault: Fault) -> None:
    """Damage a file of a finished run, once its study has ended; see that it is named."""
    world.waiting.append(partial(_damage, world, fault))


def _damage(world: World, fault: Fault) -> Damage:
    name, _, how = fault.way.partition(" ")
    whole = [
        one
        for one in world.runs
        if one not in world.damaged and world.status(one) == "completed" and (one / name).exists()
    ]
    if not whole:
        world.missed["no finished run has such a file"] += 1
        return
    run_dir = whole[len(world.done) % len(whole)]
    world.damaged.add(run_dir)
    path = run_dir / name
    before = path.read_bytes()
    HOW[how](path)
    drawn, told = yield
    if path.is_dir():
        path.rmdir()
    path.write_bytes(before)
    world.damaged.discard(run_dir)
    status = [line for line in told.splitlines() if run_dir.name in line]
    named = run_dir.name in drawn or any("completed" not in line for line in status)
    world.clear_errors += named
    if not named:
        world.found.append(f"unnamed: {fault.way} of {run_dir.name}")
    world.done.append(fault.done("named" if named else "not named"))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -path.stat().st_size // 3])


def _not_a_number(path: Path) -> None:
    text = path.read_text().replace('"wall_s":', '"wall_s": NaN, "was":', 1)
    path.write_text(text)


def _without_a_line(path: Path) -> None:
    """Drop the last but one: those of the first start may stand for epochs done again later."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2] + lines[-1:]))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HOW: dict[str, Callable[[Path], object]] = {
    "cut": _cut,
    "binary": lambda path: path.write_bytes(os.urandom(500)),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "a folder": _folder,
    "with NaN": _not_a_number,
    "without a line": _without_a_line,
}
DAMAGES = (
    *(f"{RunFiles(Path()).record.name} {how}" for how in ("cut", "binary", "empty", "a folder")),
    *(
        f"{RunFiles(Path()).epochs.name} {how}"
        for how in ("cut", "binary", "empty", "gone", "a folder", "with NaN", "without a line")
    ),
)

KINDS: dict[str, Callable[[World, Fault], None]] = {
    "signal": send,
    "disk full": fill,
    "read-only": forbid,
    "damaged file": damage,
    "writer": write_too,
    "clock": shift,
}
