"""What a ledger can charge for: kinds of cost, each described by checked numbers and turned into one event.

The usual cost is a pair (rate, noise_multiplier): one Poisson-sampled Gaussian step. The others have a class here, with
the name under which a ledger keeps them. Nothing is loaded that an accountant needs until an event is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from saltflat.errors import AccountingError, PrivacyError
from saltflat.privacy.limits import checked_count, checked_noise, checked_rate, real

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

ADJACENCIES = ("add-or-remove", "replace")
MOST_POINTS = 500  # of a Renyi curve, or kinds of steps in a trial: it must fit in a line
MOST_TRIALS = 1000  # expected ones

Pair: TypeAlias = tuple[float, float]
"""One step on a Poisson sample: (rate, noise_multiplier); rate 1 is a plain Gaussian."""


@dataclass(frozen=True)
class FixedSize:
    """One step on exactly ``batch`` of ``size`` units, drawn in secret without replacement.

    *Guarantee*: bounded under replace adjacency alone, where one unit moves the sum by up to 2C; ``noise_multiplier``
    is sigma / C all the same, and the accountant doubles the sensitivity.

    >>> words(FixedSize(500, 50, 2.0))
    '50 of 500 units at noise multiplier 2'
    """

    size: int
    batch: int
    noise_multiplier: float

    kind: ClassVar[str] = "fixed-size"
    adjacencies: ClassVar[tuple[str, ...]] = ADJACENCIES[1:]

    def __post_init__(self) -> None:
        size = checked_count("the number of units", self.size)
        batch = checked_count("the batch", self.batch, ceiling=size)
        _put(self, size=size, batch=batch, noise_multiplier=checked_noise(self.noise_multiplier))


@dataclass(frozen=True)
class CappedUser:
    """One step as a user sees it who owns at most ``cap`` examples, each joining with probability ``rate``.

    *Guarantee*: holds if the cap was enforced before sampling, for a user who is added or removed.

    >>> words(CappedUser(0.1, 2.0, cap=5))
    'rate 0.1 and noise multiplier 2, at most 5 examples of a user'
    """

    rate: float
    noise_multiplier: float
    cap: int

    kind: ClassVar[str] = "capped-user"
    adjacencies: ClassVar[tuple[str, ...]] = ADJACENCIES[:1]

    def __post_init__(self) -> None:
        cap = checked_count("the cap on examples of one user", self.cap, ceiling=1000)
        rate, noise = checked_rate(self.rate), checked_noise(self.noise_multiplier)
        _put(self, rate=rate, noise_multiplier=noise, cap=cap)


@dataclass(frozen=True)
class RenyiBound:
    """A release of any other kind, by a proven bound on its Renyi divergence: ``points`` are (order, at most).

    *Guarantee*: none of its own. Whoever charges it answers for the proof, under the adjacency of the run. Between two
    orders the bound of the larger one holds, beyond the largest there is none; the whole ledger is then counted by
    Renyi accounting. A bound that depends on the data is itself private, and so is a ledger that holds one.

    >>> words(RenyiBound("votes of 250 teachers", ((2.0, 0.01), (8.0, 0.04))))
    'votes of 250 teachers (Renyi bound at 2 orders, 2 to 8)'
    """

    what: str
    points: tuple[tuple[float, float], ...]

    kind: ClassVar[str] = "renyi"
    adjacencies: ClassVar[tuple[str, ...]] = ADJACENCIES

    def __post_init__(self) -> None:
        if not (isinstance(self.what, str) and 0 < len(self.what) <= 200 and self.what.isprintable()):
            raise AccountingError(
                f"what is {self.what!r}: say in 1 to 200 printable characters what was released"
            )
        if not (isinstance(self.points, tuple | list) and 0 < len(self.points) <= MOST_POINTS):
            raise AccountingError(f"points is {self.points!r}: give 1 to {MOST_POINTS} pairs (order, bound)")
        _put(self, points=tuple(_point(pair) for pair in self.points))
        orders = [order for order, _ in self.points]
        if any(b <= a for a, b in pairwise(orders)):
            raise AccountingError(f"the orders of points must grow; got {orders}")


@dataclass(frozen=True)
class BestOf:
    """The best of a random number of trials and nothing of the others: as many as a coin says that falls each time
    for one more with probability 1 - 1/``mean``. One trial takes ``steps``: (rate, noise_multiplier, how many).

    *Guarantee*: holds if the coins are secret and fall once, before the first trial; if no trial takes more than
    ``steps``, whatever its settings; if settings are drawn without a look at the data; and if the score by which the
    best is picked is made of released or public values. See `accounting.selection.geometric_trials`.

    >>> words(BestOf(6.0, ((0.04, 2.35, 100),)))
    'the best of a random number of trials, 6 expected, of 100 steps each'
    """

    mean: float
    steps: tuple[tuple[float, float, int], ...]

    kind: ClassVar[str] = "best-of"
    adjacencies: ClassVar[tuple[str, ...]] = ADJACENCIES[:1]

    def __post_init__(self) -> None:
        mean = real("the expected number of trials", self.mean)
        if not 1 < mean <= MOST_TRIALS:
            raise AccountingError(
                f"the expected number of trials is above 1, at most {MOST_TRIALS}; got {mean}"
            )
        if not (isinstance(self.steps, tuple | list) and 0 < len(self.steps) <= MOST_POINTS):
            raise AccountingError(
                f"steps is {self.steps!r}: give 1 to {MOST_POINTS} of (rate, noise, how many)"
            )
        _put(self, mean=mean, steps=tuple(sorted(_steps(each) for each in self.steps)))


Cost: TypeAlias = Pair | FixedSize | CappedUser | RenyiBound | BestOf
"""What one step, or one release, costs."""

KINDS: Mapping[str, type[FixedSize | CappedUser | RenyiBound | BestOf]] = {
    each.kind: each for each in (FixedSize, CappedUser, RenyiBound, BestOf)
}


def checked(cost: object) -> Cost:
    """``cost``, if it is one; a pair of any numbers is checked here, the others checked themselves."""
    if isinstance(cost, FixedSize | CappedUser | RenyiBound | BestOf):
        return cost
    if isinstance(cost, tuple) and len(cost) == 2:
        return checked_rate(cost[0]), checked_noise(cost[1])
    raise AccountingError(
        f"a cost is a pair (rate, noise_multiplier), or one of {', '.join(c.__name__ for c in KINDS.values())}; "
        f"got {cost!r}"
    )


def to_body(cost: Cost) -> dict[str, Any]:
    """A cost as a line of the ledger keeps it; a pair as it always was.

    >>> to_body((0.1, 2.0)), to_body(FixedSize(500, 50, 2.0))["cost"]["kind"]
    ({'rate': 0.1, 'noise_multiplier': 2.0}, 'fixed-size')
    """
    if isinstance(cost, tuple):
        return {"rate": cost[0], "noise_multiplier": cost[1]}
    return {"cost": facts(cost)}


def from_body(body: Mapping[str, Any]) -> Cost:
    """The cost that a charge holds; AccountingError, KeyError or TypeError if it is none.

    >>> from_body(to_body(CappedUser(0.1, 2.0, cap=5)))
    CappedUser(rate=0.1, noise_multiplier=2.0, cap=5)
    """
    if "cost" not in body:
        return checked((body["rate"], body["noise_multiplier"]))
    if "rate" in body or "noise_multiplier" in body:
        raise AccountingError("a charge has one cost")
    numbers = dict(body["cost"])
    return KINDS[numbers.pop("kind")](**numbers)


def to_row(cost: Cost) -> list[Any]:
    """A cost as the plain values of a list, as `state_dict` keeps it; see `from_row`.

    >>> to_row((0.1, 2.0)), from_row(to_row(FixedSize(500, 50, 2.0)))
    ([0.1, 2.0], FixedSize(size=500, batch=50, noise_multiplier=2.0))
    """
    return list(to_body(cost).values())


def from_row(row: Sequence[Any]) -> Cost:
    """The cost that `to_row` gave."""
    if len(row) == 1:
        return from_body({"cost": row[0]})
    rate, noise = row
    return float(rate), float(noise)


def check_adjacency(cost: Cost, adjacency: str) -> None:
    """Refuse a cost that has no bound under ``adjacency``."""
    if not isinstance(cost, tuple) and adjacency not in cost.adjacencies:
        raise PrivacyError(
            f"{words(cost)}: such a step is bounded under adjacency {' or '.join(cost.adjacencies)}, and the "
            f"ledger's run says {adjacency!r}: open it with adjacency={cost.adjacencies[0]!r}; nothing was charged"
        )


def event_of(cost: Cost, steps: int = 1) -> DpEvent:
    """The cost of ``steps`` such steps, as the accountants take it; they are loaded here.

    >>> event_of((0.01, 1.1))
    PoissonSampledDpEvent(sampling_probability=0.01, event=GaussianDpEvent(noise_multiplier=1.1))
    """
    from saltflat.privacy.accounting import events

    if isinstance(cost, FixedSize):
        one = events.fixed_size_event(cost.noise_multiplier, size=cost.size, batch=cost.batch)
    elif isinstance(cost, CappedUser):
        one = events.group_step_event(cost.rate, cost.noise_multiplier, cap=cost.cap)
    elif isinstance(cost, RenyiBound):
        one = events.RenyiDpEvent(cost.what, cost.points)
    elif isinstance(cost, BestOf):
        one = _best_of(cost)
    else:
        one = events.step_event(*cost)
    return events.repeated(one, steps)


def _best_of(cost: BestOf) -> DpEvent:
    from saltflat.privacy.accounting import events, selection

    trial = events.compose(*(events.phase_event(rate, noise, count) for rate, noise, count in cost.steps))
    return selection.geometric_trials(trial, mean=cost.mean)


def words(cost: Cost) -> str:
    """One step, in words.

    >>> words((0.04, 2.35))
    'rate 0.04 and noise multiplier 2.35'
    """
    if isinstance(cost, FixedSize):
        return f"{cost.batch} of {cost.size} units at noise multiplier {cost.noise_multiplier:g}"
    if isinstance(cost, RenyiBound):
        orders = f"{len(cost.points)} orders, {cost.points[0][0]:g} to {cost.points[-1][0]:g}"
        return f"{cost.what} (Renyi bound at {orders})"
    if isinstance(cost, BestOf):
        steps = sum(count for _, _, count in cost.steps)
        return f"the best of a random number of trials, {cost.mean:g} expected, of {steps} steps each"
    if isinstance(cost, CappedUser):
        pair = words((cost.rate, cost.noise_multiplier))
        return f"{pair}, at most {cost.cap} examples of a user"
    return f"rate {cost[0]:g} and noise multiplier {cost[1]:g}"


def columns(cost: Cost) -> tuple[str, str]:
    """What a table says under "rate" and "noise".

    >>> columns((0.04, 2.35)), columns(FixedSize(500, 50, 2.0))
    (('0.04', '2.35'), ('50 of 500', '2'))
    """
    if isinstance(cost, FixedSize):
        return f"{cost.batch} of {cost.size}", f"{cost.noise_multiplier:.6g}"
    if isinstance(cost, CappedUser):
        return f"{cost.rate:.6g}, {cost.cap} per user", f"{cost.noise_multiplier:.6g}"
    if isinstance(cost, RenyiBound):
        return cost.what, "Renyi bound"
    if isinstance(cost, BestOf):
        return f"best of {cost.mean:g} expected trials", ", ".join(
            f"{noise:.6g}" for _, noise, _ in cost.steps
        )
    return f"{cost[0]:.6g}", f"{cost[1]:.6g}"


def facts(cost: Cost) -> dict[str, Any]:
    """What a program is told of a cost: the pair's two numbers, or all of another kind.

    >>> facts((0.04, 2.35))
    {'rate': 0.04, 'noise': 2.35}
    """
    if isinstance(cost, tuple):
        return {"rate": cost[0], "noise": cost[1]}
    given = {
        name: [list(p) for p in value] if isinstance(value, tuple) else value
        for name, value in asdict(cost).items()
    }
    return {"kind": cost.kind, **given}


def place(cost: Cost) -> tuple[str, tuple[Any, ...]]:
    """Where a cost stands among others, whatever their kinds: the order in which lists of costs are composed."""
    return ("", cost) if isinstance(cost, tuple) else (cost.kind, tuple(asdict(cost).values()))


def _put(cost: object, **values: Any) -> None:
    """Numbers as a ledger keeps them, whatever they were given as."""
    for name, value in values.items():
        object.__setattr__(cost, name, value)


def _point(pair: object) -> tuple[float, float]:
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise AccountingError(f"points are pairs (order, bound) of a Renyi curve; got {pair!r}")
    order, bound = real("an order", pair[0]), real("a bound", pair[1])
    if 1.1 <= order <= 1024 and 0 <= bound < math.inf:
        return order, bound
    raise AccountingError(
        f"points of a Renyi curve have orders from 1.1 to 1024 and a bound >= 0; got {pair!r}"
    )


def _steps(each: object) -> tuple[float, float, int]:
    if not (isinstance(each, tuple | list) and len(each) == 3):
        raise AccountingError(f"steps of a trial are (rate, noise_multiplier, how many); got {each!r}")
    return checked_rate(each[0]), checked_noise(each[1]), checked_count("the steps of a trial", each[2])
