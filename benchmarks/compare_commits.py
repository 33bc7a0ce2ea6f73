"""Compare what two commits do: the guard of a refactoring, which should change nothing.

    python -m benchmarks.compare_commits BASE [HEAD] [--weights]

Each commit is checked out into a folder of its own and asked, with this environment's Python, for

- the tree of commands: each option with its type, default and whether it is required;
- the runs that each study plans (their names contain a hash of the settings);
- the job scripts of the laptop study at each site;
- the figures and tables from the committed records: cells of CSV files, no pixels;
- what common mistakes print, and the exit status;
- with ``--weights``: hashes of the sample images and of the weights of short runs (minutes).

Prints which of these differ, and in which lines; ends with 1 if any does. Nothing is
stored: hashes of weights are comparable on one processor only.
"""

import argparse
import difflib
import hashlib
import json
import os
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
    f"--strategy ddp --ddp-bucket-view {TWO}",
    f"--strategy ddp --ddp-compression powersgd --ddp-powersgd-start 2 --checkpoint-every 0 {TWO}",
    *(f"--strategy deepspeed --deepspeed-zero-stage {stage} {TWO}" for stage in (1, 2, 3)),
    f"--strategy deepspeed --deepspeed-zero-stage 2 --deepspeed-bucket-elements 5000 {TWO}",
    f"--strategy ddp --optimizer lars {TWO}",
    *(f"--loader {name}" for name in ("turbo", "dali_cpu", "synthetic")),
]
SHORT = (
    "--device cpu --model resnet8 --image-size 32 --classes 16 --local-batch-size 8 "
    "--train-images 64 --eval-images 16 --epochs 2"
)


class Commit:
    """A commit in a folder of its own, and its answers: texts by name.

    Parameters
    ----------
    name : str
        Anything that git resolves.
    folder : Path
        Where its files, its data and its results go.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"
        self.answers: dict[str, str] = {}
        _git("worktree", "add", "--detach", str(self.tree), name)
        scripts = tomllib.loads((self.tree / "pyproject.toml").read_text())["project"]["scripts"]
        self.module, self.function = scripts["ddl"].split(":")

    def python(self, *words: str, results: str = "results") -> str:
        """Return what this environment's Python prints in the commit's folder, and its status."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.tree,
            env={
                **os.environ,
                "PYTHONPATH": str(self.tree),
                "COLUMNS": "100",
                "DDL_DATA": str(self.folder / "datasets"),
                "DDL_RESULTS": str(self.folder / results),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        text = f"{done.stdout}{done.stderr}exit status {done.returncode}\n"
        return text.replace(str(self.folder), "FOLDER")

    def ddl(self, line: str, results: str = "results") -> str:
        """Return what a command prints, and its exit status."""
        return self.python("-m", self.module, *line.split(), results=results)

    def ask(self) -> None:
        """Collect all answers but those about weights."""
        tree = COMMAND_TREE.format(module=self.module, function=self.function)
        self.answers["commands"] = self.python("-c", tree)
        for study in sorted((self.tree / "studies").glob("*.yaml")):
            self.answers[f"plan {study.stem}"] = self.ddl(f"study plan {study} --dry-run")
        for site in sorted((self.tree / "slurm").glob("*.toml")):
            options = f"--site {site.stem} --account project1 --dry-run --all-scripts"
            self.answers[f"scripts {site.stem}"] = self.ddl(
                f"study submit studies/laptop.yaml {options}"
            )
        for mistake in MISTAKES:
            self.answers[f"ddl {mistake}"] = self.ddl(mistake)
        self.answers["ddl figures"] = self.ddl("figures")
        for folder in ("figures", "data"):
            for table in (self.tree / folder).rglob("*.csv"):
                self.answers[str(table.relative_to(self.tree))] = table.read_text()

    def train(self) -> None:
        """Collect the hashes of the sample images and of the weights of short runs."""
        self.ddl("data sample")
        hashes = {
            str(image.relative_to(self.folder)): hashlib.sha256(image.read_bytes()).hexdigest()
            for image in (self.folder / "datasets").rglob("*.JPEG")
        }
        self.answers["sample"] = "\n".join(sorted(" ".join(pair) for pair in hashes.items()))
        for number, options in enumerate(WEIGHTS):
            results = f"run{number}"
            said = self.ddl(f"run {SHORT} {options}", results)
            records = (self.folder / results).rglob("run.json")
            found = [json.loads(record.read_text())["weights_sha256"] for record in records]
            if not (hashes and any(found)):  # two commits that fail alike would pass for equal
                raise SystemExit(f"error: ddl run {SHORT} {options}: no weights\n{said}")
            self.answers[f"weights {options}"] = str(found)


def _git(*words: str) -> None:
    subprocess.run(["git", "-C", str(PROJECT), *words], check=True, capture_output=True)


def differences(base: dict[str, str], head: dict[str, str]) -> Iterator[str]:
    """Yield, for each answer that differs, its name and the lines that differ."""
    for name in sorted(base | head):
        texts = [each.get(name, "").splitlines() for each in (base, head)]
        lines = list(difflib.unified_diff(*texts, lineterm="", n=0))[2:]
        changed = [line for line in lines if not line.startswith("@@")]
        if changed:
            yield "\n  ".join([f"{name}: {len(changed)} lines", *changed[:SHOWN_LINES]])


def main() -> int:
    """Compare two commits and say what differs."""
    parser = argparse.ArgumentParser(prog="benchmarks.compare_commits")
    parser.add_argument("base")
    parser.add_argument("head", nargs="?", default="HEAD")
    parser.add_argument("--weights", action="store_true", help="also train, some minutes")
    asked = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="ddl-compare-") as folder:
            commits = [Commit(asked.base, Path(folder, "1")), Commit(asked.head, Path(folder, "2"))]
            for commit in commits:
                commit.ask()
                if asked.weights:
                    commit.train()
    finally:
        _git("worktree", "prune")
    found = list(differences(*(commit.answers for commit in commits)))
    print("\n".join(found) or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
