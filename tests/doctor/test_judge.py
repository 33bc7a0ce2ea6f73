"""Each fault among ranks is found, with its remedy; a healthy probe has none."""

from typing import Any

import pytest

from ddl_tools.records.probe import Answer, Folder
from ddl_tools.records.run import Failure
from tests.doctor.made import ETHERNET, INFINIBAND, LOOPBACK, READING, answer, judged, record


def test_a_healthy_probe_has_no_fault() -> None:
    found = judged(record(answer(0), answer(1)))
    assert {one.state for one in found.values()} == {"ok"}
    assert found["cores of ranks"].detail == "2 for each rank, none shared"
    assert found["connections"].detail == "over eth0 (1000 Mbit/s)"


def pair(first: list[int], second: list[int]) -> list[Answer]:
    return [answer(0, cores=first, loader_cores=[]), answer(1, cores=second, loader_cores=[])]


@pytest.mark.parametrize(
    ("first", "second", "state", "words"),
    [
        ([0], [0], "bad", "ranks 0 and 1 share cores 0 of node1"),
        ([0, 1], [1, 2], "bad", "share cores 1 of"),
        ([0, 1, 2, 3], [0, 1, 2, 3], "warn", "ranks 0-1 share cores 0-3 of node1: not bound"),
        ([0, 1], [2, 3], "ok", "none shared"),
    ],
)
def test_ranks_that_share_cores(first, second, state, words) -> None:
    found = judged(record(*pair(first, second)))["cores of ranks"]
    assert found.state == state
    assert words in found.detail
    assert state == "ok" or "cpu_bind" in found.remedy


def test_fewer_cores_than_the_site_grants() -> None:
    found = judged(record(answer(0), answer(1), cores_per_rank=8))["cores of ranks"]
    assert found.state == "bad"
    assert "2 core(s) of the 8 asked for" in found.detail


def test_loader_processes_bound_with_their_parent() -> None:
    found = judged(record(answer(cores=[0, 1, 2, 3], loader_cores=[[0], [0]])))
    assert found["loader processes"].state == "bad"
    assert "may use cores 0 of its 0-3" in found["loader processes"].detail
    assert "OMP_PROC_BIND" in found["loader processes"].remedy


def test_more_busy_threads_than_cores() -> None:
    found = judged(record(answer(), spec={"loader_workers": 8}))["busy threads"]
    assert found.state == "warn"
    assert "9 busy threads on 2 cores" in found.detail


def gpu(rank: int, uuid: str) -> Answer:
    device = {"device": "cuda", "accelerator": "NVIDIA A100"}
    return answer(rank, device=device, device_id=uuid)


def test_two_ranks_on_one_device() -> None:
    found = judged(record(gpu(0, "GPU-1"), gpu(1, "GPU-1")))["devices"]
    assert found.state == "bad"
    assert "ranks 0 and 1 both compute on GPU-1" in found.detail
    assert judged(record(gpu(0, "GPU-1"), gpu(1, "GPU-2")))["devices"].state == "ok"


def test_too_little_shared_memory_for_the_loaders() -> None:
    need = 8 * 2 * 64 * 3 * 224 * 224 * 4  # workers x prefetch x batch x channels x pixels x bytes
    spec = {"loader_workers": 8}
    enough = record(answer(shared_memory_bytes=need), spec=spec)
    assert judged(enough)["/dev/shm"].state == "ok"
    found = judged(record(answer(shared_memory_bytes=need - 1), spec=spec))["/dev/shm"]
    assert found.state == "bad"
    assert "--shm-size" in found.remedy


@pytest.mark.parametrize(
    ("limits", "shards", "state"),
    [
        ((20000, 20000), 1024, "ok"),
        ((1024, 4096), 1024, "warn"),
        ((256, 4096), None, "warn"),
        ((-1, -1), 1024, "ok"),
    ],
)
def test_open_files(limits, shards, state) -> None:
    reading = READING.model_copy(update={"shards": shards})
    found = judged(record(answer(open_files=limits, reading=reading)))["open files"]
    assert found.state == state
    if state == "warn":
        assert "ulimit -n 4096" in found.remedy


