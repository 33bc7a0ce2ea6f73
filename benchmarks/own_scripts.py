"""Whether `framework: command` measures a user's own script rightly: three scripts and our loop.

    python -m pip install --no-deps --target build/benchmarks -r requirements/benchmarks.txt
    python -m benchmarks.own_scripts [STARTS]

torchvision's reference script as it was published, a loop with Lightning and one with Accelerate
train what our loop trains: ResNet18 from views of 64 pixels of the sample images, batches of 16,
SGD, one process with two threads and one loader process. A few lines are added to each script, so
that it reports. All are interleaved in one study. Between its repetitions each script runs by
itself, as it was published: what its own clock says is compared with what the study measures.

torchvision's files come from GitHub, once, into `build/own_scripts`; they are checked by their
SHA-256. No part of them is kept elsewhere. Takes 11 minutes.
"""

import difflib
import hashlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import frameworks
from benchmarks.interleaved import interval, shown, stored
from ddl_core.registry import COMMAND
from ddl_tools.analysis import estimates
from ddl_tools.analysis.interleaving import Interleaved, block_means
from ddl_tools.analysis.tables import windows_table
from ddl_tools.datasets.sample import make_sample
from ddl_tools.launch.study import run_study
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.study import Study

FOLDER = PROJECT / "build" / "own_scripts"
OWN = Path(__file__).parent / "scripts"
FIT = OWN / "fit"
LIBRARIES = PROJECT / "build" / "benchmarks"
STARTS, WINDOWS = 4, 3  # the first window of a start does not count
MOST_LINES = 3
COPIES = 40  # of each image: no epoch of a script ends while it is measured
BATCH, CROP, CLASSES = 16, 64, 16
OUR_STEPS = 40  # of a window of our loop
# torchvision says what the last 20 steps took, and the other two say the same.
CLOCK = re.compile(r".*\[ *(\d+)[^]]*\].* time: ([\d.]+)")
COLD_STEP, LAST_STEP = 20, 60  # lines of steps after the first one count, up to the second one

VISION = "https://raw.githubusercontent.com/pytorch/vision/v0.21.0/references/classification/"
PUBLISHED = {
    "presets.py": "99e2fcea703726c31d3621806b895a56010d1501bc312b56a05401b0cc177a4e",
    "sampler.py": "2f1a5540a2b4c44ae45f1c0cd3a52c101e79d51a5b7b25f37b388f6b8cea4d24",
    "train.py": "50e351e18f825fe8c87ba1cf0182c93b66f7351dab4588d20acdd5962a1076b9",
    "transforms.py": "8827fd2ca0d1222018f4590e0fa51a8c156b27a1703094fa80c74d147a309233",
    "utils.py": "8f891cd8e2b948c484cb45764a4a517bb1b103470f10b7646330824fd8ef279f",
}
IMPORT = "from ddl_core import report"


@dataclass(frozen=True)
class Script:
    """A training script: its words after Python, and the lines to add after some of its lines."""

    name: str
    words: tuple[str, ...]
    added: Mapping[int, tuple[str, ...]]

    @property
    def file(self) -> Path:
        """The script as it was published."""
        return Path(self.words[0])

    def reporting(self) -> Path:
        """Write the script with its lines added beside it; return its path."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        for number in sorted(self.added, reverse=True):
            lines[number:number] = self.added[number]
        path = self.file.with_name(f"reporting_{self.file.name}")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def change(self) -> list[str]:
        """Return what the reporting script has and the published one has not, or the reverse."""
        sides = (one.read_text(encoding="utf-8") for one in (self.file, self.reporting()))
        found = difflib.unified_diff(*(side.splitlines() for side in sides), n=0, lineterm="")
        changed = [line for line in found if line[0] in "+-"][2:]
        if len(changed) > MOST_LINES or any(line.startswith("-") for line in changed):
            raise SystemExit(f"{self.name}: more than {MOST_LINES} added lines: {changed}")
        return changed

    def command(self, file: Path) -> str:
        """Return what starts the script, or another form of it."""
        variables = [f"PYTHONPATH={FIT}:{LIBRARIES}:{PROJECT}", "PYTHONUNBUFFERED=1"]
        return shlex.join(["env", *variables, sys.executable, str(file), *self.words[1:]])

    def own_clock(self) -> float:
        """Run the script as it was published; return images per second by its own clock."""
        words = shlex.split(self.command(self.file))
        seconds: list[float] = []
        with (
            (FOLDER / "own_clock.log").open("w") as log,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                found = CLOCK.match(line)
                if found and int(found[1]) > COLD_STEP:
                    seconds.append(float(found[2]))
                if found and int(found[1]) >= LAST_STEP:
                    break
            process.terminate()
        if not seconds:
            raise SystemExit(
                f"{self.name} ended with {process.returncode} before it was measured: {log.name}"
            )
        return BATCH / statistics.mean(seconds)


def scripts(data: Path) -> Iterator[Script]:
    """Yield all scripts, ready to start."""
    vision, loops = FOLDER / "torchvision", FOLDER / "loops"
    published(vision)
    shutil.copytree(OWN, loops, dirs_exist_ok=True)
    yield Script(
        "torchvision's reference script",
        (
            str(vision / "train.py"),
            *("--data-path", str(data), "--model", "resnet18", "--device", "cpu"),
            *("--batch-size", str(BATCH), "--train-crop-size", str(CROP), "--workers", "1"),
            *("--lr", "0.025", "--epochs", "1", "--print-freq", "20", "--output-dir", ""),
        ),
        {1: (IMPORT,), 59: ("        report(batch_size)",)},
    )
    hook = (
        "    def on_train_batch_end(self, outputs, batch, index):",
        "        report(len(batch[0]))",
    )
    yield Script(
        "Lightning's Trainer",
        (str(loops / "lightning_loop.py"), str(data)),
        {6: (IMPORT,), 24: hook},
    )
    yield Script(
        "an Accelerate loop",
        (str(loops / "accelerate_loop.py"), str(data)),
        {5: (IMPORT,), 16: ("    report(len(images))",)},
    )


def published(folder: Path) -> None:
    """Fetch torchvision's files unless they are there; end if one is another one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, digest in PUBLISHED.items():
        path = folder / name
        if not path.exists():
            with urllib.request.urlopen(VISION + name) as answer:
                path.write_bytes(answer.read())
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{path} is not the file of torchvision 0.21.0; remove it")


