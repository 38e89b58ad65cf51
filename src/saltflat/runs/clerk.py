"""Who gives trials out and keeps the one ledger that all of them are charged to, however many processes run them.

A ledger has one writer. Trials in other processes ask it for every step, and it has the step on disk before it answers:
so what is charged is what ran, and a trial whose clerk is gone takes no further step.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from saltflat.core.plan import Plan
from saltflat.errors import BudgetError, LedgerError, PrivacyError
from saltflat.privacy.record.costs import Cost, from_row, to_row
from saltflat.privacy.record.ledger import Ledger, Run
from saltflat.recipes import Recipe
from saltflat.runs.execute import Account, Book, block_of
from saltflat.runs.identity import identity_of
from saltflat.runs.jobs import Ask
from saltflat.runs.layout import Folder

SAME = 1e-8  # of the noise: what processors make of one calibration differs by much less


@dataclass(frozen=True)
class Task:
    """A trial that is to run: who it is, what a worker must know, and the most steps that it may ever take."""

    name: str
    message: Mapping[str, Any]
    most: Mapping[Cost, int]


@dataclass
class Clerk:
    """The tasks that are left, the ledger, and what became of each task: '' if it ended, else why not.

    ``told(name, word, ...)`` hears of every step, reading and end. ``final`` are failures that another try cannot mend.
    """

    book: Ledger
    tasks: Sequence[Task]
    told: Callable[..., None] = lambda name, word, *given: None
    became: dict[str, str] = field(default_factory=dict)
    final: set[str] = field(default_factory=set)
    signal: int = 0

    def __post_init__(self) -> None:
        self._left = deque(self.tasks)
        self._lock = threading.RLock()

    def desk(self) -> _Desk:
        return _Desk(self)

    def more(self) -> bool:
        return bool(self._left) and not self.signal

    def stop(self, number: int) -> None:
        self.signal = self.signal or number

    def next(self) -> Task | None:
        with self._lock:
            return self._left.popleft() if self.more() else None

    def note(self, task: Task, why: str, *, final: bool = False) -> None:
        with self._lock:
            self.became[task.name] = why
            if final:
                self.final.add(task.name)
            self.tell(task, "failed" if why else "ended", why)

    def tell(self, task: Task, word: str, *given: Any) -> None:
        with self._lock:
            self.told(task.name, word, *given)


class _Desk:
    """One worker's: the trial that it is at, and that trial's account.

    *Guarantee*: a step is on disk when :meth:`take` has answered. No trial takes more steps of a cost than its plan
    and its spare ones, over all its starts. What a worker reserved and did not take is given back when it is gone.
    """

    def __init__(self, clerk: Clerk) -> None:
        self._clerk = clerk
        self._task: Task | None = None
        self._run: Run | None = None
        self._taken: Counter[Cost] = Counter()

    def answer(self, word: str, *given: Any) -> Any:
        known = {name: getattr(self, name) for name in _WORDS}
        if word not in known:
            raise PrivacyError(f"{word!r} is no question of a trial")
        return known[word](*given)

    def left(self) -> None:
        self._close()
        if self._task is not None and not self._clerk.signal:
            self._over("its process ended by itself, for want of memory perhaps")

    # What a worker asks: one method each

    def next(self) -> dict[str, Any] | None:
        self._task = self._clerk.next()
        return None if self._task is None else dict(self._task.message)

    def open(self, name: str, identity: str, unit: str, adjacency: str, block: int) -> str:
        self._close()
        self._run = self._clerk.book.run(name, unit=unit, adjacency=adjacency, block=block, identity=identity)
        self._taken = Counter()
        for cost, steps in self._run.charged().items():
            self._taken[_planned(self._most, cost)] += steps
        return self._run.account

    def take(self, row: Sequence[Any]) -> None:
        cost, run = from_row(row), self._open_run
        place = _planned(self._most, cost)
        if self._taken[place] >= self._most.get(place, 0):
            raise BudgetError(
                "the steps of this trial, and its spare ones, are used up by starts that were killed: begin a sweep "
                "with more of them (--set spare=...)"
            )
        run.take(cost)
        self._taken[place] += 1

    def charged(self) -> list[list[Any]]:
        return [[to_row(cost), steps] for cost, steps in self._open_run.charged().items()]

    def epsilon(self, delta: float) -> float | None:
        return _finite(self._open_run.epsilon(delta))

    def everything(self, delta: float) -> float | None:
        return _finite(self._clerk.book.epsilon(delta))

    def head(self) -> str:
        return self._clerk.book.head

    def expect(self, head: str) -> None:
        self._clerk.book.expect(head)

    def close(self) -> None:
        self._close()

    def step(self, step: int, of: int) -> bool:
        """Whether to stop."""
        if self._task is not None:
            self._clerk.tell(self._task, "step", step, of)
        return bool(self._clerk.signal)

    def reading(self, said: str) -> None:
        if self._task is not None:
            self._clerk.tell(self._task, "reading", said)

    def ended(self) -> None:
        self._over("")

    def failed(self, why: str, final: bool) -> None:
        self._over(why or "it failed", final=final)

    def stopped(self, number: int) -> None:
        self._clerk.stop(number)
        self._task = None

    @property
    def _most(self) -> Mapping[Cost, int]:
        return self._task.most if self._task is not None else {}

    @property
    def _open_run(self) -> Run:
        if self._run is None:
            raise LedgerError("no account is open for this trial: nothing may be charged")
        return self._run

    def _over(self, why: str, *, final: bool = False) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._clerk.note(task, why, final=final)

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()


_WORDS = (
    *("next", "open", "take", "charged", "epsilon", "everything", "head", "expect", "close"),
    *("step", "reading", "ended", "failed", "stopped"),
)


def _planned(allowed: Mapping[Cost, int], cost: Cost) -> Cost:
    """The planned cost that is meant: noise that another processor calibrated is the same noise."""
    if isinstance(cost, tuple):
        for other in allowed:
            if (
                isinstance(other, tuple)
                and other[0] == cost[0]
                and math.isclose(other[1], cost[1], rel_tol=SAME)
            ):
                return other
    return cost


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


# The worker's side


@contextmanager
def opened(
    ask: Ask, recipe: Recipe, plan: Plan, folder: Folder, shared: Path | None, *, unit: str
) -> Iterator[tuple[Book, Account]]:
    """An account of the run in ``folder`` in the clerk's ledger, as `execute` takes it."""
    identity = identity_of(folder.path)
    if identity is None:
        raise LedgerError(f"{folder.path} has no identity, and a trial is charged by it")
    name = ask("open", str(folder.path), identity, unit, plan.adjacency, block_of(recipe))
    account = Asked(ask, unit, plan.adjacency, name)
    try:
        yield _Everything(ask), account
    finally:
        account.close()


