"""Compare what two commits do: the guard of a refactoring, which should change nothing.

    python -m benchmarks.compare_commits BASE [HEAD] [--weights] [--keep FOLDER]

Each commit is checked out into a folder of its own and asked, with this environment's Python, for

- the tree of commands: each option with its type, default and whether it is required;
- the runs that each study plans (their names contain a hash of the settings);
- the job scripts of each study at each site;
- the figures and tables from the committed records: cells of CSV files, no pixels;
- what common mistakes print, and the exit status;
- with ``--weights``: hashes of the sample images and of the weights of short runs (minutes).

Prints which of these files differ and the lines of them; ends with 1 if any does. Nothing is
stored: hashes of weights are comparable on one processor only.
"""

import argparse
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
LIMIT_S = 1200.0
SHOWN_LINES = 40

# Runs in the commit's folder; {module} and {function} are those of its command `ddl`.
COMMAND_TREE = """
import click
from {module} import {function} as group
def walk(command, name):
    for option in command.params:
        default = "" if callable(option.default) else repr(option.default)
        print("|".join([name, *option.opts, option.type.name, default, str(option.required)]))
    for key, child in sorted(getattr(command, "commands", {{}}).items()):
        walk(child, name + " " + key)
walk(group, "ddl")
"""

MISTAKES = [
    "study plan no_such_study",
    "study run studies",
    "study plan laptop --no-such-option",
    "study status no_such_study",
    "run --strategy horovd",
    "run --local-batch-size 0",
    "run --local-batch-size many",
    "run --world-size 3 --no-such",
    "run --model resnet5",
    "figures --results /no/such/folder",
    "data convert /no/such/folder /tmp/to",
    "data verify /no/such/folder",
    "advise --deadline-hours -1",
    "study submit laptop --site no_such_site --dry-run",
    "study publish laptop --results /no/such/folder",
]

TWO = "--gpus-per-node 2"
WEIGHTS = [
    "--strategy single --accumulation 2",
    *(f"--strategy {name} {TWO}" for name in ("ddp", "horovod", "deepspeed", "fsdp")),
    f"--strategy deepspeed --deepspeed-zero-stage 2 {TWO}",
    f"--strategy ddp --optimizer lars {TWO}",
    *(f"--loader {name}" for name in ("turbo", "dali_cpu", "synthetic")),
]
SHORT = (
    "--device cpu --model resnet8 --image-size 32 --classes 10 --local-batch-size 8 "
    "--train-images 64 --eval-images 16 --epochs 2"
)


class Commit:
    """A commit in a folder of its own.

    Parameters
    ----------
    name : str
        Anything that git resolves.
    folder : Path
        Where its files and its answers go.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.tree, self.answers = folder / "tree", folder / "answers"
        self.answers.mkdir(parents=True)
        _git("worktree", "add", "--detach", str(self.tree), name)
        scripts = tomllib.loads((self.tree / "pyproject.toml").read_text())["project"]["scripts"]
        self.module, self.function = scripts["ddl"].split(":")

    def python(
        self, *words: str, results: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run this environment's Python in the commit's folder."""
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "COLUMNS": "100"}
        environment["DDL_DATA"] = str(self.answers.parent / "datasets")
        environment["DDL_RESULTS"] = str(results or self.answers.parent / "results")
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def ddl(self, line: str, results: Path | None = None) -> str:
        """Return what a command prints and its exit status, without the names of folders."""
        done = self.python("-m", self.module, *line.split(), results=results)
        text = f"{done.stdout}{done.stderr}exit status {done.returncode}\n"
        return text.replace(str(self.tree), "TREE").replace(str(self.answers.parent), "FOLDER")

    def write(self, name: str, text: str) -> None:
        """Keep one answer."""
        path = self.answers / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ask(self) -> None:
        """Write all answers but those about weights."""
        tree = COMMAND_TREE.format(module=self.module, function=self.function)
        self.write("commands.txt", self.python("-c", tree).stdout)
        sites = sorted(path.stem for path in (self.tree / "slurm").glob("*.toml"))
        for study in sorted((self.tree / "studies").glob("*.yaml")):
            self.write(f"plans/{study.stem}.txt", self.ddl(f"study plan {study} --dry-run"))
        for site in sites:
            options = f"studies/laptop.yaml --site {site} --account project1 --dry-run"
            self.write(f"scripts/{site}.txt", self.ddl(f"study submit {options}"))
        self.write("mistakes.txt", "".join(f"$ ddl {each}\n{self.ddl(each)}" for each in MISTAKES))
        self.write("figures.txt", self.ddl("figures"))
        for folder in ("figures", "data"):
            for table in (self.tree / folder).rglob("*.csv"):
                self.write(f"tables/{table.relative_to(self.tree)}", table.read_text())

    def train(self) -> None:
        """Write the hashes of the sample images and of the weights of short runs."""
        self.ddl("data sample")
        images = sorted((self.answers.parent / "datasets").rglob("*.jpg"))
        hashes = [hashlib.sha256(each.read_bytes()).hexdigest() for each in images]
        names = [each.relative_to(self.answers.parent) for each in images]
        lines = [f"{name} {sha256}\n" for name, sha256 in zip(names, hashes, strict=True)]
        self.write("sample.txt", "".join(lines))
        for number, options in enumerate(WEIGHTS):
            results = self.answers.parent / f"run{number}"
            said = self.ddl(f"run {SHORT} {options}", results)
            records = [json.loads(one.read_text()) for one in results.rglob("run.json")]
            text = json.dumps([record.get("weights_sha256") for record in records]) + "\n"
            self.write(f"weights/{options.replace(' ', '_')}.txt", text if records else said)


def _git(*words: str) -> None:
    subprocess.run(["git", "-C", str(PROJECT), *words], check=True, capture_output=True)


def differences(base: Path, head: Path) -> Iterator[str]:
    """Yield, for each file that two folders do not share to the letter, its differing lines."""
    names = {path.relative_to(each) for each in (base, head) for path in each.rglob("*")}
    for name in sorted(names):
        paths = [each / name for each in (base, head)]
        texts = [path.read_text() if path.is_file() else "" for path in paths]
        if texts[0] != texts[1]:
            lines = difflib.unified_diff(*(text.splitlines() for text in texts), lineterm="", n=0)
            changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
            more = len(changed) - SHOWN_LINES
            yield "\n  ".join([f"{name}: {len(changed)} lines", *changed[:SHOWN_LINES]]) + (
                f"\n  and {more} more" if more > 0 else ""
            )


def main() -> int:
    """Compare two commits and say what differs."""
    parser = argparse.ArgumentParser(prog="benchmarks.compare_commits")
    parser.add_argument("base")
    parser.add_argument("head", nargs="?", default="HEAD")
    parser.add_argument("--weights", action="store_true", help="also train, some minutes")
    parser.add_argument("--keep", type=Path, help="leave the answers in this folder")
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="ddl-compare-"))
    try:
        commits = []
        for name, side in ((asked.base, "base"), (asked.head, "head")):
            commits.append(Commit(name, place / side))
            commits[-1].ask()
            if asked.weights:
                commits[-1].train()
        found = list(differences(*(each.answers for each in commits)))
        if asked.keep:
            for each, side in zip(commits, ("base", "head"), strict=True):
                shutil.copytree(each.answers, asked.keep / side, dirs_exist_ok=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        _git("worktree", "prune")
    print("\n".join(found) or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
