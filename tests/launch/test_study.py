from pathlib import Path
from typing import Any

import pytest

from ddl_core.errors import DataError, LaunchError, SpecError
from ddl_tools.launch import study as module
from ddl_tools.launch.study import find_study, pending, run_study, summary
from ddl_tools.records.failures import remedy
from ddl_tools.records.ledger import Entry, exclusive, ledger, plan
from ddl_tools.records.paths import RunFiles, Tree, results
from ddl_tools.records.run import Failure, RunRecord, read_record, write_record
from ddl_tools.study import Study
from tests.launch.running import TINY
from tests.launch.stand_ins import StandIns
from tests.pictures import write_pictures


class FakeJob:
    """Ends at once: a run of classes 7 fails, the others complete."""

    ended = True

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def wait(self, timeout: float | None = None) -> RunRecord:
        record = read_record(self.run_dir)
        record.status = "failed" if record.spec.classes == 7 else "completed"
        if record.status == "failed":
            record.error = Failure.of("Killed", "rank 0 was killed\n  last lines")
        write_record(self.run_dir, record)
        if record.error:
            raise LaunchError(record.error.message)
        return record


class FakeLauncher:
    def __init__(self) -> None:
        self.started: list[str] = []

    def submit(self, run_dir: Path) -> Any:
        self.started.append(run_dir.name)
        return FakeJob(run_dir)


@pytest.fixture(autouse=True)
def _any_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.preflight, "MIN_FREE_BYTES", 0)


@pytest.fixture
def launcher() -> FakeLauncher:
    return FakeLauncher()


def grid(**axes: list[Any]) -> Study:
    base = {name: value for name, value in TINY.items() if name not in axes}
    return Study(name="grid", question="?", base=base, axes=axes, repeats=1)


def states(entries: list[Entry]) -> list[str]:
    return [entry.state for entry in entries]


def test_a_failed_run_does_not_stop_the_others(
    launcher: FakeLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = run_study(grid(classes=[5, 7, 9]), results(), submit=launcher.submit)
    assert states(entries) == ["completed", "failed", "completed"]
    text = capsys.readouterr().err
    assert text.count("completed  single") == 2
    assert "rank 0 was killed" in text
    assert summary(entries).splitlines() == [
        "3 runs: 2 completed, 1 failed",
        f"  {entries[1].spec.run_id} (classes 7): Killed: rank 0 was killed",
        remedy("killed"),
    ]


def test_each_repetition_is_run_in_an_order_of_its_own() -> None:
    base = {name: value for name, value in TINY.items() if name != "classes"}
    axes = [{"classes": list(range(2, 10))}]
    study = Study(name="grid", question="?", base=base, axes=axes, repeats=2)
    (first, second) = (FakeLauncher(), FakeLauncher())
    run_study(study, results(), submit=first.submit, progress=False)
    ran = [next(run for run in study.expand() if run.run_id == name) for name in first.started]
    assert [run.repeat for run in ran] == [0] * 8 + [1] * 8
    orders = [[run.classes for run in ran[:8]], [run.classes for run in ran[8:]]]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(2, 10))
    assert list(range(2, 10)) not in orders
    assert orders[0] != orders[1]
    failed = [run.run_id for run in ran if run.classes == 7]
    run_study(study, results(), submit=second.submit, progress=False, retry_failed=True)
    assert second.started == failed, "what is left keeps its order"


def test_failed_runs_are_tried_again_on_demand(launcher: FakeLauncher) -> None:
    study = grid(classes=[5, 7])
    failed = run_study(study, results(), submit=launcher.submit, progress=False)[1]
    again = FakeLauncher()
    run_study(study, results(), submit=again.submit, progress=False, retry_failed=True)
    assert again.started == [failed.spec.run_id]


def test_what_was_stopped_from_outside_goes_on_without_asking() -> None:
    study = grid(classes=[5])
    (item,) = plan(study, results())
    record = read_record(item.directory)
    record.status, record.error = "failed", Failure(kind="Interrupted", message="stopped")
    write_record(item.directory, record)
    assert [open_.spec for open_ in pending(ledger(study, results()))] == [item.spec]


def test_what_failed_in_a_block_that_is_in_the_queue_is_not_run_here(
    launcher: FakeLauncher, stand_ins: StandIns
) -> None:
    study = grid(classes=[5, 9])
    failed, other = plan(study, results())
    for item, status in ((failed, "failed"), (other, "submitted")):
        error = Failure.of("Killed", "killed") if status == "failed" else None
        changes = {"status": status, "job_id": "7", "error": error}
        write_record(item.directory, read_record(item.directory).model_copy(update=changes))
    stand_ins.add("squeue", "7|ddl-grid-1x1-r0|RUNNING|None\n")
    run_study(study, results(), submit=launcher.submit, progress=False, retry_failed=True)
    assert launcher.started == []


