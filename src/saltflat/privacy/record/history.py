"""What is known from the lines of a ledger: who was charged what, its epsilon, and what is left of a budget."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saltflat.errors import LedgerError, SettingError
from saltflat.privacy.record.costs import ADJACENCIES, Cost, Pair, event_of, from_body, place
from saltflat.privacy.record.format import Entry, check_budget, read_entries, read_head

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from saltflat.privacy.accounting.events import Adjacency

Account = tuple[str, str]
"""Which run a start goes on with: (identity, "") or, if it has none, ("", name)."""

Planned = tuple[tuple[Pair, int], ...]
"""(cost, steps) of a list from which results choose; empty for one that is fixed in advance."""


@dataclass(frozen=True)
class Budget:
    """The most that may ever be spent on a data set: epsilon at delta.

    *Guarantee*: without ``order`` the costs are composed as if all runs had been planned before any result
    was seen. With a Renyi ``order`` fixed now the budget is a filter: it holds even if each run's noise, rate
    or length is chosen from the results of earlier ones, as in a search (Feldman & Zrnic 2021).

    >>> Budget(epsilon=3.0, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05, order=None)
    """

    epsilon: float
    delta: float
    order: float | None = None

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta, self.order)


@dataclass(frozen=True)
class Spending:
    """What one run has been charged: ``steps`` by cost, which is mostly a pair (rate, noise_multiplier)."""

    name: str
    started: str
    stamp: str
    steps: Mapping[Cost, int]


@dataclass(frozen=True)
class History:
    """The lines of a ledger, checked; everything that is known is computed from them."""

    entries: tuple[Entry, ...]

    @property
    def dataset(self) -> str:
        return str(self.entries[0].body["dataset"])

    @property
    def budget(self) -> Budget | None:
        """The budget recorded last."""
        found = [_budget(entry.body) for entry in self.entries if entry.kind == "budget"]
        return found[-1] if found else None

    @property
    def head(self) -> str:
        """``number:hash`` of the last line, for checkpoints and statements."""
        last = self.entries[-1]
        return f"{last.number}:{last.hash}"

    @property
    def unit(self) -> tuple[str, str] | None:
        """(unit, adjacency) of the runs; None before the first."""
        found = next(iter(self.began()), None)
        return (found.body["unit"], found.body["adjacency"]) if found else None

    @property
    def adjacency(self) -> str:
        """The adjacency of the runs; the usual one before the first."""
        return self.unit[1] if self.unit else ADJACENCIES[0]

    @property
    def stamp(self) -> str:
        """What every report on this ledger must say: empty, or that the noise of a run can be repeated."""
        return max((entry.body["stamp"] for entry in self.began()), default="")

    def began(self, runs: Collection[int] | None = None) -> list[Entry]:
        """The lines at which all runs began, or those with these numbers; SettingError if one begins no run."""
        found = {entry.number: entry for entry in self.entries if entry.kind == "run"}
        for number in runs or ():
            if number not in found:
                raise SettingError(
                    f"line {number} of the ledger of {self.dataset!r} begins no run: runs began at {[*found]}"
                )
        return [entry for number, entry in found.items() if runs is None or number in runs]

    def named(self, name: str) -> list[int]:
        """The line numbers of the runs of this name: a run that went on after a crash is several of them.

        A name is for people; a run that has an identity is found by it (:meth:`identified`).
        """
        return [entry.number for entry in self.began() if entry.body["name"] == name]

    def starts(self) -> dict[Account, list[int]]:
        """The line numbers at which each run began and went on."""
        found: dict[Account, list[int]] = {}
        for entry in self.began():
            found.setdefault(_account(entry.body), []).append(entry.number)
        return found

    def identified(self, identity: str) -> list[int]:
        """The line numbers of the run of this identity, whatever it was called."""
        return self.starts().get((identity, ""), [])

    @property
    def chosen(self) -> bool:
        """Whether results chose the steps of a run."""
        return any(entry.kind == "chosen" for entry in self.entries)

    def runs(self) -> list[Spending]:
        """What each run has been charged, in the order in which they began."""
        return [
            Spending(e.body["name"], e.body["time"], e.body["stamp"], self.steps([e.number]))
            for e in self.began()
        ]

    def steps(self, runs: Collection[int] | None = None) -> dict[Cost, int]:
        """Steps charged, by cost, mostly (rate, noise): to all runs, or to those that began at these lines."""
        total: Counter[Cost] = Counter()
        for _, _, cost, steps in self._charges(runs):
            total[cost] += steps
        return {cost: steps for cost, steps in total.items() if steps}

    def _charges(self, runs: Collection[int] | None) -> Iterator[tuple[int, Planned, Cost, int]]:
        """(run, what its results chose from by then, cost, steps) of every charge to these runs."""
        mine = None if runs is None else {entry.number for entry in self.began(runs)}
        settled = {e.body["charge"]: e.body["steps"] for e in self.entries if e.kind == "settle"}
        planned: dict[int, Planned] = {}
        for entry in self.entries:
            if entry.kind == "chosen":
                planned[entry.body["run"]] = _planned(entry.body)
            elif entry.kind == "charge" and (mine is None or entry.body["run"] in mine):
                cost = from_body(entry.body)
                run, steps = entry.body["run"], settled.get(entry.number, entry.body["steps"])
                yield run, planned.get(run, ()), cost, steps

    def claimed(self, runs: Collection[int], cost: Cost) -> Entry | None:
        """The charge of this cost to these runs from which questions are drawn (`Run.claim`); None if there is none."""
        claims = (e for e in self.entries if e.kind == "charge" and e.body.get("claim"))
        return next((e for e in claims if e.body["run"] in runs and from_body(e.body) == cost), None)

    def drawn(self, charge: int) -> dict[str, int]:
        """What was drawn from a claim by now, by name: the last line on it."""
        found = [e for e in self.entries if e.kind == "drawn" and e.body["charge"] == charge]
        return dict(found[-1].body["used"]) if found else {}

    def epsilon(self, delta: float, runs: Collection[int] | None = None) -> float:
        """An upper bound on what all runs, or those that began at these lines, have spent together at ``delta``.

        *Guarantee*: at least the cost of every step of theirs that began, whatever crashed. Infinite if one of
        them was seeded. As for every composition, runs are taken as planned before their results were seen; a run
        whose results chose its steps counts with all that they could have chosen, by Renyi accounting.
        """
        if any(entry.body["stamp"] for entry in self.began(runs)):
            return math.inf
        fixed, chosen = self._fixed_and_chosen(runs)
        return epsilon_of(fixed, delta, self.adjacency, chosen=chosen)

    def _fixed_and_chosen(self, runs: Collection[int] | None) -> tuple[dict[Cost, int], dict[Cost, int]]:
        """What was charged to lists that were fixed in advance, and the most that the chosen ones may have cost.

        A run that went on after a crash has one list, and what ran again counts beyond it.
        """
        accounts = {entry.number: _account(entry.body) for entry in self.began()}
        charged: dict[tuple[Account | None, Planned], Counter[Cost]] = defaultdict(Counter)
        for run, planned, cost, steps in self._charges(runs):
            charged[accounts.get(run), planned][cost] += steps
        fixed: Counter[Cost] = Counter()
        chosen: Counter[Cost] = Counter()
        for (_, planned), by_cost in charged.items():
            if planned and by_cost.total():
                chosen.update(most(dict(planned), by_cost))
            else:
                fixed.update(by_cost)
        return dict(+fixed), dict(chosen)

    def chose(self, runs: Collection[int] | None = None) -> bool:
        """Whether results chose steps of these runs: what was charged is then not all that they may have cost."""
        return bool(self._fixed_and_chosen(runs)[1])

    def expect(self, head: str) -> None:
        """Raise LedgerError if the line that ``head`` names is not here: the ledger was rolled back."""
        if head not in {f"{entry.number}:{entry.hash}" for entry in self.entries}:
            number, _, digest = head.partition(":")
            raise LedgerError(
                f"the ledger of {self.dataset!r} has no line {number} with hash {digest[:12]}..., which was "
                "seen before: an older copy was restored, or another ledger given; bring back the newest copy"
            )

    def gone(self) -> float | None:
        """How much of the budget is gone, from 0 to 1; None without a budget."""
        return None if self.budget is None else gone_of(self.budget, self.steps(), self.adjacency)


def read(path: str | os.PathLike[str]) -> History:
    """Read and check a ledger without locking it; raises LedgerError if it cannot be trusted.

    *Guarantee*: no line that ever allowed a step is missing or changed, unless both files were rewritten.
    """
    place = Path(path)
    return History(read_entries(place, read_head(place)))


def most(planned: Mapping[Cost, int], charged: Mapping[Cost, int]) -> dict[Cost, int]:
    """The most that a run may have cost whose results choose among ``planned`` steps, when so many are on record.

    *Guarantee*: results can only move a step to a place with more noise, so on no path are there more steps with at
    most some noise than planned. Those on record beyond that ran again after a crash; where, results may have
    decided, so each counts as the dearest. At every Renyi order this is at least what was planned and what was charged.
    What ran again is not seen where results also made the run shorter than planned (a last phase that ends early, a
    phase of two samples that hands over to one of one): there the order of the budget holds, which adds up every step.

    >>> most({(0.1, 2.0): 30, (0.1, 4.0): 10}, {(0.1, 2.0): 5, (0.1, 4.0): 38})
    {(0.1, 2.0): 33, (0.1, 4.0): 10}
    """
    total: Counter[Cost] = Counter(planned)
    ahead, again = 0, 0
    for cost in sorted(planned, key=place):  # one rate: the least noise first
        ahead += charged.get(cost, 0) - planned[cost]
        again = max(again, ahead)
    total[min(planned, key=place)] += again
    total.update({cost: steps for cost, steps in charged.items() if cost not in planned})
    return dict(total)


def epsilon_of(
    steps: Mapping[Cost, int], delta: float, adjacency: str, *, chosen: Mapping[Cost, int] | None = None
) -> float:
    """An upper bound on the epsilon of ``steps``, composed; nothing but numbers, no ledger needed.

    ``chosen`` is the most that lists of steps cost which results chose: with any, Renyi accounting counts everything.

    >>> round(epsilon_of({(1.0, 2.0): 1}, 1e-5, "add-or-remove"), 2)
    1.99
    """
    if not steps and not chosen:
        return 0.0
    from saltflat.privacy.accounting.bounds import epsilon
    from saltflat.privacy.accounting.events import ChosenDpEvent, compose

    event, kind = _event(steps, adjacency)
    if chosen:
        event = compose(event, ChosenDpEvent(_event(chosen, adjacency)[0]))
    return epsilon(event, delta, adjacency=kind)


def gone_of(budget: Budget, steps: Mapping[Cost, int], adjacency: str) -> float:
    """How much of ``budget`` is gone with ``steps``; above 1 they do not fit, by how much does not matter."""
    if budget.order is None:
        spent = epsilon_of(steps, budget.delta, adjacency)
        return min(spent / budget.epsilon, 1.0) if spent <= budget.epsilon else math.inf
    from saltflat.privacy.accounting.filters import RdpFilter

    event, kind = _event(steps, adjacency)
    rule = RdpFilter(epsilon=budget.epsilon, delta=budget.delta, order=budget.order, adjacency=kind)
    return rule.cost(event)


def _event(steps: Mapping[Cost, int], adjacency: str) -> tuple[DpEvent, Adjacency]:
    """Imports late, as its callers do: accountants take two seconds to load, and most uses need none."""
    from saltflat.privacy.accounting.events import ADD_REMOVE, REPLACE, compose

    parts = [event_of(cost, steps[cost]) for cost in sorted(steps, key=place)]
    return compose(*parts), REPLACE if adjacency == "replace" else ADD_REMOVE


def _account(body: Mapping[str, Any]) -> Account:
    return (body["identity"], "") if "identity" in body else ("", body["name"])


def _planned(body: Mapping[str, Any]) -> Planned:
    return tuple(((body["rate"], noise), steps) for noise, steps in body["planned"])


def _budget(body: Mapping[str, Any]) -> Budget:
    return Budget(body["epsilon"], body["delta"], body["order"])
