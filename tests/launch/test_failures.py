"""The class of a failure, told from failures that are made here.

Without a GPU and NCCL here, and as root of one machine, some cannot be made: their wording, in the
last test, is that of the libraries' and SLURM's sources.
"""

import os
import signal
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import torch

from ddl_core.errors import DataError, LaunchError
from ddl_tools.launch import diagnose
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.rank import recorder
from ddl_tools.records.failures import REMEDIES, Category, classify, remedy
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import Failure
from tests.launch.fixtures import Start
from tests.launch.running import (
    change,
    control_group,
    error_of,
    free_port,
    joining,
    planned,
    run_within,
    two_ranks,
    unshared,
)

MEETING = Path(__file__).with_name("meeting.py")


def test_every_class_has_a_remedy_of_one_line() -> None:
    assert set(REMEDIES) == set(get_args(Category))
    assert not [category for category in REMEDIES if "\n" in remedy(category)]


def class_of_error(process: "subprocess.Popen[str]") -> Category:
    """Return the class of the error whose kind and message a process prints."""
    said, errors = process.communicate(timeout=120)
    kind, _, message = said.partition("\n")
    assert kind, errors
    return classify(kind, message)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("what", "present", "category"),
    [
        ("alone", ["0"], "rendezvous"),
        pytest.param("no master", ["1"], "rendezvous", marks=pytest.mark.extended),
        pytest.param("silent", ["0", "1"], "collective", marks=pytest.mark.extended),
        ("killed", ["0", "1"], "collective"),
    ],
)
def test_ranks_that_do_not_meet_or_lose_one_another(
    start: Start, what: str, present: list[str], category: Category
) -> None:
    port = str(free_port())
    running = [start(str(MEETING), what, rank, port) for rank in present]
    assert class_of_error(running[0]) == category


LIMITED = """
import resource, torch
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    torch.empty(1 << 33)
except Exception as error:
    print(type(error).__name__, error, sep="\\n")
"""


def test_memory_that_is_refused(start: Start) -> None:
    assert class_of_error(start("-c", LIMITED)) == "out_of_memory"


@pytest.mark.multiprocess
def test_a_rank_that_the_system_ends_because_memory_runs_out() -> None:
    run_dir = planned(local_batch_size=512, train_images=512, image_size=224)
    with control_group("memory", "memory.max", "memory.limit_in_bytes", 10**9) as group:
        run_within(run_dir, *joining(group))
    error = error_of(run_dir)
    assert (error.kind, error.rank, error.category) == ("Killed", 0, "out_of_memory")
    assert diagnose.OOM_KILLER in error.message


@two_ranks
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("true", "ip link show lo"),
        ("ip link set lo up && ip addr del 127.0.0.1/8 dev lo", "127.0.0.1"),
    ],
)
def test_ranks_do_not_wait_for_one_another_without_a_loopback(command: str, words: str) -> None:
    run_dir = planned(gpus_per_node=2)
    run_within(run_dir, *unshared("net", command))
    error = error_of(run_dir)
    assert words in error.message
    assert (error.kind, error.category) == ("NotStarted", "environment")


@two_ranks
@pytest.mark.multiprocess
def test_horovod_is_not_started_where_it_would_crash() -> None:
    """Nothing resolves the name of this machine, e.g. of a laptop that was renamed."""
    pytest.importorskip("horovod")
    run_dir = planned(gpus_per_node=2, strategy="horovod")
    run_within(run_dir, *unshared("uts", "hostname renamed-laptop"))
    error = error_of(run_dir)
    assert (error.kind, error.category) == ("LaunchError", "environment")
    assert "renamed-laptop" in error.message


@two_ranks
@pytest.mark.multiprocess
def test_ddp_is_not_started_at_a_debug_level_at_which_it_crashes() -> None:
    run_dir = planned(gpus_per_node=2)
    run_within(run_dir, "env", "TORCH_DISTRIBUTED_DEBUG=DETAIL")
    error = error_of(run_dir)
    assert (error.kind, error.category) == ("LaunchError", "environment")
    assert "TORCH_DISTRIBUTED_DEBUG" in error.message


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("classes", "words", "kind", "category"),
    [
        (2, "DataError", "DataError", "data"),  # they cannot be read
        (1, "2 class folders", "SpecError", "settings"),
    ],
)
def test_images_that_a_rank_cannot_use(
    tmp_path: Path, classes: int, words: str, kind: str, category: Category
) -> None:
    for name in ("train/a", "train/b", "val/a", "val/b"):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for number in range(8):
            (folder / f"{number}.jpg").write_bytes(b"no image")
    run_dir = planned(loader="native", classes=classes, train_images=None, eval_images=None)
    change(run_dir, data_dir=str(tmp_path / "data"))
    with pytest.raises(LaunchError, match=words):
        run_ranks(run_dir)
    error = error_of(run_dir)
    assert (error.kind, error.rank, error.category) == (kind, 0, category)


def of_worker(files: RunFiles, error: Exception) -> Failure:
    """Return the failure that is recorded when a rank raises `error`."""
    try:
        raise error
    except Exception as raised:
        recorder.report(files.directory, raised)
    return diagnose.diagnose(files, files.logs, 1)


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (MemoryError(), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_memory"),
        (OSError(28, os.strerror(28), "/results/x"), "disk"),
        (OSError(122, os.strerror(122), "/results/x"), "disk"),
        (KeyError("layer4"), "code"),
        (ModuleNotFoundError("No module named 'deepspeed'"), "environment"),
    ],
)
def test_what_a_rank_raises(tmp_path: Path, error: Exception, category: Category) -> None:
    assert of_worker(RunFiles(tmp_path), error).category == category


def test_an_error_of_a_loaders_process_is_told_by_its_sentence(tmp_path: Path) -> None:
    class Images(torch.utils.data.Dataset[int]):
        def __getitem__(self, index: int) -> int:
            raise DataError("train/a.png was there\nand is gone now")

        def __len__(self) -> int:
            return 2

    with pytest.raises(DataError) as raised:
        list(torch.utils.data.DataLoader(Images(), num_workers=1))
    failure = of_worker(RunFiles(tmp_path), raised.value)
    assert failure.kind == "DataError"
    assert failure.message == "train/a.png was there\nand is gone now"


@pytest.mark.parametrize(
    ("text", "number", "state", "category"),
    [
        ("rank 0 was killed", signal.SIGKILL, "", "killed"),
        ("rank 0 was killed", signal.SIGINT, "", "killed"),
        ("rank 0 was killed", signal.SIGSEGV, "", "code"),
        ("rank 0 was killed", signal.SIGBUS, "", "code"),
        ("what():  Resource temporarily unavailable", signal.SIGABRT, "", "processes"),
        ("RuntimeError: can't start new thread", 1, "", "processes"),
        ("out of memory", signal.SIGKILL, "TIMEOUT", "time_limit"),  # the scheduler's word first
        ("no space left on device", signal.SIGKILL, "FAILED", "disk"),
    ],
)
def test_a_signal_from_outside_and_one_by_its_own_mistake(
    text: str, number: int, state: str, category: Category
) -> None:
    assert classify("Killed", text, exit_code=-number, state=state) == category
