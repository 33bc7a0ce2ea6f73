"""Ranks meet without torch: exact numbers, and an error that names who is missing or gone."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools.frameworks import rendezvous
from ddl_tools.frameworks.rendezvous import ControlGroup
from ddl_tools.launch import diagnose
from ddl_tools.processes import import_path
from ddl_tools.rank import meeting

RANKS = 3
BEGIN = f"""
import json, sys
from pathlib import Path
import numpy as np
from ddl_core.errors import LaunchError
from ddl_tools.frameworks import rendezvous
from ddl_core.config import RunSpec
spec = RunSpec(framework="tensorflow", strategy="multiworker", gpus_per_node={RANKS})
"""
MEET = "group = rendezvous.ControlGroup(spec, Path(sys.argv[1]))\n"


def answers(folder: Path, code: str, ranks: int = RANKS) -> list[str]:
    """Run `code` in so many ranks at once; return what each printed."""
    started = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
        command = [sys.executable, "-c", BEGIN + code, str(folder / "rendezvous")]
        environment = {**os.environ, **place, "PYTHONPATH": import_path()}
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        )
    return [one.communicate(timeout=120)[0] for one in started]


@pytest.mark.multiprocess
def test_numbers_are_reduced_exactly_and_texts_come_in_order(tmp_path: Path) -> None:
    code = MEET + (
        "own = np.array([0.1 * (group.rank + 1), 2.0**60 + group.rank])\n"
        "told = [group.reduce(own, op).tolist() for op in ('sum', 'min', 'max')]\n"
        "whole = group.reduce(np.array([2**40 + group.rank]))\n"
        "group.barrier()\n"
        "names = group.exchange(f'r{group.rank}')\n"
        "found = [told, whole.tolist(), str(whole.dtype), names, float(group.reduce(1.5))]\n"
        "print(json.dumps(found))\n"
        "group.close()\n"
    )
    rows = np.array([[0.1 * (rank + 1), 2.0**60 + rank] for rank in range(RANKS)])
    wanted = [rows.sum(0).tolist(), rows.min(0).tolist(), rows.max(0).tolist()]
    names = [f"r{rank}" for rank in range(RANKS)]
    for answer in answers(tmp_path, code):
        assert json.loads(answer) == [wanted, [3 * 2**40 + 3], "int64", names, 4.5]


@pytest.mark.multiprocess
def test_a_rank_that_is_gone_is_named(tmp_path: Path) -> None:
    code = MEET + (
        "if group.rank == 2:\n    sys.exit()\n"
        "try:\n    group.barrier()\nexcept LaunchError as error:\n    print(error)\n"
    )
    first, second, _ = answers(tmp_path, code)
    assert first.startswith("rank 2 is gone")
    assert second.startswith("rank 0 is gone")  # which has ended by then


@pytest.mark.multiprocess
def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    code = (
        "rendezvous.PATIENCE_S = 8.0\n"
        "try:\n    " + MEET + "except LaunchError as error:\n    print(error)\n"
    )
    first, _ = answers(tmp_path, code, ranks=2)
    assert re.match(r"ranks (1, )?2 did not come to rank 0 at 127\.0\.0\.1:\d+ within 8 s", first)


@pytest.mark.multiprocess
def test_strangers_who_connect_are_left_alone(tmp_path: Path) -> None:
    """Silent, with a wrong word, gone at once, and with another key: as scanners of ports do."""
    code = (
        "import multiprocessing, os, socket, time\n"
        "from multiprocessing.connection import Client\n"
        "if os.environ['RANK'] == '1':\n"
        "    place = Path(sys.argv[1]) / 'address'\n"
        "    while not place.exists():\n        time.sleep(0.01)\n"
        "    host, port = place.read_text().rsplit(':', 1)\n"
        "    address = host, int(port)\n"
        "    kept = [socket.create_connection(address) for _ in range(20)]\n"
        "    kept[0].sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
        "    kept[1].close()\n"
        "    try:\n        Client(address, authkey=b'another')\n"
        "    except multiprocessing.AuthenticationError:\n        print('refused')\n"
        + MEET
        + "print(int(group.reduce(group.rank)))\n"
    )
    begun = time.monotonic()
    assert answers(tmp_path, code) == ["3\n", "refused\n3\n", "3\n"]
    assert time.monotonic() - begun < 60


def test_no_rank_joins_over_a_network_without_the_key_of_the_run(tmp_path, monkeypatch) -> None:
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DDL_RUN_KEY", raising=False)
    spec = RunSpec(framework="keras", strategy="spmd", nodes=2, gpus_per_node=1)
    with pytest.raises(LaunchError, match="DDL_RUN_KEY is not set"):
        ControlGroup(spec, tmp_path / "rendezvous")


def test_without_rank_0_the_others_say_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(meeting, "PATIENCE_S", 0.2)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    spec = RunSpec(framework="keras", strategy="spmd", gpus_per_node=2)
    with pytest.raises(LaunchError, match="rank 0 did not leave its address"):
        ControlGroup(spec, tmp_path / "rendezvous")


def test_a_rank_that_waits_here_is_not_the_one_that_hangs() -> None:
    assert any(part in rendezvous.__file__ for part in diagnose.FRAMEWORKS)


def test_one_rank_needs_nobody(tmp_path) -> None:
    group = ControlGroup(RunSpec(framework="mxnet"), tmp_path / "rendezvous")
    assert group.reduce([1, 2], "max").tolist() == [1, 2]
    assert group.exchange("here") == ["here"]
    group.barrier()
    group.close()
    assert not (tmp_path / "rendezvous").exists()
