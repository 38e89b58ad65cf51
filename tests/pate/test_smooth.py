"""The released cost: conditions that are looked at, changes that are bounded, noise that is what it should be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import kstest

from saltflat.errors import AccountingError, BudgetError, PrivacyError, SettingError
from saltflat.pate import Cap, ConfidentGNMax, Counted, Smooth, TeacherVotes, release, release_cost
from saltflat.pate.renyi import log_wrong, rdp_gnmax, rdp_threshold
from saltflat.pate.sanitised import _private
from saltflat.pate.smooth import Slope, plurality_changes, smooth_sensitivity, threshold_changes
from saltflat.privacy import Ledger, SeededNoise
from saltflat.privacy.accounting.events import phase_event
from saltflat.privacy.accounting.renyi import conversion

GNMAX = ConfidentGNMax(threshold=12, sigma1=4.0, sigma2=4.0, limit=Cap(queries=6, answers=4))
SMOOTH = Smooth.at(3.0)


def neighbours(counts: tuple[int, ...], teachers: int) -> set[tuple[int, ...]]:
    """Every table of one query that one teacher can make of this one: a vote moves, leaves, or joins."""
    found = set()
    for a, b in itertools.product(range(-1, len(counts)), repeat=2):
        moved = list(counts)
        if a >= 0:
            moved[a] -= 1
        if b >= 0:
            moved[b] += 1
        if min(moved) >= 0 and sum(moved) <= teachers:
            found.add(tuple(moved))
    return found


def within(counts: tuple[int, ...], teachers: int, distance: int) -> list[set[tuple[int, ...]]]:
    rings = [{counts}]
    for _ in range(distance):
        rings.append({each for one in rings[-1] for each in neighbours(one, teachers)} | rings[-1])
    return rings


@pytest.mark.parametrize("counts", [(18, 1, 0), (9, 8, 2), (14, 5, 0), (7, 7, 6), (20, 0, 0)])
def test_changes_bound_every_change_of_an_answer(counts: tuple[int, ...]) -> None:
    """By brute force over all tables that up to d teachers can make."""
    sigma, order, teachers = 4.0, 3.0, 20
    slope = Slope(sigma, order, 3)
    slope.check(teachers)
    bound = plurality_changes(np.array([counts], float), slope, teachers)[:, 0]
    cost = lambda table: rdp_gnmax(np.array([table], float), sigma, [order])[0, 0]
    for d, tables in enumerate(within(counts, teachers, 4)):
        worst = max(abs(cost(a) - cost(b)) for a in tables for b in neighbours(a, teachers))
        assert worst <= bound[d] * (1 + 1e-9) + 1e-15


def test_changes_bound_every_change_of_a_test() -> None:
    sigma, order, teachers = 3.0, 6.0, 20
    cost = rdp_threshold(np.arange(teachers + 1.0), 12, sigma, [order])[:, 0]
    bound = threshold_changes(np.arange(teachers + 1), 12, sigma, order=order, teachers=teachers)
    for v, d in itertools.product(range(teachers + 1), range(6)):
        near = range(max(0, v - d), min(teachers, v + d) + 1)
        steps = [abs(cost[u] - cost[w]) for u in near for w in (u - 1, u + 1) if 0 <= w <= teachers]
        assert max(steps) == pytest.approx(bound[d, v])


def test_one_moved_vote_stays_within_the_slope() -> None:
    slope = Slope(6.0, 4.0, 4)
    for counts in ((30, 6, 2, 2), (15, 14, 6, 5), (38, 1, 1, 0)):
        here = log_wrong(np.array([counts], float), 6.0)
        low, high = slope.moved(here, -1)[0], slope.moved(here, 1)[0]
        for other in neighbours(counts, 40):
            assert low - 1e-9 <= log_wrong(np.array([other], float), 6.0)[0] <= high + 1e-9


def test_the_smooth_sensitivity_is_smooth_and_above_the_local_one() -> None:
    """Of the whole cost, tests and the dearest answers, over every neighbour of small votes."""
    table = [(14, 4, 2), (18, 1, 1), (8, 8, 4), (20, 0, 0), (10, 9, 1)]
    asked = np.arange(len(table))
    here = _private(TeacherVotes(table, teachers=20), GNMAX, asked, SMOOTH)
    random = np.random.default_rng(0)
    for _ in range(60):
        changed = [sorted(neighbours(one, 20)) for one in table]
        other = [
            each[random.integers(len(each))] for each in changed
        ]  # one teacher has a vote in every query
        there = _private(TeacherVotes(other, teachers=20), GNMAX, asked, SMOOTH)
        assert abs(here[0] - there[0]) <= here[1] * (1 + 1e-9)
        assert math.exp(-SMOOTH.beta) * (1 - 1e-9) <= here[1] / there[1] <= math.exp(SMOOTH.beta) * (1 + 1e-9)


def test_without_any_change_no_noise_is_added() -> None:
    assert smooth_sensitivity(np.zeros(30), 0.1) == 0
    assert SMOOTH.released(0.7, 0.0, z=3.0) == 0.7


def test_settings_that_are_not_proved_are_refused_before_a_vote_is_looked_at() -> None:
    spent = Counted()
    votes = TeacherVotes(np.full((5, 10), 2), teachers=250)
    gnmax = ConfidentGNMax(threshold=12, sigma1=4.0, sigma2=5.0, limit=Cap(queries=6, answers=4))
    with pytest.raises(AccountingError, match="not monotone"):
        release(votes, gnmax, range(5), Smooth.at(20.0), spent)
    assert spent.used == {}


def test_the_released_number_misses_as_seldom_as_it_says() -> None:
    smooth = Smooth.at(5.0, miss=0.05)
    z = np.random.default_rng(1).normal(size=20_000)
    found = np.array([smooth.released(1.0, 0.01, each) for each in z])
    assert (found < 1.0).mean() == pytest.approx(0.05, abs=0.006)
    spread = (1 + smooth.lift * math.expm1(smooth.beta)) * smooth.sigma * 0.01
    assert kstest((found - 1 - smooth.lift * 0.01) / spread, "norm").pvalue > 1e-4


def test_it_is_released_once_and_charged_before(tmp_path) -> None:
    votes = TeacherVotes([(18, 1, 1)] * 5, teachers=20)
    with Ledger.open(tmp_path / "a.ledger", dataset="x") as book:
        run = book.run("one")
        claim = run.claim(release_cost(SMOOTH))
        found = release(votes, GNMAX, range(5), SMOOTH, claim)
        assert claim.used == {"releases": 1}
        with pytest.raises(BudgetError):
            release(votes, GNMAX, range(5), SMOOTH, claim)
        assert run.epsilon(1e-5) > 0
        with pytest.raises(PrivacyError, match="not private"):
            release(votes, GNMAX, range(5), SMOOTH, claim, noise=SeededNoise(0))
    assert found.epsilon(1e-5) == pytest.approx(
        found.rdp + SMOOTH.rdp(3.0) + conversion(3.0, 1e-5), rel=1e-12
    )


def test_the_cost_of_the_release_is_the_theorem_s() -> None:
    smooth = Smooth(order=10.0, beta=0.03, sigma=4.0, miss=0.01)
    wanted = 10 * math.exp(0.06) / 16 + (-0.5 * math.log(1 - 0.6) + 0.3) / 9
    assert smooth.rdp(10.0) == pytest.approx(wanted, rel=1e-12)
    assert smooth.rdp(1 / 0.06) == math.inf
    assert dict(release_cost(smooth).points)[10.0] == smooth.rdp(10.0)
    assert max(order for order, _ in release_cost(smooth).points) < 1 / 0.06


def test_where_teachers_agree_it_is_below_the_worst_case() -> None:
    votes = TeacherVotes(np.tile([250] + [0] * 9, (2000, 1)), teachers=250)
    gnmax = ConfidentGNMax(threshold=125, sigma1=20, sigma2=20, limit=Cap(queries=2000, answers=2000))
    found = release(votes, gnmax, range(2000), Smooth.at(6.0), Counted())
    assert found.epsilon(1e-5) < 0.5 * gnmax.epsilon(1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"order": 1.0},
        {"order": math.nan},
        {"beta": 0.1},
        {"beta": 0.0},
        {"sigma": 1e9},
        {"sigma": 0.0},
        {"miss": 0.0},
        {"miss": 0.5},
        {"miss": True},
    ],
)
def test_wrong_settings(wrong: dict) -> None:
    with pytest.raises(SettingError):
        Smooth(**{"order": 5.0, "beta": 0.08, "sigma": 1.0, "miss": 0.01, **wrong})


def test_a_ledger_counts_the_release_beside_the_interaction(tmp_path) -> None:
    with Ledger.open(tmp_path / "a.ledger", dataset="x") as book:
        run = book.run("one")
        run.claim(GNMAX.cost)
        alone = run.epsilon(1e-5)
        run.claim(release_cost(SMOOTH))
        assert run.epsilon(1e-5) > alone == pytest.approx(GNMAX.epsilon(1e-5))
    assert phase_event(*GNMAX.cost, 1) == GNMAX.event
