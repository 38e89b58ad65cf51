"""Intervals and tests against scipy on made-up runs; bands against a calculation by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from saltflat.report.sure import (
    among_differing,
    band,
    mcnemar,
    mean_interval,
    paired,
    standard_error,
    welch,
    wilson,
)


@pytest.mark.parametrize(
    ("hits", "count"), [(335, 360), (0, 10), (10, 10), (1, 10_000), (9_213, 10_000), (1, 2)]
)
def test_the_interval_of_a_share_is_scipys(hits: int, count: int) -> None:
    expected = stats.binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert wilson(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize(
    ("first", "second"), [(0, 0), (5, 5), (3, 12), (12, 3), (0, 7), (40, 61), (300, 370)]
)
def test_the_paired_test_is_scipys_exact_one(first: int, second: int) -> None:
    expected = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(first, second) == pytest.approx(expected, rel=1e-9)


def test_a_long_paired_test_is_the_exact_one_too() -> None:
    assert mcnemar(900, 1000) == pytest.approx(stats.binomtest(900, 1900).pvalue, rel=1e-9)


@pytest.mark.parametrize(("first", "second"), [(5, 5), (3, 12), (12, 3), (0, 7), (7, 0), (900, 1000)])
@pytest.mark.parametrize("level", [0.95, 0.99])
def test_the_interval_of_the_paired_test_is_scipys_exact_one(first: int, second: int, level: float) -> None:
    n = first + second
    expected = stats.binomtest(first, n).proportion_ci(level, method="exact")
    found = among_differing(first, second, level=level)
    assert found == pytest.approx((n * (2 * expected.low - 1), n * (2 * expected.high - 1)), abs=1e-9)


def test_an_interval_has_no_zero_exactly_where_the_test_tells_two_models_apart() -> None:
    """Where a first demo had "+0.2 to +6.5 points, p = 0.058": one of the two must have been wrong."""
    n, told = 360, 0
    for ahead in range(40):
        for behind in range(40):
            one, other = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
            one[:ahead], other[ahead : ahead + behind] = True, True
            for level in (0.95, 0.975):
                gap = paired([one], [other], level=level)
                assert (gap.low > 0 or gap.high < 0) == (gap.p < 1 - level)
                told += gap.p < 1 - level
    assert told > 100


def test_two_made_up_runs_on_the_same_examples() -> None:
    drawn = np.random.default_rng(0)
    one = drawn.random(500) < 0.9
    other = np.where(drawn.random(500) < 0.1, ~one, one)
    gap = paired([one], [other])
    ahead, behind = int((one & ~other).sum()), int((other & ~one).sum())
    assert gap.value == pytest.approx((ahead - behind) / 500)
    assert gap.p == pytest.approx(stats.binomtest(ahead, ahead + behind).pvalue)
    differences = one.astype(float) - other
    normal = stats.norm.interval(0.95, differences.mean(), stats.sem(differences))
    exact = [end / 500 for end in among_differing(ahead, behind)]
    assert (gap.low, gap.high) == pytest.approx((min(normal[0], exact[0]), max(normal[1], exact[1])))
    several = paired([one, one], [other, other])  # of repeats: a test of the mean difference
    assert several.p == pytest.approx(2 * stats.norm.sf(abs(differences.mean()) / stats.sem(differences)))


def test_repeats_are_compared_as_scipy_does() -> None:
    one, other = [0.91, 0.93, 0.92, 0.95], [0.90, 0.89, 0.93]
    gap = welch(one, other)
    expected = stats.ttest_ind(one, other, equal_var=False)
    assert gap is not None
    assert gap.p == pytest.approx(expected.pvalue)
    assert (gap.low, gap.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert welch([0.9], other) is None
    assert welch([0.9, 0.9], [0.8, 0.8]) is None  # nothing varies: nothing to test with


def test_the_mean_over_repeats_is_scipys() -> None:
    values = [0.91, 0.93, 0.92, 0.95]
    assert standard_error(values) == pytest.approx(stats.sem(values))
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected)
    assert standard_error([0.9]) is None
    assert mean_interval([0.9]) is None


def test_a_band_by_hand() -> None:
    """Three curves at steps 1, 2, 3; the third has no step 3. Means 0.4 and 0.6; deviations 0.1 and 0.2."""
    made = band([([1, 2, 3], [0.3, 0.4, 0.9]), ([1, 2, 3], [0.4, 0.6, 0.9]), ([1, 2], [0.5, 0.8])])
    assert made is not None
    assert made.x.tolist() == [1.0, 2.0]
    assert made.mean.tolist() == pytest.approx([0.4, 0.6])
    assert made.error.tolist() == pytest.approx([0.1 / 3**0.5, 0.2 / 3**0.5])
    assert band([([1, 2], [1, 2])]) is None
    assert band([([1], [1]), ([2], [2])]) is None
