"""Upper bounds on epsilon and delta, by two accountants that must agree.

Where nothing is sampled the exact Gaussian curve is used. Otherwise the privacy loss distribution (PLD) is
reported, and the Renyi bound and the bound without amplification are its second opinion. All of them are
upper bounds, so the smallest is valid; but the PLD ought to be the smallest, and where it is not although
its grid is fine, something is wrong and the answer is a refusal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import get_epsilon_gaussian
from dp_accounting.dp_event import DpEvent
from scipy.special import log_ndtr, ndtr

from saltflat.errors import AccountingError
from saltflat.privacy.accounting import loss as losses
from saltflat.privacy.accounting import renyi
from saltflat.privacy.accounting.events import (
    ADD_REMOVE,
    REPLACE,
    Adjacency,
    Leaves,
    adjacency_words,
    effective_noise,
    gaussian_only,
    leaves,
    unamplified,
)
from saltflat.privacy.accounting.loss import COARSE, FINE, Grid
from saltflat.privacy.limits import DELTA_FLOOR, checked_delta, checked_epsilon

EPSILON_FLOOR = 1e-6
"""The smallest epsilon reported for a run with any private step: below it, rounding decides."""

NOTHING, EXACT, PLD = "nothing was released", "exact Gaussian", "PLD"  # accountants, as a bound names them
WITHOUT = "Gaussian without amplification"

_AGREEMENT = 1.01  # a fine grid is at most 0.1 % too high; beyond 1 % the accountants contradict each other


@dataclass(frozen=True)
class Bound:
    """An upper bound on epsilon at ``delta``, the accountant that gave it, and what the others gave."""

    epsilon: float
    delta: float
    accountant: str
    second_opinion: float


def epsilon(event: DpEvent, delta: float, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """An upper bound on epsilon at ``delta``.

    *Guarantee*: never below the true value. What has no sound bound is refused with an AccountingError.

    >>> from saltflat.privacy.accounting.events import phase_event
    >>> round(epsilon(phase_event(256 / 60000, 1.1, 14062), 1e-5), 2)
    2.38

    Doroshenko et al., "Connect the Dots", 2022 (PLD); Balle & Wang, "Analytic Gaussian", 2018.
    """
    return bound(event, delta, adjacency=adjacency).epsilon


def bound(event: DpEvent, delta: float, *, adjacency: Adjacency = ADD_REMOVE) -> Bound:
    """Like :func:`epsilon`, and says which accountant gave the bound and what the second opinion was."""
    delta, parts = checked_delta(delta), leaves(event)
    if not parts:
        return Bound(0.0, delta, NOTHING, 0.0)
    if gaussian_only(parts):
        return Bound(_floored(_exact_epsilon(parts, delta, adjacency)), delta, EXACT, math.inf)
    first, trusted = _pld_epsilon(parts, delta, adjacency)
    second = _rdp_epsilon(parts, delta, adjacency)
    if not min(first, second) < math.inf:
        raise AccountingError(_no_bound(parts, delta, adjacency))
    unsampled = _ceiling(event, delta, adjacency)
    ceiling = min(second, unsampled)
    if trusted and first > _AGREEMENT * max(ceiling, EPSILON_FLOOR):
        raise AccountingError(
            f"the accountants contradict each other (PLD {first:.6g}, second opinion {ceiling:.6g}), so no "
            "epsilon is reported: please report this event as a bug"
        )
    least, name = min((first, PLD), (second, "RDP"), (unsampled, WITHOUT))
    return Bound(_floored(least), delta, name, second)


def draft_epsilon(event: DpEvent, delta: float, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """An upper bound for searches: faster than :func:`epsilon`, up to 0.1 % higher, no second opinion."""
    delta, parts = checked_delta(delta), leaves(event)
    if parts and not gaussian_only(parts) and losses.covers(parts, adjacency):
        found = losses.loss(parts, adjacency, COARSE)
        value = math.inf if found is None else found.epsilon(delta)
        if value < math.inf:
            return _floored(value)
    return epsilon(event, delta, adjacency=adjacency)


def rdp_epsilon(event: DpEvent, delta: float, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """An upper bound on epsilon by Renyi accounting alone: looser, and what most published runs used.

    >>> from saltflat.privacy.accounting.events import phase_event
    >>> round(rdp_epsilon(phase_event(256 / 60000, 1.1, 14062), 1e-5), 2)
    2.6

    Mironov, Talwar & Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019.
    """
    delta, parts = checked_delta(delta), leaves(event)
    return _floored(renyi.rdp_bound(parts, delta, adjacency=adjacency)) if parts else 0.0


def delta(event: DpEvent, epsilon: float, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """An upper bound on delta at ``epsilon``; ``epsilon=0`` bounds the total variation distance.

    >>> from saltflat.privacy.accounting.events import step_event
    >>> round(delta(step_event(1.0, 2.0), 1.9931) * 1e5, 2)
    1.0
    """
    epsilon, parts = checked_epsilon(epsilon), leaves(event)
    if not parts:
        return 0.0
    if gaussian_only(parts):
        return max(*_exact_deltas(parts, [epsilon], adjacency), DELTA_FLOOR)
    found = losses.loss(parts, adjacency, FINE) if losses.covers(parts, adjacency) else None
    first = 1.0 if found is None else found.delta(epsilon)
    second = renyi.rdp_delta(parts, epsilon, adjacency=adjacency) if renyi.covers(parts, adjacency) else 1.0
    return max(min(first, second), DELTA_FLOOR)


def profile(
    event: DpEvent, epsilons: Sequence[float], *, adjacency: Adjacency = ADD_REMOVE, grid: Grid = FINE
) -> tuple[tuple[float, ...], str]:
    """Upper bounds on delta at each of ``epsilons``, and the accountant that gave them.

    The deltas bound both directions (a unit added, a unit removed), and all of them hold at once. Where neither a
    privacy loss distribution nor a Gaussian without amplification answers they are 1 and the accountant is "".

    Args:
        event: The whole private access of a run.
        epsilons: Where to bound delta, each at least 0.
        adjacency: Which data sets are neighbours.
        grid: How fine the distribution is discretised; a coarse one is quicker and higher.

    >>> from saltflat.privacy.accounting.events import step_event
    >>> profile(step_event(1.0, 2.0), [0.0])[1]
    'exact Gaussian'
    """
    parts = leaves(event)
    if not parts:
        return (0.0,) * len(epsilons), NOTHING
    if gaussian_only(parts):
        return _exact_deltas(parts, epsilons, adjacency), EXACT
    found = losses.loss(parts, adjacency, grid) if losses.covers(parts, adjacency) else None
    if found is not None:
        return tuple(found.delta(each) for each in epsilons), PLD
    plain = leaves(unamplified(event, adjacency=adjacency))
    if gaussian_only(plain):  # sampling can only help
        return _exact_deltas(plain, epsilons, adjacency), WITHOUT
    return (1.0,) * len(epsilons), ""


def curve(
    event: DpEvent, deltas: Sequence[float], *, adjacency: Adjacency = ADD_REMOVE
) -> tuple[tuple[float, float], ...]:
    """(delta, epsilon) pairs: one run has a whole curve of guarantees, all true at once."""
    return tuple((each, epsilon(event, each, adjacency=adjacency)) for each in deltas)


def epsilon_unamplified(event: DpEvent, delta: float, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """Epsilon if an observer knew who was in every batch: what holds without the help of sampling."""
    return epsilon(unamplified(event, adjacency=adjacency), delta, adjacency=adjacency)


def _pld_epsilon(parts: Leaves, delta: float, adjacency: Adjacency) -> tuple[float, bool]:
    """The PLD bound, and whether it is accurate enough to contradict another one."""
    usable = losses.covers(parts, adjacency) and not losses.hidden(losses.slack(parts), delta)
    found = losses.loss(parts, adjacency, FINE) if usable else None
    if found is None:
        return math.inf, False
    value = found.epsilon(delta) * (1 + 1e-9)
    return value, found.resolved and value < math.inf


def _rdp_epsilon(parts: Leaves, delta: float, adjacency: Adjacency) -> float:
    covered = renyi.covers(parts, adjacency)
    return renyi.rdp_bound(parts, delta, adjacency=adjacency) if covered else math.inf


def _ceiling(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    """Epsilon without amplification, where it is exactly Gaussian: sampling can only help."""
    plain = leaves(unamplified(event, adjacency=adjacency))
    return _exact_epsilon(plain, delta, adjacency) if gaussian_only(plain) else math.inf


def _plain_noise(parts: Leaves, adjacency: Adjacency) -> float:
    """Gaussians on everyone compose to one Gaussian; replacing a unit doubles its sensitivity."""
    sigma = effective_noise(leaf.noise_multiplier / math.sqrt(count) for leaf, count in parts)
    return sigma / 2 if adjacency is REPLACE else sigma


def _exact_epsilon(parts: Leaves, delta: float, adjacency: Adjacency) -> float:
    """The analytic Gaussian curve, nudged above the root finder's tolerance."""
    with np.errstate(all="ignore"):
        value = float(get_epsilon_gaussian(_plain_noise(parts, adjacency), delta))
    return value * (1 + 1e-9) + 1e-10


