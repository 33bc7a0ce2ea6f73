"""Check that a release of the project can be cited: `make release-check`.

``python .ci/release.py [FOLDER]`` checks a checkout, or a copy of one. It exits with 1, and a line
for each fault. docs/contributing/release.md has the steps of a release.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PLACEHOLDER = re.compile(rb"FILL-IN-[A-Z][A-Z-]*")
SKIPPED = {".git", "build", "results"}


def faults(folder: Path) -> list[str]:
    """Return what keeps a folder from being released."""
    return [*placeholders(folder), *versions(folder), *differences(folder), *state_of_git(folder)]


def placeholders(folder: Path) -> Iterator[str]:
    """Yield each place that only the maintainer can fill in."""
    for path in files(folder):
        names = {one.decode() for one in PLACEHOLDER.findall(path.read_bytes())}
        for name in sorted(names):
            yield f"{path.relative_to(folder)}: {name} is not filled in"


def files(folder: Path) -> list[Path]:
    """Return the files of a release: those that git has, or all of a copy without git."""
    if (folder / ".git").exists():
        listed = git(folder, "ls-files", "-z").split("\0")
        paths = [folder / name for name in listed if name]
    else:
        paths = [path for path in folder.rglob("*") if not SKIPPED & {*path.parts}]
    return sorted(path for path in paths if path.is_file())


def versions(folder: Path) -> Iterator[str]:
    """Yield each file whose version is not that of the code."""
    code = version(folder)
    heading = re.search(r"^## (\S+)", text(folder, "CHANGELOG.md"), re.MULTILINE)
    found = {
        "CITATION.cff": citation(folder).get("version"),
        ".zenodo.json": zenodo(folder).get("version"),
        "CHANGELOG.md": heading and heading[1],
    }
    for name, other in found.items():
        if other != code:
            yield f"{name}: version {other}, but ddl_core has {code}"


def differences(folder: Path) -> Iterator[str]:
    """Yield what CITATION.cff, .zenodo.json and pyproject.toml say differently."""
    cited, deposited = citation(folder), zenodo(folder)
    project = tomllib.loads(text(folder, "pyproject.toml"))["project"]
    links = [one["identifier"] for one in deposited["related_identifiers"]]
    for name in ("title", "license", "keywords"):
        if cited[name] != deposited[name]:
            yield f"CITATION.cff and .zenodo.json differ in {name}"
    if project["license"] != cited["license"]:
        yield "CITATION.cff and pyproject.toml differ in license"
    if [*map(written, cited["authors"])] != [one["name"] for one in deposited["creators"]]:
        yield "CITATION.cff and .zenodo.json differ in their authors (Family, Given)"
    url = cited.get("repository-code")
    if url not in links or url != project.get("urls", {}).get("Repository"):
        yield "CITATION.cff (repository-code), .zenodo.json and pyproject.toml differ in the URL"
    if not cited.get("doi"):
        yield "CITATION.cff has no doi"


def state_of_git(folder: Path) -> Iterator[str]:
    """Yield what git has against a release."""
    if not (folder / ".git").exists():
        return
    if git(folder, "status", "--porcelain"):
        yield "git: there are changes without a commit"
    if git(folder, "tag", "--list", tag := f"v{version(folder)}"):
        yield f"git: {tag} is released; raise the version"


def written(author: dict[str, str]) -> str:
    """Return an author of CITATION.cff as Zenodo writes names."""
    return author.get("name") or f"{author['family-names']}, {author['given-names']}"


def version(folder: Path) -> str:
    """Return the version of the code."""
    found = re.search(r'^__version__ = "(.+)"', text(folder, "ddl_core/__init__.py"), re.MULTILINE)
    return found[1] if found else "none"


def citation(folder: Path) -> dict[str, Any]:
    """Return the content of CITATION.cff."""
    return yaml.safe_load(text(folder, "CITATION.cff"))


def zenodo(folder: Path) -> dict[str, Any]:
    """Return the content of .zenodo.json."""
    return json.loads(text(folder, ".zenodo.json"))


def text(folder: Path, name: str) -> str:
    """Return a file as text."""
    return (folder / name).read_text(encoding="utf-8")


def git(folder: Path, *words: str) -> str:
    """Return what git prints."""
    call = ["git", "-C", str(folder), *words]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    place = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parents[1]).resolve()
    if found := faults(place):
        sys.exit("\n".join(["not ready for a release:", *found]))
    sys.stdout.write(f"ready for release {version(place)}\n")
