"""Confident GNMax: answer a query where teachers agree, and pay for what was claimed in advance.

A whole interaction, whichever queries are answered, is dominated by one Gaussian:

    mu^2 = queries / sigma1^2 + 2 answers / sigma2^2

so its cost is exact, known before anything runs, and one line of the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Protocol

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

from saltflat.core.mechanism import Noise, noised
from saltflat.errors import AccountingError, BudgetError, PrivacyError, SettingError
from saltflat.pate.renyi import COUNTS, LARGEST
from saltflat.pate.votes import MOST, VOTES, TeacherVotes
from saltflat.privacy.accounting import bounds
from saltflat.privacy.accounting.calibration import calibrate_scale
from saltflat.privacy.accounting.events import compose, phase_event
from saltflat.privacy.limits import checked_delta
from saltflat.privacy.noise import SecureNoise, is_secret
from saltflat.privacy.record.costs import Pair
from saltflat.privacy.record.single import Single
from saltflat.settings import is_number, is_positive, is_whole

MANY = 10**9
QUERIES, ANSWERS = "queries", "answers"


class Limit(Protocol):
    """What is fixed in advance: how much may be asked, as a square of mu, and which counts are within."""

    def squared(self, test: float, answer: float) -> float: ...

    def allows(self, used: Mapping[str, int], test: float, answer: float) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Cap:
    """At most so many queries and so many answers: the cost is that of all of them, however few are given.

    >>> round(Cap(queries=4000, answers=1323).squared(1 / 200**2, 2 / 40**2), 6)
    1.75375
    """

    queries: int
    answers: int

    def __post_init__(self) -> None:
        for name in (QUERIES, ANSWERS):
            if not is_whole(getattr(self, name), 1, MANY):
                raise SettingError(f"{name} is a whole number from 1 to {MANY}; got {getattr(self, name)!r}")
        if self.answers > self.queries:
            raise SettingError(f"answers are at most queries; got {self.answers} and {self.queries}")

    def squared(self, test: float, answer: float) -> float:
        return self.queries * test + self.answers * answer

    def allows(self, used: Mapping[str, int], test: float, answer: float) -> bool:
        return used.get(QUERIES, 0) <= self.queries and used.get(ANSWERS, 0) <= self.answers


@dataclass(frozen=True, kw_only=True)
class Filter:
    """As many queries and answers as fit in a budget that is fixed now: each costs what it does when it is asked.

    *Guarantee*: a Gaussian filter. Whatever decides about the next question, questions whose squares of mu add up to
    at most mu^2 are together one Gaussian of that mu. The cost on offer is the budget, not what the counts would cost.

    Koskela, Tobaben & Honkela, "Individual Privacy Accounting with Gaussian Differential Privacy", 2023.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not is_number(self.epsilon, 1e-5, 1e4):
            raise SettingError(f"epsilon is a number from 1e-5 to 1e4; got {self.epsilon!r}")
        checked_delta(self.delta)

    def squared(self, test: float, answer: float) -> float:
        return gaussian_mu(self.epsilon, self.delta) ** 2

    def allows(self, used: Mapping[str, int], test: float, answer: float) -> bool:
        spent = used.get(QUERIES, 0) * test + used.get(ANSWERS, 0) * answer
        return spent <= self.squared(test, answer)


