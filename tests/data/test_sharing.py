"""Who is public: as many of each class, by a seed, and never by what private examples are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from saltflat.core.public import check_apart
from saltflat.data import Examples, digits, shared
from saltflat.errors import DataError, SettingError


def examples(count: int = 300) -> Examples:
    source = torch.Generator().manual_seed(1)
    return Examples(torch.arange(count).float().view(count, 1), torch.randint(3, (count,), generator=source))


def test_the_parts_are_apart_and_nobody_is_lost() -> None:
    found = shared(examples(), 30, classes=3, seed=4)
    public, private = (set(part.inputs.flatten().tolist()) for part in (found.public, found.private))
    assert public == set(found.numbers.tolist())
    assert not public & private
    assert len(public | private) == 300
    assert found.public.targets.bincount().tolist() == [10, 10, 10]

    class Pool:
        units = found.public

    check_apart([Pool()], found.private)  # they share no memory either


@pytest.mark.parametrize("seed", range(5))
def test_a_private_example_that_was_not_there_changes_nothing_for_the_others(seed: int) -> None:
    """Whoever is private can leave, and the same ones are public."""
    whole = examples()
    found = shared(whole, 30, classes=3, seed=seed)
    rest = np.setdiff1d(np.arange(300), found.numbers)
    last = int(rest[-1])
    if last == 299:
        shorter = Examples(whole.inputs[:299], whole.targets[:299])
        assert np.array_equal(shared(shorter, 30, classes=3, seed=seed).numbers, found.numbers)
    for gone in rest[:40]:  # a label that no class has stands for a row that is not there
        labels = whole.targets.clone()
        labels[gone] = -1
        other = shared(Examples(whole.inputs, labels), 30, classes=3, seed=seed)
        assert np.array_equal(other.numbers, found.numbers)


def test_another_seed_is_another_choice() -> None:
    numbers = [shared(digits().train, 60, classes=10, seed=seed).numbers for seed in (0, 0, 1)]
    assert np.array_equal(numbers[0], numbers[1])
    assert not np.array_equal(numbers[0], numbers[2])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match="multiple of 3"):
        shared(examples(), 31, classes=3)
    with pytest.raises(DataError, match="lower count"):
        shared(examples(), 300, classes=3)
    with pytest.raises(SettingError):
        shared(examples(), 0, classes=3)
