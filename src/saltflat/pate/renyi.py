"""What votes cost by Renyi accounting, whatever they are and as they are; everything in logarithms.

n_j is how many teachers chose class j. One unit changes one teacher: the counts move by at most sqrt(2), their
maximum by at most 1. Functions of votes give private numbers: nothing here is a release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

Array = NDArray[np.float64]

COUNTS = math.sqrt(2)
"""How far one unit moves the counts of one query, in L2: one vote leaves a class and joins another."""

LARGEST = 1.0
"""How far one unit moves the largest count of one query."""

ORDERS: tuple[float, ...] = tuple(
    sorted({*(1 + k / 20 for k in range(1, 2000)), *np.geomspace(101, 500, 60).round(2).tolist()})
)
"""Renyi orders: 1.05 to 100.95 by 0.05, and up to 500 on a scale of logarithms."""


def log_wrong(counts: Array, sigma: float) -> Array:
    """ln q of each row of ``counts``: a bound on the probability that noisy counts do not elect the plurality.

    q = min(1 - 1/m, sum over j other than the plurality of erfc((n_max - n_j) / (2 sigma)) / 2)

    >>> float(np.exp(log_wrong(np.array([[250.0] + [0] * 9]), 40)).round(9)[0])
    4.4535e-05
    """
    gaps = counts.max(1, keepdims=True) - counts
    terms = log_ndtr(-gaps / (math.sqrt(2) * sigma))
    np.put_along_axis(terms, counts.argmax(1)[:, None], -np.inf, axis=1)
    return np.minimum(logsumexp(terms, axis=1), math.log1p(-1 / counts.shape[1]))


def log_unlikely(largest: Array, threshold: float, sigma: float) -> Array:
    """ln min(p, 1 - p), p = P(largest + N(0, sigma^2) >= threshold): how unlikely the test's less likely outcome is."""
    distance = np.abs(np.asarray(largest, np.float64) - threshold) / sigma
    return log_ndtr(-distance)


def independent(sigma: float, order: float) -> float:
    """order / sigma^2: Gaussian noise on counts that one unit moves by sqrt(2), whatever they are."""
    return order / sigma**2


def dependent(log_q: Array, sigma: float, order: float) -> Array:
    """An upper bound on the Renyi divergence at ``order`` where the likely outcome fails with probability at most q.

    mu2 = sigma sqrt(ln 1/q), mu1 = mu2 + 1, e1 = mu1 / sigma^2, e2 = mu2 / sigma^2,
    A = (1 - q) / (1 - (q e^e2)^((mu2 - 1) / mu2)), B = e^e1 / q^(1 / (mu1 - 1)),
    min(order / sigma^2, ln((1 - q) A^(order - 1) + q B^(order - 1)) / (order - 1))

    *Guarantee*: where a condition of the theorem fails it is order / sigma^2, which always holds.

    Papernot et al., "Scalable Private Learning with PATE", ICLR 2018, theorem 6 and proposition 10.
    """
    log_q = np.asarray(log_q, np.float64)
    worst = independent(sigma, order)
    with np.errstate(all="ignore"):
        found = _log_moment(log_q, sigma, order) / (order - 1)
    usable = _valid(log_q, sigma, order) & np.isfinite(found)
    bound = np.where(usable, np.clip(found, 0.0, worst), worst)
    return np.where(np.isneginf(log_q), 0.0, bound)


def _valid(log_q: Array, sigma: float, order: float) -> NDArray[np.bool_]:
    """Where the theorem's conditions hold."""
    with np.errstate(all="ignore"):
        mu2 = sigma * np.sqrt(-log_q)
        e2 = mu2 / sigma**2
        rising = (mu2 - 1) * e2 - mu2 * (np.log1p(1 / mu2) + np.log1p(1 / (mu2 - 1)))
        return (order <= mu2 + 1) & (mu2 > 1) & (log_q + e2 < 0) & (log_q <= rising)


def _log_moment(log_q: Array, sigma: float, order: float) -> Array:
    """ln((1 - q) A^(order - 1) + q B^(order - 1))."""
    mu2 = sigma * np.sqrt(-log_q)
    e1, e2 = (mu2 + 1) / sigma**2, mu2 / sigma**2
    log_right = np.log1p(-np.exp(log_q))
    log_a = log_right - np.log(-np.expm1((log_q + e2) * (1 - 1 / mu2)))
    log_b = e1 - log_q / mu2
    return np.logaddexp(log_right + (order - 1) * log_a, log_q + (order - 1) * log_b)


def rdp_gnmax(counts: Array, sigma: float, orders: Sequence[float], *, data_dependent: bool = True) -> Array:
    """The Renyi cost at ``orders`` of one noisy plurality of each row of ``counts``: (rows, orders).

    >>> rdp_gnmax(np.array([[220.0, 30] + [0] * 8]), 40, [10.0]).round(7)
    array([[0.0003195]])
    """
    if not data_dependent:
        return np.tile([independent(sigma, order) for order in orders], (len(counts), 1))
    log_q = log_wrong(np.asarray(counts, np.float64), sigma)
    return np.stack([dependent(log_q, sigma, order) for order in orders], axis=1)


def rdp_threshold(
    largest: Array, threshold: float, sigma: float, orders: Sequence[float], *, data_dependent: bool = True
) -> Array:
    """The Renyi cost at ``orders`` of asking whether noise and each largest count reach ``threshold``.

    A count that moves by 1 in place of sqrt(2) is one with sqrt(2) times the noise.

    >>> rdp_threshold(np.array([100.0]), 300, 200, [10.0], data_dependent=False)
    array([[0.000125]])
    """
    wide = math.sqrt(2) * sigma
    if not data_dependent:
        return np.tile([independent(wide, order) for order in orders], (len(largest), 1))
    log_q = log_unlikely(largest, threshold, sigma)
    return np.stack([dependent(log_q, wide, order) for order in orders], axis=1)
