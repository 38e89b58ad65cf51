"""What an attacker can learn of one unit: the trade-off curve of a run, and the figures that people read.

An attack guesses whether one unit was used. Its false positive rate f is the share of those who were not used and are
accused; its true positive rate t is the share of those who were used and are found. A run bounds t by a curve T(f),
whoever attacks. One (epsilon, delta) pair gives two straight lines above that curve. The privacy loss distribution
gives delta at every epsilon, and the curve is the envelope of all these lines:

    T(f) = min over epsilon of  min(delta + e^epsilon f,  1 - e^-epsilon (1 - delta - f)).

Every figure here is an upper bound: any set of valid pairs gives one, and more pairs only make it smaller.

References:
    Dong, Roth & Su, "Gaussian Differential Privacy", 2022 (Proposition 2.13: the envelope). Kulynych et al.,
    "Attack-Aware Noise Calibration for Differential Privacy", 2024. Balle et al., "Hypothesis Testing Interpretations
    and Renyi Differential Privacy", 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy.special import ndtri

from saltflat.errors import AccountingError
from saltflat.privacy.accounting import bounds, renyi
from saltflat.privacy.accounting import loss as losses
from saltflat.privacy.accounting.events import ADD_REMOVE, Adjacency, Leaves, compose, leaves, repeated
from saltflat.privacy.accounting.loss import COARSE, FINE, Grid
from saltflat.privacy.limits import checked_epsilon, checked_probability

Array = NDArray[np.float64]

RATES = (0.001, 0.01)  # the false positive rates that are reported: 0.1 % and 1 %
PRIORS = (0.01, 0.1, 0.5)  # the priors that are reported, unless others are asked for
RENYI = "Renyi bounds alone, which are looser than a privacy loss distribution"

CLOSE = Grid(fraction=0.05, points=100_000, widest=0.02)  # for little noise: with 0.14 it was 1.4e-3 too high
_USUAL = 9.0  # lines up to this slope decide at false positive rates of 0.1 % and more
_STEEPEST = 16.0  # a line of slope e^16 bounds nothing at a false positive rate above 1.2e-7
_EVENLY, _BEYOND = (
    128,
    48,
)  # pairs of each spacing; measured excess of T over the exact Gaussian curve: 1.4e-4
_SHOWN = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, *(k / 20 for k in range(2, 20)), 0.98, 0.99, 1.0)


@dataclass(frozen=True)
class TradeOff:
    """The most that any attack achieves against a run: true positives at each rate of false positives.

    ``advantage`` is the largest true minus false positive rate. ``source`` says what the bound was derived from.

    *Guarantee*: an upper bound for both directions (a unit that was added, a unit that was removed), for any attack
    on what the event covers.

    >>> from saltflat.privacy.accounting.events import phase_event
    >>> found = tradeoff(phase_event(1024 / 50000, 1.30, 180))
    >>> found.source
    'PLD'
    >>> 0 < found.advantage < found.true_positives(0.5) - 0.5 + 0.1
    True
    """

    source: str
    advantage: float
    pairs: tuple[tuple[float, float], ...] = field(repr=False)  # (epsilon, delta), all true at once
    moments: tuple[tuple[float, float], ...] = field(default=(), repr=False)  # (order, Renyi divergence)

    @property
    def accuracy(self) -> float:
        """The largest share of right guesses about one unit, from even odds: (1 + advantage) / 2."""
        return (1 + self.advantage) / 2

    def true_positives(self, false_positives: float) -> float:
        """The largest share of those who were used that an attack finds.

        Args:
            false_positives: The share of those who were not used that it accuses, from 0 to 1.

        >>> nothing = TradeOff("nothing was released", 0.0, ((0.0, 0.0),))
        >>> nothing.true_positives(0.01)
        0.01
        """
        f = checked_probability("false_positives", false_positives)
        epsilons, deltas = np.array(self.pairs).T
        small = deltas + np.exp(epsilons) * f
        large = 1 - np.exp(-epsilons) * (1 - deltas - f)
        found = min(1.0, f + self.advantage, float(small.min()), float(large.min()))
        if self.moments:
            found = min(found, _most_by_moments(np.array(self.moments), f))
        return max(f, found)

    def posterior(self, prior: float, false_positives: float = 0.01) -> float:
        """The largest probability that somebody whom an attack accuses was used: ``p t / (p t + (1 - p) f)``.

        Args:
            prior: The probability p, before the attack, that the unit in question was used.
            false_positives: The share f of those who were not used that the attack accuses.

        >>> nothing = TradeOff("nothing was released", 0.0, ((0.0, 0.0),))
        >>> nothing.posterior(0.2)
        0.2
        """
        p, f = checked_probability("prior", prior), checked_probability("false_positives", false_positives)
        rightly = p * self.true_positives(f)
        accused = rightly + (1 - p) * f
        return rightly / accused if accused > 0 else 1.0

    def curve(self) -> tuple[tuple[float, float], ...]:
        """(false positive rate, true positive rate) from end to end, to be drawn."""
        return tuple((f, self.true_positives(f)) for f in _SHOWN)


def tradeoff(event: DpEvent, *, adjacency: Adjacency = ADD_REMOVE) -> TradeOff:
    """The trade-off curve of a run whose whole private access is ``event``.

    Where only Renyi accounting answers (steps that results chose, PATE's votes, the best of several trials), the curve
    follows from the Renyi bounds: what an attack says is one bit, whose Renyi divergence cannot be larger. ``source``
    says so.

    Args:
        event: The whole private access of a run.
        adjacency: Which data sets are neighbours.

    Raises:
        AccountingError: No accountant has a sound bound for the event, such as for a step without noise.

    >>> from saltflat.privacy.accounting.events import step_event
    >>> round(tradeoff(step_event(1.0, 1.0)).advantage, 4)
    0.3829
    """
    return _tradeoff(leaves(event), adjacency)


@lru_cache(maxsize=32)
def _tradeoff(parts: Leaves, adjacency: Adjacency) -> TradeOff:
    event = _of(parts)
    grid = _grid(parts, adjacency)
    (widest,), source = bounds.profile(event, [0.0], adjacency=adjacency, grid=grid)
    moments = () if _is_tight(source, widest) else _moments(parts, adjacency)
    if not source and not moments:
        bounds.bound(event, 0.5, adjacency=adjacency)  # says in words why there is no bound
        raise AccountingError("no sound bound is known for this event")
    if moments:
        source, widest = RENYI, min(widest, _advantage_by_moments(np.array(moments)))
    epsilons = _epsilons(widest)
    deltas, _ = bounds.profile(event, epsilons, adjacency=adjacency, grid=grid)
    return TradeOff(source, widest, tuple(zip(epsilons, deltas, strict=True)), moments)


def advantage(event: DpEvent, *, adjacency: Adjacency = ADD_REMOVE, grid: Grid | None = None) -> float:
    """An upper bound on the membership advantage alone, for searches: quicker than the whole curve.

    >>> from saltflat.privacy.accounting.events import step_event
    >>> round(advantage(step_event(1.0, 1.0)), 4)
    0.3829
    """
    grid = _grid(leaves(event), adjacency) if grid is None else grid
    (widest,), source = bounds.profile(event, [0.0], adjacency=adjacency, grid=grid)
    if _is_tight(source, widest):
        return widest
    return tradeoff(event, adjacency=adjacency).advantage


def draft_advantage(event: DpEvent, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """Like :func:`advantage`, on a coarse grid: quicker, and a little higher."""
    return advantage(event, adjacency=adjacency, grid=COARSE)


def advantage_of_pair(epsilon: float, delta: float) -> float:
    """The advantage that one (epsilon, delta) pair allows; 3 to 5 times what the curve of a usual run does.

    ``(e^epsilon - 1 + 2 delta) / (e^epsilon + 1)``; for claims of which no more than the pair is known.

    >>> round(advantage_of_pair(1.0, 1e-5), 3)
    0.462

    Kairouz, Oh & Viswanath, "The Composition Theorem for Differential Privacy", 2015.
    """
    decay, delta = math.exp(-checked_epsilon(epsilon)), checked_probability("delta", delta)
    return min(1.0, (1 - decay + 2 * delta * decay) / (1 + decay))


def _is_tight(source: str, widest: float) -> bool:
    """Whether the pairs are those of the run itself; else Renyi bounds may say more."""
    return source in (bounds.NOTHING, bounds.EXACT) or (source == bounds.PLD and widest < 1)


def _grid(parts: Leaves, adjacency: Adjacency) -> Grid:
    """The grid of epsilon, whose distribution is known already, where its spacing is close enough."""
    if not parts or not losses.covers(parts, adjacency):
        return FINE
    return FINE if losses.spacing_of(parts, adjacency, FINE)[0] <= CLOSE.widest else CLOSE


def _of(parts: Leaves) -> DpEvent:
    return compose(*(repeated(leaf, count) for leaf, count in parts))


def _epsilons(widest: float) -> tuple[float, ...]:
    """Where to take pairs: evenly over the losses of a Gaussian of this advantage, and geometrically beyond.

    Curvature decides how many lines are needed, and the loss of a long run is nearly Gaussian.
    """
    mu = 2 * float(ndtri((1 + min(widest, 1 - 1e-12)) / 2))
    evenly = np.linspace(0, min(max(6 * mu, 1e-9), _USUAL), _EVENLY)
    beyond = np.geomspace(1e-3, _STEEPEST, _BEYOND)
    return tuple(float(each) for each in np.unique(np.concatenate([evenly, beyond])))


def _moments(parts: Leaves, adjacency: Adjacency) -> tuple[tuple[float, float], ...]:
    """(order, Renyi divergence) of the run, where it is finite; empty if Renyi accounting does not answer."""
    if not parts or not renyi.covers(parts, adjacency):
        return ()
    orders = renyi.orders_for(parts)
    found = renyi.rdp_curve(parts, orders, adjacency=adjacency)
    return tuple(
        (order, float(each)) for order, each in zip(orders, found, strict=True) if math.isfinite(each)
    )


def _bits(order: Array, p: float, q: float) -> Array:
    """The Renyi divergence, at each order, of a bit that is 1 with probability p from one with probability q."""
    with np.errstate(divide="ignore"):
        one = order * np.log(p) + (1 - order) * np.log(q)
        none = order * np.log1p(-p) + (1 - order) * np.log1p(-q)
    return np.logaddexp(one, none) / (order - 1)


def _allowed(moments: Array, p: float, q: float) -> bool:
    """Whether an attack may say yes with these two probabilities: post-processing has no larger divergence."""
    order, most = moments.T
    return bool((_bits(order, p, q) <= most).all() and (_bits(order, q, p) <= most).all())


def _most_by_moments(moments: Array, f: float) -> float:
    """The largest t for which a bit with rates (t, f) is allowed; halving keeps the end that is too large."""
    if not 0 < f < 1:
        return f  # divergences that are finite allow no certainty
    low, high = f, 1.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if _allowed(moments, middle, f) else (low, middle)
    return high


def _advantage_by_moments(moments: Array) -> float:
    """The largest t - f: the allowed region is convex and symmetric, so its tip lies where f = 1 - t."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        inside = _allowed(moments, (1 + middle) / 2, (1 - middle) / 2)
        low, high = (middle, high) if inside else (low, middle)
    return high
