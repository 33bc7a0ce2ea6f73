"""Build the documentation as a site that needs neither a server nor a network.

    python docs/build.py [FOLDER]

Copies what git tracks, executes the notebooks that show results in the copy, adds the parts of
docs/index.md to README.md as a table of contents and calls Sphinx. FOLDER is build/site unless it
is named.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from tqdm import tqdm

from ddl_tools.launch.notebook import execute
from ddl_tools.launch.report import SHOWING
from ddl_tools.records.paths import NOTEBOOKS, PROJECT

LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)\)")


def build(folder: Path, notebooks: Iterable[Path]) -> Path:
    """Build the site in `folder`, with these notebooks executed; return its first page."""
    with TemporaryDirectory(prefix="ddl-site-") as place:
        source = Path(place)
        copy_project(source)
        add_sidebar(source)
        for path in tqdm(list(notebooks), desc="notebooks", unit="notebook"):
            copied = source / path.relative_to(PROJECT)
            execute(copied, copied, {})
            hide_code(copied)
        sphinx = ("-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going")
        docs, jobs = str(PROJECT / "docs"), ("--jobs", "auto")
        sys.stdout.write("writing the pages\n")
        sys.stdout.flush()
        subprocess.run(
            [sys.executable, *sphinx, *jobs, "--conf-dir", docs, str(source), str(folder)],
            check=True,
        )
    index = folder / "index.html"
    shutil.copyfile(folder / "README.html", index)
    return index


def copy_project(target: Path) -> None:
    """Copy the tracked files; make links to folders lead to a page or become plain text."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        if (PROJECT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, target / name)
    for page in target.rglob("*.md"):
        page.write_text(LINK.sub(partial(_to_page, page), page.read_text()))


def add_sidebar(target: Path) -> None:
    """Add the pages of docs/index.md to the sidebar, by its parts, and results below theirs."""
    index, figures = target / "docs" / "index.md", target / "figures" / "README.md"
    add_contents(target / "README.md", ["docs/index"], "Start")
    for part in re.split(r"^## ", index.read_text(), flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        add_contents(target / "README.md", linked(text, index.parent, target), heading)
    add_contents(figures, linked(figures.read_text(), figures.parent, target))


def linked(text: str, folder: Path, root: Path) -> list[str]:
    """Return the pages that a text in `folder` links to, from `root`, in its order."""
    paths = (Path(os.path.normpath(folder / link[2])) for link in LINK.finditer(text))
    return list(dict.fromkeys(str(path.relative_to(root).with_suffix("")) for path in paths))


def add_contents(page: Path, pages: Iterable[str], caption: str = "") -> None:
    """Add pages to the sidebar, below `page`; where one is missing, Sphinx fails."""
    head = ["```{toctree}", *([f":caption: {caption}"] if caption else []), ":hidden:", ""]
    lines = [page.read_text(), *head, *(f"/{name}" for name in pages), "```", ""]
    page.write_text("\n".join(lines))


def _to_page(page: Path, link: re.Match[str]) -> str:
    path = page.parent / link[2]
    if not path.is_dir():
        return link[0]
    inside = path / "README.md"
    return f"[{link[1]}]({link[2].rstrip('/')}/README.md)" if inside.is_file() else link[1]


def hide_code(notebook: Path) -> None:
    """Show the results of a notebook alone, with a link to its file for the code."""
    content = nbformat.read(notebook, as_version=4)
    content.metadata["mystnb"] = {"remove_code_source": True}
    title, *parts = re.split(r"^(?=## )", content.cells[0].source, maxsplit=1, flags=re.M)
    code = f"Code: {{download}}`{notebook.name} <{notebook.name}>`, with the results of this page."
    content.cells[0].source = "\n\n".join([title.rstrip(), code, *parts])
    nbformat.write(content, notebook)


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT / "build" / "site"
    first = build(chosen, sorted(NOTEBOOKS.glob(SHOWING)))
    sys.stdout.write(f"next: open {first} in a browser\n")
