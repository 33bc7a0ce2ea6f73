"""What `make` has downloaded into this checkout, and what it takes of the disk.

    python -m benchmarks.make_sizes

After `make env`, and `make reproduce` if its results are to count. Downloads are the files that
pip's logs name, also those that it had in its cache.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.interleaved import stored
from ddl_tools.records.paths import PROJECT

FOLDERS = {"env": ".venv", "reproduce": "results"}  # by target
LOGS = (".venv/pip.log", ".venv/wheel.log", ".venv/horovod.log")
UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_NAMED = re.compile(r"^\s*(?:Downloading|Using cached) \S+ \(([\d.]+) (bytes|kB|MB|GB)\)$", re.M)
_LOCAL = re.compile(r"^Processing (/\S+)$", re.M)  # of an index that is a folder


def downloaded(log: str) -> int:
    """Return the bytes of the files that a log of pip names."""
    sizes = [float(number) * UNITS[unit] for number, unit in _NAMED.findall(log)]
    files = [path for path in map(Path, _LOCAL.findall(log)) if path.is_file()]
    return round(sum(sizes)) + sum(path.stat().st_size for path in files)


def on_disk(folder: Path) -> int:
    """Return the bytes that a folder takes of the disk, hard links once."""
    found = {one.st_ino: one.st_blocks for one in map(Path.lstat, folder.rglob("*"))}
    return 512 * sum(found.values())


def measure(logs: Iterable[str] = LOGS) -> dict[str, Any]:
    """Measure and print."""
    texts = [(PROJECT / name).read_text() for name in logs if (PROJECT / name).is_file()]
    sizes = {
        "downloads_bytes": sum(map(downloaded, texts)),
        "disk_bytes": {
            target: on_disk((PROJECT / name).resolve())
            for target, name in FOLDERS.items()
            if (PROJECT / name).is_dir()
        },
    }
    print(sizes)
    return sizes


if __name__ == "__main__":
    stored("make_sizes", measure)
