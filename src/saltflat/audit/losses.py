"""Membership inference by loss: whether examples that were trained on lose less than examples that were not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from saltflat.audit.declared import declared, told_access
from saltflat.audit.once import judged
from saltflat.audit.rates import Errors, Scores, Worlds, best_threshold, lower, upper
from saltflat.audit.result import CERTAIN, CONFIDENCE, Audited, Bound, Claim, Control, Interval
from saltflat.errors import DataError
from saltflat.landscape import Access
from saltflat.privacy.accounting.risk import advantage_of_pair
from saltflat.privacy.limits import rounded_up

ABOUT = (
    "The adversary takes an example for a member if the model loses little on it. This is the weakest adversary here: "
    "an AUC near 0.5 says that this simple attack fails, and nothing about a better one.",
    "AUC: how often a member loses less than a non-member. Advantage: true minus false positives, at a threshold that "
    "was chosen on one half of the examples and judged on the other. Intervals are for other examples and this model.",
)
FAIR = "Who was a member was decided by fair coins, so the bound of the one-run audit holds."
NOT_FAIR = "Who was a member was not decided by fair coins, so no bound on epsilon follows from this."


@dataclass(frozen=True)
class Sides:
    """The same kind of examples twice: ``members`` were trained on, ``others`` were not."""

    members: Any = field(repr=False)  # Units
    others: Any = field(repr=False)  # Units
    fair: bool = False  # whether a fair coin decided for each of them on which side it is


def membership(
    contribution: Any,
    sides: Sides,
    *,
    claim: Claim,
    access: Access | None = None,
    leaky: tuple[Any, Sides] | None = None,
) -> Audited:
    """How well the loss tells the members of ``sides`` from the others: AUC and advantage, with intervals.

    ``contribution`` holds the trained model and its loss, `per_example(model, loss)`. ``access`` declares whose the
    examples are: `PUBLIC`, or `STAYS_PRIVATE` if the result is kept as private as they are. ``leaky`` is a control: a
    contribution whose model has learnt the members of some sides by heart, and those sides; its AUC must be above 0.5.
    The others split in two are another one: their AUC must not differ from 0.5.

    *Guarantee*: none. It reads examples without noise, and no epsilon covers what it tells. If fair coins decided who
    is a member (``sides.fair``), a lower bound on epsilon is found as in `one_run`.

    >>> import torch, saltflat as sf
    >>> from torch import nn
    >>> x, y = torch.randn(200, 5), torch.randint(2, (200,))
    >>> sides = Sides(sf.data.TensorUnits((x[:100], y[:100])), sf.data.TensorUnits((x[100:], y[100:])))
    >>> untrained = sf.per_example(nn.Linear(5, 2), sf.supervised(nn.CrossEntropyLoss(reduction="none")))
    >>> claim = Claim(epsilon=1.0, delta=1e-5)
    >>> audited = membership(untrained, sides, claim=claim, access=sf.landscape.PUBLIC)
    >>> audited.intervals[0].name, audited.bounds
    ('AUC', ())

    Yeom et al., "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting", CSF 2018.
    """
    began, seen = time.monotonic(), declared(access, "membership inference")
    members, others = (-losses(contribution, units) for units in (sides.members, sides.others))
    controls = [_even(others)]
    if leaky is not None:
        known, by_heart = leaky
        controls += [_told(*(-losses(known, units) for units in (by_heart.members, by_heart.others)))]
    gain = advantage_between(members, others)
    most = min(claim.advantage, advantage_of_pair(claim.epsilon, claim.delta))
    limit = f"The claim permits an advantage of {rounded_up(most)} at most, to any adversary, for any one {claim.unit}."
    return Audited(
        kind="membership",
        claim=claim,
        bounds=_bounds(members, others, claim.delta) if sides.fair else (),
        counts={"members": len(members), "others": len(others)},
        controls=tuple(controls),
        seconds=time.monotonic() - began,
        about=(*ABOUT, limit, FAIR if sides.fair else NOT_FAIR),
        intervals=(auc(members, others), gain),
        access=told_access(seen),
    )


def losses(contribution: Any, units: Any, physical: int = 512) -> Scores:
    """The loss of every unit under the contribution's model as it is."""
    params = {name: p.detach() for name, p in contribution.model.named_parameters() if p.requires_grad}
    parts = [
        contribution.losses([params], units.take(part))[0].cpu() for part in _parts(units.count, physical)
    ]
    found = np.concatenate([part.double().numpy() for part in parts]) if parts else np.zeros(0)
    if len(found) < 4 or not np.isfinite(found).all():
        raise DataError(
            f"membership inference needs at least 4 examples on each side, each with a finite loss; got {len(found)}, "
            f"{int((~np.isfinite(found)).sum())} of them without one"
        )
    return found


