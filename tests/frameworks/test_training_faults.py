"""Ranks of other frameworks that end, come late or are killed while they train."""

import signal
from contextlib import suppress
from subprocess import Popen, TimeoutExpired

import pytest

from ddl_tools import processes
from tests.frameworks import equality
from tests.frameworks.equality import interpreter
from tests.frameworks.test_training import OWN

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.extended]


@pytest.fixture(autouse=True)
def _installed(framework: str, strategy: str) -> None:
    interpreter(framework, strategy)


@pytest.mark.parametrize(
    ("framework", "strategy", "fault", "said"),
    [
        *((*pair, "raising 1", "planted") for pair in OWN),
        ("tensorflow", "multiworker", "terminated 1", r"-15\b"),
    ],
)
def test_a_rank_that_ends_waits_for_no_other(trained, tmp_path, framework, strategy, fault, said):
    with pytest.raises(AssertionError, match=rf"ranks ended with .*(.|\n)*{said}"):
        trained(steps=2, epochs=1).run(tmp_path, framework, strategy, fault=fault)


@pytest.mark.parametrize(
    ("framework", "strategy", "fault"),
    [
        ("keras", "spmd", "late 0"),
        ("tensorflow", "multiworker", "stopped 0"),
        ("tensorflow", "horovod", "stopped 0"),
    ],
)
def test_ranks_wait_for_one_that_is_late(trained, tmp_path, framework, strategy, fault) -> None:
    trained(steps=1, epochs=1).run(tmp_path, framework, strategy, fault=fault)


@pytest.mark.parametrize(("framework", "strategy"), [("mxnet", "kvstore")])
def test_servers_end_with_a_killed_rank(trained, tmp_path, monkeypatch, framework, strategy):
    end, codes = processes.end, []

    def end_all(*started: Popen[bytes]) -> list[int]:
        with suppress(TimeoutExpired):
            codes.append(started[1].wait(30))  # it is the end of all that rank 1 has started
        return end(*started)

    monkeypatch.setattr(equality, "end", end_all)
    with pytest.raises(AssertionError, match="ranks ended with"):
        trained(steps=2, epochs=1).run(tmp_path, framework, strategy, fault="killed 1")
    assert codes == [-signal.SIGKILL]
