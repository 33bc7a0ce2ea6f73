import os
import signal

import pytest

from ddl_core.datasets.bulk import AHEAD, stream
from ddl_core.errors import DataError


def double(number: int) -> int:
    return 2 * number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    raise PermissionError(13, "Permission denied", "somewhere")


@pytest.mark.multiprocess
@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order_and_tasks_are_read_lazily(processes):
    read = []
    tasks = (read.append(number) or number for number in range(100))
    results = stream(double, tasks, processes)
    assert next(results) == 0
    assert len(read) <= AHEAD * processes
    assert list(results) == list(range(2, 200, 2))


@pytest.mark.multiprocess
def test_a_dead_worker_is_an_error_and_no_hang():
    with pytest.raises(DataError, match="worker processes died"):
        list(stream(die, range(10), 2))


@pytest.mark.multiprocess
def test_an_error_in_a_worker_arrives_whole():
    with pytest.raises(PermissionError) as caught:
        list(stream(refuse, range(10), 2))
    assert (caught.value.errno, caught.value.filename) == (13, "somewhere")
