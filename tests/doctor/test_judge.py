"""Each fault among ranks is found, with its remedy; a healthy probe has none."""

from typing import Any

import pytest

from ddl_tools.records.probe import Collective, Folder, Gpu, Nccl, Port, ProbeRecord
from ddl_tools.records.run import Failure
from tests.doctor.made import (
    ETHERNET,
    INFINIBAND,
    LOOPBACK,
    READING,
    answer,
    judged,
    record,
    size,
)

# What the loaders of one rank may hold: workers x prefetch x batch x channels x pixels x bytes.
BATCHES = 8 * 2 * 64 * 3 * 224 * 224 * 4
EIGHT = {"loader_workers": 8}
THREE = [LOOPBACK, ETHERNET, INFINIBAND]
DOWN = INFINIBAND.model_copy(update={"addresses": []})
BLOCKED = Folder(variable="TORCH_HOME", path="/x", file_system="nfs", error="Read-only file system")
FIVE_ON_ONE = record(*(answer(rank, cores=[0], loader_cores=[]) for rank in range(5)))
BLIND = "cannot read /data/train: No such file\nmore"


def cores(first: list[int], second: list[int], **changes: Any) -> ProbeRecord:
    """Two ranks that may use these cores."""
    return record(
        answer(0, cores=first, loader_cores=[]), answer(1, cores=second, loader_cores=[], **changes)
    )


def gpus(*uuids: str) -> ProbeRecord:
    device = {"device": "cuda", "accelerator": "NVIDIA A100"}
    return record(*(answer(n, device=device, device_id=one) for n, one in enumerate(uuids)))


def files(limits: tuple[int, int], shards: int | None) -> ProbeRecord:
    reading = READING.model_copy(update={"shards": shards})
    return record(answer(open_files=limits, reading=reading))


def interface(variable: str, value: str) -> ProbeRecord:
    return record(answer(wanted_interfaces={variable: value}))


def inside(**facts: Any) -> ProbeRecord:
    """Two ranks in a container."""
    known = {"container": "pyxis ddl.sqsh", "python": "3.1.0", "packages": {"torch": "2.13.0"}}
    return record(answer(0), answer(1), provenance={**known, **facts})


def two(**changes: Any) -> ProbeRecord:
    return record(answer(0, **changes), answer(1))


IB = Nccl(version="2.28.9", network="IB", channels={"P2P/CUMEM/read": 8, "NET/IB/GDRDMA": 4})
COPIED = IB.model_copy(update={"channels": {"NET/IB": 4}})
SOCKETS = Nccl(network="Socket", channels={"NET/Socket": 2})
MLX = Port(name="mlx5_0:1", layer="InfiniBand", gbit_per_s=200.0)
QUICK = [size(1024, 1e-5), size(2**28, 0.0125)]  # two ranks: 21.5 GB/s


def hosts(*, all_reduce: list[Collective] = QUICK, **changes: Any) -> ProbeRecord:
    """One rank on each of two hosts."""
    return record(answer(0, all_reduce=all_reduce, **changes), answer(1, host="node2", **changes))


def board(**changes: Any) -> Gpu:
    healthy = {
        "uncorrected_ecc": 0,
        "pending_rows": False,
        "clock_mhz": 1700,
        "clock_max_mhz": 1980,
        "nvlink_bytes_per_s": None,
    }
    return Gpu.model_validate(healthy | changes)


def boards(first: Gpu, second: Gpu) -> ProbeRecord:
    return record(
        answer(0, gpu=first, device_id="GPU-1", all_reduce=QUICK),
        answer(1, gpu=second, device_id="GPU-2"),
    )