@lru_cache(maxsize=64)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu at which one Gaussian of sensitivity mu and noise 1 costs ``epsilon`` at ``delta``, rounded down.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

    >>> round(bounds.epsilon(phase_event(1.0, 1 / gaussian_mu(2.0, 1e-5), 1), 1e-5), 6)
    2.0
    """

    def excess(mu: float) -> float:
        above, below = (float(log_ndtr(sign * mu / 2 - epsilon / mu)) for sign in (1, -1))
        return math.exp(above) - math.exp(epsilon + below) - delta

    return float(brentq(excess, 1e-9, 1e3, xtol=1e-15, rtol=1e-13)) * (1 - 1e-7)


@dataclass(frozen=True, kw_only=True)
class ConfidentGNMax:
    """Answer if max_j n_j + N(0, sigma1^2) >= threshold, with argmax_j (n_j + N(0, sigma2^2)); else say nothing.

    *Guarantee*: Gaussian, for one unit added or removed: the test has mu = 1 / sigma1, the answer sqrt(2) / sigma2.
    ``limit`` says how much may be asked; the interaction costs all of it.

    >>> svhn = ConfidentGNMax(threshold=300, sigma1=200, sigma2=40, limit=Cap(queries=4000, answers=1323))
    >>> round(svhn.epsilon(1e-5), 2)
    6.08

    Papernot et al., "Scalable Private Learning with PATE", ICLR 2018.
    """

    threshold: float
    sigma1: float
    sigma2: float
    limit: Cap | Filter

    def __post_init__(self) -> None:
        if not is_number(self.threshold):
            raise SettingError(f"threshold is a finite number of votes; got {self.threshold!r}")
        for name in ("sigma1", "sigma2"):
            if not (is_positive(getattr(self, name)) and 1e-3 <= getattr(self, name) <= 1e9):
                raise SettingError(
                    f"{name} is a number of votes from 1e-3 to 1e9; got {getattr(self, name)!r}"
                )
        if not isinstance(self.limit, (Cap, Filter)):
            raise SettingError(f"limit is a Cap or a Filter; got a {type(self.limit).__name__}")
        if not self.allows({QUERIES: 1, ANSWERS: 1}):
            raise SettingError(
                f"not one query fits in {self.limit}: take more noise (sigma1, sigma2) or a larger limit"
            )

    @property
    def test_cost(self) -> float:
        """mu^2 of one test."""
        return (LARGEST / self.sigma1) ** 2

    @property
    def answer_cost(self) -> float:
        """mu^2 of one answer."""
        return (COUNTS / self.sigma2) ** 2

    @property
    def mu(self) -> float:
        """That of the one Gaussian which dominates the interaction."""
        return math.sqrt(self.limit.squared(self.test_cost, self.answer_cost))

    @property
    def cost(self) -> Pair:
        """The whole interaction, as a ledger charges it: one Gaussian on everyone, of noise multiplier 1 / mu."""
        return 1.0, 1 / self.mu

    @property
    def event(self) -> DpEvent:
        """The same for accountants."""
        return phase_event(*self.cost, 1)

    def epsilon(self, delta: float) -> float:
        """What the interaction costs at ``delta``: exact."""
        return bounds.epsilon(self.event, delta)

    def allows(self, used: Mapping[str, int]) -> bool:
        """Whether so many queries and answers are within the limit."""
        return self.limit.allows(used, self.test_cost, self.answer_cost)


def calibrated(
    gnmax: ConfidentGNMax, *, epsilon: float, delta: float, beside: DpEvent | None = None
) -> ConfidentGNMax:
    """The same with both noises scaled by one factor, so that its cap costs at most ``epsilon`` at ``delta``.

    ``beside`` is what else will be released, and fits in the same epsilon.

    >>> rough = ConfidentGNMax(threshold=30, sigma1=20, sigma2=5, limit=Cap(queries=500, answers=300))
    >>> 1.98 < calibrated(rough, epsilon=2.0, delta=1e-5).epsilon(1e-5) <= 2.0
    True
    """
    if not isinstance(gnmax.limit, Cap):
        raise SettingError("a filter has its own budget: give sigma1 and sigma2, and leave epsilon out")
    mu, others = gnmax.mu, () if beside is None else (beside,)
    whole = lambda scale: compose(phase_event(1.0, scale / mu, 1), *others)
    scale = calibrate_scale(whole, epsilon=epsilon, delta=delta)
    try:
        return replace(gnmax, sigma1=gnmax.sigma1 * scale, sigma2=gnmax.sigma2 * scale)
    except SettingError:
        raise AccountingError(f"no sensible noise costs epsilon {epsilon:g} here: change the cap") from None


class Allowance(Protocol):
    """From what questions are drawn before they are asked: a ledger's `Claim`, or `Counted` in memory."""

    @property
    def used(self) -> dict[str, int]: ...

    def draw(self, allowed: Callable[[Mapping[str, int]], bool], **more: int) -> None: ...

    def give_back(self, **unused: int) -> None: ...


@dataclass(frozen=True)
class Answers:
    """What was released: of the queries that were asked, in order, those that were answered, and with which class."""

    asked: int
    queries: NDArray[np.int64]
    labels: NDArray[np.int64]

    @property
    def answered(self) -> int:
        return len(self.labels)


def label(
    votes: TeacherVotes,
    gnmax: ConfidentGNMax,
    allowance: Allowance,
    *,
    queries: Sequence[int] | None = None,
    noise: Noise | None = None,
    block: int = 64,
    told: Callable[[Answers], None] = lambda answers: None,
) -> Answers:
    """Ask ``queries`` in their order, all if left out, until the limit is reached.

    *Guarantee*: tests and answers are drawn from ``allowance``, ``block`` queries at a time, before any of their noise
    is. A query that is asked twice is paid twice. What depends on votes is a noisy test or a noisy count, and nothing
    else. ``told`` is given each block's answers when it ends.
    """
    source = SecureNoise() if noise is None else noise
    check_source(source, allowance)
    order = check_queries(queries, votes.queries)
    if not is_whole(block, 1, MANY):
        raise SettingError(f"block is a whole number of 1 or more; got {block!r}")
    found: list[Answers] = []
    place = 0
    while place < len(order):
        count, answers = _room(gnmax, allowance.used, min(block, len(order) - place))
        if not answers:
            break
        allowance.draw(gnmax.allows, queries=count, answers=answers)
        one = _asked(votes, gnmax, order[place : place + count], answers, source)
        allowance.give_back(queries=count - one.asked, answers=answers - one.answered)
        found.append(one)
        told(one)
        place += one.asked
        if one.asked < count:
            break
    return joined(found)


