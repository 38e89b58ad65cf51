"""B4: the sampler is Poisson. Inclusion, size and pairs, and two samplers that are not."""

from __future__ import annotations

import copy
import multiprocessing

import numpy as np
import pytest
from scipy import stats

from saltflat.core.sampling import is_secret, labels, physical, pick, poisson, rows_in
from saltflat.data import TensorUnits
from saltflat.errors import DataError, SettingError
from saltflat.privacy import SecureSampling

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
    two_sided = lambda p: 2 * min(p, 1 - p)
    return {
        "every unit as often": two_sided(stats.chi2.sf(each, count)),
        "size varies as a binomial does": two_sided(stats.chi2.sf(size, draws - 1)),
        "one draw tells nothing of the next": two_sided(stats.norm.sf(in_a_row)),
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
