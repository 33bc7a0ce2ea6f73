from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from ddl_core.errors import DataError, LaunchError, SpecError
from ddl_tools.launch import study as module
from ddl_tools.launch.study import find_study, pending, run_study, summary
from ddl_tools.records.failures import remedy
from ddl_tools.records.ledger import exclusive, ledger, plan
from ddl_tools.records.paths import RunFiles, Tree, results
from ddl_tools.records.run import Failure, RunRecord, read_record, write_record
from ddl_tools.records.stored import run_dirs
from ddl_tools.study import Study
from tests.launch.running import TINY, change
from tests.launch.stand_ins import StandIns
from tests.pictures import write_pictures


class FakeJob:
    """Ends at once: a run of classes 7 fails, the others complete."""

    ended = True

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.sentinel, self.end = Pipe(duplex=False)
        self.end.close()

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

    def run(self, study: Study, **options: Any) -> list[str]:
        """Run a study; return the states of its runs."""
        entries = run_study(study, results(), submit=self.submit, **{"progress": False, **options})
        return [item.state for item in entries]


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    monkeypatch.setattr(module.preflight, "MIN_FREE_BYTES", 0)
    return FakeLauncher()


def grid(**axes: list[Any]) -> Study:
    base = {name: value for name, value in TINY.items() if name not in axes}
    return Study(name="grid", question="?", base=base, axes=axes, repeats=1)


def test_a_failed_run_stops_no_other_and_is_tried_again_on_demand(
    launcher: FakeLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    study = grid(classes=[5, 7, 9])
    assert launcher.run(study, progress=True) == ["completed", "failed", "completed"]
    text = capsys.readouterr().err
    assert text.count("completed  single") == 2
    assert "rank 0 was killed" in text
    entries = ledger(study, results())
    assert summary(entries).splitlines() == [
        "3 runs: 2 completed, 1 failed",
        f"  {entries[1].spec.run_id} (classes 7): Killed: rank 0 was killed",
        remedy("killed"),
    ]
    launcher.started.clear()
    launcher.run(study)
    assert launcher.started == []
    launcher.run(study, retry_failed=True)
    assert launcher.started == [entries[1].spec.run_id]


def test_each_repetition_is_run_in_an_order_of_its_own(launcher: FakeLauncher) -> None:
    study = grid(classes=[*range(2, 10)]).model_copy(update={"repeats": 2})
    launcher.run(study)
    ran = [next(run for run in study.expand() if run.run_id == name) for name in launcher.started]
    assert [run.repeat for run in ran] == [0] * 8 + [1] * 8
    orders = [[run.classes for run in ran[:8]], [run.classes for run in ran[8:]]]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(2, 10))
    assert list(range(2, 10)) not in orders
    assert orders[0] != orders[1]
    launcher.started.clear()
    launcher.run(study, retry_failed=True)
    failed = [run.run_id for run in ran if run.classes == 7]
    assert launcher.started == failed, "what is left keeps its order"


