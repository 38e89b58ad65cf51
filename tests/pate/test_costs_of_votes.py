"""What votes cost: the published vectors, the analytic curve, and bounds that hold everywhere."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from saltflat.errors import BudgetError, SettingError
from saltflat.pate import Cap, ConfidentGNMax, Counted, Filter, TeacherVotes, calibrated, label, rdp_gnmax
from saltflat.pate.gnmax import gaussian_mu
from saltflat.pate.renyi import ORDERS, dependent, independent, log_wrong, rdp_threshold

ONE_OF_TEN = [0.0] * 9


def analytic(mu: float, delta: float) -> float:
    """The epsilon of one Gaussian, by halving: none of the library's code."""
    low, high = 0.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        there = norm.cdf(mu / 2 - middle / mu) - math.exp(middle + norm.logcdf(-mu / 2 - middle / mu))
        low, high = (middle, high) if there > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("votes", "q", "rdp"),
    [([250.0, *ONE_OF_TEN], 4.4535e-5, 2.333e-5), ([220.0, 30.0, *ONE_OF_TEN[1:]], 7.940e-4, 3.195e-4)],
)
def test_published_vectors(votes: list[float], q: float, rdp: float) -> None:
    table = np.array([votes])
    assert math.exp(log_wrong(table, 40.0)[0]) == pytest.approx(q, rel=1e-3)
    assert rdp_gnmax(table, 40.0, [10.0])[0, 0] == pytest.approx(rdp, rel=1e-3)
    assert rdp_gnmax(table, 40.0, [10.0], data_dependent=False)[0, 0] == pytest.approx(6.25e-3, rel=1e-12)


@pytest.mark.parametrize(
    ("sigma2", "epsilons"),
    [(40, (6.08, 9.32, 12.13, 14.58)), (80, (2.99, 4.48, 5.74, 6.82)), (100, (2.46, 3.68, 4.69, 5.55))],
)
def test_the_cap_at_the_counts_of_svhn(sigma2: float, epsilons: tuple[float, ...]) -> None:
    counts = zip((4000, 8000, 12000, 16000), (1323, 2692, 4128, 5521), epsilons, strict=True)
    for queries, answers, epsilon in counts:
        cap = Cap(queries=queries, answers=answers)
        found = ConfidentGNMax(threshold=300, sigma1=200, sigma2=sigma2, limit=cap).epsilon(1e-5)
        assert found == pytest.approx(epsilon, abs=0.005)
        exact = analytic(math.sqrt(queries / 200**2 + 2 * answers / sigma2**2), 1e-5)
        assert found == pytest.approx(exact, rel=1e-6)
        assert found >= exact * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.5, 100), st.floats(0.5, 100), st.integers(1, 5000), st.integers(1, 5000), st.floats(-9, -3)
)
def test_the_cap_is_the_analytic_curve(s1: float, s2: float, queries: int, answers: int, log: float) -> None:
    answers = min(queries, answers)
    mu, delta = math.sqrt(queries / s1**2 + 2 * answers / s2**2), 10**log
    if not 0.01 < mu < 12:
        return
    cap = Cap(queries=queries, answers=answers)
    found = ConfidentGNMax(threshold=1, sigma1=s1, sigma2=s2, limit=cap).epsilon(delta)
    assert found == pytest.approx(analytic(mu, delta), rel=1e-6, abs=2e-6)


def test_the_filter_is_the_same_curve_backwards() -> None:
    for epsilon in (0.1, 1.0, 5.0, 20.0):
        mu = gaussian_mu(epsilon, 1e-5)
        assert epsilon * (1 - 1e-6) < analytic(mu, 1e-5) <= epsilon
        sigma = 3.0 / mu
        gnmax = ConfidentGNMax(
            threshold=1, sigma1=sigma, sigma2=2 * sigma, limit=Filter(epsilon=epsilon, delta=1e-5)
        )
        assert epsilon * (1 - 1e-6) < gnmax.epsilon(1e-5) <= epsilon


def test_calibration_scales_both_noises_by_one_factor() -> None:
    rough = ConfidentGNMax(threshold=30, sigma1=20, sigma2=5, limit=Cap(queries=500, answers=300))
    found = calibrated(rough, epsilon=2.0, delta=1e-6)
    assert found.sigma1 / found.sigma2 == pytest.approx(4.0)
    assert 0.99 * 2 <= analytic(math.sqrt(500 / found.sigma1**2 + 600 / found.sigma2**2), 1e-6) <= 2.0
    with pytest.raises(SettingError, match="filter has its own budget"):
        calibrated(
            ConfidentGNMax(threshold=30, sigma1=20, sigma2=5, limit=Filter(epsilon=2, delta=1e-5)),
            epsilon=2.0,
            delta=1e-5,
        )


