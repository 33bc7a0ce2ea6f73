"""Whole runs with real processes: their records, and life after SIGKILL."""

import os
import shutil
import time
from pathlib import Path

import psutil
import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.progress import Standing
from ddl_tools.records.run import EpochRecord, RunRecord, read_epochs, read_record, write_record
from tests.launch.fixtures import Start
from tests.launch.running import CALLER, error_of, processes_of
from tests.pictures import write_pictures

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.usefixtures("planted_names")]

TINY = {
    "model": "resnet18",
    "image_size": 32,
    "classes": 4,
    "local_batch_size": 4,
    "loader_workers": 1,
    "epochs": 3,
    "discard_steps": 2,
    "warmup_epochs": 1,
    "schedule": "constant",
    "base_lr": 0.01,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Four classes; 37 training and 11 validation images: nothing divides evenly."""
    return write_pictures(tmp_path_factory.mktemp("images"), 37, 11)


def planned(directory: Path, data_dir: Path | None, **fields) -> Path:
    spec = RunSpec(**{**TINY, **fields})
    record = RunRecord.plan("test", spec, str(data_dir) if data_dir else None)
    write_record(directory, record)
    return directory


def rows(directory: Path, phase: str) -> list[EpochRecord]:
    return [row for row in read_epochs(directory) if row.phase == phase]


def losses(directory: Path) -> list[float]:
    return [row.loss for row in rows(directory, "train")]


def test_a_record_tells_what_was_run(images, tmp_path):
    fields = {"model": "tiny", "epochs": 2, "strategy": "ddp", "gpus_per_node": 2}
    directory = planned(tmp_path / "run", images, **fields)
    record = run_ranks(directory)
    assert record == read_record(directory)
    assert record.status == "completed"
    assert (record.data.train_images, record.data.eval_images, record.data.classes) == (37, 11, 4)
    assert record.system["device"] == "cpu"
    assert record.provenance["packages"]["torch"]
    assert record.system["speed_mb_per_s"] == 1000  # what the tests say
    assert record.system["cpu_details"]
    assert record.system["threads"]["compute"] == record.spec.cpu_threads
    assert record.system["affinity"]["shared"] in (True, False)
    assert record.system["environment"]["OMP_NUM_THREADS"] == "1"
    assert record.system["settings"]["foreach"] is False  # the CPU's default
    assert record.system["communication"]["library"] == "gloo"
    first, second = rows(directory, "train")
    assert (first.steps, first.samples) == (4, 32)  # 37 images, global batch 8: 5 are dropped
    assert (first.cold, second.cold) == (True, False)
    assert second.rank_wall_s_min <= second.rank_wall_s_max <= second.wall_s
    assert [row.samples for row in rows(directory, "eval")] == [11, 11]


def kill_everything_when(start: Start, directory: Path, due) -> None:
    """Start the run in a process of its own and SIGKILL all of it once `due()` holds."""
    caller = start("-c", CALLER, str(directory))
    end = time.monotonic() + 120
    while not due():
        assert caller.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < end, "the moment to kill the run never came"
        time.sleep(0.005)
    for process in processes_of(directory):
        process.kill()
    caller.kill()
    caller.wait()
    psutil.wait_procs(processes_of(directory), timeout=10)
    assert not processes_of(directory)
    assert read_record(directory).status == "running"  # it had no chance to say more


@pytest.mark.parametrize(
    "fields",
    [{}, {"strategy": "ddp", "gpus_per_node": 2, "local_batch_size": 2}],
    ids=["single", "ddp"],
)
@pytest.mark.extended
def test_a_killed_run_continues_to_the_same_weights(images, tmp_path, start, fields):
    undisturbed = planned(tmp_path / "undisturbed", images, **fields)
    want = run_ranks(undisturbed).weights_sha256
    killed = planned(tmp_path / "killed", images, **fields)
    kill_everything_when(start, killed, lambda: any(killed.glob(".checkpoint.pt.tmp")))
    kill_everything_when(start, killed, lambda: len(read_epochs(killed)) >= 3)
    record = run_ranks(killed)
    assert record.weights_sha256 == want
    assert [attempt.status for attempt in record.attempts] == ["failed", "failed", "completed"]
    assert [row.epoch for row in rows(killed, "train")] == [0, 1, 2]
    assert losses(killed) == losses(undisturbed)


def stop_after_an_epoch(progress: Standing) -> None:
    if progress["epoch"] >= 1:
        raise KeyboardInterrupt


def copied(image: Path) -> None:
    shutil.copy(image, image.with_name("copy.jpg"))


def renamed(image: Path) -> None:
    image.rename(image.with_name("z.jpg"))


def grown(image: Path) -> None:
    image.write_bytes(image.read_bytes() + b"\0")


def mirrored(image: Path) -> None:
    """Change what the image shows and not its size, nor when it was changed."""
    times = image.stat()
    image.write_bytes(image.read_bytes()[::-1])
    os.utime(image, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_run_does_not_go_on_with_other_data(tmp_path, images) -> None:
    """Labels would shift, and the record would know the last data only."""
    root = shutil.copytree(images, tmp_path / "images")
    directory = planned(tmp_path / "run", root, model="tiny", epochs=40)
    with pytest.raises(KeyboardInterrupt):
        run_ranks(directory, stop_after_an_epoch)
    before = read_record(directory).data
    for split, change, words in (
        ("train", copied, r"training images \(37 before, 38 now\)"),
        ("train", renamed, "names or labels of training images"),
        ("train", grown, r"bytes of training images \(\d+ before, \d+ now\)"),
        ("train", mirrored, "contents of training images"),
        ("val", grown, "bytes of validation images"),
        ("val", renamed, "names or labels of validation images"),
    ):
        kept = shutil.copytree(root / split, tmp_path / "kept")
        change(next((root / split / "class0").iterdir()))
        with pytest.raises(LaunchError, match=f"data have changed.*{words}"):
            run_ranks(directory)
        assert error_of(directory).category == "data"
        assert read_record(directory).data == before
        shutil.rmtree(root / split)
        kept.rename(root / split)
    assert run_ranks(directory).status == "completed"


def test_data_that_were_not_looked_into_are_compared_by_names(
    tmp_path, images, monkeypatch
) -> None:
    """Those of older records, or where it was postponed, which the record says."""
    root = shutil.copytree(images, tmp_path / "images")
    directory = planned(tmp_path / "run", root, model="tiny", epochs=40)
    monkeypatch.setenv("DDL_CONTENTS", "later")
    with pytest.raises(KeyboardInterrupt):
        run_ranks(directory, stop_after_an_epoch)
    monkeypatch.delenv("DDL_CONTENTS")
    data = read_record(directory).data
    assert (data.train, data.eval, data.postponed) == (None, None, True)
    grown(next((root / "train" / "class0").iterdir()))
    data = run_ranks(directory).data
    assert data.train.bytes > data.eval.bytes > 0
    assert not data.postponed
    (log,) = RunFiles(directory).attempt(1).glob("**/stderr.log")
    assert "compared without" in log.read_text()


def test_a_run_that_goes_on_with_other_code_says_so(tmp_path, images) -> None:
    directory = planned(tmp_path / "run", images, model="tiny", epochs=40)
    with pytest.raises(KeyboardInterrupt):
        run_ranks(directory, stop_after_an_epoch)
    record = read_record(directory)
    assert "began_with" not in record.provenance
    now = dict(record.provenance)
    record.provenance |= {"git_commit": "0123456789", "git_dirty": True}
    record.provenance["packages"] |= {"torch": "1.0"}
    write_record(directory, record)
    found = run_ranks(directory).provenance
    assert found["began_with"] == ["commit 01234567+", "torch 1.0"]
    assert found["git_commit"] == now["git_commit"]


def test_bad_images_are_counted_in_the_record(tmp_path, images):
    root = shutil.copytree(images, tmp_path / "images")
    bad = next((root / "train" / "class0").iterdir())
    bad.write_bytes(bad.read_bytes()[:200])
    directory = planned(tmp_path / "run", root, local_batch_size=37, epochs=2)
    run_ranks(directory)
    assert [row.corrupt_images for row in rows(directory, "train")] == [1, 1]


def test_nothing_holds_the_model_when_the_group_is_left(tmp_path, monkeypatch) -> None:
    """A DDP wrapper that outlives its group ended in a deadlock, one run of five.

    It destroys the group, waiting for Gloo's threads with the lock that these need.
    """
    monkeypatch.setattr("ddl_tools.launch.ranks.WORKER", "tests.holding_worker")
    few = {"train_images": 16, "eval_images": 4, "epochs": 1}
    directory = planned(tmp_path / "run", None, strategy="ddp", loader="synthetic", **few)
    assert run_ranks(directory).status == "completed"
    error = RunFiles(directory).error
    assert not error.exists(), error.read_text()


def test_an_error_does_not_hold_the_model_when_the_group_is_left(tmp_path, monkeypatch) -> None:
    """A rank that had failed in a step waited for ever in that deadlock."""
    monkeypatch.setattr("ddl_tools.launch.ranks.WORKER", "tests.holding_worker")
    root = write_pictures(tmp_path / "images", 16, 4)
    for file in (root / "train").glob("*/*"):
        file.write_bytes(b"no image")
    directory = planned(tmp_path / "run", root, strategy="ddp", gpus_per_node=2, epochs=1)
    with pytest.raises(LaunchError, match="DataError"):
        run_ranks(directory)
    logs = [path.read_text() for path in RunFiles(directory).logs.glob("**/stderr.log")]
    assert len(logs) == 2
    assert not any("outlives" in log for log in logs), logs


def test_a_rank_that_has_failed_and_stays_is_ended(images, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ddl_tools.launch.ranks.EXIT_GRACE_S", 2.0)
    directory = planned(tmp_path / "run", images, strategy="ddp_stays", gpus_per_node=2)
    with pytest.raises(LaunchError, match="ValueError: the first step failed"):
        run_ranks(directory)
    assert error_of(directory).rank in (0, 1)