def test_a_study_of_accuracy_may_have_several_runs_at_work(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = grid(schedule=["step", "cosine"], classes=[5, 7, 9])
    alive: list[FakeJob] = []
    most = []

    class SlowJob(FakeJob):
        """Ends when it was looked at some times."""

        looks = 0

        @property
        def ended(self) -> bool:
            self.looks += 1
            return self.looks > 3

        def wait(self, timeout: float | None = None) -> RunRecord:
            alive.remove(self)
            return super().wait(timeout)

    def submit(run_dir: Path) -> Any:
        alive.append(SlowJob(run_dir))
        most.append(len(alive))
        return alive[-1]

    entries = run_study(study, results(), progress=False, parallel=2, submit=submit)
    assert sorted(item.state for item in entries) == ["completed"] * 4 + ["failed"] * 2
    assert (len(most), max(most)) == (6, 2)


def test_runs_that_would_slow_each_other_are_not_at_work_together(launcher: FakeLauncher) -> None:
    with pytest.raises(SpecError, match="leave out --parallel"):
        launcher.run(grid(classes=[5, 9]), parallel=2)
    with pytest.raises(SpecError, match="leave out --parallel"):
        launcher.run(grid(optimizer=["sgd", "lars"]), parallel=2)


def test_what_was_stopped_from_outside_goes_on_without_asking() -> None:
    study = grid(classes=[5])
    (item,) = plan(study, results())
    change(item, status="failed", error=Failure(kind="Interrupted", message="stopped"))
    assert [left.spec for left in pending(ledger(study, results()))] == [item.spec]


def test_what_slurm_has_queued_is_not_run_here(launcher: FakeLauncher, stand_ins: StandIns) -> None:
    study = grid(classes=[5, 9])
    waits, gone = plan(study, results())
    change(waits, status="submitted", job_id="0")
    change(gone, status="submitted", job_id="1")
    stand_ins.add("squeue", f"0|ddl-{waits.spec.run_id}|PENDING|Priority\n")
    stand_ins.add("sacct")
    launcher.run(study)
    assert launcher.started == [gone.spec.run_id]
    # A run that failed may be tried again by its block.
    change(waits, status="failed", error=Failure.of("Killed", "killed"))
    stand_ins.add("squeue", "0|ddl-grid-1x1-r0|RUNNING|None\n")
    launcher.run(study, retry_failed=True)
    assert launcher.started == [gone.spec.run_id]
    stand_ins.add("squeue", error="no controller", status=1)
    with pytest.raises(LaunchError, match="no controller"):
        launcher.run(study)


def test_slurm_is_not_asked_about_runs_that_no_job_had(
    launcher: FakeLauncher, stand_ins: StandIns
) -> None:
    stand_ins.add("squeue", error="no controller", status=1)
    assert launcher.run(grid(classes=[5])) == ["completed"]
    assert stand_ins.calls("squeue") == []


def test_what_was_submitted_elsewhere_is_run_on_demand_where_there_is_no_slurm(
    launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = grid(classes=[5])
    (item,) = plan(study, results())
    change(item, status="submitted", job_id="7")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launcher.run(study) == ["submitted"]
    assert launcher.run(study, retry_failed=True) == ["completed"]


def test_a_damaged_record_is_set_aside_on_demand_only(launcher: FakeLauncher) -> None:
    study = grid(classes=[5])
    (item,) = plan(study, results())
    record, lines = RunFiles(item.directory).record, RunFiles(item.directory).epochs
    record.write_text("{")
    lines.write_text("of the old record")
    assert launcher.run(study) == ["damaged"]
    assert launcher.run(study, retry_failed=True) == ["completed"]
    assert not lines.exists()
    assert lines.with_name("epochs.jsonl.damaged").read_text() == "of the old record"
    record.write_text("[")
    launcher.run(study, retry_failed=True)
    kept = [record.with_suffix(f".json.damaged{number}").read_text() for number in ("", "1")]
    assert kept == ["{", "["]


def test_what_cannot_be_run_is_refused_at_once(launcher: FakeLauncher) -> None:
    with (
        exclusive(results().study("grid") / ".lock", "test"),
        pytest.raises(LaunchError, match="study 'grid' is being run by another process"),
    ):
        launcher.run(grid(classes=[5]))
    with pytest.raises(DataError, match="ddl data sample"):
        launcher.run(grid(loader=["native"]))
    assert launcher.started == []
    assert list(results().study("grid").glob("*/run.json")) == []


def test_interrupting_a_study_cancels_the_run_at_work(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[Path] = []

    class Endless(FakeJob):
        ended = False

        def interrupt(self) -> None:
            cancelled.append(self.run_dir)
            self.ended = True

        def join(self, timeout: float) -> None:
            assert self.ended

    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "submit", Endless)
    monkeypatch.setattr(module, "wait", press)
    study = grid(classes=[5, 9])
    with pytest.raises(KeyboardInterrupt):
        launcher.run(study)
    (one,) = cancelled
    assert one in [item.directory for item in ledger(study, results())]


def test_a_study_is_found_by_name_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ({"local_batch_size": [64], "loader": ["synthetic"]}, r"global batch of 64 images"),
        ({"classes": [3]}, r"classes = 3, but .* has 4 class folders"),
    ],
)
@pytest.mark.usefixtures("launcher")
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
    assert not run_dirs("own", tree)
