"""What a run does, as dp_accounting events; nothing here measures the cost.

An event says how units are sampled and how much noise is added. The noise multiplier is always sigma
divided by the bound C on *one unit's* contribution, whatever the adjacency: replacing a unit moves the
sum by up to 2C, and the accountants of this package account for that themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from saltflat.errors import AccountingError
from saltflat.privacy.limits import checked_count, checked_noise, checked_rate, real

Adjacency: TypeAlias = NeighboringRelation
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE

Leaf: TypeAlias = Any  # a checked event of one kind; the fields differ by kind
Leaves: TypeAlias = tuple[tuple[Leaf, int], ...]


@dataclass(frozen=True)
class ChosenDpEvent(DpEvent):
    """Steps chosen as a run goes, which on every path cost at most ``event`` at every Renyi order.

    *Guarantee*: by the argument of a Renyi filter, applied at each order, the run costs at most what ``event``
    does there. A privacy loss distribution of ``event`` proves nothing about such a run and is never used.
    Feldman & Zrnic, "Individual Privacy Accounting via a Renyi Filter", 2021.
    """

    event: DpEvent


@dataclass(frozen=True)
class RenyiDpEvent(DpEvent):
    """``what`` was released, whose Renyi divergence is at most ``points``: (order, bound), by a proof of its own.

    *Guarantee*: a divergence never falls as the order grows, so between two orders the bound of the larger one holds;
    beyond the largest nothing is known, and there the cost is infinite. Only Renyi accounting answers for it.

    >>> RenyiDpEvent("votes", ((2.0, 0.1), (4.0, 0.3))).bound_at(3.0)
    0.3
    """

    what: str
    points: tuple[tuple[float, float], ...]

    def bound_at(self, order: float) -> float:
        """The bound at ``order``: the smallest of those at this order and above."""
        return min((bound for known, bound in self.points if known >= order), default=math.inf)


def step_event(rate: float, noise_multiplier: float) -> DpEvent:
    """One private step: each unit joins with probability ``rate``, Gaussian noise is added to the sum.

    ``rate=1`` is the plain Gaussian mechanism.

    >>> step_event(0.01, 1.1)
    PoissonSampledDpEvent(sampling_probability=0.01, event=GaussianDpEvent(noise_multiplier=1.1))
    """
    rate, gaussian = checked_rate(rate), GaussianDpEvent(checked_noise(noise_multiplier))
    return gaussian if rate == 1 else PoissonSampledDpEvent(rate, gaussian)


def phase_event(rate: float, noise_multiplier: float, steps: int) -> DpEvent:
    """``steps`` private steps at one rate and one noise multiplier."""
    steps = checked_count("the number of steps", steps)
    return repeated(step_event(rate, noise_multiplier), steps)


def repeated(event: DpEvent, count: int) -> DpEvent:
    """``count`` adaptive runs of ``event``, every one of them released."""
    count = checked_count("the number of repetitions", count)
    return event if count == 1 else SelfComposedDpEvent(event, count)


def compose(*events: DpEvent) -> DpEvent:
    """One event after another on the same data; later ones may be chosen after seeing earlier results.

    *Guarantee*: the *list* must be fixed in advance. If noise, rate or number of steps are picked from
    results, use :class:`saltflat.privacy.accounting.filters.RdpFilter` instead.

    >>> both = compose(phase_event(0.04, 1.5, 250), phase_event(0.04, 14.0, 500))
    >>> [count for _, count in leaves(both)]
    [250, 500]
    """
    return ComposedDpEvent(list(events))


def effective_noise(noise_multipliers: Iterable[float]) -> float:
    """The one noise multiplier that several Gaussian answers on the *same* sample are worth.

    ``1 / sigma^2 = sum(1 / sigma_i^2)``. A DP-SAM step asks twice on one batch, so it costs one
    subsampled Gaussian with this sigma; the clip norms of the answers may differ.

    *Guarantee*: adaptive composition of Gaussians is exactly Gaussian, and Poisson sampling preserves
    dominating pairs (Zhu, Dong & Wang 2022), so nothing is lost.

    >>> round(effective_noise([2.0, 2.0]), 4)
    1.4142
    """
    inverse = math.fsum(checked_noise(sigma) ** -2 for sigma in noise_multipliers)
    if inverse == 0:
        raise AccountingError("effective_noise got no noise multiplier: give at least one")
    return 1 / math.sqrt(inverse)


def fixed_size_event(noise_multiplier: float, *, size: int, batch: int) -> DpEvent:
    """One step on ``batch`` of ``size`` units drawn without replacement.

    *Guarantee*: such a draw has an amplified bound under replace adjacency only, where it is accounted
    with sensitivity 2C; under add/remove the accountants refuse it.
    """
    noise = GaussianDpEvent(checked_noise(noise_multiplier))
    size = checked_count("the number of units", size)
    return SampledWithoutReplacementDpEvent(size, checked_count("the batch", batch, ceiling=size), noise)


def group_step_event(rate: float, noise_multiplier: float, *, cap: int) -> DpEvent:
    """One step as seen by a user who owns up to ``cap`` examples, each sampled on its own.

    The user's number of sampled examples is Binomial(cap, rate), so adding or removing the user is
    dominated by a mixture of Gaussians shifted by 0, 1, ..., cap. ``rate=1``: noise_multiplier / cap.

    *Guarantee*: holds only if the cap is enforced before sampling. If whole users are sampled and their
    sum is clipped, the user *is* the unit: use :func:`step_event`. (Ganesh 2024, arXiv:2401.10294.)

    >>> group_step_event(1.0, 8.0, cap=4)
    GaussianDpEvent(noise_multiplier=2.0)
    """
    rate, sigma = checked_rate(rate), checked_noise(noise_multiplier)
    cap = checked_count("the cap on examples of one user", cap, ceiling=1000)
    if rate == 1:
        return GaussianDpEvent(checked_noise(sigma / cap))
    if cap == 1:
        return step_event(rate, sigma)
    odds = [math.comb(cap, k) * rate**k * (1 - rate) ** (cap - k) for k in range(cap + 1)]
    return MixtureOfGaussiansDpEvent(sigma, tuple(map(float, range(cap + 1))), tuple(odds))


def unamplified(event: DpEvent, *, adjacency: Adjacency = ADD_REMOVE) -> DpEvent:
    """The same noise with everyone in every batch: what holds if the sampling was not secret or not random.

    A fixed-size draw under add/remove swaps one unit for another, so it counts with half the noise.

    >>> unamplified(step_event(0.01, 1.1))
    GaussianDpEvent(noise_multiplier=1.1)
    """
    parts = [repeated(_unamplified_leaf(leaf, adjacency), count) for leaf, count in leaves(event)]
    return parts[0] if len(parts) == 1 else compose(*parts)


def _unamplified_leaf(leaf: Leaf, adjacency: Adjacency) -> Leaf:
    if isinstance(leaf, PoissonSampledDpEvent):
        return leaf.event
    if isinstance(leaf, SampledWithoutReplacementDpEvent):
        return leaf.event if adjacency is REPLACE else GaussianDpEvent(leaf.event.noise_multiplier / 2)
    if isinstance(leaf, MixtureOfGaussiansDpEvent):
        return GaussianDpEvent(leaf.standard_deviation / max(leaf.sensitivities))
    if isinstance(leaf, RepeatAndSelectDpEvent):
        return RepeatAndSelectDpEvent(unamplified(leaf.event, adjacency=adjacency), leaf.mean, leaf.shape)
    if isinstance(leaf, ChosenDpEvent):
        return ChosenDpEvent(unamplified(leaf.event, adjacency=adjacency))
    return leaf


def leaves(event: DpEvent) -> Leaves:
    """The distinct mechanisms inside ``event``, each with how often it runs, checked and in one form.

    Equal steps are merged, so a ledger of 14,062 single steps costs as little to account as one phase.
    An event that no accountant here covers is refused, never guessed.

    >>> leaves(compose(step_event(1.0, 2.0), step_event(1.0, 2.0)))
    ((GaussianDpEvent(noise_multiplier=2.0), 2),)
    """
    counts: dict[Leaf, int] = {}
    for leaf, count in _walk(event):
        counts[leaf] = counts.get(leaf, 0) + count
    if sum(counts.values()) > 0:
        checked_count("the total number of steps", sum(counts.values()))
    return tuple(counts.items())


def _walk(event: DpEvent) -> Iterator[tuple[Leaf, int]]:
    """Depth first, with an explicit stack: a ledger may nest deeper than Python recurses."""
    stack = [(event, 1)]
    while stack:
        node, count = stack.pop()
        if isinstance(node, SelfComposedDpEvent):
            stack.append((node.event, count * checked_count("a number of repetitions", node.count)))
        elif isinstance(node, ComposedDpEvent):
            stack.extend((part, count) for part in reversed(node.events))
        elif not isinstance(node, NoOpDpEvent):
            yield _leaf(node), count


def _leaf(event: DpEvent) -> Leaf:
    """``event`` with its numbers checked and its sequences made hashable."""
    if isinstance(event, GaussianDpEvent):
        return GaussianDpEvent(checked_noise(event.noise_multiplier))
    if isinstance(event, PoissonSampledDpEvent):
        return step_event(event.sampling_probability, _gaussian_noise(event.event))
    if isinstance(event, SampledWithoutReplacementDpEvent):
        size, batch = event.source_dataset_size, event.sample_size
        return fixed_size_event(_gaussian_noise(event.event), size=size, batch=batch)
    if isinstance(event, MixtureOfGaussiansDpEvent):
        return _mixture(event)
    if isinstance(event, RepeatAndSelectDpEvent):
        return _selection(event)
    if isinstance(event, ChosenDpEvent):
        return ChosenDpEvent(_merged(event.event))
    if isinstance(event, RenyiDpEvent):
        return _curve(event)
    if isinstance(event, NonPrivateDpEvent):
        raise AccountingError("the event holds a step without any privacy: no epsilon bounds it")
    raise AccountingError(
        f"no sound bound is known here for {type(event).__name__}: describe the run with the builders of "
        "saltflat.privacy.accounting.events"
    )


def _gaussian_noise(event: DpEvent) -> float:
    """The effective noise of the Gaussians inside one sample."""
    inside = leaves(event)
    if not inside or not all(isinstance(leaf, GaussianDpEvent) for leaf, _ in inside):
        raise AccountingError("only Gaussian answers can be accounted inside a sample of units")
    return effective_noise(leaf.noise_multiplier / math.sqrt(count) for leaf, count in inside)


def _mixture(event: MixtureOfGaussiansDpEvent) -> Leaf:
    shifts, odds = tuple(map(float, event.sensitivities)), tuple(map(float, event.sampling_probs))
    legal = len(shifts) == len(odds) and all(0 <= p <= 1 for p in odds) and all(0 <= s < 1e6 for s in shifts)
    if not (legal and math.isclose(math.fsum(odds), 1) and any(shifts)):
        raise AccountingError("a mixture of Gaussians needs shifts of at least 0 and odds that sum to 1")
    return MixtureOfGaussiansDpEvent(checked_noise(event.standard_deviation), shifts, odds)


def _curve(event: RenyiDpEvent) -> Leaf:
    points = tuple((real("an order", order), real("a bound", bound)) for order, bound in event.points)
    if not points or any(not (1 < order < math.inf and 0 <= bound < math.inf) for order, bound in points):
        raise AccountingError(
            f"a Renyi bound needs orders above 1 and bounds of at least 0, all finite; got {event.points!r}"
        )
    return RenyiDpEvent(event.what, points)


def _selection(event: RepeatAndSelectDpEvent) -> Leaf:
    if not (1 <= event.mean < math.inf and event.shape >= 0):
        raise AccountingError(
            f"a random number of trials has mean {event.mean} and shape {event.shape}: the mean must be at "
            "least 1, the shape at least 0"
        )
    return RepeatAndSelectDpEvent(_merged(event.event), float(event.mean), float(event.shape))


def _merged(event: DpEvent) -> DpEvent:
    """``event`` in one form, hashable."""
    return ComposedDpEvent(tuple(repeated(leaf, count) for leaf, count in leaves(event)))


def describe_sampling(event: DpEvent) -> str:
    """How units were chosen, in words, read from the event itself.

    >>> describe_sampling(phase_event(0.01, 1.1, 100))
    'Poisson sampling at rate 0.01'
    """
    words = dict.fromkeys(_sampling_words(leaf) for leaf, _ in leaves(event))
    return "; then ".join(words) or "no private step"


def _sampling_words(leaf: Leaf) -> str:
    if isinstance(leaf, PoissonSampledDpEvent):
        return f"Poisson sampling at rate {leaf.sampling_probability:.6g}"
    if isinstance(leaf, SampledWithoutReplacementDpEvent):
        return f"{leaf.sample_size} of {leaf.source_dataset_size} units without replacement"
    if isinstance(leaf, MixtureOfGaussiansDpEvent):
        return f"Poisson sampling of examples, at most {len(leaf.sensitivities) - 1} per user"
    if isinstance(leaf, RepeatAndSelectDpEvent | ChosenDpEvent):
        return describe_sampling(leaf.event)
    if isinstance(leaf, RenyiDpEvent):
        return f"{leaf.what}, by its own Renyi bound"
    return "every unit in every step"


def adjacency_words(adjacency: Adjacency) -> str:
    """The adjacency, in words.

    >>> adjacency_words(ADD_REMOVE)
    'add or remove one unit'
    """
    if adjacency is REPLACE:
        return "replace one unit by another"
    return "add or remove one unit" if adjacency is ADD_REMOVE else "replace one unit by zero"


def gaussian_only(parts: Leaves) -> bool:
    """Whether nothing is sampled, so that the exact Gaussian curve applies."""
    return all(isinstance(leaf, GaussianDpEvent) for leaf, _ in parts)
