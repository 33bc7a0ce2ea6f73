"""What decides a statement: both directions, one family of sizes, both ends of its range."""

import numpy as np
import pytest

from ddl_core.analysis import estimates
from ddl_core.analysis.claims.decide import CONTRADICTED, SUPPORTED, UNDECIDED, Seen, verdict
from ddl_core.analysis.claims.statements import Part, Statement
from ddl_core.analysis.estimates import Estimate

SIZES = (4, 8, 16, 32, 64, 128, 256, 512)


def part(test: str, low: int = 4, high: int = 512, stated: float = 1.0, **where: str) -> Part:
    return Part("throughput", test, where, low, high, stated=stated)


def statement(*parts: Part, **changes: object) -> Statement:
    return Statement("X", "throughput", "it is", "Fig. 0", parts, **changes)


def near(ratio: float, spread: float = 0.01, n: int = 4) -> Estimate:
    """Return the estimate from n pairs around `ratio`."""
    steps = spread * np.linspace(-1, 1, n)
    return estimates.paired_ratio(ratio * np.exp(steps), np.ones(n))


def at(of: Part, size: int, estimate: Estimate) -> Seen:
    return Seen(of, estimate, frozenset({size}), f"{size} workers", "A / B")


def judge(of: Part, ratios: dict[int, Estimate]) -> str:
    return verdict(statement(of), [at(of, size, ratio) for size, ratio in ratios.items()])[0]


@pytest.mark.parametrize(
    ("test", "ratio", "spread", "expected"),
    [
        ("greater", 1.2, 0.01, SUPPORTED),
        ("greater", 0.8, 0.01, CONTRADICTED),
        ("greater", 1.2, 0.5, UNDECIDED),
        ("greater", 1.0, 0.001, UNDECIDED),
        ("similar", 1.0, 0.01, SUPPORTED),
        ("similar", 1.2, 0.01, CONTRADICTED),
        ("similar", 0.8, 0.01, CONTRADICTED),
        ("similar", 1.0, 0.5, UNDECIDED),
        ("similar", 1.05, 0.02, UNDECIDED),
        ("lower", 1.2, 0.01, SUPPORTED),
        ("lower", 0.8, 0.01, CONTRADICTED),
        ("lower", 1.0, 0.01, UNDECIDED),
        ("upper", 0.8, 0.01, SUPPORTED),
        ("upper", 1.2, 0.01, CONTRADICTED),
        ("value", 1.01, 0.01, SUPPORTED),
        ("value", 1.2, 0.01, CONTRADICTED),
        ("value", 0.8, 0.5, UNDECIDED),
    ],
)
def test_one_comparison(test: str, ratio: float, spread: float, expected: str) -> None:
    assert judge(part(test, 8, 8), {8: near(ratio, spread)}) == expected


def test_a_wide_interval_supports_no_value() -> None:
    """From 0.3 to 1.2, which holds 0.76, 0.68 and 0.45 alike."""
    wide = near(0.6, np.log(1.2 / 0.3) / 3, n=3)
    assert wide.low < 0.45
    assert wide.high > 0.76
    for stated in (0.76, 0.68, 0.45):
        of = part("value", 8, 8)
        assert judge(of, {8: estimates.scaled(wide, 1 / stated)}) == UNDECIDED


def test_a_claim_over_a_range_needs_both_its_ends() -> None:
    of = part("similar", 4, 1024)
    alike = near(1.0)
    found, why = verdict(statement(of), [at(of, 4, alike), at(of, 8, alike)])
    assert (found, why) == (UNDECIDED, "the claim is about 4 to 1024 GPUs, measured at 4, 8")
    assert judge(of, {4: alike, 1024: alike}) == SUPPORTED


def test_all_measured_sizes_must_agree() -> None:
    of = part("greater")
    yes, open_, no = near(1.2), near(1.0, 0.5), near(0.8)
    assert judge(of, {4: yes, 64: open_, 512: yes}) == UNDECIDED
    assert judge(of, {4: yes, 64: no, 512: yes}) == CONTRADICTED
    assert judge(of, {64: no}) == CONTRADICTED  # one counterexample needs no range


def test_every_part_is_needed() -> None:
    one, other = part("greater", 8, 8, strategy="ddp"), part("greater", 8, 8, strategy="horovod")
    whole, yes = statement(one, other), near(1.2)
    assert verdict(whole, [at(one, 8, yes)])[0] == UNDECIDED
    assert verdict(whole, [at(one, 8, yes), at(other, 8, yes)])[0] == SUPPORTED


def test_what_is_not_named_is_refuted_only_in_all_its_readings() -> None:
    one, other = part("greater", 8, 8, strategy="ddp"), part("greater", 8, 8, strategy="horovod")
    whole, no = statement(one, other, open_reading=True), near(0.8)
    assert verdict(whole, [at(one, 8, no), at(other, 8, near(1.2))])[0] == UNDECIDED
    assert verdict(whole, [at(one, 8, no), at(other, 8, no)])[0] == CONTRADICTED


def test_a_family_asks_more_of_each_member() -> None:
    """One size that alone would refute the claim does not, as one of eight."""
    of = part("greater")
    lucky = near(0.96, 0.015, n=3)
    assert 0.01 < 2 * estimates.p_less(lucky) <= estimates.ALPHA
    nothing = near(1.0, 0.5)
    assert judge(of, {4: lucky}) == CONTRADICTED
    assert judge(of, dict.fromkeys(SIZES, nothing) | {4: lucky}) == UNDECIDED


def test_a_single_run_decides_nothing() -> None:
    single = estimates.unpaired_ratio([2.0], [1.0])
    for test in ("greater", "similar", "lower", "upper", "value"):
        assert judge(part(test, 8, 8), {8: single}) == UNDECIDED


@pytest.mark.slow
def test_equal_arms_are_hardly_ever_told_apart() -> None:
    """With three runs an arm and eight sizes; ranges that lie apart would decide far more."""
    random = np.random.default_rng(14)
    draws, decided, apart = 400, 0, 0
    of = part("greater")
    for _ in range(draws):
        runs = np.exp(random.normal(0, 0.09, size=(len(SIZES), 2, 3)))
        ratios = [estimates.unpaired_ratio(one, other) for one, other in runs]
        decided += judge(of, dict(zip(SIZES, ratios, strict=True))) != UNDECIDED
        low, high = runs.min(axis=2), runs.max(axis=2)
        apart += bool(np.any((low[:, 0] > high[:, 1]) | (low[:, 1] > high[:, 0])))
    assert decided <= 0.05 * draws
    assert apart >= 0.4 * draws
