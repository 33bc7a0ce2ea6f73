"""Whole runs of two ranks under every strategy: ranks that are killed, raise, hang or diverge."""

import math

import pytest

from ddl_tools.launch.ranks import run_ranks
from ddl_tools.records.run import read_epochs
from tests.core.strategies.conftest import TWO, failed
from tests.core.strategies.faulty_worker import PLANTED
from tests.launch.running import two_ranks

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.slow,
    two_ranks,
    pytest.mark.usefixtures("planted_names"),
]


def test_a_killed_rank_fails_the_run_which_resumes_to_the_same_weights(
    strategy, plan, tmp_path
) -> None:
    run = plan(tmp_path / "run", **TWO, **strategy)
    assert failed(run, "kill", "rank 1 was killed by SIGKILL") == ("Killed", 1)
    record = run_ranks(run)
    assert [attempt.status for attempt in record.attempts] == ["failed", "completed"]
    undisturbed = run_ranks(plan(tmp_path / "undisturbed", **TWO, **strategy))
    assert record.weights_sha256 == undisturbed.weights_sha256


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("raise", "ValueError", PLANTED),
        pytest.param("hang", "Timeout", "no progress for 10 s", marks=pytest.mark.extended),
    ],
)
def test_the_rank_that_failed_is_named(strategy, plan, tmp_path, fault, kind, words) -> None:
    run = plan(tmp_path / "run", checkpoint_every=0, **TWO, **strategy)
    assert failed(run, fault, words) == (kind, 1)


def test_a_training_that_diverges_is_a_result(strategy, plan, tmp_path) -> None:
    run = plan(tmp_path / "run", base_lr=1e30, warmup_epochs=0, **TWO, **strategy)
    assert run_ranks(run).status == "completed"
    losses = [row.loss for row in read_epochs(run) if row.phase == "train"]
    assert losses[-1] is not None
    assert math.isnan(losses[-1])
