"""What a record tells of cores and threads."""

import threading

import pytest
import torch

from ddl_core.train import device
from tests.groups import ThreadGroup


@pytest.mark.parametrize(
    ("cores", "per_node", "told"),
    [
        ([{0, 1}, {2, 3}], 2, (2, 2, False)),
        ([{0, 1}, {0, 1}], 2, (2, 2, True)),
        ([{0, 1, 2}, {2}], 2, (1, 3, True)),
        ([{0}, {0}], 1, (1, 1, None)),  # on two nodes: nobody to share with
        ([{0}, {1}, {0}, {1}], 2, (1, 1, False)),
        ([{0}, {1}, {0}, {0}], 2, (1, 1, True)),  # on the second node
    ],
)
def test_whether_ranks_of_a_node_share_cores(monkeypatch, cores, per_node, told) -> None:
    own = threading.local()
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: own.cores)

    def work(rank):
        own.cores = cores[rank.rank]
        return device.affinity(rank, per_node)

    least, most, shared = told
    want = {"cores_least": least, "cores_most": most, "shared": shared}
    assert ThreadGroup(len(cores)).run(work) == [want] * len(cores)


def test_threads_are_those_of_torch() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert device.threads()["compute"] == before + 1
    finally:
        torch.set_num_threads(before)