def _exact_deltas(parts: Leaves, epsilons: Sequence[float], adjacency: Adjacency) -> tuple[float, ...]:
    """Phi(1 / (2 sigma) - epsilon sigma) - e^epsilon Phi(-1 / (2 sigma) - epsilon sigma), plus its rounding.

    Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018, Theorem 8.
    """
    sigma, at = _plain_noise(parts, adjacency), np.asarray(epsilons, dtype=float)
    mass = ndtr(0.5 / sigma - at * sigma)
    other = np.exp(at + log_ndtr(-0.5 / sigma - at * sigma))
    return tuple(float(each) for each in np.clip(mass - other + 1e-13 * mass, 0.0, 1.0))


def _floored(value: float) -> float:
    return max(value, EPSILON_FLOOR)


def _no_bound(parts: Leaves, delta: float, adjacency: Adjacency) -> str:
    if not losses.covers(parts, adjacency):
        kinds = ", ".join(sorted({type(leaf).__name__ for leaf, _ in parts}))
        return (
            f"no sound amplified bound is known for {kinds} under '{adjacency_words(adjacency)}': change the "
            "sampling or the adjacency, or account for unamplified(event)"
        )
    return (
        f"delta {delta:g} is below what a privacy loss distribution can resolve for this run: take a larger "
        "delta, or account for unamplified(event)"
    )
