"""Why an import failed, and modules that come from outside this environment.

Of others it imports `ddl_core.origin` alone, so that it works where nothing else does.
"""

import json
import os
import re
import site
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from ddl_core.origin import HOME, INSTALL

MODULES, LIBRARIES = "PYTHONPATH", ("LD_PRELOAD", "LD_LIBRARY_PATH")
# Names of folders beside code that some packages install, too.
COMMON = frozenset({"benchmarks", "docs", "examples", "test", "tests"})
SUBJECT = "imports"
SHOWN = 3  # modules that a message names

Why = tuple[str, str]  # what is wrong, and the remedy


def from_outside() -> dict[str, Path]:
    """Return the modules that ``PYTHONPATH`` puts before those of this environment.

    The values are the folders that they come from.
    """
    given = [Path(one).resolve() for one in _items(MODULES)]
    if all(one == HOME for one in given):
        return {}
    places = [Path(one).resolve() for one in site.getsitepackages()]
    own = {*sys.stdlib_module_names, *(path.name.partition(".")[0] for path in _paths(places))}
    found: dict[str, Path] = {}
    for folder in given:
        if folder in places:  # what comes later is not reached
            break
        names = {_module_of(path) for path in _paths([folder])} & own - COMMON
        if folder != HOME:
            found |= dict.fromkeys(sorted(names - found.keys()), folder)
    return found


def why_from_outside(modules: dict[str, Path]) -> Why:
    """Say that modules come from outside this environment."""
    names, folders = list(modules), ", ".join(map(str, dict.fromkeys(modules.values())))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    text = f"{', '.join(names[:SHOWN])}{more} from {folders}"
    return f"{MODULES} replaces modules of {sys.prefix}: {text}", f"unset {MODULES}"


def explain(error: BaseException, any_module: bool = False) -> Why | None:
    """Return why an import failed, and the remedy; None if that is not known.

    With `any_module`, modules from outside the environment count also if the error names none.
    """
    chain = _chain(error)
    if not any(isinstance(one, ImportError) or _in_module(one) for one in chain):
        return None
    lines = [line.strip() for one in chain for line in str(one).splitlines()]
    for variable in LIBRARIES:
        for line in lines:
            if any(_names_library(line, item) for item in _items(variable)):
                text = f"a library from {variable} does not fit this environment: {line}"
                return text, f"unset {variable}"
    outside = from_outside()
    blamed = {name: outside[name] for name in outside if _is_named(name, outside[name], chain)}
    if blamed or (outside and any_module):
        detail, remedy = why_from_outside(blamed or outside)
        said = str(chain[-1]).strip().splitlines() or [type(chain[-1]).__name__]
        return f"{detail}; an import failed: {said[0]}", remedy
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package not in ("", "ddl_core", "ddl_tools"):
        return f"this needs the package {package!r}, which is not installed", f"run `{INSTALL}`"
    return None


@contextmanager
def explained(words: Sequence[str], any_module: bool = False) -> Iterator[None]:
    """End the command ``ddl`` with a sentence if an import fails for a known reason.

    `words` are its arguments: ``ddl doctor`` reports the reason as a finding.
    """
    try:
        yield
    except Exception as error:
        if not (why := explain(error, any_module)):
            raise
        _end(words, *why)


def _end(words: Sequence[str], detail: str, remedy: str) -> NoReturn:
    if list(words[:1]) != ["doctor"]:
        sys.exit(f"Error: {detail}; {remedy}")
    finding = {"subject": SUBJECT, "state": "bad", "detail": detail, "remedy": remedy}
    text = f"{SUBJECT}  bad  {detail}\n{'':<12} remedy: {remedy}\n\nCan run here: no: {SUBJECT}"
    if "--json" in words:
        text = json.dumps({"ready": False, "findings": [finding]}, indent=1)
    sys.stdout.write(f"{text}\n")
    sys.exit(1)


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and those that led to it, the first cause last."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        found.append(one)
        one = one.__cause__ or one.__context__
    return found


def _steps(error: BaseException) -> Iterator[TracebackType]:
    step = error.__traceback__
    while step:
        yield step
        step = step.tb_next


def _in_module(error: BaseException) -> bool:
    """Say whether an error comes from the code of a module, which an import executes."""
    return any(step.tb_frame.f_code.co_name == "<module>" for step in _steps(error))


def _is_named(module: str, folder: Path, chain: list[BaseException]) -> bool:
    """Say whether errors name a module of a folder, or come from it."""
    for one in chain:
        names = getattr(one, "name", None), getattr(getattr(one, "obj", None), "__name__", None)
        if any(isinstance(name, str) and name.partition(".")[0] == module for name in names):
            return True
        if re.search(rf"\b{module}\b", str(one)):
            return True
        files: list[str | None] = [step.tb_frame.f_code.co_filename for step in _steps(one)]
        files += [getattr(one, "path", None), getattr(one, "filename", None)]
        for file in (Path(file).resolve() for file in files if isinstance(file, str)):
            if file.is_relative_to(folder):
                return file.relative_to(folder).parts[0].partition(".")[0] == module
    return False


def _names_library(text: str, item: str) -> bool:
    """Say whether a text names a shared library: one in the folder `item`, or `item` itself."""
    if ".so" in item and item in text:
        return True
    _, found, after = text.partition(f"{item.rstrip('/')}/")
    name = (after.split() or [""])[0]
    return bool(found) and ".so" in name and "/" not in name


def _items(variable: str) -> list[str]:
    """Return the absolute paths that a variable lists."""
    listed = os.environ.get(variable, "").replace(" ", ":").split(":")
    return [one for one in listed if one.startswith("/")]


def _paths(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        if folder.is_dir():
            yield from folder.iterdir()


def _module_of(path: Path) -> str:
    """Return the name of the module that a file or a folder is; empty if it is none."""
    name, _, ending = path.name.partition(".")
    is_module = ending == "py" or path.suffix == ".so" or (path / "__init__.py").is_file()
    return name if is_module else ""
