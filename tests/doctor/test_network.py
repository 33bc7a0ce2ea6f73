"""What a rank finds out about the network and its GPU, from made-up logs, files and programs."""

from pathlib import Path

import pytest

from ddl_core.strategies import RankInfo
from ddl_tools.doctor.probe import gpu, host, network
from ddl_tools.records.probe import Gpu
from tests.launch.stand_ins import StandIns

# In the form of NCCL 2.28 on two hosts with four GPUs each.
INFINIBAND = """\
n1:155:155 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib0
n1:155:155 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
n1:155:190 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>
n1:155:190 [0] NCCL INFO Using network IB
n1:155:190 [0] NCCL INFO Channel 00/02 :    0   1   2   3   4   5   6   7
n1:155:190 [0] NCCL INFO Channel 00/0 : 7[3] -> 0[0] [receive] via NET/IB/0/GDRDMA
n1:155:190 [0] NCCL INFO Channel 01/0 : 7[3] -> 0[0] [receive] via NET/IB/1/GDRDMA
n1:155:190 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
n1:155:190 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""
SOCKET = """\
n1:12:12 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
n1:12:40 [0] NCCL INFO NET/Socket : Using [0]eth0:192.168.1.14<0>
n1:12:40 [0] NCCL INFO Using network Socket
n1:12:40 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
n1:12:40 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct
"""
OLD = """\
n1:120890:121560 [0] NCCL INFO Channel 01 : 2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA
n1:120890:121560 [0] NCCL INFO Channel 02 : 0[87000] -> 1[8d000] [send] via NET/IB/4
"""
PLUG_IN = "n1:9:9 [6] NCCL INFO Channel 00/0 : 6[6] -> 38[6] [receive] via NET/IBext_v8/1\n"


@pytest.mark.parametrize(
    ("text", "chosen", "ways"),
    [
        (INFINIBAND, "IB", {"NET/IB/GDRDMA": 2, "P2P/CUMEM/read": 1}),
        (SOCKET, "Socket", {"NET/Socket": 1, "SHM/direct/direct": 1}),
        (OLD, None, {"NET/IB/GDRDMA": 1, "NET/IB": 1}),
        (PLUG_IN, None, {"NET/IBext_v8": 1}),
    ],
)
def test_nccl_says_what_it_has_chosen(
    tmp_path: Path, text: str, chosen: str | None, ways: dict[str, int]
) -> None:
    (tmp_path / "log").write_text(text)
    found = network.read_nccl_log(tmp_path / "log")
    assert found is not None
    assert (found.network, found.channels) == (chosen, ways)
    assert found.version == ("2.28.9+cuda13.0" if text == INFINIBAND else None)


def test_a_log_that_says_nothing_is_no_choice(tmp_path: Path) -> None:
    assert network.read_nccl_log(tmp_path / "absent") is None
    (tmp_path / "log").write_bytes(b"\xff\x00 Bootstrap")
    assert network.read_nccl_log(tmp_path / "log") is None


def test_active_ports_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"mlx5_0": "4: ACTIVE", "mlx5_1": "1: DOWN", "mlx5_2": "4: ACTIVE"}
    for name, state in states.items():
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        (port / "link_layer").write_text("InfiniBand\n")
    (tmp_path / "mlx5_3" / "ports" / "1").mkdir(parents=True)
    monkeypatch.setattr(network, "PORTS", tmp_path)
    found = network.ports()
    assert [(one.name, one.layer, one.gbit_per_s) for one in found] == [
        ("mlx5_0:1", "InfiniBand", 200.0),
        ("mlx5_2:1", "InfiniBand", 200.0),
    ]


@pytest.mark.parametrize(
    ("files", "speed"),
    [
        ({"speed": "25000", "ifindex": "2", "iflink": "2"}, 25000),
        ({"speed": "10000", "ifindex": "2", "iflink": "9"}, None),  # of a container
        ({"speed": "10000", "ifindex": "2", "iflink": "1", "lower_eth0": ""}, 10000),  # a VLAN
        ({"speed": "-1", "ifindex": "2", "iflink": "2"}, None),
    ],
)
def test_the_speed_of_an_interface_is_that_of_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], speed: int | None
) -> None:
    (tmp_path / "lo").mkdir()
    for name, text in files.items():
        (tmp_path / "lo" / name).write_text(f"{text}\n")
    monkeypatch.setattr(host, "NETWORK", tmp_path)
    found = host.describe(RankInfo(rank=0, local_rank=0, world_size=1)).interfaces
    assert {one.name: one.speed_mbit_per_s for one in found}["lo"] == speed


SMI = """#!/bin/sh
case "$*" in
    *nvlink*) printf 'GPU 0: A (UUID: GPU-b)\n\t Link 0: 26.5 GB/s\n\t Link 1: 26.5 GB/s\n' ;;
    *remapped*) printf 'GPU-a, 0\nGPU-b, 1\n' ;;
    *) printf 'GPU-a, [N/A], 300, 1980\nGPU-b, 3, 1410, 1980\n' ;;
esac
"""


def test_the_state_of_a_gpu_is_that_of_its_own_line(stand_ins: StandIns) -> None:
    stand_ins.script("nvidia-smi", SMI)
    assert gpu.told("b") == Gpu(
        uncorrected_ecc=3,
        pending_rows=True,
        clock_mhz=1410,
        clock_max_mhz=1980,
        nvlink_bytes_per_s=53e9,
    )
    assert gpu.told("GPU-a").uncorrected_ecc is None
    assert gpu.told("c").clock_mhz is None
