"""Networks of your own, ``package.module:function``: looked for, and never imported here."""

import os
import re
import symtable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import decode_source, find_spec
from pathlib import Path

from ddl_core.errors import NotInstalledError, SpecError
from ddl_core.files import read_plain
from ddl_core.registry import package_of_own
from ddl_core.spelling import choices

MOST_BYTES = 1_000_000  # of a module
# With these, a module may have names that its text does not show.
_HIDDEN = re.compile(r"import[ (]+\*|\b(__getattr__|globals|vars|setattr|exec|global)\b")


def is_lost(model: str) -> bool:
    """Say whether a network of your own is in no package that Python finds here."""
    package = package_of_own(model)
    if package is None:
        return False
    # The ranks have another __main__.
    return package == "__main__" or not _spec_of(package)


def _spec_of(package: str) -> ModuleSpec | None:
    """Return where ranks find a package: they begin with ``PYTHONPATH`` as it is now."""
    later = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    return find_spec(package) or PathFinder.find_spec(package, later)


def require(model: str) -> None:
    """Raise an error if the module of a network of your own is not found, or lacks its name."""
    if is_lost(model):
        raise NotInstalledError(
            f"model {model!r}: Python finds no {package_of_own(model)!r}",
            remedy="put the folder of the module in PYTHONPATH (docs/how-to/use-your-model.md)",
        )
    module, _, name = model.partition(":")
    file = _file_of(module) if package_of_own(model) else None
    names = _names(file) if file else None
    if names is not None and name not in names:
        own = [one for one, is_code in names.items() if is_code]
        raise SpecError(
            f"model = {model!r}: the module {module} has no {name!r}; {choices(name, own)} ({file})"
        )


def _file_of(module: str) -> Path | None:
    """Return the source of a module; its packages are not imported."""
    package, *rest = module.split(".")
    found = _spec_of(package)
    if found is None:
        return None
    folders = found.submodule_search_locations or ()
    below = [Path(folder, *rest) for folder in folders]
    files = [file for one in below for file in (one / "__init__.py", one.with_suffix(".py"))]
    if not rest and found.origin:
        files.insert(0, Path(found.origin))
    return next((one for one in files if one.suffix == ".py" and one.is_file()), None)


def _names(file: Path) -> dict[str, bool] | None:
    """Return the names of a module, and which are functions and classes; None if that is open."""
    try:
        text = decode_source(read_plain(file, MOST_BYTES))
        table = symtable.symtable(text, str(file), "exec")
    except (OSError, SyntaxError, ValueError):
        return None  # its ranks say what is wrong
    if _HIDDEN.search(text):
        return None
    bound = [one for one in table.get_symbols() if one.is_assigned() or one.is_imported()]
    return {one.get_name(): one.is_namespace() for one in bound}
