"""Real ranks over gloo: what they find, with nothing wrong and with faults planted."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError, SpecError
from ddl_tools.doctor.finding import Finding
from ddl_tools.doctor.judge import judge
from ddl_tools.doctor.probe.network import SIZES
from ddl_tools.doctor.probes import plan_probe, probe_name, run_probe
from ddl_tools.launch import local_ranks, measuring, ranks
from ddl_tools.records.ledger import plan_one
from ddl_tools.records.paths import ProbeFiles, Tree
from ddl_tools.records.probe import ProbeRecord, read_probe
from tests.launch.running import processes_of
from tests.pictures import write_pictures

IMAGES = 6  # of each rank and split
TWO_RANKS = {
    "work": "probe",
    "strategy": "ddp",
    "gpus_per_node": 2,
    "loader_workers": 1,
    "device": "cpu",
}

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("images"), 2 * IMAGES, 2 * IMAGES)


def probed(
    root: Path, data_dir: Path, on_step: Callable[[str], None] = lambda _: None
) -> tuple[ProbeRecord, dict[str, Finding]]:
    """Make a probe that ends in a few seconds; return its record and its findings."""
    spec = RunSpec.parse(TWO_RANKS)
    record = ProbeRecord(
        name=probe_name(spec, None),
        site=None,
        spec=spec,
        data_dir=str(data_dir),
        collective_limit_s=1.0,
    )
    directory = Tree(root).probes / record.name
    plan_probe(directory, record)
    found = run_probe(directory, on_step)
    assert read_probe(directory) == found
    return found, {one.subject: one for one in judge(found, directory)}


def test_probes_that_begin_within_a_second_have_folders_of_their_own() -> None:
    spec = RunSpec.parse(TWO_RANKS)
    began = time.monotonic()
    names = {probe_name(spec, "site") for _ in range(10)}
    assert time.monotonic() - began < 1
    assert len(names) == 10


def test_two_ranks_find_out_everything(images: Path, tmp_path: Path) -> None:
    steps: dict[str, bool] = {}

    def on_step(step: str) -> None:
        steps[step] = measuring.HELD in os.environ

    probe, found = probed(tmp_path, images, on_step=on_step)
    assert probe.status == "completed", probe.error
    assert probe.system
    assert probe.provenance
    assert steps
    assert all(steps.values())  # nobody else measures on this machine meanwhile
    assert [one.rank for one in probe.answers] == [0, 1]
    assert not [one for one in found.values() if one.state == "bad"], found
    for one in probe.answers:
        assert set(one.cores) == os.sched_getaffinity(0)
        assert one.loader_cores == [one.cores]
        assert one.used_interfaces == ["lo"]
        assert one.sum_is_right is True
        assert one.reading.images == one.reading.decoded == IMAGES
    read = sum(one.reading.bytes for one in probe.answers)
    assert read == sum(file.stat().st_size for file in (images / "train").rglob("*.JPEG"))
    first = probe.answers[0]
    measured = [one.bytes for one in first.all_reduce]
    assert tuple(measured + first.omitted_bytes) == SIZES
    assert measured
    for times in (first.all_reduce, first.all_gather, first.reduce_scatter):
        assert times
        assert all(0 < one.seconds_min <= one.seconds <= one.seconds_max for one in times)
    assert not processes_of(tmp_path)


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Bind this process, and what it starts, to one core."""
    monkeypatch.delenv(local_ranks.SERVER, raising=False)  # it was started before
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, before)


def test_a_shared_core_a_blocked_cache_and_missing_data_are_found_together(
    tmp_path: Path, one_core: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "file" / "torch"))
    probe, found = probed(tmp_path, tmp_path / "nowhere")
    assert probe.status == "completed", probe.error
    assert found["cores of ranks"].state == "bad"
    assert f"ranks 0 and 1 share cores {one_core} of" in found["cores of ranks"].detail
    assert found["caches of ranks"].state == "bad"
    assert "TORCH_HOME" in found["caches of ranks"].detail
    assert found["reading"].state == "bad"
    assert "nowhere" in found["reading"].detail
    assert probe.answers[0].loader_cores == [[one_core]]
    assert probe.answers[0].all_reduce


def test_a_wrong_interface_is_named_and_ends_the_probe(images, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib9")
    probe, found = probed(tmp_path, images)
    assert probe.status == "failed"
    assert found["interface"].state == "bad"
    assert "has no 'ib9'" in found["interface"].detail
    assert "lo" in found["interface"].remedy
    assert found["ranks"].state == "bad"
    assert not processes_of(tmp_path)


@pytest.mark.extended
def test_a_rank_that_does_not_answer_is_named(images, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "PROBE_WORKER", "tests.doctor.silent_probe")
    monkeypatch.setenv("DDL_SETUP_TIMEOUT", "40")  # rank 0 waits, until the other can be heard
    probe, found = probed(tmp_path, images)
    assert probe.status == "failed"
    assert (probe.error.kind, probe.error.rank) == ("Timeout", 1)
    assert "rank 0 at 'joining the group'" in found["ranks"].detail
    assert "rank 1 at 'thinking'" in found["ranks"].detail
    assert not processes_of(tmp_path)


def test_a_probe_is_no_run_of_a_study(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="only `ddl doctor`"):
        plan_one(RunSpec.parse(TWO_RANKS), "small", Tree(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"probe_version": 99}, "probe version 99"),
        ({"surprise": 1}, "unknown field"),
        (None, "JSON"),
    ],
)
def test_a_record_is_read_strictly(tmp_path: Path, change, words) -> None:
    spec = RunSpec.parse(TWO_RANKS)
    directory = tmp_path / "x"
    plan_probe(directory, ProbeRecord(name="x", site=None, spec=spec))
    file = ProbeFiles(directory).record
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | change) if change else "{")
    with pytest.raises(RecordError, match=words):
        read_probe(directory)