def _parts(count: int, most: int) -> Iterator[NDArray[np.int64]]:
    yield from np.array_split(np.arange(count), -(-count // most)) if count else ()


def auc(members: Scores, others: Scores, confidence: float = CONFIDENCE) -> Interval:
    """P(score of a member > score of another) + P(equal) / 2, and DeLong's interval for it.

    >>> auc(np.array([3.0, 2.0]), np.array([1.0, 2.0])).value
    0.875

    DeLong, DeLong and Clarke-Pearson, "Comparing the Areas under Two or More Correlated ROC Curves", 1988.
    """
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    above = (ranks[:m] - rankdata(members)) / n  # for each member, the share of others below it
    below = 1 - (ranks[m:] - rankdata(others)) / m
    value = float(above.mean())
    variance = (above.var(ddof=1) / m if m > 1 else 0.25) + (below.var(ddof=1) / n if n > 1 else 0.25)
    reach = float(norm.isf((1 - confidence) / 2) * np.sqrt(variance))
    low, high = max(0.0, value - reach), min(1.0, value + reach)
    return Interval(name="AUC", value=value, low=low, high=high, confidence=confidence)


def _gap(errors: Errors) -> Scores:
    return (
        1
        - np.asarray(errors.false_positives) / errors.without
        - np.asarray(errors.false_negatives) / errors.within
    )


def advantage_between(members: Scores, others: Scores) -> Interval:
    """True minus false positives, at a threshold from one half, judged on the other; both rates by Clopper-Pearson."""
    choosing, judging = Worlds(_mixed(others), _mixed(members)).halves()
    errors = judging.errors(best_threshold(choosing, _gap))
    each = 1 - (1 - CONFIDENCE) / 4  # four ends, any may fail
    wrong, missed = (errors.false_positives, errors.without), (errors.false_negatives, errors.within)
    return Interval(
        name="advantage",
        value=float(_gap(errors)),
        low=float(1 - upper(*wrong, each) - upper(*missed, each)),
        high=float(1 - lower(*wrong, each) - lower(*missed, each)),
    )


def _mixed(scores: Scores) -> Scores:
    """In an order that does not come from the data: files are often sorted, and halves must be alike."""
    return scores[np.random.default_rng(0).permutation(len(scores))]


def _bounds(members: Scores, others: Scores, delta: float) -> tuple[Bound, ...]:
    coins, scores = np.arange(len(members) + len(others)) < len(members), np.concatenate([members, others])
    return (judged(scores, coins, delta)[0],)


def _even(others: Scores) -> Control:
    """Non-members against non-members."""
    first, second = np.array_split(_mixed(others), 2)
    found = auc(first, second, CERTAIN)
    must = f"have an AUC of 0.5, up to {(found.high - found.low) / 2:.3f}"
    return Control(
        name="non-members in two halves", must=must, came=found.value, passed=found.low <= 0.5 <= found.high
    )


def _told(members: Scores, others: Scores) -> Control:
    """A model that has learnt its members by heart."""
    found = auc(members, others)
    must = "have an AUC above 0.5 beyond chance"
    return Control(name="a model that leaks", must=must, came=found.value, passed=found.low > 0.5)
