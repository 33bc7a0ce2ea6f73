"""Where this code comes from: a clone of the project, or a wheel; and what repairs either.

It imports the standard library alone: `setup.py` reads it before anything is installed.
"""

from pathlib import Path

from ddl_core import __version__

HOME = Path(__file__).resolve().parents[1]
"""The folder of the packages: that of the clone, or the one in which pip installed the wheel."""
FOLDERS = HOME / "ddl_tools" / "tree"
"""What a clone has beside the packages, as `setup.py` copies it into a wheel."""
COMMIT = FOLDERS / "commit.json"
"""The commit that the wheel was built from, as `ddl_tools.commit.code` returns it."""
IN_CLONE = not FOLDERS.is_dir()

INSTALL = "make env" if IN_CLONE else f'pip install "ddl-core[train,notebooks]=={__version__}"'
"""The command that installs missing packages."""
_AGAIN = "pip install --force-reinstall --no-deps FILE.whl"


def made(target: str) -> str:
    """Return the command that builds what only the Makefile of a clone can build."""
    return f"make {target}" if IN_CLONE else f"make {target}  # in a clone of the project"


def restored(path: object) -> str:
    """Return the command that brings back files of the project."""
    return f"git checkout {path}" if IN_CLONE else _AGAIN