def test_a_cache_that_cannot_be_written() -> None:
    folder = Folder(
        variable="TORCH_HOME", path="/x", file_system="nfs", error="Read-only file system"
    )
    found = judged(record(answer(caches=[folder])))["caches of ranks"]
    assert found.state == "bad"
    assert "TORCH_HOME = /x on node1: Read-only file system" in found.detail


@pytest.mark.parametrize(
    ("variable", "value", "missing"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", None),
        ("GLOO_SOCKET_IFNAME", "eth", "eth"),
        ("HOROVOD_GLOO_IFACE", "ib0", "ib0"),
        ("NCCL_SOCKET_IFNAME", "eth", None),
        ("NCCL_SOCKET_IFNAME", "=eth", "eth"),
        ("NCCL_SOCKET_IFNAME", "^docker,ib", None),
        ("NCCL_SOCKET_IFNAME", "eth0,hsn1", "hsn1"),
    ],
)
def test_interfaces_that_variables_name(variable, value, missing) -> None:
    found = judged(record(answer(wanted_interfaces={variable: value})))["interface"]
    assert found.state == ("bad" if missing else "ok")
    if missing:
        assert f"{variable} = {value!r}: node1 has no {missing!r}" in found.detail
        assert "there are: lo, eth0" in found.remedy


def test_a_slower_interface_than_there_is() -> None:
    three = [LOOPBACK, ETHERNET, INFINIBAND]
    found = judged(record(answer(0, interfaces=three), answer(1)))["connections"]
    assert found.state == "warn"
    assert "slower than ib0" in found.detail
    used = answer(0, interfaces=three, used_interfaces=["ib0"])
    assert judged(record(used))["connections"].state == "ok"
    down = INFINIBAND.model_copy(update={"addresses": []})
    idle = answer(0, interfaces=[LOOPBACK, ETHERNET, down])
    assert judged(record(idle))["connections"].state == "ok"


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "ok", "100 us for 1 KiB, bus bandwidth 1.05 GB/s at 1 MiB"),
        ({"sum_is_right": False}, "bad", "wrong on ranks 0"),
        ({"omitted_bytes": [2**22, 2**24]}, "warn", "4 MiB and more left out: over 60 s"),
        ({"all_reduce": []}, "unknown", "did not come so far"),
    ],
)
def test_all_reduce(changes: dict[str, Any], state, words) -> None:
    found = judged(record(answer(0, **changes), answer(1)))["all-reduce"]
    assert found.state == state
    assert words in found.detail


def test_reading_slower_than_decoding() -> None:
    """100 images/s a core can be decoded; 1000 are read from disk, then 50."""
    assert judged(record(answer()))["reading"].state == "ok"
    slow = READING.model_copy(update={"cold_s": 2.0})
    found = judged(record(answer(reading=slow)))["reading"]
    assert found.state == "warn"
    assert "50 images/s (5 MB/s), again 2000" in found.detail
    assert "at most 200 images/s" in found.detail


def test_a_rank_that_sees_no_data() -> None:
    blind = answer(1, reading=None, reading_error="cannot read /data/train: No such file\nmore")
    found = judged(record(answer(0), blind))["reading"]
    assert found.state == "bad"
    assert found.detail.endswith("rank 1 on node1: cannot read /data/train: No such file")


def test_a_failed_probe_says_why_and_what_its_ranks_could_tell() -> None:
    error = Failure(kind="Timeout", message="no progress for 5 s", rank=1)
    found = judged(record(answer(0), status="failed", error=error))
    assert found["ranks"].state == "bad"
    assert found["ranks"].detail == "rank 1: no progress for 5 s"
    assert found["cores of ranks"].state == "ok"
    assert list(judged(record(status="failed", error=error))) == ["ranks"]


def test_a_job_that_still_waits_is_unknown() -> None:
    found = judged(record(status="planned", job_id="17"))
    assert found["ranks"].state == "unknown"
    assert "ddl doctor --show" in found["ranks"].remedy