def test_what_waits_in_the_queue_is_not_run_here(
    launcher: FakeLauncher, stand_ins: StandIns
) -> None:
    study = grid(classes=[5, 9])
    waits, gone = plan(study, results())
    for number, item in enumerate((waits, gone)):
        changes = {"status": "submitted", "job_id": str(number)}
        write_record(item.directory, read_record(item.directory).model_copy(update=changes))
    stand_ins.add("squeue", f"0|ddl-{waits.spec.run_id}|PENDING|Priority\n")
    stand_ins.add("sacct")
    stand_ins.add("scontrol")
    run_study(study, results(), submit=launcher.submit, progress=False)
    assert launcher.started == [gone.spec.run_id]
    stand_ins.add("squeue", error="no controller", status=1)
    with pytest.raises(LaunchError, match="no controller"):
        run_study(study, results(), submit=launcher.submit, progress=False)


def test_what_was_submitted_elsewhere_is_run_on_demand_where_there_is_no_slurm(
    launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = grid(classes=[5])
    (item,) = plan(study, results())
    changes = {"status": "submitted", "job_id": "7"}
    write_record(item.directory, read_record(item.directory).model_copy(update=changes))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert states(run_study(study, results(), submit=launcher.submit)) == ["submitted"]
    entries = run_study(study, results(), submit=launcher.submit, retry_failed=True)
    assert states(entries) == ["completed"]


def test_a_damaged_record_is_set_aside_on_demand_only(launcher: FakeLauncher) -> None:
    study = grid(classes=[5])
    (item,) = plan(study, results())
    record = RunFiles(item.directory).record
    record.write_text("{")
    lines = RunFiles(item.directory).epochs
    lines.write_text("of the old record")
    assert states(run_study(study, results(), submit=launcher.submit)) == ["damaged"]
    entries = run_study(study, results(), submit=launcher.submit, retry_failed=True)
    assert states(entries) == ["completed"]
    assert record.with_suffix(".json.damaged").read_text() == "{"
    assert not lines.exists()
    assert lines.with_name("epochs.jsonl.damaged").read_text() == "of the old record"
    record.write_text("[")
    run_study(study, results(), submit=launcher.submit, retry_failed=True)
    assert record.with_suffix(".json.damaged").read_text() == "{"
    assert record.with_suffix(".json.damaged1").read_text() == "["


def test_a_study_at_work_elsewhere_is_refused_at_once(launcher: FakeLauncher) -> None:
    with (
        exclusive(results().study("grid") / ".lock", "test"),
        pytest.raises(LaunchError, match="study 'grid' is being run by another process"),
    ):
        run_study(grid(classes=[5]), results(), submit=launcher.submit)
    assert launcher.started == []


def test_missing_data_stop_a_study_before_anything_is_written(launcher: FakeLauncher) -> None:
    with pytest.raises(DataError, match="ddl data sample"):
        run_study(grid(loader=["native"]), results(), submit=launcher.submit)
    assert launcher.started == []
    assert list(results().study("grid").glob("*/run.json")) == []


def test_interrupting_a_study_cancels_the_run_at_work(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[Path] = []

    class Endless(FakeJob):
        ended = False

        def cancel(self) -> None:
            cancelled.append(self.run_dir)

    def press(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "submit", Endless)
    monkeypatch.setattr(module.time, "sleep", press)
    study = grid(classes=[5, 9])
    with pytest.raises(KeyboardInterrupt):
        run_study(study, results(), submit=launcher.submit, progress=False)
    (one,) = cancelled
    assert one in [item.directory for item in ledger(study, results())]


def test_a_study_is_found_by_name_or_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nquestion: '?'\nrepeats: 1\n")
    assert find_study(str(path)).name == "mine"
    monkeypatch.setattr(module, "STUDIES", tmp_path)
    assert find_study("mine").name == "mine"
    with pytest.raises(SpecError, match="unknown study 'yours'; choose one of: mine"):
        find_study("yours")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"eval_images": [9]}, r"eval_images = 9, but there are only 8"),
        ({"train_images": [33]}, r"train_images = 33, but there are only 32"),
        ({"local_batch_size": [64], "train_images": [None]}, r"global batch of 64 images"),
        ({"classes": [3]}, r"classes = 3, but .* has 4 class folders"),
    ],
)
def test_what_the_data_cannot_give_is_refused_before_anything_starts(
    wrong: dict[str, list[Any]], words: str, tmp_path: Path
) -> None:
    data = write_pictures(tmp_path / "data", 32, 8)
    base = {"loader": "native", "classes": 4, "train_images": 32, "eval_images": 8,
            "local_batch_size": 4, "image_size": 32}  # fmt: skip
    base = {name: value for name, value in base.items() if name not in wrong}
    study = Study(name="own", question="?", base=base, axes=wrong, repeats=1)
    tree = Tree(tmp_path / "results")
    with pytest.raises(SpecError, match=words):
        run_study(study, tree, data_dir=data, progress=False)
    assert not tree.run_folders("own")
