"""Mistakes for every parameter of every command, made from the tree of commands itself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from ddl_core.config import run_fields
from ddl_tools.cli import main
from ddl_tools.processes import import_path
from tests.launch.running import TINY, ddl

PATIENCE_S = 60.0  # of a process; longer is a hang
CLEAR = "clear error"
OUTCOMES = (CLEAR, "traceback", "hang", "accepted", "unclear")
STUDY: dict[str, Any] = {"name": "small", "question": "?", "base": TINY, "repeats": 1}

Words = tuple[str, ...]

# Text of a study's file -> what the message has to name. More of them: tests/spec/test_run.py.
STUDIES: dict[str | bytes, str] = {
    "": "bad.yaml",
    "name: [": "bad.yaml",
    "name: a\nquestion: q\n---\nname: b": "bad.yaml",
    "name: !!python/object/apply:os.getcwd []": "bad.yaml",
    "name: a\nquestion: caf\u00e9".encode("latin-1"): "bad.yaml",
    "question: q": "name",
    "name: ../../elsewhere\nquestion: q": "name",
    "name: a\nquestion: q\n1: 2": "bad.yaml",
    "name: a\nquestion: q\naxes: {epochs: 3}": "axes",
    "name: a\nquestion: q\naxes: {epochs: [1, [2]]}": "epochs",
    "name: a\nquestion: q\nbase: 3": "base",
    "name: a\nquestion: q\nbase: {epochs: yes}": "epochs",
    "name: a\nquestion: q\nbase: {base_lr: .inf}": "base_lr",
}


@dataclass(frozen=True)
class BadInput:
    """One call of `ddl`, and the words of which its message has to have one."""

    command: Words
    kind: str
    words: Words
    told: Words

    def __str__(self) -> str:
        return f"ddl {' '.join(self.command)}: {self.kind}"


class World:
    """A folder with one good example of whatever `ddl` reads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        (root / "file").touch()
        self.study = self.file("small.yaml", yaml.safe_dump(STUDY))
        self.site = self.file("here.toml", 'description = "here"\n')
        self.report = self.file("report.csv", '"Total Time (ns)","Instances","Name"\n5,1,"k"\n')

    def file(self, name: str, content: str | bytes) -> str:
        """Write a file, in a folder of its own for each content; return its path."""
        data = content if isinstance(content, bytes) else content.encode()
        path = self.root / f"{name}-{abs(hash(data))}" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return str(path)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Work in this folder, away from SLURM and from the user's files."""
        before, folder = dict(os.environ), Path.cwd()
        places = {"DDL_RESULTS": "results", "JUPYTER_DATA_DIR": "jupyter", "PATH": "bin"}
        os.environ.update({name: str(self.root / place) for name, place in places.items()})
        os.chdir(self.root)
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)


def commands(group: click.Group = main, path: Words = ()) -> dict[Words, click.Command]:
    """Return all commands that do something, by their words."""
    found: dict[Words, click.Command] = {}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= commands(command, (*path, name))
        else:
            found[*path, name] = command
    return found


def mistakes(path: Words, world: World) -> Iterator[BadInput]:
    """Yield mistakes in one command: in each parameter, and in the files that it reads."""
    command = commands()[path]
    good = {one: words for one in command.params if (words := _good(one, world))}

    def call(
        kind: str, told: Words, changed: dict[click.Parameter, Words], more: Words = ()
    ) -> BadInput:
        given = {**good, **changed}
        options = [w for one, words in given.items() for w in words if one.opts[0][0] == "-"]
        places = [w for one, words in given.items() for w in words if one.opts[0][0] != "-"]
        return BadInput(path, kind, (*options, *more, "--", *places), told)

    yield call("unknown option", ("--no-such",), {}, ("--no-such",))
    for parameter in command.params:
        if parameter.is_eager:
            continue
        name = _name(parameter)
        for value in _wrong(parameter, world):
            option = name.startswith("-")
            told = (name, name.strip("-").replace("-", "_"), str(parameter.name), value or name)
            words = (f"{name}={value}",) if option else (value,)
            yield call(f"{name} {value[:30]!r}", told, {parameter: words})
    for text, word in STUDIES.items() if path == ("study", "plan") else ():
        (study,) = (one for one in command.params if _name(one) == "STUDY")
        yield call(f"file {word}", (word,), {study: (world.file("bad.yaml", text),)})


def _name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or parameter.human_readable_name).strip("[].")


def _good(parameter: click.Parameter, world: World) -> Words:
    """Return words that are right for a parameter; none where it may be left out, and is."""
    values = {
        "STUDY": world.study,
        "DIR": str(world.root),
        "SOURCE": "module:function",
        "FILE": world.report,
        "NAME|FILE": "small",
        "NAME": "digits" if isinstance(parameter.type, click.Choice) else "small",
        "--site": world.site,
        "--results": str(world.root / "results"),
    }
    name = _name(parameter)
    if isinstance(parameter, click.Argument):
        return (values[name],)
    return (name, values[name]) if parameter.required or name == "--results" else ()


def _wrong(parameter: click.Parameter, world: World) -> list[str]:
    """Return wrong values of a parameter, by its type."""
    kind, name = parameter.type, _name(parameter)
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return ["maybe"]
    if isinstance(kind, click.Choice):
        return ["no such"]
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        least = getattr(kind, "min", None)
        bounded = least is not None or parameter.name in run_fields()
        below = [str(-1 if least is None else int(least) - 1)] if bounded else []
        above = [] if parameter.name == "seed" else [str(10**400)]
        if isinstance(kind, click.types.FloatParamType):
            above = ["inf", "nan", "1e308"]
        return ["many", *below, *above]
    if isinstance(kind, click.Path):
        return ["", str(world.root / "file") if kind.dir_okay else str(world.root)]
    if name in ("--account", "--partition"):
        return ["a b", "x;reboot"]
    if name == "--time":
        return ["25", "0:61:00"]
    if name == "NAME|FILE":
        return ["../A", "na\udce9ve", "na\udce9ve.zip"]
    if name in ("STUDY", "--site", "--run", "NAME", "--dataset", "--study", "--name"):
        return ["../A", "na\udce9ve"]
    return []


def in_process(bad: BadInput) -> tuple[str, str]:
    """Call `ddl` in this process; return the outcome and what was said."""
    result = ddl(*bad.command, *bad.words)
    said = f"{result.stdout}\n{result.stderr}"
    if not isinstance(result.exception, SystemExit | None):
        return "traceback", f"{said}\n{result.exception!r}"
    return _judged(bad, result.exit_code, said), said


def as_process(bad: BadInput) -> tuple[str, str]:
    """Call `ddl` as a process of its own; return the outcome and what was said."""
    command = [sys.executable, "-m", "ddl_tools.cli", *bad.command, *bad.words]
    try:
        done = subprocess.run(
            [os.fsencode(word) for word in command],
            env={**os.environ, "PYTHONPATH": import_path()},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return "hang", ""
    said = (done.stdout + b"\n" + done.stderr).decode(errors="backslashreplace")
    return _judged(bad, done.returncode, said), said


def _judged(bad: BadInput, code: int, said: str) -> str:
    if "Traceback" in said:
        return "traceback"
    if code == 0:
        return "accepted"
    clear = code in (1, 2) and "Error: " in said and " object at 0x" not in said
    told = (word.encode(errors="backslashreplace").decode() for word in bad.told)
    return CLEAR if clear and any(word in said for word in told) else "unclear"
