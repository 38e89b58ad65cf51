"""B4: the sampler is Poisson. Inclusion, size and pairs, and two samplers that are not."""

from __future__ import annotations

import copy
import math
import multiprocessing
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from saltflat.core import sampling
from saltflat.core.sampling import labels, physical, pick, poisson, rows_in
from saltflat.data import TensorUnits
from saltflat.errors import DataError, SettingError
from saltflat.privacy import SecureSampling
from saltflat.privacy.noise import is_secret

COUNT, RATE, DRAWS = 60, 0.2, 4000


def membership(draw) -> np.ndarray:
    """(draws, units): who was in which batch."""
    table = np.zeros((DRAWS, COUNT), dtype=bool)
    for row in table:
        row[draw()] = True
    return table


def p_values(table: np.ndarray) -> dict[str, float]:
    """Two-sided p-values of three properties of independent sampling."""
    draws, count = table.shape
    each = ((table.sum(0) - draws * RATE) ** 2 / (draws * RATE * (1 - RATE))).sum()
    size = (draws - 1) * table.sum(1).var(ddof=1) / (count * RATE * (1 - RATE))
    centred = (table - RATE) / np.sqrt(RATE * (1 - RATE))
    in_a_row = (centred[1:] * centred[:-1]).sum() / np.sqrt((draws - 1) * count)
    pairs = np.triu(centred.T @ centred, 1)[np.triu_indices(count, 1)] / np.sqrt(draws)
    two_sided = lambda p: 2 * min(p, 1 - p)
    return {
        "every unit as often": two_sided(stats.chi2.sf(each, count)),
        "size varies as a binomial does": two_sided(stats.chi2.sf(size, draws - 1)),
        "one draw tells nothing of the next": two_sided(stats.norm.sf(in_a_row)),
        "no unit tells of another": two_sided(stats.chi2.sf((pairs**2).sum(), len(pairs))),
    }


def shuffled_epochs(source: np.random.Generator):
    """A mutant: walk through a shuffled data set, batch after batch."""
    waiting: list[int] = []

    def draw() -> np.ndarray:
        nonlocal waiting
        size = round(COUNT * RATE)
        if len(waiting) < size:
            waiting = list(source.permutation(COUNT))
        batch, waiting = waiting[:size], waiting[size:]
        return np.array(batch)

    return draw


def test_it_is_poisson() -> None:
    source = np.random.default_rng(1)
    values = p_values(membership(lambda: poisson(COUNT, RATE, source)))
    assert min(values.values()) > 1e-6, values


class TestScattered:
    """Small rates: points are thrown, and no coin for each unit."""

    def test_it_is_poisson(self) -> None:
        """At a rate at which a mistake shows; the first and the last unit are among those that are counted."""
        source = SecureSampling()
        values = p_values(membership(lambda: sampling._scattered(COUNT, RATE, source)))
        assert min(values.values()) > 1e-6, values

    def test_of_many_units_as_many_join_as_the_rate_says(self) -> None:
        """800 draws of 100 expected of a million; the mean's standard error is 0.35, the variance's 5."""
        drawn = [poisson(10**6, 1e-4, SecureSampling()) for _ in range(800)]
        sizes = np.array([len(each) for each in drawn])
        assert abs(sizes.mean() - 100) < 5 * 0.354
        assert abs(sizes.var() - 100) < 5 * 5
        where = np.concatenate(drawn)
        assert where.min() >= 0
        assert where.max() < 10**6
        assert stats.kstest(where / 10**6, "uniform").pvalue > 1e-6
        assert all((np.diff(each) > 0).all() for each in drawn), "in order, and nobody twice"

    def test_poisson_numbers(self) -> None:
        found = np.bincount(sampling._poisson_ones(200_000, SecureSampling()), minlength=8)
        expected = 200_000 * stats.poisson.pmf(np.arange(7), 1)
        rest = 200_000 - expected.sum()
        assert stats.chisquare([*found[:7], found[7:].sum()], [*expected, rest]).pvalue > 1e-6

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_few_units(self, count: int) -> None:
        often = sum(len(poisson(count, 0.015, SecureSampling())) for _ in range(1000))
        assert abs(often - 15 * count) <= 5 * (15 * count) ** 0.5

    def test_no_unit_joins_more_often_than_the_rate_says(self) -> None:
        """The mean number of points is rounded down, so that 1 - exp(-m) <= rate whatever rounds where."""
        for rate in (1e-12, 1e-7, 0.001, 1 / 65, 0.9):
            for count in (1, 999, 10**6, 10**8):
                ones, kept = sampling._points(count, rate)
                joins = -math.expm1(-Fraction(ones * kept, 2**53 * count))
                assert rate - 2**-53 - 4e-15 * rate < joins <= rate, (rate, count)

    def test_draws_cost_as_much_of_a_million_as_of_a_hundred_million(self) -> None:
        source = _Counting()
        often = []
        for count in (10**6, 10**8):
            source.words = 0
            for _ in range(30):
                poisson(count, 256 / count, source)
            often.append(source.words / 30)
        assert often[1] == pytest.approx(often[0], rel=0.1)
        assert often[0] < 10 * 256


