"""Write the definitions of an image for the ranks: of Apptainer, and an OCI Containerfile.

    python requirements/image.py FOLDER [--index URL] [--dali NAME]

`make image-files` calls it. They install the packages of a training process in the versions of
this folder, and a C compiler for torch.compile. The project is not in them: a job binds it.
"""

import argparse
import re
import shlex
import shutil
import sys
from pathlib import Path

import jinja2

HERE = Path(__file__).parent
PIP = "python -m pip install --no-cache-dir"
SYSTEM = "apt-get install -y --no-install-recommends gcc g++ libc6-dev git"
FILES = {"ddl.def": True, "Containerfile": False}


def pins(name: str) -> list[str]:
    """Return the requirements of one of the files."""
    lines = (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [text for line in lines if (text := line.split("#")[0].strip())]


def steps(index: str | None, dali: str | None) -> list[str]:
    """Return the shell commands that install everything."""
    wanted = [*pins("analysis"), *pins("train"), *(pins(f"dali_{dali}") if dali else [])]
    torch = [pin for pin in wanted if re.match("torch(vision)?==", pin)]
    # That index alone has them; what they pull in, the next line brings to its pinned version.
    first = [f"{PIP} --index-url {shlex.quote(index)} {shlex.join(torch)}"] if index else []
    return [
        f"apt-get update && {SYSTEM} && rm -rf /var/lib/apt/lists/*",
        *first,
        f"{PIP} -c /opt/ddl/constraints.txt {shlex.join(wanted)}",
    ]


def main() -> None:
    """Write the files into the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Write the definitions of an image for the ranks.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", metavar="URL", help="of torch and torchvision, e.g. for ROCm")
    parser.add_argument("--dali", metavar="NAME", help="e.g. cuda130; by default there is no DALI")
    asked = parser.parse_args()
    (python,) = re.findall(r'^python_versions="([\d.]+)', (HERE / "system.sh").read_text(), re.M)
    loader = jinja2.FileSystemLoader(HERE)
    template = jinja2.Environment(loader=loader, trim_blocks=True, autoescape=False).get_template(
        "image.j2"
    )
    asked.folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "constraints.txt", asked.folder)
    for name, definition in FILES.items():
        text = template.render(
            definition=definition, python=python, steps=steps(asked.index, asked.dali)
        )
        (asked.folder / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{asked.folder / name}\n")


if __name__ == "__main__":
    main()
