"""Who is public: each example by itself, and never by what or how many the others are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from saltflat.core.public import check_apart
from saltflat.data import Examples, digits, shared
from saltflat.data.sharing import keys_of
from saltflat.errors import DataError, SettingError

RATE = 0.1


def examples(count: int = 300) -> Examples:
    source = torch.Generator().manual_seed(1)
    return Examples(torch.arange(count).float().view(count, 1), torch.randint(3, (count,), generator=source))


def public_in(some: Examples, seed: int = 0, rate: float = RATE) -> set[float]:
    """The public examples; each of `examples` is known by its only input."""
    return set(shared(some, rate, seed=seed).public.inputs.flatten().tolist())


def part(some: Examples, which: np.ndarray) -> Examples:
    return Examples(some.inputs[which], some.targets[which])


def test_the_parts_are_apart_and_nobody_is_lost() -> None:
    found = shared(examples(), RATE, seed=4)
    public, private = (set(part.inputs.flatten().tolist()) for part in (found.public, found.private))
    assert public == set(found.numbers.tolist())
    assert not public & private
    assert len(public | private) == 300
    assert found.public.count + found.private.count == 300

    class Pool:
        units = found.public

    check_apart([Pool()], found.private)  # they share no memory either


@pytest.mark.parametrize("seed", range(2))
def test_whoever_leaves_or_changes_everybody_else_stays_on_their_side(seed: int) -> None:
    whole = examples()
    before = public_in(whole, seed)
    everyone = set(range(300))
    for gone in range(300):
        shorter = part(whole, np.delete(np.arange(300), gone))
        assert public_in(shorter, seed) == before - {gone}
        inputs, targets = whole.inputs.clone(), whole.targets.clone()
        inputs[gone], targets[gone] = 1000.0, 2
        other = Examples(inputs, targets)
        assert public_in(other, seed) - {1000.0} == before - {gone}
    assert before < everyone


def test_the_order_and_other_examples_change_nothing() -> None:
    whole, more = examples(), examples(600)
    more.targets[:300] = whole.targets
    order = np.random.default_rng(0).permutation(300)
    assert public_in(part(whole, order)) == public_in(whole)
    assert {each for each in public_in(more) if each < 300} == public_in(whole)
    assert public_in(whole) <= public_in(whole, rate=2 * RATE), "a larger rate only adds"


def test_equal_examples_are_on_one_side() -> None:
    twice = Examples(examples().inputs.repeat(2, 1), examples().targets.repeat(2))
    sides = np.isin(np.arange(600), shared(twice, RATE).numbers)
    assert np.array_equal(sides[:300], sides[300:])


def test_about_as_many_are_public_as_the_rate_says() -> None:
    counts = [shared(examples(2000), RATE, seed=seed).public.count for seed in range(20)]
    assert abs(np.mean(counts) - 200) < 4 * (2000 * RATE * 0.9 / 20) ** 0.5
    assert np.std(counts) > 5, "an exact number would follow from the others"


def test_another_seed_is_another_choice() -> None:
    keys = [keys_of(shared(digits().train, 0.04, seed=seed).public, seed=0) for seed in (0, 0, 1)]
    assert np.array_equal(keys[0], keys[1])
    assert set(keys[0].tolist()) != set(keys[2].tolist())


def test_a_column_says_who_is_public() -> None:
    column = np.arange(300) % 7 == 0
    found = shared(examples(), column=column)
    assert np.array_equal(found.numbers, np.flatnonzero(column))
    assert shared(examples(), column=column.tolist()).public.count == found.public.count


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"rate": 0.0}, SettingError, "above 0 and below 1"),
        ({"rate": 30}, SettingError, "above 0 and below 1"),
        ({"rate": True}, SettingError, "above 0 and below 1"),
        ({}, SettingError, "one of the two"),
        ({"rate": 0.1, "column": [True] * 300}, SettingError, "one of the two"),
        ({"column": [1, 2, 3]}, SettingError, "one bool"),
        ({"column": [True]}, SettingError, "one bool"),
        ({"rate": 0.1, "seed": -1}, SettingError, "seed"),
        ({"rate": 1e-9}, DataError, "larger rate"),
        ({"column": [True] * 300}, DataError, "smaller rate"),
    ],
)
def test_what_cannot_be_is_refused(how: dict, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        shared(examples(), **how)
