"""Smooth sensitivity: how much the cost of votes may change when a unit does, and a release of that cost.

The data-dependent cost of a run is itself a number about private data. What may be published is one noisy number that
is above it, at one Renyi order, with settings that were fixed before any vote was looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr, ndtri, ndtri_exp

from saltflat.errors import AccountingError, SettingError
from saltflat.pate.renyi import Array, dependent, independent, log_unlikely, log_wrong
from saltflat.settings import is_number, is_positive

_GRID = 4000  # points at which the conditions are looked at
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Smooth:
    """Settings of a release by smooth sensitivity: none of them may be chosen by looking at votes.

    ``order`` is the one Renyi order that the cost is taken at, ``beta`` how fast a change counts less the farther it is
    (below 1 / (2 order)), ``sigma`` the noise in units of the smooth sensitivity. With probability ``miss`` the
    released number is below the cost.

    >>> Smooth.at(10.0).beta
    0.04
    """

    order: float
    beta: float
    sigma: float
    miss: float = 1e-3

    @classmethod
    def at(cls, order: float, *, miss: float = 1e-3) -> Smooth:
        """Usual settings at an order: beta 0.4 / order, and half of the noise that is possible with it."""
        for name, value, low, high in (("order", order, 1.05, 1024), ("miss", miss, 1e-12, 0.4)):
            if not is_number(value, low, high):
                raise SettingError(f"{name} is a number from {low:g} to {high:g}; got {value!r}")
        beta = 0.4 / order
        return cls(order=order, beta=beta, sigma=0.5 * _most(beta, miss), miss=miss)

    def __post_init__(self) -> None:
        if not is_number(self.order, 1.05, 1024):
            raise SettingError(f"order is a number from 1.05 to 1024; got {self.order!r}")
        if not is_number(self.miss, 1e-12, 0.4):
            raise SettingError(f"miss is a probability from 1e-12 to 0.4; got {self.miss!r}")
        if not (is_positive(self.beta) and 2 * self.order * self.beta < 1):
            raise SettingError(f"beta must lie between 0 and 1 / (2 order); got {self.beta!r}")
        most = _most(self.beta, self.miss)
        if not (is_positive(self.sigma) and self.sigma < most):
            raise SettingError(
                f"sigma must lie between 0 and {most:.4g} at this beta and miss; got {self.sigma!r}"
            )

    @property
    def lift(self) -> float:
        """c: how many smooth sensitivities the noise is centred above the cost.

        c S + (1 + c (e^beta - 1)) S sigma Z is below 0 with probability ``miss``
        """
        reach = _quantile(self.miss) * self.sigma
        return reach / (1 - reach * math.expm1(self.beta))

    def rdp(self, order: float) -> float:
        """The Renyi cost of the release itself; infinite from 1 / (2 beta) on.

        order e^(2 beta) / sigma^2 + (order beta - ln(1 - 2 order beta) / 2) / (order - 1)

        Papernot et al., "Scalable Private Learning with PATE", ICLR 2018, theorem 23.
        """
        share = order * self.beta
        if 2 * share >= 1:
            return math.inf
        return order * math.exp(2 * self.beta) / self.sigma**2 + (share - 0.5 * math.log1p(-2 * share)) / (
            order - 1
        )

    def released(self, cost: float, sensitivity: float, z: float) -> float:
        """cost + (c + (1 + c (e^beta - 1)) sigma z) S, with z a standard Gaussian.

        *Guarantee*: S is beta-smooth, so cost + c S moves by at most (1 + c (e^beta - 1)) S, which is smooth too: this
        is smooth Gaussian noise on a number that is above the cost with probability 1 - ``miss``.
        """
        spread = (1 + self.lift * math.expm1(self.beta)) * self.sigma
        return max(0.0, cost + (self.lift + spread * z) * sensitivity)


def _quantile(miss: float) -> float:
    return float(-ndtri(float(miss)))


def _most(beta: float, miss: float) -> float:
    """The noise beyond which no multiple of the smooth sensitivity would be above it."""
    return 1 / (_quantile(miss) * math.expm1(beta))


@dataclass(frozen=True)
class Slope:
    """How fast the cost of one noisy plurality can change, at one sigma, order and number of classes.

    B_U and B_L are the largest and smallest q after one vote has moved; q0 is where the data-dependent bound meets
    order / sigma^2, and q1 = B_L(q0). Between q1 and q0 a change is taken as large as it can be.
    """

    sigma: float
    order: float
    classes: int

    def moved(self, log_q: Array, votes: float) -> Array:
        """ln of q after so many votes moved against the plurality (for it, if below 0)."""
        z = ndtri_exp(np.minimum(log_q - math.log(self.classes - 1), math.log1p(-1e-15)))
        return math.log(self.classes - 1) + log_ndtr(z + votes * math.sqrt(2) / self.sigma)

    def cost(self, log_q: Array) -> Array:
        return dependent(log_q, self.sigma, self.order)

    @property
    def most(self) -> float:
        return independent(self.sigma, self.order)

    @cached_property
    def log_q0(self) -> float | None:
        """None where the data-dependent bound never helps."""
        highest = math.log1p(-1 / self.classes)
        lowest = -(((self.order + 2) / self.sigma + 40) ** 2)
        grid = -np.geomspace(-highest, -lowest, _GRID)
        below = np.flatnonzero(self.cost(grid) < self.most * (1 - _ROUNDING))
        if not len(below):
            return None
        first = int(below[0])
        if first == 0:
            return highest
        low, high = float(grid[first]), float(grid[first - 1])
        for _ in range(80):
            middle = (low + high) / 2
            if float(self.cost(np.array([middle]))[0]) < self.most * (1 - _ROUNDING):
                low = middle
            else:
                high = middle
        return high

    def change(self, log_q: Array) -> Array:
        """max(cost(B_U(q)) - cost(q), cost(q) - cost(B_L(q))), and the plateau from q1 to q0."""
        log_q0 = self.log_q0
        if log_q0 is None:
            return np.zeros_like(log_q)
        here = self.cost(log_q)
        up, down = self.cost(self.moved(log_q, 1)) - here, here - self.cost(self.moved(log_q, -1))
        log_q1 = float(self.moved(np.array([log_q0]), -1)[0])
        flat = (log_q1 <= log_q) & (log_q <= log_q0)
        return np.where(flat, self.plateau, np.maximum(up, down))

    @cached_property
    def plateau(self) -> float:
        """The largest change that any votes allow."""
        log_q0 = self.log_q0
        if log_q0 is None:
            return 0.0
        log_q1 = self.moved(np.array([log_q0]), -1)
        here = float(self.cost(log_q1)[0])
        return max(self.most - here, here - float(self.cost(self.moved(log_q1, -1))[0]))

    def check(self, teachers: int) -> None:
        """Refuse settings at which the conditions of the proof do not hold, as far as ``teachers`` votes reach.

        cost is non-decreasing on (0, q0), and cost(B_U(q)) - cost(q) on (0, q1)
        """
        log_q0 = self.log_q0
        if log_q0 is None:
            return
        unanimous = float(log_ndtr(-(teachers + 2) / (math.sqrt(2) * self.sigma)))
        grid = -np.geomspace(-log_q0, max(-unanimous, -log_q0 + 1.0), _GRID)[::-1]
        costs = self.cost(grid)
        log_q1 = float(self.moved(np.array([log_q0]), -1)[0])
        rises = (self.cost(self.moved(grid, 1)) - costs)[grid <= log_q1]
        for name, values in (("the cost", costs), ("its change", rises)):
            if (np.diff(values) < -_ROUNDING * self.most).any():
                raise AccountingError(
                    f"{name} is not monotone at order {self.order:g} and noise {self.sigma:g}, so no smooth "
                    "sensitivity is proved there: take another order, or account by the cap"
                )


def plurality_changes(counts: Array, slope: Slope, teachers: int) -> Array:
    """(d, row): the most that the cost of each row's answer changes with one more vote, after up to d have moved.

    Votes move between the two largest classes, towards the plateau; when it is reached, or cannot be, the plateau
    stands.
    """
    votes = -np.sort(-np.asarray(counts, np.float64), axis=1)
    result = np.full((teachers + 1, len(votes)), slope.plateau)
    log_q0 = slope.log_q0
    if log_q0 is None or not len(votes):
        return result
    log_q1 = float(slope.moved(np.array([log_q0]), -1)[0])
    log_q = log_wrong(votes, slope.sigma)
    left, right = log_q > log_q0, log_q < log_q1
    for d in range(teachers + 1):
        going = (left & (log_q > log_q0)) | (right & (log_q < log_q1))
        if not going.any():
            break
        result[d, going] = slope.change(log_q[going])
        inwards, outwards = left & going & (votes[:, 1] > 0), right & going
        left &= ~(left & going & (votes[:, 1] <= 0))  # no vote is left to move: the plateau from here on
        votes[inwards, 0] += 1
        votes[inwards, 1] -= 1
        votes[outwards, 0] -= 1
        votes[outwards, 1] += 1
        votes[:, 1:] = -np.sort(-votes[:, 1:], axis=1)
        log_q = log_wrong(votes, slope.sigma)
    return np.maximum.accumulate(result, axis=0)


def threshold_changes(
    largest: Array, threshold: float, sigma: float, *, order: float, teachers: int
) -> Array:
    """(d, row): the same for the test, from a table of its cost at every largest count from 0 to all teachers."""
    wide = math.sqrt(2) * sigma
    table = dependent(log_unlikely(np.arange(teachers + 1.0), threshold, sigma), wide, order)
    step = np.abs(np.diff(table))
    near = np.maximum(np.append(step, 0.0), np.append(0.0, step))  # to the next above, to the next below
    where = np.asarray(largest, np.int64)
    rows = [near]
    for _ in range(teachers):
        last = rows[-1]
        rows.append(np.maximum(last, np.maximum(np.append(last[1:], 0.0), np.append(0.0, last[:-1]))))
    return np.stack(rows)[:, where]


def smooth_sensitivity(changes: Array, beta: float) -> float:
    """max over d of e^(-beta d) changes[d]

    Nissim, Raskhodnikova and Smith, "Smooth Sensitivity and Sampling in Private Data Analysis", 2007.
    """
    return float((np.exp(-beta * np.arange(len(changes))) * changes).max(initial=0.0))
