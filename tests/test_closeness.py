"""The distances by which trainings are compared."""

import math

import pytest
import torch

from tests.closeness import apart, assert_far, assert_near


def test_a_distance_is_relative_to_all_numbers_and_keeps_double_precision():
    assert apart([3.0, 4.0 + 5e-9], [3.0, 4.0]) == pytest.approx(1e-9, rel=1e-5)


def test_of_named_tensors_the_worst_counts_whatever_its_size():
    want = {"large": torch.full((100,), 1e6), "small": torch.full((2,), 1e-6)}
    got = {"large": want["large"], "small": want["small"] * 1.5}
    assert apart(got, want) == pytest.approx(0.5)


def test_what_is_no_number_is_neither_near_nor_far():
    want = {"first": torch.ones(2), "second": torch.ones(2)}
    for name in want:
        got = {**want, name: torch.tensor([1.0, math.nan])}
        for check in (assert_near, assert_far):
            with pytest.raises(AssertionError, match="nan apart"):
                check(got, want, 0.1)


def test_a_planted_unfairness_must_be_five_tolerances_away():
    assert_far([1.5], [1.0], 0.1)
    with pytest.raises(AssertionError, match=r"only 4\.9e-01 apart"):
        assert_far([1.49], [1.0], 0.1)
