"""Copy into a wheel what a clone has beside the packages; see `ddl_core.origin`.

All else about the packages is in pyproject.toml.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CLONE = Path(__file__).resolve().parent
sys.path.insert(0, str(CLONE))  # the packages that are built, and no others

from ddl_core.origin import COMMIT, FOLDERS, IN_CLONE  # noqa: E402
from ddl_tools.commit import code  # noqa: E402

COPIED = (
    "studies/*.yaml",
    "slurm/**/*",
    "notebooks/*.ipynb",
    "requirements/*.txt",
    "requirements/libraries/*.txt",
    "data/LICENSE",
    *(f"data/{name}/**/*" for name in ("paper", "published", "seeds", "runs", "second", "tables")),
)


def beside() -> Iterator[Path]:
    """Return the files to copy."""
    for pattern in COPIED:
        found = sorted(CLONE.glob(pattern))
        yield from (path for path in found if path.is_file() and path.name != ".lock")


class BuildPy(build_py):
    """Build the packages; in a wheel, with what lies beside them."""

    def run(self) -> None:
        """Build, and copy."""
        super().run()
        if self.editable_mode:
            return
        if missing := [one for one in COPIED if not any(CLONE.glob(one))]:
            raise SystemExit(f"no {missing[0]} in {CLONE}: build the wheel in a whole clone")
        built = Path(self.build_lib).absolute()
        folders = built / FOLDERS.relative_to(CLONE)
        shutil.rmtree(folders, ignore_errors=True)  # of an earlier build
        for path in beside():
            target = folders / path.relative_to(CLONE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        (built / COMMIT.relative_to(CLONE)).write_text(json.dumps(code()) + "\n", encoding="utf-8")

    def get_source_files(self) -> list[str]:
        """Return what an sdist holds."""
        return [*super().get_source_files(), *(str(one.relative_to(CLONE)) for one in beside())]


assert IN_CLONE, f"{FOLDERS} is a part of a wheel, and of no clone: remove it"
setup(cmdclass={"build_py": BuildPy})