@dataclass(frozen=True, eq=False)
class Asked:
    """A run's account that another process charges: the same questions as a ledger's run answers."""

    ask: Ask = field(repr=False)
    unit: str
    adjacency: str
    account: str
    stamp: str = ""  # a trial's noise is secret

    def step(self, rate: float, noise_multiplier: float) -> None:
        self.take((rate, noise_multiplier))

    def take(self, cost: Cost) -> None:
        """Charge one step; it is on disk when this returns."""
        self.ask("take", to_row(cost))

    def charged(self) -> dict[Cost, int]:
        return {from_row(row): int(steps) for row, steps in self.ask("charged")}

    def epsilon(self, delta: float) -> float:
        return _infinite(self.ask("epsilon", delta))

    @property
    def head(self) -> str:
        return str(self.ask("head"))

    def expect(self, head: str) -> None:
        self.ask("expect", head)

    def choose(self, planned: Mapping[Cost, int]) -> None:
        raise PrivacyError(
            "results decide when the noise of this recipe changes, and trials have fixed lists of steps"
        )

    def close(self) -> None:
        self.ask("close")


@dataclass(frozen=True, eq=False)
class _Everything:
    """All that is on record in the clerk's ledger."""

    ask: Ask = field(repr=False)

    def epsilon(self, delta: float) -> float:
        return _infinite(self.ask("everything", delta))


def _infinite(value: float | None) -> float:
    return math.inf if value is None else float(value)


def opened_by(ask: Ask) -> Any:
    """`opened`, with whom to ask."""
    return partial(opened, ask)
