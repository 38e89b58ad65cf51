"""Renyi differential privacy: the second opinion, and the only accountant that works as a filter.

Integer orders come from dp_accounting. Its series for fractional orders adds the absolute values of an
alternating series: an upper bound still, but up to 1 % too high where small orders matter (rate 0.1,
noise 0.95), and at times it does not converge. Fractional orders are therefore integrated here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from dp_accounting import UnsupportedEventError
from dp_accounting.dp_event import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from numpy.typing import NDArray

from saltflat.errors import AccountingError
from saltflat.privacy.accounting.events import (
    ADD_REMOVE,
    REPLACE,
    Adjacency,
    ChosenDpEvent,
    Leaf,
    Leaves,
    RenyiDpEvent,
    adjacency_words,
    compose,
    leaves,
    repeated,
)

Array = NDArray[np.float64]

FRACTIONS = tuple(1 + k / 10 for k in range(1, 100) if k % 10)
INTEGERS = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512, 768, 1024)
ORDERS: tuple[float, ...] = tuple(sorted((*FRACTIONS, *map(float, INTEGERS))))

_RELATIVE, _ABSOLUTE = 1e-9, 1e-14  # more than the rounding of either formula, per step


def rdp_curve(parts: Leaves, orders: Sequence[float], *, adjacency: Adjacency = ADD_REMOVE) -> Array:
    """Upper bounds on the Renyi divergence at ``orders``, summed over all steps, rounding included.

    Poisson sampling: ``log E_{z ~ N(0, sigma^2)}[(1 - q + q exp((2z - 1) / (2 sigma^2)))^a] / (a - 1)``.

    >>> rdp_curve(leaves(GaussianDpEvent(2.0)), [4.0]).round(6)
    array([0.5])
    """
    total = np.zeros(len(orders))
    for leaf, count in parts:
        total += count * (np.array(_leaf_curve(leaf, tuple(orders), adjacency)) * (1 + _RELATIVE) + _ABSOLUTE)
    return total


@lru_cache(maxsize=256)
def _leaf_curve(leaf: Leaf, orders: tuple[float, ...], adjacency: Adjacency) -> tuple[float, ...]:
    """One run of ``leaf``: integers by dp_accounting, fractions by integration."""
    if isinstance(leaf, ChosenDpEvent):
        return tuple(rdp_curve(leaves(leaf.event), orders, adjacency=adjacency))
    if isinstance(leaf, RenyiDpEvent):
        return tuple(leaf.bound_at(order) for order in orders)
    if not (isinstance(leaf, PoissonSampledDpEvent) and adjacency is not REPLACE):
        return tuple(_library_curve(leaf, orders, adjacency))
    whole = [order for order in orders if order == int(order)]
    known = dict(zip(whole, _library_curve(leaf, tuple(whole), adjacency), strict=True))
    return tuple(known[order] if order in known else _integrated(leaf, order) for order in orders)


def _library_curve(leaf: Leaf, orders: tuple[float, ...], adjacency: Adjacency) -> Array:
    accountant = RdpAccountant(list(orders), adjacency)
    try:
        accountant.compose(_halved(leaf) if adjacency is REPLACE else leaf)
    except UnsupportedEventError:
        raise AccountingError(
            f"Renyi accounting has no sound bound for {type(leaf).__name__} under "
            f"'{adjacency_words(adjacency)}': change the sampling or the adjacency"
        ) from None
    return accountant.rdp


def _halved(leaf: Leaf) -> Leaf:
    """``leaf`` with half the noise: dp_accounting's Renyi accountant does not double the sensitivity."""
    if isinstance(leaf, GaussianDpEvent):
        return GaussianDpEvent(leaf.noise_multiplier / 2)
    if isinstance(leaf, SampledWithoutReplacementDpEvent):
        return SampledWithoutReplacementDpEvent(
            leaf.source_dataset_size, leaf.sample_size, _halved(leaf.event)
        )
    if isinstance(leaf, RepeatAndSelectDpEvent):
        inner = compose(*(repeated(_halved(part), count) for part, count in leaves(leaf.event)))
        return RepeatAndSelectDpEvent(inner, leaf.mean, leaf.shape)
    return leaf


def _integrated(leaf: PoissonSampledDpEvent, order: float) -> float:
    """The trapezoid rule: for an analytic integrand its error falls exponentially in 1 / step."""
    q, sigma = leaf.sampling_probability, leaf.event.noise_multiplier
    if sigma < 0.1:
        return math.inf  # too sharp for a moderate number of points; integer orders remain
    z = np.arange(-14 * sigma, 14 * sigma + order, min(sigma, sigma**2) / 8)
    log_weight = -(z**2) / (2 * sigma**2)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * z - 1) / (2 * sigma**2))
    log_moment = np.logaddexp.reduce(log_weight + order * log_ratio) - np.logaddexp.reduce(log_weight)
    return max(float(log_moment), 0.0) / (order - 1)


def covers(parts: Leaves, adjacency: Adjacency) -> bool:
    """Whether Renyi accounting has a sound bound for every part, including those inside selected trials."""
    return all(_covers(leaf, adjacency) for leaf, _ in parts)


def _covers(leaf: Leaf, adjacency: Adjacency) -> bool:
    if isinstance(leaf, RepeatAndSelectDpEvent | ChosenDpEvent):
        return covers(leaves(leaf.event), adjacency)
    if isinstance(leaf, PoissonSampledDpEvent):
        return adjacency is not REPLACE
    if isinstance(leaf, SampledWithoutReplacementDpEvent):
        return adjacency is REPLACE
    return isinstance(leaf, GaussianDpEvent | RenyiDpEvent)


def rdp_bound(parts: Leaves, delta: float, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """The smallest epsilon that any order in ``ORDERS`` proves at ``delta``."""
    return float(_converted(parts, adjacency, delta)[0])


def best_order(parts: Leaves, delta: float, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """The order that gives ``rdp_bound``: the one to fix in advance for a filter."""
    return float(_converted(parts, adjacency, delta)[1])


def rdp_delta(parts: Leaves, epsilon: float, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """The smallest delta that any order in ``ORDERS`` proves at ``epsilon``."""
    orders = orders_for(parts)
    curve = rdp_curve(parts, orders, adjacency=adjacency)
    return float(rdp_privacy_accountant.compute_delta(orders, curve, epsilon)[0])


def _converted(parts: Leaves, adjacency: Adjacency, delta: float) -> tuple[float, float]:
    orders = orders_for(parts)
    curve = rdp_curve(parts, orders, adjacency=adjacency)
    found: tuple[float, float] = rdp_privacy_accountant.compute_epsilon(orders, curve, delta)
    return found


def orders_for(parts: Leaves) -> Sequence[float]:
    """Those on the grid, and those at which a bound is given.

    Selected trials go through dp_accounting as a whole, so they keep to its exact integer orders.
    """
    if any(isinstance(leaf, RepeatAndSelectDpEvent) for leaf, _ in parts):
        return tuple(map(float, INTEGERS))
    given = {order for leaf, _ in parts if isinstance(leaf, RenyiDpEvent) for order, _ in leaf.points}
    return tuple(sorted(given.union(ORDERS)))


def conversion(order: float, delta: float) -> float:
    """What turning RDP at ``order`` into (epsilon, delta) adds to epsilon.

    ``log(1 - 1/a) - log(delta a) / (a - 1)`` (Canonne, Kamath & Steinke 2020, Proposition 12).

    >>> round(conversion(10.0, 1e-5), 4)
    0.918
    """
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
