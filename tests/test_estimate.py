"""A value with its interval: columns of a table, units, texts."""

import math

import pytest

from ddl_tools.estimate import Estimate, three_digits


def test_a_row_of_a_table_gives_back_the_estimate() -> None:
    ratio = Estimate(1.25, 1.16, 1.35)
    assert ratio.columns() == {"value": 1.25, "low": 1.16, "high": 1.35}
    for name in ("value", "cpu_ratio"):
        assert Estimate.of(ratio.columns(name), name) == ratio
    alone = Estimate.of({"value": 2.0})
    assert (alone.value, math.isnan(alone.low)) == (2.0, True)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("", "0.250 [-0.0200, 1,250]"),
        ("+.1f", "+0.2 [-0.0, +1250.0]"),
        (".0%", "25% [-2%, 125000%]"),
    ],
)
def test_value_and_interval_have_one_format(form: str, text: str) -> None:
    assert f"{Estimate(0.25, -0.02, 1250):{form}}" == text


def test_only_what_is_known_is_shown() -> None:
    assert f"{Estimate(1.5, 1.5, 1.5):.1f}" == "1.5 [1.5, 1.5]", "all observations agree"
    assert f"{Estimate(1.5, 1.2, 1.9, n=2).alone():.1f}" == "1.5"
    assert str(Estimate(math.nan)) == ""


def test_a_unit_changes_all_three_numbers() -> None:
    assert str(Estimate(0.5, 0.25, 1.0).times(60)) == "30.0 [15.0, 60.0]"
    gap = Estimate(math.exp(0.02), math.exp(0.01), math.exp(0.03), n=4).log()
    assert (f"{gap.times(100):.1f}", gap.n) == ("2.0 [1.0, 3.0]", 4)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7.00"),
        (16.24, "16.2"),
        (999.4, "999"),
        (2457, "2,460"),
        (123_456, "123,000"),
        (0, "0.00"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert three_digits(value) == text
