"""From errors to a bound: against exact values, and what goes wrong if the halves are not kept apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from games import plan, quick
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

from saltflat.audit.rates import Errors, Worlds, advantage, best_threshold, epsilon_of, lower, upper
from saltflat.audit.repeated import level_epsilon
from saltflat.errors import SettingError


@given(st.integers(1, 500), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.99995]))
def test_clopper_pearson_is_scipys(trials: int, data: st.DataObject, confidence: float) -> None:
    errors = data.draw(st.integers(0, trials))
    high = beta.ppf(confidence, errors + 1, trials - errors) if errors < trials else 1.0
    low = beta.ppf(1 - confidence, errors, trials - errors + 1) if errors else 0.0
    assert float(upper(errors, trials, confidence)) == pytest.approx(high, abs=1e-12)
    assert float(lower(errors, trials, confidence)) == pytest.approx(low, abs=1e-12)


@pytest.mark.parametrize("p", [0.003, 0.1, 0.3085, 0.5, 0.93])
def test_the_upper_end_covers(p: float) -> None:
    """Exactly: the chance of a count whose upper end is below the truth is at most 5 %."""
    counts = np.arange(201)
    missed = upper(counts, 200, 0.95) < p
    assert binom(200, p).pmf(counts)[missed].sum() <= 0.05


@pytest.mark.parametrize(("a", "b"), [(0.1, 0.4), (0.0, 0.2), (0.3, 0.35), (0.02, 0.9)])
def test_guesses_in_both_worlds_may_be_counted_together(a: float, b: float) -> None:
    """The mean error is covered although the two worlds have different ones: by exact convolution."""
    n = 100
    sums = np.convolve(binom(n, a).pmf(np.arange(n + 1)), binom(n, b).pmf(np.arange(n + 1)))
    missed = upper(np.arange(2 * n + 1), 2 * n, 0.95) < (a + b) / 2
    assert sums[missed].sum() <= 0.05


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.38, 10.0])
def test_the_epsilon_of_randomised_response(epsilon: float) -> None:
    wrong = 1 / (1 + math.exp(epsilon))
    assert float(epsilon_of(wrong, wrong, 0.0)) == pytest.approx(epsilon)


def test_both_directions_count() -> None:
    """A test with few false negatives shows as much as one with few false positives."""
    one, other = epsilon_of(0.001, 0.9, 1e-5), epsilon_of(0.9, 0.001, 1e-5)
    assert float(one) == float(other) == pytest.approx(math.log((1 - 1e-5 - 0.9) / 0.001))


@pytest.mark.parametrize("rates", [(0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.7, 0.4)])
def test_nothing_follows_from_a_test_that_tells_nothing(rates: tuple[float, float]) -> None:
    assert float(epsilon_of(*rates, 1e-5)) == 0


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_no_test_on_a_gaussian_shows_more_than_its_epsilon(mu: float) -> None:
    """At every threshold the exact error rates stay below; and delta makes the difference."""
    t = np.linspace(-6, 8, 400)
    epsilon = plan(noise=math.sqrt(100) / mu).epsilon(1e-5)
    shown = epsilon_of(norm.sf(t), norm.cdf(t - mu), 1e-5)
    assert shown.max() <= epsilon
    assert shown.max() >= 0.9 * epsilon
    assert epsilon_of(norm.sf(t), norm.cdf(t - mu), 0.0).max() > epsilon


def test_more_trials_show_more() -> None:
    few, many = Errors(1, 4, 10, 10), Errors(100, 400, 1000, 1000)
    assert few.epsilon(1e-5, 0.95) < many.epsilon(1e-5, 0.95) < math.log(0.6 / 0.1)
    assert many.epsilon(1e-5, 0.9999) < many.epsilon(1e-5, 0.95)
    assert advantage(few, 0.95) < advantage(many, 0.95) < 0.5


def test_worlds_of_different_sizes_are_not_added_up() -> None:
    errors = Errors(1, 90, 1000, 100)
    assert errors.wrong(0.95) > (0.001 + 0.9) / 2  # 91 errors in 1,100 guesses would say 0.08


def test_the_best_threshold_is_the_best_of_all() -> None:
    source = np.random.default_rng(1)
    worlds = Worlds(source.normal(size=60), source.normal(1.0, size=60).round(1))
    worth = lambda errors: errors.epsilon(1e-5, 0.95)
    every = [float(worth(worlds.errors(t))) for t in np.concatenate([worlds.without, worlds.within])]
    assert float(worth(worlds.errors(best_threshold(worlds, worth)))) == max(every)


def test_halves_share_no_run() -> None:
    worlds = Worlds(np.arange(7.0), np.arange(10.0, 16.0))
    choosing, judging = worlds.halves()
    assert [*choosing.without, *judging.without] == [*worlds.without]
    assert [*choosing.within, *judging.within] == [*worlds.within]
    with pytest.raises(SettingError, match="at least 2 runs in each world"):
        Worlds(np.zeros(1), np.zeros(5)).halves()


def false_alarms(*, apart: bool) -> float:
    """How often something is shown where there is nothing to see."""
    source, shown = np.random.default_rng(0), []
    for _ in range(400):
        choosing, judging = Worlds(source.normal(size=100), source.normal(size=100)).halves()
        threshold = best_threshold(choosing, lambda errors: -errors.wrong(0.5))
        shown.append(advantage((judging if apart else choosing).errors(threshold), 0.95) > 0)
    return float(np.mean(shown))


def test_a_threshold_chosen_on_the_runs_that_judge_it_is_caught() -> None:
    """With the halves apart at most 5 % false alarms; the mutant that uses one half twice has many more."""
    assert false_alarms(apart=True) <= 0.05
    assert false_alarms(apart=False) > 0.2


@pytest.mark.parametrize("errors", [Errors(300, 310, 1000, 1000), Errors(20, 10, 200, 200)])
def test_the_noise_level_of_a_gaussian_has_a_formula(errors: Errors) -> None:
    """On all units: mu = 2 Phi^-1(1 - wrong), and epsilon that of a Gaussian with it."""
    mu = 2 * norm.ppf(1 - float(errors.wrong(0.95)))
    exact = plan(noise=1 / mu, steps=1).epsilon(1e-5)
    assert level_epsilon(quick(), errors, 1e-5, 0.95) == pytest.approx(exact, rel=3e-3)


@pytest.mark.parametrize("rate", [1.0, 0.3, 0.05])
def test_the_noise_level_passes_the_claim_only_if_the_claim_is_contradicted(rate: float) -> None:
    the_plan = plan(noise=2.0, steps=40, rate=rate)
    claimed = the_plan.epsilon(1e-5)
    few, many = Errors(10, 10, 1000, 1000), Errors(490, 490, 1000, 1000)
    assert level_epsilon(the_plan, few, 1e-5, 0.95) > claimed > level_epsilon(the_plan, many, 1e-5, 0.95)
    assert level_epsilon(the_plan, Errors(505, 505, 1000, 1000), 1e-5, 0.95) == 0
