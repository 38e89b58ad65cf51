"""What a run that goes on may still take: at most what it was planned with, by any accountant."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from saltflat.core.allowance import Allowance
from saltflat.privacy.record.costs import Cost, FixedSize
from saltflat.privacy.record.history import epsilon_of

NOISES = (2.0, 3.0, 4.0)


def pair(noise: float) -> Cost:
    return 0.1, noise


def fixed(noise: float) -> Cost:
    return FixedSize(100, 10, noise)


def matched(planned: Counter[float], spent: Counter[float]) -> bool:
    """Whether each spent step has a planned one of its own with at most its noise: the definition, tried out."""
    free = sorted(planned.elements())
    for noise in sorted(spent.elements(), reverse=True):
        fits = [each for each in free if each <= noise]
        if not fits:
            return False
        free.remove(fits[-1])
    return True


@pytest.mark.parametrize("cost", [pair, fixed])
def test_it_is_the_matching_of_steps(cost: object) -> None:
    counts = list(itertools.product(range(3), repeat=3))
    for a, b in itertools.product(counts, counts):
        if not any(a):
            continue
        planned, spent = (Counter(dict(zip(NOISES, each, strict=True))) for each in (a, b))
        planned = +planned
        found = Allowance({cost(n): k for n, k in planned.items()}, {cost(n): k for n, k in spent.items()})  # type: ignore[operator]
        assert found.covers == matched(planned, spent)
        if not found.covers:
            continue
        for noise in planned:
            room = found.room([cost(noise)], 99)  # type: ignore[operator]
            assert matched(planned, spent + Counter({noise: room}))
            assert not matched(planned, spent + Counter({noise: room + 1}))


@pytest.mark.parametrize(("cost", "adjacency"), [(pair, "add-or-remove"), (fixed, "replace")])
def test_what_is_covered_costs_no_more(cost: object, adjacency: str) -> None:
    rng = random.Random(0)
    for _ in range(6):
        planned = {cost(noise): rng.randrange(1, 20) for noise in NOISES}  # type: ignore[operator]
        allowance, spent = Allowance(planned, {}), Counter[Cost]()
        for _ in range(20):
            step = [rng.choice(list(planned)) for _ in range(rng.randrange(1, 3))]
            taken = allowance.room(step, rng.randrange(1, 9))
            allowance.take(step, taken)
            spent.update({each: taken * step.count(each) for each in set(step)})
        assert allowance.covers
        assert epsilon_of(+spent, 1e-5, adjacency) <= epsilon_of(planned, 1e-5, adjacency) * (1 + 1e-9)


@pytest.mark.parametrize("other", [(0.2, 3.0), (0.1, 1.0), FixedSize(100, 10, 3.0)])
def test_steps_of_another_kind_are_covered_by_none(other: Cost) -> None:
    allowance = Allowance({(0.1, 2.0): 5}, {other: 1})
    assert not allowance.covers
    assert allowance.room([(0.1, 2.0)], 9) == 5