class TestProbabilityOfAnotherWinner:
    def test_it_falls_with_the_gap_and_is_at_most_that_of_a_guess(self) -> None:
        tables = np.array([[50.0 + gap, 50.0 - gap, *[0.0] * 3] for gap in range(50)])
        found = np.exp(log_wrong(tables, 20.0))
        assert (np.diff(found) < 0).all()
        assert found.max() <= 1 - 1 / 5 + 1e-12
        assert np.exp(log_wrong(np.zeros((1, 5)), 20.0))[0] == pytest.approx(0.8)

    def test_it_is_at_least_what_happens(self) -> None:
        random = np.random.default_rng(5)
        for counts in ([30.0, 20.0, 5.0], [40.0, 14.0, 1.0], [22.0, 20.0, 13.0]):
            noisy = np.array(counts) + 12.0 * random.normal(size=(200_000, 3))
            happened = (noisy.argmax(1) != 0).mean()
            error = 4 * math.sqrt(happened / 200_000)
            bound = math.exp(log_wrong(np.array([counts]), 12.0)[0])
            assert happened <= bound + error
            assert bound <= 1.5 * happened + error  # and not idle


class TestDependentCost:
    def test_it_is_never_above_the_independent_one(self) -> None:
        log_q = -np.geomspace(1e-6, 800, 400)
        for sigma in (1.0, 5.0, 40.0):
            for order in (1.05, 2.0, 10.0, 64.0, 500.0):
                found = dependent(log_q, sigma, order)
                assert (found <= independent(sigma, order)).all()
                assert (found >= 0).all()

    def test_it_is_the_independent_one_where_a_condition_fails(self) -> None:
        assert dependent(np.array([math.log(0.8)]), 40.0, 10.0)[0] == independent(40.0, 10.0)
        beyond = dependent(
            np.array([-20.0, -60.0]), 5.0, 30.0
        )  # mu1 is 23.4 and 39.7: order 30 is above the first
        assert beyond[0] == independent(5.0, 30.0) > beyond[1]

    def test_it_bounds_the_true_divergence(self) -> None:
        """Of the mechanism itself: two classes, where every probability is known."""
        for gap in (20, 40, 80):
            for sigma in (10.0, 20.0):
                win, neighbour = (norm.cdf(g / (math.sqrt(2) * sigma)) for g in (gap, gap - 2))
                counts = np.array([[100.0 + gap, 100.0]])
                for order in (2.0, 5.0, 12.0):
                    pairs = ((win, neighbour), (1 - win, 1 - neighbour))
                    moment = sum(p**order * q ** (1 - order) for p, q in pairs)
                    assert math.log(moment) / (order - 1) <= rdp_gnmax(counts, sigma, [order])[0, 0]

    def test_the_test_costs_half_and_little_far_from_the_threshold(self) -> None:
        largest = np.arange(251.0)
        found = rdp_threshold(largest, 125, 10.0, [8.0])[:, 0]
        assert found.max() == pytest.approx(8 / (2 * 10.0**2))
        assert found[0] < 1e-9 > found[250]
        assert rdp_threshold(largest, 125, 10.0, [8.0], data_dependent=False)[0, 0] == pytest.approx(0.04)

    def test_orders_are_dense(self) -> None:
        assert ORDERS[0] == 1.05
        assert ORDERS[-1] == 500
        assert all(b > a for a, b in pairwise(ORDERS))


def test_realised_counts_under_a_filter_never_pass_its_budget() -> None:
    votes = TeacherVotes.of(np.tile(np.arange(40) % 3, (30, 1)), classes=3)
    limit = Filter(epsilon=4.0, delta=1e-5)
    gnmax = ConfidentGNMax(threshold=15, sigma1=12.0, sigma2=10.0, limit=limit)
    spent = Counted()
    found = label(votes, gnmax, spent, queries=[*range(40)] * 4)
    mu2 = spent.used["queries"] / 12.0**2 + 2 * spent.used["answers"] / 10.0**2
    assert analytic(math.sqrt(mu2), 1e-5) <= 4.0
    assert analytic(math.sqrt(mu2 + 1 / 12.0**2 + 2 / 10.0**2), 1e-5) > 4.0  # and no more would have fitted
    assert found.asked == spent.used["queries"]
    with pytest.raises(BudgetError):
        spent.draw(gnmax.allows, queries=1, answers=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": math.nan},
        {"sigma1": 0.0},
        {"sigma2": -1.0},
        {"sigma1": True},
        {"sigma2": "40"},
        {"limit": 300},
        {"limit": Filter(epsilon=1e-4, delta=1e-5), "sigma2": 1.0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict) -> None:
    good = {"threshold": 30, "sigma1": 20, "sigma2": 5, "limit": Cap(queries=5, answers=3)}
    with pytest.raises(SettingError):
        ConfidentGNMax(**{**good, **wrong})


@pytest.mark.parametrize("wrong", [(0, 0), (5, 6), (5.0, 3), (True, True), (5, math.nan), (5, 0)])
def test_caps_out_of_range_are_refused(wrong: tuple) -> None:
    with pytest.raises(SettingError):
        Cap(queries=wrong[0], answers=wrong[1])
