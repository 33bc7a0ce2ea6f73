"""Build the documentation as a site that needs neither a server nor a network.

    python docs/build.py [FOLDER]

Copies what git tracks, executes the notebooks that show results in the copy, adds a table of
contents to README.md and calls Sphinx. FOLDER is build/site unless it is named.
"""

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

CONTENTS = {
    "Start": "docs/index",
    "Tutorials": "docs/tutorials/*",
    "How-to guides": "docs/how-to/*",
    "Reference": "docs/reference/*",
    "Explanation": "docs/explanation/*",
    "Results": "docs/results/*\nfigures/README",
    "Figures": "figures/*/README",
    "Notebooks": "notebooks/*",
    "Contributing": "CONTRIBUTING\nSECURITY\nCHANGELOG\ndocs/contributing/*",
    "Folders": "benchmarks/README\ndata/*/README\nrequirements/README\nslurm/README\ntests/README",
}
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)\)")


def build(folder: Path, notebooks: Iterable[Path]) -> Path:
    """Build the site in `folder`, with these notebooks executed; return its first page."""
    with TemporaryDirectory(prefix="ddl-site-") as place:
        source = Path(place)
        copy_project(source)
        for path in tqdm(list(notebooks), desc="notebooks", unit="notebook"):
            copied = source / path.relative_to(PROJECT)
            execute(copied, copied, {})
            hide_code(copied)
        sphinx = ("-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going")
        docs, jobs = str(PROJECT / "docs"), ("--jobs", "auto")
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
    trees = (
        f"```{{toctree}}\n:caption: {caption}\n:hidden:\n:glob:\n\n{pages}\n```\n"
        for caption, pages in CONTENTS.items()
    )
    readme = target / "README.md"
    readme.write_text("\n".join([readme.read_text(), *trees]))


def _to_page(page: Path, link: re.Match[str]) -> str:
    path = page.parent / link[2]
    if not path.is_dir():
        return link[0]
    inside = path / "README.md"
    return f"[{link[1]}]({link[2].rstrip('/')}/README.md)" if inside.is_file() else link[1]


def hide_code(notebook: Path) -> None:
    """Mark the code cells so that the page shows them on a click."""
    content = nbformat.read(notebook, as_version=4)
    for cell in content.cells:
        if cell.cell_type == "code":
            cell.metadata.tags = [*cell.metadata.get("tags", []), "hide-input"]
    nbformat.write(content, notebook)


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT / "build" / "site"
    first = build(chosen, sorted(NOTEBOOKS.glob(SHOWING)))
    sys.stdout.write(f"the site begins at {first}\n")
