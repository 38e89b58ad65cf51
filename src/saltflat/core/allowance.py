"""Which planned steps a run that goes on may still take, after what was charged to it before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from saltflat.privacy.record.costs import Cost, FixedSize


class Allowance:
    """The steps that a run was planned with, less those that it has taken or may have taken.

    The steps of a plan differ in their noise alone. A taken step uses up a planned one that has the same noise or less,
    which costs at least as much. So for every noise level the number of taken steps with at most that noise stays at or
    below the number of planned ones.

    *Guarantee*: as long as `covers` holds, the taken steps cost at most what the planned ones cost, at every delta and
    at every Renyi order: more noise is post-processing.

    >>> allowance = Allowance({(0.1, 2.0): 3, (0.1, 4.0): 3}, {(0.1, 2.0): 2})
    >>> allowance.room([(0.1, 2.0)], 9), allowance.room([(0.1, 4.0)], 9)
    (1, 4)

    Args:
        planned: How many steps of each cost the run may take in all.
        spent: How many were charged, or may have been taken, by now.
    """

    def __init__(self, planned: Mapping[Cost, int], spent: Mapping[Cost, int]) -> None:
        self._kind = _without_noise(next(iter(planned)))
        self._noises = sorted({_noise(cost) for cost in planned})
        left = np.zeros(len(self._noises), dtype=np.int64)
        for cost, steps in planned.items():
            left[self._place(cost)] += steps
        self._unknown = False
        for cost, steps in spent.items():
            if _without_noise(cost) != self._kind or _noise(cost) < self._noises[0]:
                self._unknown = self._unknown or steps > 0  # no planned step costs as much
            else:
                left[self._place(cost)] -= steps
        self._left = left.cumsum()

    @property
    def covers(self) -> bool:
        """Whether the planned steps cost at least as much as those that were taken."""
        return not self._unknown and bool((self._left >= 0).all())

    def room(self, costs: Iterable[Cost], steps: int) -> int:
        """How many of so many steps may still be taken, each of which draws samples of these costs."""
        need = self._needed(costs)
        return max(0, min(steps, int((self._left[need > 0] // need[need > 0]).min())))

    def take(self, costs: Iterable[Cost], steps: int = 1) -> None:
        """Count so many steps, each of which draws samples of these costs."""
        self._left -= steps * self._needed(costs)

    def _needed(self, costs: Iterable[Cost]) -> np.ndarray:
        places = [self._place(cost) for cost in costs]
        return np.bincount(places, minlength=len(self._noises)).cumsum()

    def _place(self, cost: Cost) -> int:
        """The planned noise that a step of this cost is counted with: the largest one that is not above its own."""
        return bisect_right(self._noises, _noise(cost)) - 1


def _noise(cost: Cost) -> float:
    return cost[1] if isinstance(cost, tuple) else float(getattr(cost, "noise_multiplier", 0.0))


def _without_noise(cost: Cost) -> object:
    """What steps of one plan have in common."""
    if isinstance(cost, tuple):
        return cost[0]
    return replace(cost, noise_multiplier=1.0) if isinstance(cost, FixedSize) else cost
