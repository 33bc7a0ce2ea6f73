"""Follow the pages on adding something: their files written, their entries entered."""

import re
import shutil
from pathlib import Path

from ddl_tools.records.paths import PROJECT

PAGES = ("how-to/add-a-strategy.md", "how-to/add-a-loader.md")
LIBRARY = "how-to/add-a-framework.md"
_FILE = re.compile(
    r"`((?:ddl_core|ddl_tools|slurm)/[\w/]+\.(?:py|toml))`:\n\n```(?:python|toml)\n(.*?)```", re.S
)
_ENTRY = re.compile(r"In `(\w+)` of `(ddl_(?:core|tools)/[\w/]+\.py)`:\n\n```\n(.*?)```", re.S)
# What the project needs to be used.
_PARTS = (
    "ddl_core",
    "ddl_tools",
    "data/paper",
    "data/published",
    "data/seeds",
    "notebooks",
    "slurm",
    "studies",
    "pyproject.toml",
)


def followed(folder: Path) -> Path:
    """Copy the project to `folder`, add what the pages add, and return the copy."""
    project = folder / "project"
    for part in _PARTS:
        source, target = PROJECT / part, project / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for page in (*PAGES, LIBRARY):
        text = (PROJECT / "docs" / page).read_text()
        for path, content in _FILE.findall(text):
            assert not (project / path).exists()
            (project / path).write_text(content)
        for table, path, entry in _ENTRY.findall(text):
            _enter(project / path, table, entry)
    return project


def _enter(path: Path, table: str, entry: str) -> None:
    """Write an entry at the end of a table of a Python file."""
    head, opening, rest = path.read_text().partition(f"\n{table} = {{\n")
    assert opening
    entries, closing, more = rest.partition("\n}\n")
    path.write_text(f"{head}{opening}{entries}\n{entry.rstrip()}{closing}{more}")
