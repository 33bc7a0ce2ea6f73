"""What a record tells of the cores that ranks may use."""

import os
import threading

import pytest

from ddl_core.errors import LaunchError
from ddl_tools.rank import worker
from ddl_tools.rank.worker import affinity, check_cores
from tests.groups import ThreadGroup


@pytest.mark.parametrize(
    ("cores", "per_node", "told"),
    [
        ([{0, 1}, {2, 3}], 2, (2, 2, 4, False)),
        ([{0, 1}, {0, 1}], 2, (2, 2, 2, True)),
        ([{0, 1, 2}, {2}], 2, (1, 3, 3, True)),
        ([{0}, {0}], 1, (1, 1, 1, None)),  # on two nodes: nobody to share with
        ([{0}, {1}, {0}, {1}], 2, (1, 1, 2, False)),
        ([{0}, {1}, {0}, {0}], 2, (1, 1, 1, True)),  # on the second node
    ],
)
def test_whether_ranks_of_a_node_share_cores(monkeypatch, cores, per_node, told) -> None:
    own = threading.local()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: own.cores)

    def work(rank):
        own.cores = cores[rank.rank]
        return affinity(rank, per_node)

    least, most, of_node, shared = told
    want = {"cores_least": least, "cores_most": most, "cores_of_node": of_node, "shared": shared}
    assert ThreadGroup(len(cores)).run(work) == [want] * len(cores)


@pytest.mark.parametrize(
    ("at_start", "cores", "of_node", "refused"),
    [
        ({0, 1}, [{0}, {0}], 1, True),  # bound by a library since
        ({0}, [{0}, {0}], 1, False),  # given by the launcher, which knows best
        ({0, 1}, [{0}, {1}], 2, False),
    ],
)
def test_ranks_that_a_library_has_bound_to_one_core_are_refused(
    monkeypatch, at_start, cores, of_node, refused
) -> None:
    own = threading.local()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: own.cores)
    monkeypatch.setattr(worker, "AT_START", at_start)

    def work(rank):
        own.cores = cores[rank.rank]
        try:
            check_cores(rank, 2, of_node)
        except LaunchError as error:
            return str(error)
        return ""

    assert [bool(said) for said in ThreadGroup(2).run(work)] == [refused] * 2
