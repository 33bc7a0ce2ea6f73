"""Invented records for the tests of the analysis; they never leave a temporary folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.run import Attempt, EpochRecord, Failure, RunRecord, Slot

MACHINE = {
    "cpu": "Example(R) CPU @ 2.00GHz",
    "cpu_cores": 2,
    "device": "cpu",
    "load_average_1min": 0.5,
}
GPU = {"cpu": "Example CPU", "cpu_cores": 48, "device": "cuda", "accelerator": "Example GPU"}
CODE = {"git_commit": "0123456789abcdef0123456789abcdef01234567", "git_dirty": False}
SPEC = {
    "image_size": 96,
    "local_batch_size": 16,
    "epochs": 3,
    "eval_every": 3,
    "loader_workers": 1,
    "train_images": 320,
    "eval_images": 64,
}
PARTS = {"start_s": 0.01, "data_s": 0.1, "compute_s": 0.6, "transfer_s": 0.15, "waiting_s": 0.05,
         "update_s": 0.08, "end_s": 0.01}  # fmt: skip


def epoch_row(epoch: int = 1, phase: str = "train", **changes: Any) -> EpochRecord:
    wall_s = changes.get("wall_s", 20.0)
    spent = {name: share * wall_s for name, share in PARTS.items()}
    train = phase == "train"
    fields: dict[str, Any] = {
        **{"attempt": 0, "epoch": epoch, "phase": phase, "cold": epoch == 0 and train},
        **{"steps": 10, "samples": 320 if train else 64, "corrupt_images": 0},
        **{"wall_s": 20.0, "cpu_s": 32.0, "data_s": 2.0},
        **{"rank_wall_s_min": 19.0, "rank_wall_s_max": 20.0},
        **{"step_s_median": 1.9, "step_s_p95": 2.5, "loss": 6.5, "top1": 0.01, "top5": 0.05},
        **{"lr": 0.025, "max_memory_bytes": None, "spent": spent if train else None},
    }
    fields |= changes
    if "top5" not in changes:
        fields["top5"] = max(0.05, fields["top1"] or 0)
    fields.setdefault("throughput_samples_per_s", fields["samples"] / fields["wall_s"])
    return EpochRecord(**fields)


def curve(top1: Sequence[float], epochs: int = 0, **training: Any) -> list[EpochRecord]:
    """Return the rows of a run that is evaluated evenly over its epochs, else after each."""
    epochs = epochs or len(top1)
    ends = [(number + 1) * epochs // len(top1) - 1 for number in range(len(top1))]
    train = [epoch_row(end, top1=None, top5=None, **training) for end in ends]
    return train + [epoch_row(end, "eval", top1=one) for end, one in zip(ends, top1, strict=True)]


def evaluations(epochs: int, every: int) -> set[int]:
    """Return the epochs after which a run evaluates."""
    return {*range(every - 1, epochs, every), epochs - 1} if every else set()


def asked(rows: Sequence[EpochRecord]) -> dict[str, int]:
    """Return the fields of a run that writes just these rows: its record is then whole."""
    epochs = max((row.epoch for row in rows), default=-1) + 1
    evaluated = {row.epoch for row in rows if row.phase == "eval"}
    fitting = (every for every in range(epochs, 0, -1) if evaluated == evaluations(epochs, every))
    return {"epochs": epochs, "eval_every": next(fitting, 0)} if rows else {}


def filled(rows: Sequence[EpochRecord], spec: RunSpec) -> list[EpochRecord]:
    """Return `rows` with what they leave out of a run of `spec`, which takes no time."""
    due = {(epoch, "train") for epoch in range(spec.epochs)} if rows else set()
    if rows and spec.work == "train":
        due |= {(epoch, "eval") for epoch in evaluations(spec.epochs, spec.eval_every)}
    rest = sorted(due - {(row.epoch, row.phase) for row in rows})
    return [*rows, *(epoch_row(*line, cold=True, wall_s=1e-6, spent=None) for line in rest)]


MakeRun = Callable[..., Path]


Golden = Callable[[str, str], None]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with golden/NAME.md; the option --update-golden writes the file instead."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / f"{name}.md"
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        kept = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text == kept, f"if it is meant, write {path} with: pytest --update-golden"

    return compare


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "results")


@pytest.fixture
def make_run(tree: Tree) -> MakeRun:
    """Write runs into `tree`, each call one."""
    return writer(tree)


def writer(tree: Tree) -> MakeRun:
    """Return a function that writes one run: warm wall time per epoch, status, spec fields.

    It has as many epochs and evaluations as its rows tell, if its fields do not say otherwise.
    """

    def make(
        wall_s: float = 20.0,
        *,
        study: str = "laptop",
        status: str = "completed",
        system: dict[str, Any] | None = MACHINE,
        rows: list[EpochRecord] | None = None,
        provenance: dict[str, Any] = CODE,
        **fields: Any,
    ) -> Path:
        if rows is None:
            rows = [epoch_row(0, wall_s=5 * wall_s)]
            rows += [epoch_row(epoch, wall_s=wall_s) for epoch in (1, 2)]
            rows += [epoch_row(2, "eval", loss=6.25, top1=0.125, top5=0.5)]
        if "epochs" not in fields:  # begin at 0
            first = min((row.epoch for row in rows), default=0)
            rows = [row.model_copy(update={"epoch": row.epoch - first}) for row in rows]
        spec = RunSpec(**SPEC | asked(rows) | fields)
        rows = filled(rows, spec)
        record = RunRecord.plan(study, spec)
        record.status = status
        record.system = system
        record.provenance = provenance
        record.attempts = [Attempt(started_utc=record.created_utc)]
        if status == "failed":
            record.error = Failure.of("Killed", "rank 1 was killed")
        directory = tree.study(study) / record.run_id
        # Written plainly: `write_record` and `append_epoch` wait for the disk each time.
        directory.mkdir(parents=True)
        RunFiles(directory).record.write_text(record.model_dump_json())
        lines = [row.model_dump_json() + "\n" for row in rows]
        RunFiles(directory).epochs.write_text("".join(lines))
        return directory

    return make


REFERENCE = {"strategy": "ddp"}


def turned(
    make_run: MakeRun,
    fields: dict[str, Any],
    wall_s: Sequence[float],
    *,
    cpu_s: Sequence[float] = (),
    block: str = "a",
    reference: dict[str, Any] = REFERENCE,
    place: int = 0,
    windows: int = 0,
    **about: Any,
) -> Path:
    """Write one run whose warm windows were interleaved with those of `reference`.

    The reference has as many, or `windows`. Before them is the first one of the start,
    which does not count: five times as long, more so the later its place.
    """
    epochs = {"epochs": 2 + (windows or len(wall_s)), "eval_every": 0}
    name = RunSpec(**SPEC | epochs | reference).run_id
    rows = [epoch_row(0)]
    cpus = cpu_s or [2 * wall for wall in wall_s]
    first = 5 + place
    for number, (wall, cpu) in enumerate(
        zip((first * wall_s[0], *wall_s), (first * cpus[0], *cpus), strict=True)
    ):
        slot = Slot(block=block, reference=name, round=number, place=place)
        rows.append(epoch_row(number + 1, wall_s=wall, cpu_s=cpu, interleave=slot))
    return make_run(rows=rows, **fields | about)


def in_blocks(
    make_run: MakeRun,
    fields: dict[str, Any],
    wall_s: Sequence[float],
    *,
    cpu_s: Sequence[float] = (),
    reference: dict[str, Any] = REFERENCE,
    begin: int = 0,
    **about: Any,
) -> None:
    """Write a run in each of several blocks, `begin` the first, with one window that counts."""
    for number, wall in enumerate(wall_s):
        repeat = {"repeat": begin + number}
        turned(make_run, fields | repeat, [wall], cpu_s=cpu_s[number : number + 1],
               block=f"b{begin + number}", reference=reference | repeat, **about)  # fmt: skip


@pytest.fixture
def laptop(make_run: MakeRun) -> MakeRun:
    """Write 18 runs like the laptop study's: three repeats of six configurations."""
    write_laptop(make_run)
    return make_run


def write_laptop(make_run: MakeRun) -> None:
    """Write the runs of `laptop`."""
    spread = (1.0, 1.02, 0.97)
    for repeat, factor in enumerate(spread):
        for loader, wall_s in (("native", 30.0), ("synthetic", 26.0)):
            common = {"loader": loader, "repeat": repeat}
            make_run(wall_s * factor, strategy="single", **common)
            make_run(1.03 * wall_s * factor, strategy="ddp", **common)
            make_run(0.58 * wall_s * factor**2, strategy="ddp", gpus_per_node=2, **common)