class _Counting:
    """A source that counts what is drawn from it."""

    def __init__(self) -> None:
        self.words, self._source = 0, SecureSampling()

    def random(self, count: int) -> np.ndarray:
        self.words += count
        return self._source.random(count)


def test_mutant_fixed_size_is_caught() -> None:
    source = np.random.default_rng(1)
    values = p_values(membership(lambda: source.choice(COUNT, round(COUNT * RATE), replace=False)))
    assert values["size varies as a binomial does"] < 1e-6


def test_mutant_shuffled_epochs_are_caught() -> None:
    values = p_values(membership(shuffled_epochs(np.random.default_rng(1))))
    assert values["one draw tells nothing of the next"] < 1e-6


def test_fresh_sources_differ() -> None:
    draws = [tuple(poisson(1000, 0.5, np.random.default_rng())) for _ in range(2)]
    assert draws[0] != draws[1]


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.01, float("nan")])
def test_wrong_rates(rate: float) -> None:
    with pytest.raises(SettingError, match="rate"):
        poisson(10, rate, np.random.default_rng())


def test_physical_batches_cover_the_logical_one() -> None:
    for length in (0, 1, 7, 64):
        for most in (1, 3, 100):
            parts = list(physical(np.arange(length), most))
            assert np.array_equal(np.concatenate([*parts, np.arange(0)]), np.arange(length))
            assert all(0 < len(part) <= most for part in parts)
    with pytest.raises(SettingError, match="at least one"):
        list(physical(np.arange(3), 0))


def test_odd_data_is_refused() -> None:
    import torch

    with pytest.raises(DataError, match="one length"):
        TensorUnits((torch.zeros(3), torch.zeros(4)))
    with pytest.raises(DataError, match="at least one tensor"):
        rows_in(())
    with pytest.raises(DataError, match="made of tensors"):
        pick(3.5, torch.tensor([0]))


def test_batches_may_be_nested() -> None:
    import torch

    batch = {"x": torch.arange(4), "more": (torch.arange(4) * 2, [torch.arange(4) * 3])}
    picked = pick(batch, torch.tensor([1, 3]))
    assert picked["more"][1][0].tolist() == [3, 9]
    assert rows_in(picked) == 2


class TestLabels:
    """What a method may tell units apart by, where it asks each at points of its own."""

    def test_groups_are_equally_likely_at_every_place(self) -> None:
        drawn = np.stack([labels(5, 3, SecureSampling()) for _ in range(6000)])
        for place in range(5):
            counts = np.bincount(drawn[:, place], minlength=3)
            assert stats.chisquare(counts).pvalue > 1e-6

    def test_no_two_units_have_one_label(self) -> None:
        assert len(np.unique(labels(10_000, None, SecureSampling()))) == 10_000

    def test_one_seed_one_labelling(self) -> None:
        one, again = (labels(9, None, np.random.default_rng(4)) for _ in range(2))
        assert (one == again).all()


class TestSecureSampling:
    def test_uniform(self) -> None:
        assert stats.kstest(SecureSampling().random(200_000), "uniform").pvalue > 1e-6

    def test_no_two_calls_and_no_two_processes_draw_alike(self) -> None:
        source = SecureSampling()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            drawn = [tuple(row) for row in pool.map(source.random, [64] * 8)]
        drawn += [tuple(source.random(64)), tuple(copy.deepcopy(source).random(64))]
        assert len(set(drawn)) == 10

    def test_it_says_that_it_is_secret_and_generators_of_numpy_do_not(self) -> None:
        assert is_secret(SecureSampling())
        assert not is_secret(np.random.default_rng())
        assert not is_secret(np.random.default_rng(3))
