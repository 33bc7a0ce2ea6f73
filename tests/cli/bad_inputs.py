"""Mistakes for every parameter of every command, made from the tree of commands itself.

A mistake is refused with a message that names what is wrong; a parameter that is new gets those of
its type, and one that is required and new fails the test until `World` has a good value of it.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import click
import yaml
from click.testing import CliRunner
from hypothesis import strategies as st

from ddl_core.cli import main
from ddl_core.cli.gate import FOLDERS, SECONDS
from ddl_core.processes import import_path
from ddl_core.spec.run import RunSpec
from tests.cli.bad_world import (
    DAMAGED,
    ENCODINGS,
    PACKED,
    PHOTOS,
    REPORTS,
    SHARDS,
    SITES,
    STUDIES,
    STUDY,
    World,
)

PATIENCE_S = 20.0  # of one command; longer is a hang
START_S = 40.0  # of a process that imports torch, beside as many others as there are cores
SLOW = (
    "ddl_core.train.loaders.dali",
    "ddl_core.train.bench",
    "ddl_core.analysis.redraw",
    "ddl_core.analysis.nsys",
    "ddl_core.doctor.examination",
    "ddl_core.launch.kernelspec",
    "ddl_core.launch.report",
    "ddl_core.launch.study",
    "ddl_core.scaling.advice.advise",
)
CLEAR = "clear error"
OUTCOMES = (CLEAR, "traceback", "hang", "accepted", "unclear")

Words = tuple[str, ...]
Draw = st.DrawFn


@dataclass(frozen=True)
class BadInput:
    """One call of `ddl`, and the words of which its message has to have one."""

    command: Words
    kind: str
    words: tuple[str, ...]
    told: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict, hash=False)


def commands(group: click.Group = main, path: Words = ()) -> dict[Words, click.Command]:
    """Return all commands that do something, by their words."""
    found: dict[Words, click.Command] = {}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= commands(command, (*path, name))
        else:
            found[*path, name] = command
    return found


def named(parameter: click.Parameter) -> str:
    """Return what a message calls a parameter."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or parameter.human_readable_name).strip("[].")


def good(parameter: click.Parameter, world: World) -> list[str] | None:
    """Return words that are right for a parameter; None where it may be left out, and is."""
    by_name = {
        "STUDY": str(world.study),
        "DIR": str(world.photos),
        "SOURCE": str(world.photos / "train"),
        "FILE": str(world.report),
        "NAME": "digits" if isinstance(parameter.type, click.Choice) else "small",
        "--site": str(world.site),
        "--results": str(world.results),
    }
    value = by_name.get(named(parameter))
    if isinstance(parameter, click.Argument):
        assert value, f"bad_inputs.good has no value for {named(parameter)}, which is new"
        return [value]
    if parameter.required or named(parameter) == "--results":
        assert value, f"bad_inputs.good has no value for {named(parameter)}, which is new"
        return [named(parameter), value]
    return None


@st.composite
def bad_inputs(draw: Draw, world: World, of: Words | None = None) -> BadInput:
    """Draw a mistake in one command, by default any."""
    path = of or draw(st.sampled_from(sorted(commands())))
    command = commands()[path]
    given = {one: words for one in command.params if (words := good(one, world)) is not None}
    drawn = draw(st.sampled_from(["parameter"] * 8 + ["option", "variable", "content", "content"]))
    if drawn == "content" and (found := _contents(command, path, world)):
        kind, changed, told = draw(st.one_of(found))
        return _called(path, kind, {**given, **changed}, told)
    if drawn == "option":
        flag = draw(st.from_regex(r"--no-such-[a-z]{1,9}", fullmatch=True))
        return _called(path, "unknown option", given, (flag,), [flag])
    if drawn == "variable":
        name, value = draw(_variables(world))
        asked = _called(path, f"variable {name}", given, (name,))
        return BadInput(path, asked.kind, asked.words, asked.told, {name: value})
    parameter = draw(st.sampled_from([one for one in command.params if _may_be_wrong(one)]))
    kind, value = draw(_values(parameter, world))
    words = [f"{named(parameter)}={value}"] if isinstance(parameter, click.Option) else [value]
    told = (named(parameter), named(parameter).strip("-"), parameter.name or "")
    told += (told[1].replace("-", "_"),)
    # Of a name that is looked up, the message has the name.
    told += (repr(value),) if value and value.isprintable() else ()
    return _called(path, kind, {**given, parameter: words}, told)


def _called(
    path: Words,
    kind: str,
    given: dict[click.Parameter, list[str]],
    told: tuple[str, ...],
    more: list[str] | None = None,
) -> BadInput:
    options: list[str] = []
    places: list[str] = []
    for parameter, words in given.items():
        (options if isinstance(parameter, click.Option) else places).extend(words)
    return BadInput(path, kind, (*options, *(more or []), "--", *places), told)


