import numpy as np
import pytest

from ddl_core.scaling.advice.candidates import Candidate, candidates
from ddl_core.scaling.advice.next_run import NextRun, expected_width, next_run
from tests.scaling.advice.planted import evidence

IMAGES, SIZES = 36_000, (4, 8, 16, 32)


def advised(*admitted: dict[str, float], noise: float = 0.01) -> Candidate:
    (one,) = candidates(evidence(admitted, noise=noise), [32], 4, IMAGES, 10, None)
    return one


def asked(one: Candidate) -> NextRun:
    found = next_run(one, SIZES, IMAGES)
    assert found is not None
    return found


def test_a_limit_that_only_many_reach_is_told_by_the_loader_alone_on_few() -> None:
    # 32 ranks want 3,200 images a second; 4 want 400, so that training there shows no limit.
    run = asked(advised({"step_s": 1.0, "shared_rate": 1e4}, {"step_s": 1.0, "shared_rate": 800.0}))
    assert (run.work, run.ranks) == ("load", 4)
    assert run.node_hours == pytest.approx(36_000 / 1e4 / 3600)
    assert run.before == pytest.approx((11.25 + 12 * 3) / 11.25)  # 12 steps, the last one short
    assert run.after == pytest.approx(1.0)


def test_what_any_training_tells_is_asked_of_the_cheapest() -> None:
    slow, fast = {"step_s": 1.3, "epoch_s": 1.0}, {"step_s": 1.0, "epoch_s": 1.0}
    run = asked(advised(fast, slow))
    assert (run.work, run.ranks) == ("train", 4)
    assert run.node_hours == pytest.approx((360 / 4 + 1) / 3600)


def test_a_cost_of_each_epoch_is_told_where_epochs_are_short() -> None:
    """20 s are nothing beside the 90 s on 4 ranks for a noise of 15 %, and much beside 11 s."""
    run = asked(advised({"step_s": 1.0}, {"step_s": 1.0, "epoch_s": 5.0}, noise=0.1))
    assert run.work == "train"
    assert run.ranks >= 16


def test_no_run_helps_where_all_sets_agree_or_noise_hides_the_difference() -> None:
    assert next_run(advised({"step_s": 1.0}), SIZES, IMAGES) is None
    assert next_run(advised({"step_s": 1.0}, {"step_s": 1.01}, noise=0.05), SIZES, IMAGES) is None


def test_the_expected_width_is_the_mean_over_what_may_be_true() -> None:
    decided, measured = np.log([1.0, 2.0, 4.0]), np.log([1.0, 1.01, 3.0])
    # The first two cannot be told apart and leave a factor of 2; the third leaves nothing.
    assert expected_width(decided, measured, 0.02) == pytest.approx(2 / 3 * np.log(2))
    assert expected_width(decided, measured, 1.0) == pytest.approx(np.log(4))
    assert expected_width(decided, measured, 1e-6) == 0
