"""How several phases share one budget: the rule of the SAI paper, and two that waste nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dp_accounting.dp_event import DpEvent

from saltflat.errors import AccountingError
from saltflat.privacy.accounting.calibration import TIGHT, Accountant, calibrate_scale, noise_for
from saltflat.privacy.accounting.events import compose, phase_event
from saltflat.privacy.limits import checked_count, checked_delta, checked_epsilon, checked_share


def phases_event(rate: float, noise_multipliers: Sequence[float], steps: Sequence[int]) -> DpEvent:
    """Phases one after another at one rate.

    >>> from saltflat.privacy.accounting.events import leaves
    >>> len(leaves(phases_event(0.04, [1.5, 14.0], [250, 500])))
    2
    """
    pairs = zip(noise_multipliers, steps, strict=True)
    return compose(*(phase_event(rate, sigma, count) for sigma, count in pairs))


def sequential(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: Sequence[int],
    shares: Sequence[float],
    accountant: Accountant = TIGHT,
) -> tuple[float, ...]:
    """Each phase calibrated alone to its share of epsilon and an equal part of delta, as in the SAI paper.

    Valid, because epsilons and deltas add up, and wasteful: the joint cost is lower.

    >>> pair = sequential(epsilon=2.0, delta=1e-5, rate=0.04, steps=(250, 500), shares=(0.9, 0.1))
    >>> [round(sigma, 1) for sigma in pair]
    [1.7, 15.4]
    """
    shares, epsilon, delta = _shares(steps, shares), checked_epsilon(epsilon), checked_delta(delta)
    return tuple(
        noise_for(
            epsilon=share * epsilon, delta=delta / len(shares), rate=rate, steps=count, accountant=accountant
        )
        for count, share in zip(steps, shares, strict=True)
    )


def joint_ratio(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: Sequence[int],
    shares: Sequence[float],
    accountant: Accountant = TIGHT,
) -> tuple[float, ...]:
    """The ratios of :func:`sequential`, all scaled by one factor so that the joint cost is epsilon.

    >>> pair = joint_ratio(epsilon=2.0, delta=1e-5, rate=0.04, steps=(250, 500), shares=(0.9, 0.1))
    >>> [round(sigma, 1) for sigma in pair]
    [1.5, 14.0]
    """
    alone = sequential(
        epsilon=epsilon, delta=delta, rate=rate, steps=steps, shares=shares, accountant=accountant
    )
    run = lambda scale: phases_event(rate, [scale * sigma for sigma in alone], steps)
    scale = calibrate_scale(run, epsilon=epsilon, delta=delta, accountant=accountant)
    return tuple(scale * sigma for sigma in alone)


def joint_share(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: Sequence[int],
    shares: Sequence[float],
    accountant: Accountant = TIGHT,
) -> tuple[float, ...]:
    """Shares of the cost itself, ``T_i (exp(1 / sigma_i^2) - 1)`` in proportion, with joint cost epsilon.

    >>> pair = joint_share(epsilon=2.0, delta=1e-5, rate=0.04, steps=(250, 500), shares=(0.98, 0.02))
    >>> [round(sigma) for sigma in pair]
    [2, 14]
    """
    shares = _shares(steps, shares)
    sigmas = lambda scale: [
        1 / math.sqrt(math.log1p(share / (count * scale**2)))
        for share, count in zip(shares, steps, strict=True)
    ]
    run = lambda scale: phases_event(rate, sigmas(scale), steps)
    return tuple(sigmas(calibrate_scale(run, epsilon=epsilon, delta=delta, accountant=accountant)))


SPLITS = {"sequential": sequential, "joint_ratio": joint_ratio, "joint_share": joint_share}


def _shares(steps: Sequence[int], shares: Sequence[float]) -> tuple[float, ...]:
    for name, given in (("steps", steps), ("shares", shares)):
        if not isinstance(given, tuple | list):
            raise AccountingError(f"{name} is {given!r}: give a list, with an entry for each phase")
    for count in steps:
        checked_count("a phase's number of steps", count)
    checked = tuple(checked_share(share) for share in shares)
    if not (len(checked) == len(steps) > 0 and math.isclose(math.fsum(checked), 1, rel_tol=1e-9)):
        raise AccountingError(
            f"the steps of {len(steps)} phases have shares {list(shares)}: give one share per phase, summing to 1"
        )
    return checked