@pytest.mark.parametrize(
    ("subject", "probe", "state", "detail"),
    [
        ("bandwidth", hosts(nccl=IB, ports=[MLX]), "ok", "21.5 of the 25 GB/s of mlx5_0:1 (86%)"),
        ("bandwidth", hosts(nccl=IB, ports=[MLX, MLX, MLX]), "warn", "21.5 of the 75 GB/s"),
        # Sockets over Ethernet with 1 Gbit/s.
        ("bandwidth", hosts(all_reduce=[size(2**20, 0.01)]), "ok", "0.105 of the 0.125 GB/s of e"),
        ("bandwidth", hosts(all_reduce=[size(2**20, 0.1)]), "warn", "0.0105 of the 0.125 GB/s"),
        (
            "bandwidth",
            boards(board(nvlink_bytes_per_s=25e9), board(nvlink_bytes_per_s=25e9)),
            "ok",
            "each GPU's NVLinks (86%)",
        ),
        ("nccl", hosts(nccl=IB, ports=[MLX]), "ok", "network IB; 16 channels by P2P/CUMEM/read, 8"),
        ("nccl", hosts(nccl=SOCKETS, ports=[MLX]), "warn", "sockets, although node1 has mlx5_0:1"),
        ("nccl", hosts(nccl=SOCKETS), "ok", "network Socket; 4 channels by NET/Socket"),
        ("nccl", hosts(nccl=COPIED, ports=[MLX]), "warn", "without GPUDirect RDMA"),
        ("gpu state", boards(board(), board()), "ok", "1700 to 1700 MHz at work, at most 1980"),
        ("gpu state", boards(board(), board(uncorrected_ecc=2)), "bad", "GPU-2 of node1 (rank 1)"),
        ("gpu state", boards(board(pending_rows=True), board()), "bad", "next reset"),
        ("gpu state", boards(board(), board(clock_mhz=1200)), "warn", "rank 1 on node1"),
        ("gpu state", boards(board(clock_mhz=None), board()), "ok", "1700 to 1700"),
    ],
)
def test_the_network_and_the_gpus(
    subject: str, probe: ProbeRecord, state: str, detail: str
) -> None:
    found = judged(probe)[subject]
    assert found.state == state, found
    assert detail in found.detail
    assert bool(found.remedy) is (state != "ok")


@pytest.mark.parametrize("probe", [two(), hosts(used_interfaces=["lo"])])
def test_what_is_not_known_of_the_network_is_not_judged(probe: ProbeRecord) -> None:
    assert not {"bandwidth", "nccl", "gpu state"} & judged(probe).keys()


def test_other_collectives_pass_their_data_once() -> None:
    found = judged(two(all_gather=[size(2**20, 1e-3)], reduce_scatter=[size(2**20, 2e-3)]))
    assert "bus bandwidth 0.52 GB/s at 1 MiB" in found["all-gather"].detail
    assert "bus bandwidth 0.26 GB/s at 1 MiB" in found["reduce-scatter"].detail


def test_a_healthy_probe_has_no_fault() -> None:
    found = judged(two())
    assert {one.state for one in found.values()} == {"ok"}
    assert "container" not in found
    assert found["cores of ranks"].detail == "2 for each rank, none shared"
    assert found["connections"].detail == "over eth0 (1000 Mbit/s)"


