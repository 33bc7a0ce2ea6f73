import json
import shutil

from click.testing import CliRunner

from ddl_tools.cli import main
from ddl_tools.datasets.bench import forget_files, measure


def bench(*arguments: str):
    done = CliRunner().invoke(main, ["bench", "loader", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_each_loader_is_measured_cold_warm_and_by_stage(data):
    few = ["--images", "16", "--local-batch-size", "8", "--image-size", "32", "--epochs", "1"]
    where = ["--data", str(data), "--threads", "0", "--json"]
    formats = ["--data-format", "folder", "--data-format", "tfrecord"]
    found = json.loads(bench(*few, *where, *formats, "--loader", "native", "--loader", "turbo"))
    assert [(one["loader"], one["data_format"]) for one in found] == [
        (loader, form) for loader in ("native", "turbo") for form in ("folder", "tfrecord")
    ]
    for one in found:
        stages = [rate["what"] for rate in one["rates"]]
        assert stages == ["cold", "warm", "read", "decode", "transform", "copy"]
        assert all(rate["images_per_s"] > 0 for rate in one["rates"])


def test_stages_leave_out_what_is_unreadable(data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "copy")
    first = min((folder / "train").glob("*/*"))
    first.write_bytes(b"no image")
    few = ["--local-batch-size", "8", "--image-size", "32", "--epochs", "1", "--threads", "0"]
    (found,) = json.loads(bench(*few, "--data", str(folder), "--json", "--loader", "native"))
    assert [rate["what"] for rate in found["rates"][2:]] == ["read", "decode", "transform", "copy"]


def test_work_that_is_shorter_than_a_tick_of_the_clock_has_a_rate():
    assert 0 < measure("all", 8, lambda: None, cpu_clock=lambda: 1.0).images_per_core_s < 1e6


def test_files_are_dropped_from_memory(data):
    assert forget_files(data, "folder") == 64
    path = next((data / "train" / "cat").iterdir())
    assert path.stat().st_size > 0  # and are still there
    assert forget_files(data, "tfrecord") == 3  # shards of training