def _may_be_wrong(parameter: click.Parameter) -> bool:
    return not (isinstance(parameter, click.Option) and parameter.is_eager)


def _values(parameter: click.Parameter, world: World) -> st.SearchStrategy[tuple[str, str]]:
    """Return kinds of mistakes with values of a parameter, by its type."""
    kind = parameter.type
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return _as("value of a flag", st.sampled_from(["1", "maybe"]))
    if isinstance(kind, click.Choice):
        allowed = set(map(str, kind.choices))
        return _as("no choice", st.text("abcxyz_0", min_size=1).filter(lambda t: t not in allowed))
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return _numbers(parameter)
    if isinstance(kind, click.Path):
        wrong = "file" if kind.dir_okay else "folder"
        kinds = ("fifo", "socket", "circle", "dangling", "device", "long", "newline", "bytes")
        return st.sampled_from([*kinds, "empty", wrong]).map(
            lambda kind: (f"place: {kind}", world.place(kind))
        )
    return _texts(parameter)


def _as(kind: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, str]]:
    return values.map(lambda value: (kind, value))


def _numbers(parameter: click.Parameter) -> st.SearchStrategy[tuple[str, str]]:
    whole = isinstance(parameter.type, click.types.IntParamType)
    least = getattr(parameter.type, "min", None)
    no_number = st.text("abc,;_ ", max_size=5).filter(lambda text: not text.strip().isdigit())
    infinite = st.sampled_from(["nan", "inf", "-inf"])
    found = [_as("no number", no_number), _as("not finite", infinite)]
    if whole:
        huge = st.integers(min_value=2**63, max_value=10**40).map(str)
        found += [_as("a fraction", st.sampled_from(["1.5", "1e3", "0x10"])), _as("huge", huge)]
    else:
        found.append(_as("huge", st.integers(309, 999).map(lambda power: f"1e{power}")))
    if parameter.name in RunSpec.model_fields or least is not None:
        below = st.integers(max_value=-1 if least is None else int(least) - 1)
        found.append(_as("too small", below.map(str)))
    return st.one_of(found)


def _texts(parameter: click.Parameter) -> st.SearchStrategy[tuple[str, str]]:
    odd = st.text(st.characters(categories=["Cc"], exclude_characters="\x00"), min_size=1)
    found = [
        _as("empty", st.just("")),
        _as("control characters", odd.map(lambda text: f"a{text}")),
        _as("not UTF-8", st.sampled_from(["\udcff", "na\udce9ve"])),
        _as("long", st.integers(5_000, 50_000).map(lambda length: "x" * length)),
    ]
    if parameter.metavar == "HH:MM:SS" and parameter.name == "time":
        found.append(_as("no time", st.sampled_from(["25", "1:00", "0:61:00", "0:0:0", "soon"])))
    if named(parameter) in ("--account", "--partition"):
        found.append(_as("no name", st.sampled_from(["a b", "x;reboot", "$(id)", "a\\"])))
    if named(parameter) in ("STUDY", "--site", "--run", "NAME", "--dataset", "--study", "--name"):
        unknown = st.text("ABC ./$", min_size=1, max_size=9).filter(lambda text: text.strip(". /"))
        found.append(_as("unknown name", unknown))
    return st.one_of(found)


def _variables(world: World) -> st.SearchStrategy[tuple[str, str]]:
    places = st.sampled_from(["fifo", "circle", "dangling", "device", "long", "newline", "bytes"])
    numbers = st.sampled_from(["nan", "inf", "-1", "0", "soon", "1e999"])
    return st.one_of(
        st.tuples(st.sampled_from(FOLDERS), places.map(world.place)),
        st.tuples(st.sampled_from(SECONDS), numbers),
    )


Content = tuple[str, dict[click.Parameter, list[str]], tuple[str, ...]]


def _contents(
    command: click.Command, path: Words, world: World
) -> list[st.SearchStrategy[Content]]:
    """Return mistakes inside the files that a command reads."""
    by_name = {named(parameter): parameter for parameter in command.params}
    found: list[st.SearchStrategy[Content]] = []
    if study := by_name.get("STUDY"):
        found.append(_studies(world).map(lambda one: (one[0], {study: [one[1]]}, one[2])))
    if site := by_name.get("--site"):
        found.append(
            st.sampled_from(sorted(SITES)).map(
                lambda text: (
                    "site file",
                    {site: ["--site", world.bad("bad.toml", text)]},
                    (SITES[text], "bad.toml"),
                )
            )
        )
    if path[0] == "profile" and (file := by_name.get("FILE")):
        found.append(
            st.sampled_from(REPORTS).map(
                lambda kind: (f"report: {kind}", {file: [str(world.report_of(kind))]}, (kind,))
            )
        )
    return [*found, *_data(by_name, path, world)]