@pytest.mark.parametrize(
    ("subject", "probe", "state", "detail", "remedy"),
    [
        ("container", inside(), "ok", "Python 3.1.0, torch 2.13.0; outside Python 3.", ""),
        ("container", inside(not_pinned=["torch 2 (3)"]), "warn", "versions: torch 2 (3)", "image"),
        ("cores of ranks", cores([0], [0]), "bad", "ranks 0 and 1 share cores 0 of node1", "cpu_b"),
        ("cores of ranks", cores([0, 1], [1, 2]), "bad", "share cores 1 of", "cpu_bind"),
        ("cores of ranks", FIVE_ON_ONE, "bad", "and 5 more", "cpu_bind"),
        ("cores of ranks", cores([0, 1, 2, 5], [0, 1, 2, 5]), "warn", "share cores 0-2,5 of", "cp"),
        ("cores of ranks", cores([0], [0], host="node2"), "ok", "none shared", ""),
        (
            "cores of ranks",
            record(answer(0), answer(1), cores_per_rank=8),
            "bad",
            "2 cores of the 8 asked for",
            "cpus_per_rank",
        ),
        (
            "loader processes",
            record(answer(cores=[0, 1, 2, 3], loader_cores=[[0], [0]])),
            "bad",
            "may use cores 0 of its 0-3",
            "OMP_PROC_BIND",
        ),
        ("busy threads", record(answer(), spec=EIGHT), "warn", "9 busy threads on 2 cores", "few"),
        ("devices", gpus("GPU-1", "GPU-1"), "bad", "0 and 1 both compute on GPU-1", "gpu_bind"),
        ("devices", gpus("GPU-1", "GPU-2"), "ok", "a GPU for each rank", ""),
        ("/dev/shm", record(answer(shared_memory_bytes=BATCHES), spec=EIGHT), "ok", "free", ""),
        (
            "/dev/shm",
            record(answer(shared_memory_bytes=BATCHES - 1), spec=EIGHT),
            "bad",
            "free on node1",
            "--shm-size",
        ),
        ("open files", files((20000, 20000), 1024), "ok", "20000", ""),
        ("open files", files((1024, 4096), 1024), "warn", "256 of 1024", "ulimit -n 4096"),
        ("open files", files((-1, -1), 1024), "ok", "no limit", ""),
        ("caches of ranks", two(caches=[BLOCKED]), "bad", "TORCH_HOME = /x on node1: Read", "TOR"),
        ("interface", interface("GLOO_SOCKET_IFNAME", "eth"), "bad", "has no 'eth'", "lo, eth0"),
        ("interface", interface("NCCL_SOCKET_IFNAME", "eth"), "ok", "eth", ""),
        ("interface", interface("NCCL_SOCKET_IFNAME", "=eth"), "bad", "has no 'eth'", "lo, eth0"),
        ("interface", interface("NCCL_SOCKET_IFNAME", "^docker,ib"), "ok", "ib", ""),
        ("interface", interface("NCCL_SOCKET_IFNAME", "eth0,hsn1"), "bad", "no 'hsn1'", "lo, eth0"),
        ("connections", two(interfaces=THREE), "warn", "slower than ib0", "gloo_interface"),
        ("connections", record(answer(interfaces=THREE, used_interfaces=["ib0"])), "ok", "ib0", ""),
        ("connections", record(answer(interfaces=[LOOPBACK, ETHERNET, DOWN])), "ok", "eth0", ""),
        ("all-reduce", two(), "ok", "100 us for 1 KiB, bus bandwidth 1.05 GB/s at 1 MiB", ""),
        ("all-reduce", two(sum_is_right=False), "bad", "wrong on ranks 0", "NCCL"),
        ("all-reduce", two(omitted_bytes=[2**22, 2**24]), "warn", "4 MiB and more left out", "fas"),
        ("all-reduce", two(all_reduce=[]), "unknown", "did not come so far", "--ranks"),
        # 100 images/s a core can be decoded; 1000 are read from disk, then 50.
        ("reading", record(answer()), "ok", "1000 images/s (100 MB/s), again 2000", ""),
        (
            "reading",
            record(answer(reading=READING.model_copy(update={"cold_s": 2.0}))),
            "warn",
            "50 images/s (5 MB/s), again 2000; the loaders' cores decode at most 200 images/s",
            "TFRecord",
        ),
        (
            "reading",
            record(answer(0), answer(1, reading=None, reading_error=BLIND)),
            "bad",
            "rank 1 on node1: cannot read /data/train: No such file",
            "--data DIR",
        ),
    ],
)
def test_what_is_found(subject, probe, state, detail, remedy) -> None:
    found = judged(probe)[subject]
    assert found.state == state
    assert detail in found.detail
    assert remedy in found.remedy


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
