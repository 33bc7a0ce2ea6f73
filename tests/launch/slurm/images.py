"""An image for Charliecloud, made from this machine's files: nothing is fetched."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from ddl_tools.processes import HOME

# A place that the machine itself does not have: what runs from there, runs inside.
INSIDE = Path("/opt/ddl-image")
LINKED = ("bin", "lib", "lib64", "sbin")
OF_CH_RUN = ("dev", "proc", "sys", "tmp")
FILES = ("passwd", "group", "hosts", "resolv.conf", "ld.so.cache")


def charliecloud(image: Path) -> dict[str, Any]:
    """Make an image; return the container of a site that runs it.

    It is a tree with an environment of its own, whose packages are those of this one. Where there
    is no Charliecloud, or it may not start, the test is skipped.
    """
    if shutil.which("ch-run") is None:
        pytest.skip("no ch-run: apt-get install charliecloud-runtime")
    packages = Path(sysconfig.get_path("purelib"))
    binds = [Path("/usr"), Path(sys.base_prefix), packages.resolve()]
    for folder in LINKED:
        if (link := Path("/", folder)).is_symlink():
            image.mkdir(exist_ok=True)
            (image / folder).symlink_to(link.readlink())
        elif link.is_dir():
            binds.append(link)
    for folder in (*map(Path, OF_CH_RUN), *(one.relative_to("/") for one in (*binds, HOME))):
        (image / folder).mkdir(parents=True, exist_ok=True)
    (image / "etc").mkdir()
    for name in FILES:
        if (file := Path("/etc", name)).exists():
            shutil.copy(file, image / "etc" / name)
    own = image / INSIDE.relative_to("/")
    (own / "bin").mkdir(parents=True)
    (own / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (own / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    libraries = own / packages.relative_to(sys.prefix)
    libraries.parent.mkdir(parents=True)
    libraries.symlink_to(packages.resolve())
    container = {
        "runtime": "charliecloud",
        "image": str(image),
        "binds": [str(one) for one in dict.fromkeys(binds) if Path("/usr") not in one.parents],
        "python": str(INSIDE / "bin" / "python"),
    }
    words = ["ch-run", *(f"--bind={one}:{one}" for one in container["binds"]), str(image), "--"]
    done = subprocess.run(
        [*words, "true"],
        capture_output=True,
        text=True,
        env={"USER": "me", "PATH": "/usr/bin:/bin"},
    )
    if done.returncode:
        pytest.skip(f"Charliecloud starts no container here: {done.stderr.strip()}")
    return container