def _data(
    by_name: dict[str, click.Parameter], path: Words, world: World
) -> list[st.SearchStrategy[Content]]:
    """Return mistakes in the folders of images that a command reads."""
    if path == ("data", "index"):
        return [
            st.sampled_from(sorted(SHARDS)).map(
                lambda name: ("shards", {by_name["DIR"]: [str(world.set_of_shards(name))]}, (name,))
            )
        ]
    if path == ("data", "import"):
        return [
            st.sampled_from(PACKED).map(
                lambda kind: (
                    f"packed files: {kind}",
                    {
                        by_name["NAME"]: ["fashion_mnist"],
                        by_name["DIR"]: [str(world.root / "imported")],
                        by_name["--source"]: ["--source", str(world.packed(kind))],
                    },
                    (kind, "fashion_mnist"),
                )
            )
        ]
    kinds = {("data", "verify"): PHOTOS | DAMAGED}
    training = {name: change for name, change in PHOTOS.items() if name != "val"}
    kinds |= {("data", "convert"): PHOTOS, ("bench", "loader"): training}
    if path not in kinds:
        return []
    where = by_name.get("DIR") or by_name["--data"]
    before = ["--data"] if isinstance(where, click.Option) else []
    return [
        st.sampled_from(sorted(kinds[path])).map(
            lambda name: (
                f"photos: {name}",
                {where: [*before, str(world.set_of_photos(name))]},
                (name,),
            )
        )
    ]


@st.composite
def _studies(draw: Draw, world: World) -> tuple[str, str, tuple[str, ...]]:
    """Draw a study's file with something wrong: by hand, in its encoding, or in any field."""
    which = draw(st.sampled_from(["text", "text", "encoding", "field"]))
    if which == "text":
        text = draw(st.sampled_from(sorted(STUDIES)))
        return "study file", world.bad("bad.yaml", text), (STUDIES[text],)
    if which == "encoding":
        encoding = draw(st.sampled_from(ENCODINGS))
        text = "name: a\nquestion: how long is a na\xefve caf\xe9?\n"
        return "encoding", world.bad("bad.yaml", text.encode(encoding)), ("UTF-8",)
    name = draw(st.sampled_from(sorted(RunSpec.model_fields)))
    value: Any = draw(st.sampled_from([{}, [1], -5, "no such", float("nan"), {"a": {"b": []}}]))
    place = draw(st.sampled_from(["base", "axes"])) if name != "repeat" else "axes"
    content = {**STUDY, "base": {}, place: {name: [value] if place == "axes" else value}}
    return "study field", world.bad("bad.yaml", yaml.safe_dump(content)), (name,)


class Hang(BaseException):
    """A command took longer than `PATIENCE_S`."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Hang` in the main thread after so long, also out of a call that waits.

    Not by an alarm: whoever runs the tests may have set one.
    """

    def stop(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGUSR2, stop)
    me = threading.get_ident()
    timer = threading.Timer(seconds, lambda: signal.pthread_kill(me, signal.SIGUSR2))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR2, before)


@cache
def preload() -> None:
    """Import what commands import when they begin: seconds on a busy machine, and no hang."""
    for module in SLOW:
        with suppress(ImportError):
            import_module(module)


def in_process(bad: BadInput) -> tuple[str, str]:
    """Call `ddl` in this process; return the outcome and what was said."""
    preload()
    before = dict(os.environ)
    os.environ.update(bad.environment)
    try:
        with limited(PATIENCE_S):
            result = CliRunner().invoke(main, [*bad.command, *bad.words])
    except Hang:
        return "hang", ""
    finally:
        os.environ.clear()
        os.environ.update(before)
    crashed = not isinstance(result.exception, SystemExit | None)
    said = f"{result.stdout}\n{result.stderr}"
    return _judged(bad, result.exit_code, said, crashed), f"{said}\n{result.exception!r}"


def as_process(bad: BadInput) -> tuple[str, str]:
    """Call `ddl` as a process of its own; return the outcome and what was said."""
    command = [sys.executable, "-m", "ddl_core.cli", *bad.command, *bad.words]
    try:
        done = subprocess.run(
            [os.fsencode(word) for word in command],
            env={**os.environ, **bad.environment, "PYTHONPATH": import_path()},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=START_S + PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return "hang", ""
    said = (done.stdout + b"\n" + done.stderr).decode(errors="backslashreplace")
    return _judged(bad, done.returncode, said, crashed=False), said


def _judged(bad: BadInput, code: int, said: str, crashed: bool) -> str:
    if crashed or "Traceback" in said:
        return "traceback"
    if code == 0:
        return "accepted"
    clear = code in (1, 2) and "Error: " in said and " object at 0x" not in said
    return CLEAR if clear and any(word in said for word in bad.told) else "unclear"
