"""The one-run theorem: by hand, by simulation, and in which direction everything goes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from saltflat.audit.once import judged
from saltflat.audit.theorem import Guessed, best, guessed
from saltflat.errors import SettingError


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01])
def test_by_hand(delta: float) -> None:
    """m = 3, r = v = 2, epsilon 0: f(2) = 1/4, f(1) = 3/4, f(0) = 1; max(1/2, 3/8) = 1/2; 1/4 + 6 delta / 2."""
    assert Guessed(canaries=3, made=2, right=2).chance(0.0, delta) == pytest.approx(0.25 + 3 * delta)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_one_canary(epsilon: float) -> None:
    """f(1) = q, f(0) = 1: q + 2 delta (1 - q)."""
    q = 1 / (1 + math.exp(-epsilon))
    expected = pytest.approx(q + 2e-3 * (1 - q))
    assert Guessed(canaries=1, made=1, right=1).chance(epsilon, 1e-3) == expected


def test_all_right_without_delta() -> None:
    """q^r = 1 - confidence."""
    q = 0.05 ** (1 / 300)
    assert Guessed(canaries=900, made=300, right=300).epsilon(0.0, 0.95) == pytest.approx(
        math.log(q / (1 - q))
    )


guesses = st.integers(2, 300).flatmap(
    lambda made: st.tuples(st.integers(made, 2 * made), st.just(made), st.integers(1, made))
)


@given(guesses, st.floats(0, 6), st.sampled_from([0.0, 1e-5, 1e-3]))
def test_more_right_guesses_are_less_likely(some: tuple[int, int, int], epsilon: float, delta: float) -> None:
    m, r, v = some
    assume(v < r)
    fewer, more = (Guessed(canaries=m, made=r, right=right) for right in (v, v + 1))
    if delta == 0:
        assert more.chance(epsilon, delta) <= fewer.chance(epsilon, delta)
    assert more.epsilon(delta, 0.95) >= fewer.epsilon(delta, 0.95) - 1e-9


@given(guesses, st.floats(0, 5), st.floats(0, 2))
def test_the_bound_goes_the_right_way(some: tuple[int, int, int], epsilon: float, further: float) -> None:
    m, r, v = some
    one = Guessed(canaries=m, made=r, right=v)
    assert one.chance(epsilon, 0.0) <= one.chance(epsilon + further, 0.0) + 1e-12
    assert one.chance(epsilon, 1e-3) >= one.chance(epsilon, 1e-5)
    assert one.epsilon(1e-3, 0.95) <= one.epsilon(1e-5, 0.95) + 1e-9
    assert one.epsilon(1e-5, 0.99) <= one.epsilon(1e-5, 0.95) + 1e-9
    found = one.epsilon(1e-5, 0.95)
    assert found == 0 or one.chance(found, 1e-5) <= 0.05 + 1e-12


def test_randomised_response_is_refuted_once_in_twenty() -> None:
    """The mechanism for which the theorem is exact: each coin told truly with probability q, at epsilon 1."""
    source, q = np.random.default_rng(0), 1 / (1 + math.exp(-1.0))
    right = source.binomial(400, q, size=2000)
    refuted = [
        Guessed(canaries=400, made=400, right=int(v)).epsilon(0.0, 0.95) > 1.0 for v in np.unique(right)
    ]
    share = np.isin(right, np.unique(right)[refuted]).mean()
    assert 0.02 < share <= 0.06


def test_a_mechanism_that_fails_with_delta() -> None:
    """With chance delta all coins are told: the theorem must not call that a larger epsilon too often."""
    source, delta, m = np.random.default_rng(0), 1e-3, 50
    all_told = source.random(4000) < delta
    right = np.where(all_told, m, source.binomial(m, 0.5, size=4000))
    shown = {int(v): Guessed(canaries=m, made=m, right=int(v)).epsilon(delta, 0.95) for v in np.unique(right)}
    assert np.mean([shown[int(v)] > 0 for v in right]) <= 0.05


def test_looking_at_several_numbers_of_guesses_is_paid_for() -> None:
    source, shown = np.random.default_rng(0), []
    for _ in range(500):
        coins = source.random(200) < 0.5
        shown.append(judged(source.normal(size=200), coins, 1e-5)[0].epsilon > 0)
    assert np.mean(shown) <= 0.05


def test_the_surest_are_guessed() -> None:
    coins = np.array([True] * 50 + [False] * 50)
    scores = np.where(coins, 1.0, -1.0) + 100.0  # wherever they lie
    scores[::7] = 100.0  # nothing is known about these
    assert guessed(scores, coins, made=60).right == 60
    assert guessed(scores, coins, made=100).right < 100


def test_the_best_is_kept() -> None:
    poor, good = Guessed(canaries=100, made=100, right=55), Guessed(canaries=100, made=30, right=30)
    found, epsilon = best([poor, good], 1e-5, 0.95)
    assert found == good
    assert epsilon == good.epsilon(1e-5, 0.975)


def test_impossible_guesses_are_refused() -> None:
    with pytest.raises(SettingError, match="right=4"):
        Guessed(canaries=5, made=3, right=4)
