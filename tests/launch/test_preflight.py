from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_core.data.tfrecord import ENCODED, LABEL
from ddl_core.errors import DataError, NotInstalledError, RecordError, SpecError
from ddl_tools.datasets.records import example, frame, write_index
from ddl_tools.gpus import count
from ddl_tools.launch import preflight
from ddl_tools.launch.preflight import check_data, check_room, check_run
from tests.launch.stand_ins import StandIns


def ddp(ranks: int, **fields: Any) -> RunSpec:
    return RunSpec(strategy="ddp", gpus_per_node=ranks, **fields)


@pytest.fixture(autouse=True)
def _two_cores_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.limits, "cores", lambda: 2.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def gpus(stand_ins: StandIns) -> StandIns:
    """A driver tool that lists three GPUs."""
    lines = [f"550.54.15, GPU-{letter}, NVIDIA A100, 40 GB" for letter in "abc"]
    stand_ins.add("nvidia-smi", "\n".join([*lines, ""]))
    return stand_ins


def test_ranks_are_counted_against_gpus(gpus: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    check_run(ddp(3))
    with pytest.raises(SpecError, match=r"gpus_per_node = 4.*3 GPUs"):
        check_run(ddp(4))
    with pytest.raises(SpecError, match=r"gpus_per_node = 3.*2 cores"):
        check_run(ddp(3, device="cpu"))


def test_ranks_share_cores_only_if_the_run_says_so(gpus: StandIns) -> None:
    with pytest.raises(SpecError, match="oversubscribe"):
        check_run(ddp(4, device="cpu"))
    check_run(ddp(4, device="cpu", oversubscribe=True))


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(SpecError, match="global batch of 128 images"):
        check_run(ddp(2, local_batch_size=64, train_images=127))
    check_run(ddp(2, local_batch_size=64, train_images=128))
    several = {"min_steps_per_epoch": 3, "eval_every": 0}  # passes over the same images
    check_run(ddp(2, local_batch_size=64, train_images=127, **several))


def test_more_profiled_steps_than_an_epoch_has_are_refused() -> None:
    few = {"local_batch_size": 16, "train_images": 128, "epochs": 2}  # 8 steps
    check_run(RunSpec(**few, profile_steps=5))
    with pytest.raises(SpecError, match=r"profile_steps = 6, .* 8 steps, .* at most 5"):
        check_run(RunSpec(**few, profile_steps=6))
    check_run(RunSpec(**few, profile_steps=6, min_steps_per_epoch=9, eval_every=0))


OURS = """
raise SystemExit("this is never imported")
from elsewhere import large
class Small: pass
if large:
    def medium(classes): pass
"""


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with networks, which Python finds."""
    package = tmp_path / "our_networks"
    package.mkdir()
    (package / "__init__.py").write_text(OURS)
    (package / "hidden.py").write_text("from elsewhere import *\n")
    monkeypatch.syspath_prepend(tmp_path)
    return package


@pytest.mark.usefixtures("ours")
def test_the_name_of_a_network_is_looked_up_before_ranks_start() -> None:
    for name in (":Small", ":medium", ":large", ".hidden:anything", ".gone:left_to_ranks"):
        check_run(RunSpec(model=f"our_networks{name}"))
    with pytest.raises(SpecError, match=r"our_networks has no 'Smal'; did you mean Small\?"):
        check_run(RunSpec(model="our_networks:Smal"))
    with pytest.raises(SpecError, match="has no 'x'; choose one of: Small, medium "):
        check_run(RunSpec(model="our_networks:x"))
    with pytest.raises(NotInstalledError, match=r"finds no 'nobodys'; .* PYTHONPATH"):
        check_run(RunSpec(model="nobodys.net:x"))


def test_without_torch_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    with pytest.raises(NotInstalledError, match="make env"):
        check_run(RunSpec())


def test_compiling_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    check_run(RunSpec())
    with pytest.raises(NotInstalledError, match=r"no C compiler \(neither cc nor gcc"):
        check_run(RunSpec(compile=True))
    for name in ("gcc", "other"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    check_run(RunSpec(compile=True))
    (tmp_path / "gcc").unlink()
    monkeypatch.setenv("CC", "other")
    check_run(RunSpec(compile=True))


@pytest.mark.parametrize(
    ("visible", "number"),
    [
        (None, 3),
        ("0,2", 2),
        ("1", 1),
        ("GPU-b,GPU-a", 2),
        ("MIG-7", 1),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("0,7,1", 1),
        ("4,5,6,7", 0),
    ],
)
def test_gpus_are_those_that_the_driver_lists_and_the_shell_leaves_us(
    gpus: StandIns, monkeypatch: pytest.MonkeyPatch, visible: str | None, number: int
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count() == number


def test_data_that_are_not_whole_are_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing does not exist.*ddl data sample.*--data DIR"):
        check_data(tmp_path / "nothing", "folder")
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="val: No such file"):
        check_data(tmp_path, "folder")
    (tmp_path / "val").mkdir()
    with pytest.raises(DataError, match="has no class folders"):
        check_data(tmp_path, "folder")
    (tmp_path / "train" / "cat").mkdir()
    check_data(tmp_path, "folder")
    with pytest.raises(DataError, match="ddl data convert"):
        check_data(tmp_path, "tfrecord")
    (tmp_path / "tfrecord").mkdir()
    (tmp_path / "tfrecord" / "train-00000-of-00001").touch()
    with pytest.raises(DataError, match="ddl data index"):
        check_data(tmp_path, "tfrecord")


@pytest.mark.parametrize(
    ("features", "words"),
    [({}, "no feature image/class/label"), ({LABEL: 0}, "labels count from 1")],
)
def test_records_without_a_label_are_named_before_ranks_start(
    features: dict[str, int], words: str, tmp_path: Path
) -> None:
    shard = tmp_path / "train-00000-of-00001"
    content = frame(example({ENCODED: b"", **features}))
    shard.write_bytes(content)
    write_index(shard, [(0, len(content))])
    with pytest.raises(DataError, match=words):
        check_data(tmp_path, "tfrecord")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"cannot write .*file/results: Not a directory"):
        check_room(tmp_path / "file" / "results")


def test_a_job_gives_way_to_as_many_nodes_as_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    with pytest.raises(SpecError, match=r"this machine only.*`ddl study submit`"):
        check_run(ddp(1, nodes=2))  # a job by hand, which has not said how to start ranks
    monkeypatch.setenv("DDL_SRUN", "srun")
    check_run(ddp(4, nodes=2))  # more ranks than this node has cores for: they were granted
    with pytest.raises(SpecError, match="nodes = 3, but this SLURM job has 2"):
        check_run(ddp(1, nodes=3))
    with pytest.raises(SpecError, match="global batch"):
        check_run(ddp(1, nodes=2, local_batch_size=64, train_images=127))
