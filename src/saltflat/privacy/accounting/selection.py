"""What picking hyper-parameters by private trials costs.

Three honest ways: choose them on public data (free), count every trial (:func:`counted_trials`), or run a
*random* number of trials and release only the best (:func:`poisson_trials`, :func:`geometric_trials`).
"""

from __future__ import annotations

import math

from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent

from saltflat.errors import AccountingError
from saltflat.privacy.accounting.events import repeated
from saltflat.privacy.limits import real

NOT_SELECTED = "Hyper-parameters were not privately selected: trials on this data are not charged."
PUBLIC_PROXY = "Hyper-parameters were chosen on public data only."


def counted_trials(event: DpEvent, trials: int) -> DpEvent:
    """``trials`` runs, all charged; all of them may be looked at and released."""
    return repeated(event, trials)


def poisson_trials(event: DpEvent, *, mean: float) -> DpEvent:
    """The best of K runs, K ~ Poisson(mean); only the best one is released.

    ``rdp'(a) = rdp(a) + mean * d + ln(mean) / (a - 1)``, where one run is (ln(1 + 1/(a - 1)), d)-private.

    *Guarantee*: K must be drawn at random and kept secret, and with K = 0 nothing may be released.

    >>> from saltflat.privacy.accounting.bounds import epsilon
    >>> from saltflat.privacy.accounting.events import phase_event
    >>> run = phase_event(0.01, 2.0, 1000)
    >>> round(epsilon(run, 1e-6), 2), round(epsilon(poisson_trials(run, mean=10), 1e-6), 2)
    (0.72, 1.69)

    Papernot & Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", 2022, Theorem 6.
    """
    return _random_trials(event, mean, math.inf)


def negative_binomial_trials(event: DpEvent, *, mean: float, shape: float) -> DpEvent:
    """The best of K runs, K from the truncated negative binomial of that mean; ``shape=1`` is geometric.

    ``rdp'(a) = rdp(a) + (1 + shape) ((1 - 1/b) rdp(b) + ln(1/gamma) / b) + ln(E[K]) / (a - 1)``, best over b.

    *Guarantee*: as for :func:`poisson_trials`; here K is at least 1. Theorem 2 of the same paper.
    """
    if not 0 <= real("the shape", shape) < math.inf:
        raise AccountingError(f"the shape is {shape}: it must be at least 0 and finite (1 is geometric)")
    return _random_trials(event, mean, shape)


def geometric_trials(event: DpEvent, *, mean: float) -> DpEvent:
    """The best of K runs, where after every run one more is tried with probability 1 - 1/mean."""
    return negative_binomial_trials(event, mean=mean, shape=1.0)


def _random_trials(event: DpEvent, mean: float, shape: float) -> DpEvent:
    if not 1 <= real("the mean number of trials", mean) < math.inf:
        raise AccountingError(f"the mean number of trials is {mean}: it must be at least 1 and finite")
    return RepeatAndSelectDpEvent(event, float(mean), float(shape))


def describe_selection(event: DpEvent) -> str:
    """Which trials ``event`` charges, in words; empty if it charges none."""
    if not isinstance(event, RepeatAndSelectDpEvent):
        return ""
    kind = "Poisson" if event.shape == math.inf else f"truncated negative binomial (shape {event.shape:g})"
    return (
        f"Hyper-parameters: the best of a random number of trials, {kind} with mean {event.mean:g}; charged."
    )