def joined(parts: Sequence[Answers]) -> Answers:
    """Several blocks as one."""
    none = np.zeros(0, np.int64)
    return Answers(
        sum(each.asked for each in parts),
        np.concatenate([none, *(each.queries for each in parts)]),
        np.concatenate([none, *(each.labels for each in parts)]),
    )


def _room(gnmax: ConfidentGNMax, used: Mapping[str, int], most: int) -> tuple[int, int]:
    """How many queries, and answers to them, fit next: each query with its answer, or the last answers of a cap."""

    def fits(queries: int, answers: int) -> bool:
        total = {QUERIES: used.get(QUERIES, 0) + queries, ANSWERS: used.get(ANSWERS, 0) + answers}
        return gnmax.allows(total)

    count = next((n for n in range(most, 0, -1) if fits(n, 1)), 0)
    if not count:
        return 0, 0
    if isinstance(gnmax.limit, Cap):
        return count, next(n for n in range(count, 0, -1) if fits(count, n))
    both = next(n for n in range(count, 0, -1) if fits(n, n))
    return both, both


def _asked(
    votes: TeacherVotes, gnmax: ConfidentGNMax, order: NDArray[np.int64], answers: int, noise: Noise
) -> Answers:
    """One block; it ends early when a query passes the test and no answer is left for it."""
    queries: list[int] = []
    labels: list[int] = []
    for done, query in enumerate(order.tolist()):
        if len(labels) == answers:
            return Answers(done, np.array(queries, np.int64), np.array(labels, np.int64))
        test = noised(votes.largest(query), gnmax.sigma1 / LARGEST, noise)
        if float(test[MOST]) >= gnmax.threshold:
            counts = noised(votes.counts(query), gnmax.sigma2 / COUNTS, noise)
            queries.append(query)
            labels.append(int(counts[VOTES].argmax()))
    return Answers(len(order), np.array(queries, np.int64), np.array(labels, np.int64))


def check_queries(queries: Sequence[int] | None, many: int) -> NDArray[np.int64]:
    """The numbers of queries as an array, each among so ``many``; all of them for None."""
    if queries is None:
        return np.arange(many)
    order = np.asarray(queries)
    if order.ndim != 1 or (order.size and order.dtype.kind not in "iu"):
        raise SettingError("queries is a list of whole numbers")
    if order.size and not (order.min() >= 0 and order.max() < many):
        raise SettingError(f"queries are numbered from 0 to {many - 1}; some are not among them")
    return order.astype(np.int64)


def check_source(noise: Noise, allowance: Allowance) -> None:
    """Noise that can be repeated is put on record as such, or refused."""
    run = getattr(allowance, "run", None)
    if run is not None and not is_secret(noise) and not run.stamp:
        raise PrivacyError(
            "the noise says that it is not private, and the ledger's run would not say so: open it with private=False, "
            "or leave the source out, and a secret one is taken"
        )


class Counted(Single):
    """An allowance in memory, for those who keep no ledger: what it knows ends with the process.

    >>> spent = Counted()
    >>> spent.draw(lambda used: used["queries"] <= 3, queries=3)
    >>> spent.draw(lambda used: used["queries"] <= 3, queries=1)
    Traceback (most recent call last):
    saltflat.errors.BudgetError: 1 queries more would pass the limit: nothing was drawn
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        self._lock = Lock()

    @property
    def used(self) -> dict[str, int]:
        return dict(self._used)

    def draw(self, allowed: Callable[[Mapping[str, int]], bool], **more: int) -> None:
        with self._lock:
            total = {name: self._used.get(name, 0) + more.get(name, 0) for name in {**self._used, **more}}
            if not allowed(total):
                said = ", ".join(f"{number} {name}" for name, number in more.items())
                raise BudgetError(f"{said} more would pass the limit: nothing was drawn")
            self._used = total

    def give_back(self, **unused: int) -> None:
        with self._lock:
            self._used = {name: number - unused.get(name, 0) for name, number in self._used.items()}
