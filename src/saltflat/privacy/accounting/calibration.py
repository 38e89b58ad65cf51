"""How much noise a budget asks for, and how many steps it affords.

Searches run on a coarse grid and finish on the fine one; what is returned was verified there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dp_accounting.dp_event import DpEvent

from saltflat.errors import AccountingError
from saltflat.privacy.accounting import bounds, risk
from saltflat.privacy.accounting.events import ADD_REMOVE, Adjacency, compose, phase_event
from saltflat.privacy.limits import (
    STEPS_CEILING,
    checked_advantage,
    checked_count,
    checked_delta,
    checked_epsilon,
    checked_noise,
    checked_rate,
)

Measure = Callable[[DpEvent, float], float]

Point = tuple[float, float]  # (scale, epsilon or advantage)

_SCALES = (1e-4, 1e7)
_WINDOW = 0.998  # what was verified lies in [_WINDOW, 1] x target; the promise is 0.99


@dataclass(frozen=True)
class Accountant:
    """Upper bounds on epsilon and on the membership advantage, each with a cheaper upper bound to search with."""

    measure: Measure
    draft: Measure
    advantage: Callable[[DpEvent], float] = risk.advantage
    draft_advantage: Callable[[DpEvent], float] = risk.draft_advantage


def tight(adjacency: Adjacency = ADD_REMOVE) -> Accountant:
    """The bound that is reported (PLD, exact where nothing is sampled)."""
    return Accountant(
        measure=partial(bounds.epsilon, adjacency=adjacency),
        draft=partial(bounds.draft_epsilon, adjacency=adjacency),
        advantage=partial(risk.advantage, adjacency=adjacency),
        draft_advantage=partial(risk.draft_advantage, adjacency=adjacency),
    )


def renyi(adjacency: Adjacency = ADD_REMOVE) -> Accountant:
    """Renyi accounting alone: to reproduce published noise levels, 7 to 8 % higher."""
    measure = partial(bounds.rdp_epsilon, adjacency=adjacency)
    return Accountant(measure, measure)


TIGHT, RENYI = tight(), renyi()
ACCOUNTANTS = {"PLD": tight, "RDP": renyi}
"""What noise may be calibrated by, by name. Both are upper bounds, and RDP asks for more noise."""


@dataclass(frozen=True)
class _Target:
    """What a run may cost: the name of the figure, its limit, and two upper bounds on it, the first one cheap."""

    name: str
    limit: float
    draft: Callable[[DpEvent], float]
    measure: Callable[[DpEvent], float]

    @classmethod
    def of(
        cls, epsilon: float | None, delta: float | None, advantage: float | None, accountant: Accountant
    ) -> _Target:
        if (epsilon is None) == (advantage is None):
            raise AccountingError(
                "the noise is calibrated to epsilon, with a delta, or to advantage: give one of the two"
            )
        if advantage is not None:
            if delta is not None:
                raise AccountingError("delta goes with epsilon, and advantage needs none: leave delta out")
            limit = checked_advantage(advantage)
            return cls("advantage", limit, accountant.draft_advantage, accountant.advantage)
        limit, at = _target(epsilon), checked_delta(delta)
        return cls("epsilon", limit, lambda e: accountant.draft(e, at), lambda e: accountant.measure(e, at))


def calibrate_scale(
    event_of_scale: Callable[[float], DpEvent],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    accountant: Accountant = TIGHT,
) -> float:
    """The scale at which ``event_of_scale(scale)`` costs the target; more scale must mean more noise.

    Args:
        event_of_scale: The whole private access of a run, at a factor on its noise.
        epsilon: The target, at ``delta``.
        delta: The delta of epsilon.
        advantage: The target in the place of epsilon: the membership advantage of the best attack.
        accountant: The upper bounds to search with and to verify by.

    *Guarantee*: the verified figure at the returned scale lies in [0.99, 1] x the target.

    >>> two = lambda c: compose(phase_event(0.04, 1.695 * c, 250), phase_event(0.04, 15.42 * c, 500))
    >>> round(calibrate_scale(two, epsilon=2.0, delta=1e-5), 2)
    0.91
    >>> round(calibrate_scale(two, advantage=0.2), 2)
    0.83
    """
    target = _Target.of(epsilon, delta, advantage, accountant)
    draft = _Search(lambda scale: target.draft(event_of_scale(scale)), target.limit, target.name)
    final = _Search(lambda scale: target.measure(event_of_scale(scale)), target.limit, target.name)
    return final.solve(draft.solve(1.0, stride=4.0), stride=1.02)


@dataclass(frozen=True)
class _Search:
    """The smallest scale whose cost is at most the target; the cost falls as the scale grows."""

    cost_at: Callable[[float], float]
    target: float
    name: str = "epsilon"

    def solve(self, start: float, *, stride: float) -> float:
        """Bracket from ``start`` by growing strides, then close in by secants in log-log or by halving."""
        low, high = self._bracket((start, self.cost_at(start)), stride)
        for attempt in range(60):
            if self.target * _WINDOW <= high[1]:
                return high[0]
            middle = _between(low, high, self.target * (1 + _WINDOW) / 2, bisect=attempt % 3 == 2)
            found = (middle, self.cost_at(middle))
            low, high = (low, found) if found[1] <= self.target else (found, high)
        raise AccountingError(
            f"no scale gives {self.name} {self.target:g} within 0.2 %: the event does not change smoothly with it"
        )

    def _bracket(self, here: Point, stride: float) -> tuple[Point, Point]:
        """A scale with too little noise and one with enough; the same one twice if it already fits."""
        if self.target * _WINDOW <= here[1] <= self.target:
            return here, here
        enough = here[1] <= self.target
        while True:
            scale = here[0] / stride if enough else here[0] * stride
            if not _SCALES[0] <= scale <= _SCALES[1]:
                raise AccountingError(self._unreachable(here[1], enough))
            there = (scale, self.cost_at(scale))
            if (there[1] <= self.target) != enough:
                return (there, here) if enough else (here, there)
            here, stride = there, stride**1.5

    def _unreachable(self, nearest: float, enough: bool) -> str:
        if enough:
            return f"{self.name} {self.target:g} is more than the run costs with next to no noise: lower it"
        raised = "epsilon or delta" if self.name == "epsilon" else "it"
        return (
            f"{self.name} {self.target:g} is out of reach: with {_SCALES[1]:g} times the noise the run still "
            f"costs {nearest:.4g}; raise {raised}, or spend less before"
        )


def _between(low: Point, high: Point, aim: float, *, bisect: bool) -> float:
    """A scale strictly between two brackets, by a line through them in log-log or by halving."""
    (x0, y0), (x1, y1) = [(math.log(scale), math.log(epsilon)) for scale, epsilon in (low, high)]
    where = 0.5 if bisect or y0 == y1 else (y0 - math.log(aim)) / (y0 - y1)
    return math.exp(x0 + min(max(where, 0.02), 0.98) * (x1 - x0))


def noise_for(
    *,
    rate: float,
    steps: int,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    accountant: Accountant = TIGHT,
) -> float:
    """The noise multiplier at which ``steps`` steps at ``rate`` cost ``epsilon`` at ``delta``, or ``advantage``.

    >>> round(noise_for(epsilon=2.0, delta=1e-5, rate=1 / 25, steps=750), 2)
    2.35
    >>> round(noise_for(advantage=0.1, rate=1 / 25, steps=750), 2)
    4.41
    """
    rate, steps = checked_rate(rate), checked_count("the number of steps", steps)
    return calibrate_scale(
        lambda sigma: phase_event(rate, sigma, steps),
        epsilon=epsilon,
        delta=delta,
        advantage=advantage,
        accountant=accountant,
    )


def remaining_scale(
    spent: DpEvent,
    future_of_scale: Callable[[float], DpEvent],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = TIGHT,
) -> float:
    """The scale for what is still to come, given what was already spent of the same ``epsilon``.

    *Guarantee*: ``spent`` must be fixed by the plan, not by results; for an adaptive stop use an RdpFilter.

    >>> before = phase_event(0.04, 3.0, 300)
    >>> scale = remaining_scale(before, lambda c: phase_event(0.04, c, 450), epsilon=2.0, delta=1e-5)
    >>> round(scale, 1)
    2.1
    """
    already = accountant.measure(spent, checked_delta(delta))
    if not already < _target(epsilon):
        raise AccountingError(
            f"{already:.4g} of epsilon {epsilon:g} is already spent: nothing is left for more steps"
        )
    whole = lambda scale: compose(spent, future_of_scale(scale))
    return calibrate_scale(whole, epsilon=epsilon, delta=delta, accountant=accountant)


def steps_for(
    *,
    rate: float,
    noise_multiplier: float,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    accountant: Accountant = TIGHT,
) -> int:
    """The largest number of steps that costs at most ``epsilon`` at ``delta``, or at most ``advantage``.

    >>> steps_for(epsilon=2.0, delta=1e-5, rate=0.04, noise_multiplier=2.35)
    750
    """
    target = _Target.of(epsilon, delta, advantage, accountant)
    rate, noise_multiplier = checked_rate(rate), checked_noise(noise_multiplier)
    affords = lambda steps, measure: measure(phase_event(rate, noise_multiplier, steps)) <= target.limit
    if not affords(1, target.measure):
        raise AccountingError(
            f"not one step at rate {rate:g} and noise {noise_multiplier:g} fits in {target.name} "
            f"{target.limit:g}: take more noise"
        )
    drafted = _largest(lambda steps: affords(steps, target.draft), 1)
    return _largest(lambda steps: affords(steps, target.measure), drafted)


def _largest(holds: Callable[[int], bool], start: int) -> int:
    """The largest number for which ``holds`` is true, given that it holds at 1 and up to some point."""
    low = start if holds(start) else 1
    stride = max(1, low // 64)
    while low + stride <= STEPS_CEILING and holds(low + stride):
        low, stride = low + stride, 2 * stride
    high = min(low + stride, STEPS_CEILING + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _target(epsilon: float | None) -> float:
    value = checked_epsilon(epsilon)
    if value >= 10 * bounds.EPSILON_FLOOR:
        return value
    raise AccountingError(f"epsilon is {epsilon:g}: no noise in range gives less than 1e-5; raise it")