def images() -> Path:
    """Return a folder with the sample images many times, as links."""
    sample, folder = FOLDER / "sample", FOLDER / "data"
    make_sample(sample)
    for image in sample.glob("*/*/*.JPEG"):
        for copy in range(COPIES if image.parts[-3] == "train" else 1):
            link = folder / image.parts[-3] / image.parts[-2] / f"{copy:02}_{image.name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(image)
    return folder


def study(commands: list[str], starts: int) -> Study:
    """Return the study of all scripts and our loop."""
    ours = {
        "framework": "torch",
        **{"model": "resnet18", "image_size": CROP, "classes": CLASSES, "device": "cpu"},
        **{"local_batch_size": BATCH, "train_images": OUR_STEPS * BATCH, "label_smoothing": 0.0},
        **{"cpu_threads": 2, "loader_workers": 1, "eval_every": 0, "checkpoint_every": 0},
    }
    theirs = {"framework": [COMMAND], "command": commands}
    return Study.model_validate(
        {
            "name": "own_scripts",
            "question": "How fast do scripts train what our loop trains?",
            "base": {"epochs": WINDOWS + 1},
            "axes": [{name: [value] for name, value in ours.items()}, theirs],
            "repeats": starts,
            "interleave": {"reference": {"framework": "torch"}},
        }
    )


def measure() -> dict[str, Any]:
    """Measure all starts, and print."""
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else STARTS
    data, tree = images(), Tree(FOLDER / "results")
    shutil.rmtree(tree.root, ignore_errors=True)
    known = list(scripts(data))
    changes = {one.name: one.change() for one in known}
    asked = study([one.command(one.reporting()) for one in known], starts)
    clocks: dict[str, list[float]] = {one.name: [] for one in known}
    for repeat in range(starts):
        own = [run.run_id for run in asked.expand() if run.repeat == repeat]
        for entry in run_study(asked, tree, data_dir=data, only=own):
            if entry.spec.run_id in own and entry.state != "completed":
                raise SystemExit(f"{entry.spec.run_id}: {entry.state}: {entry.reason}")
        for one in known:
            clocks[one.name].append(one.own_clock())
    return {
        "scripts": [row(one, asked, tree, clocks[one.name], changes[one.name]) for one in known],
        "packages": frameworks.versions(),
    }


def row(
    script: Script, asked: Study, tree: Tree, clock: list[float], change: list[str]
) -> dict[str, Any]:
    """Return what one script has shown: each start's rates, and their ratios."""
    windows = Interleaved(windows_table(tree, [asked.name]))
    command = script.command(script.reporting())
    runs = {
        one: [run.run_id for run in asked.expand() if run.command == one] for one in (None, command)
    }
    ours, theirs = (windows.of(asked.name, own) for own in runs.values())
    to_ours = windows.ratio(theirs, ours)
    # Of a start that was disturbed all the time, no window counts.
    starts = [block_means(windows.of(asked.name, [run_id])) for run_id in runs[command]]
    measured = [own[0] for own in starts if own]
    clock = [one for one, own in zip(clock, starts, strict=True) if own]
    to_clock = estimates.paired_ratio(measured, clock)
    if to_ours is None:
        raise SystemExit(f"{script.name}: all windows were disturbed")
    print(
        f"{script.name}: {shown(interval(to_ours))} x our loop, "
        f"{shown(interval(to_clock))} x its own clock"
    )
    print("\n".join(f"    {line}" for line in change))
    return {
        "name": script.name,
        "added": change,
        "to_ours": interval(to_ours),
        "to_own_clock": interval(to_clock),
        "starts": to_clock.n,
        "images_per_s": {"measured": measured, "own_clock": clock, "ours": block_means(ours)},
    }


if __name__ == "__main__":
    stored("own_scripts", measure)
