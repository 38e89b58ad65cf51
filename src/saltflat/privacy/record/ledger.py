"""The durable record of what was spent on one data set, shared by every run that touches it.

An append-only file of JSON lines, each holding the hash of the line before, and beside it a head file with
the number and the hash of the last line that counts. ``docs/ledger.md`` says what damage is detected.

    truth <= ledger <= truth + block        after any crash, whatever checkpoint is restored
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any

from saltflat.errors import AccountingError, BudgetError, LedgerError, SettingError
from saltflat.privacy.limits import (
    SEEDED,
    STEPS_CEILING,
    checked_count,
    checked_delta,
    checked_noise,
    checked_rate,
)
from saltflat.privacy.record import durable

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from saltflat.privacy.accounting.events import Adjacency

FORMAT = 1
ADJACENCIES = ("add-or-remove", "replace")

_FIRST = "0" * 64  # the hash before the first line
_LONGEST = 1 << 16  # bytes of a line; a longer one is not ours

Cost = tuple[float, float]
"""One step: (rate, noise_multiplier)."""


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
        if self.order is not None and not (_is_number(self.order) and 1.1 <= self.order <= 1024):
            raise SettingError(f"order={self.order!r}: None or a number from 1.1 to 1024 is needed")
        if not (_is_number(self.epsilon) and 0 < self.epsilon < math.inf):
            raise SettingError(f"epsilon={self.epsilon!r}: a finite number above 0 is needed")
        try:
            checked_delta(self.delta)
        except AccountingError as error:
            raise SettingError(str(error)) from None


@dataclass(frozen=True)
class Entry:
    """One line of a ledger; ``hash`` covers all of it and, through ``previous``, all lines before."""

    number: int
    kind: str
    body: Mapping[str, Any]
    previous: str
    hash: str


@dataclass(frozen=True)
class Spending:
    """What one run has been charged: ``steps`` by (rate, noise_multiplier)."""

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
        found = next((entry.body for entry in self.entries if entry.kind == "run"), None)
        return (found["unit"], found["adjacency"]) if found else None

    @property
    def adjacency(self) -> str:
        """The adjacency of the runs; the usual one before the first."""
        return self.unit[1] if self.unit else ADJACENCIES[0]

    @property
    def stamp(self) -> str:
        """What every report on this ledger must say: empty, or that the noise of a run can be repeated."""
        return max((entry.body["stamp"] for entry in self.entries if entry.kind == "run"), default="")

    def runs(self) -> list[Spending]:
        """What each run has been charged, in the order in which they began."""
        began = [entry for entry in self.entries if entry.kind == "run"]
        return [
            Spending(e.body["name"], e.body["time"], e.body["stamp"], self.steps(run=e.number)) for e in began
        ]

    def steps(self, run: int | None = None) -> dict[Cost, int]:
        """Steps charged, by (rate, noise_multiplier): of all runs, or of the one with this line number."""
        settled = {e.body["charge"]: e.body["steps"] for e in self.entries if e.kind == "settle"}
        total: dict[Cost, int] = {}
        for entry in self.entries:
            if entry.kind == "charge" and run in (None, entry.body["run"]):
                cost = (entry.body["rate"], entry.body["noise_multiplier"])
                total[cost] = total.get(cost, 0) + settled.get(entry.number, entry.body["steps"])
        return {cost: steps for cost, steps in total.items() if steps}

    def named(self, name: str) -> dict[Cost, int]:
        """Steps charged to all runs of this name: a run that went on after a crash is several of them."""
        total: Counter[Cost] = Counter()
        for entry in self.entries:
            if entry.kind == "run" and entry.body["name"] == name:
                total.update(self.steps(run=entry.number))
        return dict(total)

    def epsilon(self, delta: float, run: int | None = None) -> float:
        """An upper bound on what all runs together have spent, at ``delta``.

        *Guarantee*: at least the cost of every step that began, whatever crashed. Infinite if a run was
        seeded. As for every composition, runs are taken as planned before their results were seen.
        """
        return math.inf if self.stamp else epsilon_of(self.steps(run), delta, self.adjacency)

    def expect(self, head: str) -> None:
        """Raise LedgerError if the line that ``head`` names is not here: the ledger was rolled back."""
        if head not in {f"{entry.number}:{entry.hash}" for entry in self.entries}:
            number, _, digest = head.partition(":")
            raise LedgerError(
                f"the ledger of {self.dataset!r} has no line {number} with hash {digest[:12]}..., which was "
                "seen before: an older copy was restored, or another ledger given; bring back the newest copy"
            )

    def share(self) -> float | None:
        """The share of the budget that is gone, from 0 to 1; None without a budget."""
        return None if self.budget is None else _share(self.budget, self.steps(), self.adjacency)


def read(path: str | os.PathLike[str]) -> History:
    """Read and check a ledger without locking it; raises LedgerError if it cannot be trusted.

    *Guarantee*: no line that ever allowed a step is missing or changed, unless both files were rewritten.
    """
    place = Path(path)
    head = _read_head(place)  # first: a line is written before the head that names it
    return History(tuple(_checked_lines(_read_file(place), head, place)))


class Ledger:
    """The one writer of a ledger; other processes may read it at any time.

    *Guarantee*: a step is on disk before :meth:`Run.step` returns. After a crash the ledger holds every step
    that began and at most the rest of one block; nothing but :meth:`Run.close` gives steps back.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "digits.ledger")
    >>> with Ledger.open(path, dataset="digits", budget=Budget(epsilon=3, delta=1e-5)) as ledger:
    ...     with ledger.run("first try", block=8) as run:
    ...         for _ in range(3):
    ...             run.step(rate=1.0, noise_multiplier=20.0)  # then, and only then, draw noise
    >>> read(path).steps()
    {(1.0, 20.0): 3}
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, descriptor: int, history: History) -> None:
        """Not for direct use: see :meth:`open`."""
        self.path = path
        self.history = history
        self._descriptor: int | None = descriptor
        self._lock = RLock()
        self._gate: tuple[object, _Gate] | None = None
        self._runs: list[Run] = []
        _OPEN.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, dataset: str, budget: Budget | None = None) -> Ledger:
        """Open a ledger for writing, or begin one; a second writer gets a LedgerError at once.

        A budget, once recorded, stays; another one is refused (see :meth:`set_budget`).
        """
        place = Path(path)
        with _one_line(place):
            if not place.exists():
                _begin(place, dataset)
            ledger = cls(place, *_lock_and_mend(place))
        try:
            ledger._agree(dataset, budget)
        except BaseException:
            ledger._drop()
            raise
        return ledger

    def run(
        self,
        name: str,
        *,
        unit: str = "example",
        adjacency: str = "add-or-remove",
        private: bool = True,
        block: int = 64,
    ) -> Run:
        """Begin a run, durably. ``block`` steps are reserved at a time: the most that a crash can waste.

        A run with seeded noise (``private=False``) is stamped "NOT PRIVATE: seeded" and makes the ledger's
        epsilon infinite, so it is refused where there is a budget.
        """
        block = checked_count("block", block)
        name, unit = _checked_name("name", name), _checked_name("unit", unit)
        self._check_run(unit, adjacency, private)
        body = {"name": name, "unit": unit, "adjacency": adjacency, "stamp": "" if private else SEEDED}
        run = Run(self, self._append("run", {**body, "time": _now()}).number, block)
        self._runs.append(run)
        return run

    def room(self, rate: float, noise_multiplier: float, *, steps: int) -> int:
        """How many of ``steps`` more steps fit in the budget; nothing is charged."""
        cost = (checked_rate(rate), checked_noise(noise_multiplier))
        budget, spent = self.history.budget, self.history.steps()
        if budget is None:
            return steps
        used = spent.pop(cost, 0)
        key = (cost, spent)  # while other costs do not change, what is known about this one stays true
        if self._gate is None or self._gate[0] != key:
            self._gate = (key, _Gate(partial(_fits, budget, spent, cost, self.history.adjacency)))
        return self._gate[1].room(used, steps)

    def set_budget(self, budget: Budget) -> None:
        """Record another budget; the former stays in the ledger for everyone to see."""
        if self.history.stamp:
            raise BudgetError(
                f"{self.path} is {self.history.stamp}, so its epsilon is infinite: use another ledger"
            )
        _share(budget, {}, self.history.adjacency)  # raises if nothing could ever be spent
        numbers = {"epsilon": budget.epsilon, "delta": budget.delta, "order": budget.order}
        self._append("budget", {**numbers, "time": _now()})
        self._gate = None

    def epsilon(self, delta: float) -> float:
        """See :meth:`History.epsilon`."""
        return self.history.epsilon(delta)

    def entries(self) -> tuple[Entry, ...]:
        """All lines, oldest first."""
        return self.history.entries

    @property
    def head(self) -> str:
        """``number:hash`` of the last line: put it in checkpoints, and :meth:`expect` it when restoring."""
        return self.history.head

    def expect(self, head: str) -> None:
        """See :meth:`History.expect`."""
        self.history.expect(head)

    def verify(self) -> None:
        """Read both files again and raise LedgerError if they are not what this process wrote."""
        if read(self.path).head != self.head:
            raise LedgerError(f"{self.path} was changed by someone else while this process had it open")

    def close(self) -> None:
        """Settle what the runs reserved and did not use, and let the next writer in."""
        with self._lock:
            for run in self._runs:
                run.close()
            self._drop()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _agree(self, dataset: str, budget: Budget | None) -> None:
        if self.history.dataset != dataset:
            raise LedgerError(
                f"{self.path} is the ledger of {self.history.dataset!r}, not of {dataset!r}: give that name, "
                "or give each data set a ledger of its own"
            )
        recorded = self.history.budget
        if budget is not None and recorded is None:
            self.set_budget(budget)
        elif budget is not None and budget != recorded:
            raise LedgerError(
                f"{self.path} has {recorded}, not {budget}: leave it out, or call set_budget first"
            )

    def _check_run(self, unit: str, adjacency: str, private: bool) -> None:
        if adjacency not in ADJACENCIES:
            raise SettingError(f"adjacency={adjacency!r}: one of {', '.join(ADJACENCIES)} is needed")
        if self.history.unit not in (None, (unit, adjacency)):
            raise LedgerError(
                f"{self.path} counts {self.history.unit}, not {(unit, adjacency)}: such costs do not add up; "
                "use another ledger"
            )
        if not private and self.history.budget is not None:
            raise BudgetError(
                f"{SEEDED} noise would make the epsilon of {self.path} infinite: use SecureNoise, "
                "or a ledger without a budget"
            )

    def _reserve(self, run: int, cost: Cost, *, steps: int, least: int) -> Entry:
        """Charge ``steps`` steps, or as many as fit but ``least``; durable when this returns."""
        granted = self.room(*cost, steps=steps)
        if granted < least:
            raise BudgetError(
                f"{least} more step(s) at rate {cost[0]:g} and noise multiplier {cost[1]:g} would pass "
                f"{self.history.budget} of {self.path}: {granted} would fit; nothing was charged"
            )
        body = {"run": run, "rate": cost[0], "noise_multiplier": cost[1], "steps": granted}
        return self._append("charge", body)

    def _append(self, kind: str, body: Mapping[str, Any]) -> Entry:
        """Write a line, then the head that names it; whatever fails, no step is allowed on it."""
        with self._lock, _one_line(self.path):
            descriptor = self._writable()
            entry = _entry(len(self.history.entries), kind, body, self.history.entries[-1].hash)
            try:
                durable.append(descriptor, _line(entry))
                durable.replace(_head_path(self.path), _head_line(entry))
                self.history = History((*self.history.entries, entry))
            except BaseException:
                self._drop()  # the file may hold half a line: only a new reading can tell
                raise
            return entry

    def _writable(self) -> int:
        if self._descriptor is None:
            raise LedgerError(f"{self.path} is not open for writing in this process: call Ledger.open in it")
        return self._descriptor

    def _drop(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Run:
    """One run's account in a ledger."""

    def __init__(self, ledger: Ledger, number: int, block: int) -> None:
        """Not for direct use: see :meth:`Ledger.run`."""
        self._ledger = ledger
        self._number = number
        self._block = block
        self._open: Entry | None = None  # the reservation in use,
        self._cost: Cost | None = None  # what a step of it costs,
        self._left = 0  # and how many of its steps have not begun

    @property
    def stamp(self) -> str:
        """Empty, or that this run's noise can be repeated."""
        return str(self._ledger.history.entries[self._number].body["stamp"])

    @property
    def head(self) -> str:
        """See :attr:`Ledger.head`."""
        return self._ledger.head

    def expect(self, head: str) -> None:
        """See :meth:`History.expect`."""
        self._ledger.expect(head)

    def step(self, rate: float, noise_multiplier: float) -> None:
        """Charge one step; call it, and let it return, before any noise of the step is drawn.

        *Guarantee*: when it returns the step is on disk, in a block reserved earlier or now. Past the
        budget it raises BudgetError and nothing is charged.
        """
        with self._ledger._lock:
            self._ledger._writable()
            if self._left == 0 or self._cost != (rate, noise_multiplier):
                self._next_block((checked_rate(rate), checked_noise(noise_multiplier)))
            self._left -= 1

    def charge(self, rate: float, noise_multiplier: float, steps: int = 1) -> None:
        """Charge ``steps`` steps at once, all or none, durably."""
        cost = (checked_rate(rate), checked_noise(noise_multiplier))
        steps = checked_count("steps", steps)
        with self._ledger._lock:
            self._ledger._reserve(self._number, cost, steps=steps, least=steps)

    def charged(self) -> dict[Cost, int]:
        """Steps on record under this run's name, what it reserved and has not begun given back first."""
        self.close()
        history = self._ledger.history
        return history.named(history.entries[self._number].body["name"])

    def close(self) -> None:
        """Give back the reserved steps that never began; sound, as this process knows which ones did."""
        with self._ledger._lock:
            if self._open is None or self._left == 0 or self._ledger._descriptor is None:
                return
            body = {"charge": self._open.number, "steps": self._open.body["steps"] - self._left}
            self._open, self._cost, self._left = None, None, 0
            self._ledger._append("settle", body)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_block(self, cost: Cost) -> None:
        self.close()
        self._open = self._ledger._reserve(self._number, cost, steps=self._block, least=1)
        self._cost, self._left = cost, self._open.body["steps"]


class _Gate:
    """How many steps of one cost fit, remembered so that the accountant is asked a few times per run only."""

    def __init__(self, fits: Callable[[int], bool]) -> None:
        self._fits = fits
        self._good = 0
        self._bad: int | None = None

    def room(self, used: int, wanted: int) -> int:
        """The largest m <= wanted such that used + m steps fit."""
        total = used + wanted
        while self._good < total and (self._bad is None or self._bad > total):
            ahead = max(total, min(8 * total, STEPS_CEILING))
            self._probe(ahead if self._bad is None else (total + self._bad) // 2)
        while self._good < total and self._bad is not None and self._bad > max(self._good, used) + 1:
            self._probe((max(self._good, used) + self._bad) // 2)
        return max(min(total, self._good) - used, 0)

    def _probe(self, total: int) -> None:
        try:
            fits = self._fits(total)
        except AccountingError:  # what has no bound does not fit
            fits = False
        if fits:
            self._good = total
        else:
            self._bad = total


_OPEN: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A forked child neither writes nor holds the lock: its copy would not know the parent's steps."""
    for ledger in list(_OPEN):
        ledger._lock = RLock()
        ledger._drop()


os.register_at_fork(after_in_child=_leave_to_parent)


def _fits(budget: Budget, others: Mapping[Cost, int], cost: Cost, adjacency: str, steps: int) -> bool:
    return _share(budget, {**others, cost: steps}, adjacency) <= 1


def _share(budget: Budget, steps: Mapping[Cost, int], adjacency: str) -> float:
    """The share of ``budget`` that ``steps`` take; above 1 they do not fit, by how much does not matter."""
    if budget.order is None:
        spent = epsilon_of(steps, budget.delta, adjacency)
        return min(spent / budget.epsilon, 1.0) if spent <= budget.epsilon else math.inf
    from saltflat.privacy.accounting.filters import RdpFilter

    event, kind = _event(steps, adjacency)
    rule = RdpFilter(epsilon=budget.epsilon, delta=budget.delta, order=budget.order, adjacency=kind)
    return rule.cost(event)


def epsilon_of(steps: Mapping[Cost, int], delta: float, adjacency: str) -> float:
    """An upper bound on the epsilon of ``steps``, composed; nothing but numbers, no ledger needed.

    >>> round(epsilon_of({(1.0, 2.0): 1}, 1e-5, "add-or-remove"), 2)
    1.99
    """
    if not steps:
        return 0.0
    from saltflat.privacy.accounting.bounds import epsilon

    event, kind = _event(steps, adjacency)
    return epsilon(event, delta, adjacency=kind)


def _event(steps: Mapping[Cost, int], adjacency: str) -> tuple[DpEvent, Adjacency]:
    """Imports late, as its callers do: accountants take two seconds to load, and most uses need none."""
    from saltflat.privacy.accounting.events import ADD_REMOVE, REPLACE, compose, phase_event

    parts = [phase_event(rate, noise, count) for (rate, noise), count in sorted(steps.items())]
    return compose(*parts), REPLACE if adjacency == "replace" else ADD_REMOVE


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one line that says which file and what failed."""
    try:
        yield
    except BlockingIOError as error:
        raise LedgerError(
            f"{path} has another writer: wait until that run ends, or use another ledger"
        ) from error
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be written ({error.strerror or error}): no step was allowed, nothing recorded is "
            "lost; free the disk or the folder and run again"
        ) from error


def _begin(path: Path, dataset: str) -> None:
    if _read_head(path) is not None:
        raise LedgerError(f"{path} is missing, but {_head_path(path)} is not; bring back the ledger")
    identity = os.urandom(8).hex()  # so that no two ledgers share a hash, whatever they hold
    body = {"format": FORMAT, "dataset": _checked_name("dataset", dataset), "id": identity, "time": _now()}
    try:
        durable.create(path, _line(_entry(0, "begin", body, _FIRST)))
    except FileExistsError:
        return  # another process began it just now


def _lock_and_mend(path: Path) -> tuple[int, History]:
    """Lock, check, and drop half a line that a crash left behind the head: no step was allowed on it."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        head = _read_head(path)
        entries = tuple(_checked_lines(_read_file(path), head, path))
        size = sum(len(_line(entry)) for entry in entries)
        if os.fstat(descriptor).st_size > size:
            durable.cut(descriptor, size)
        if head != (entries[-1].number, entries[-1].hash):
            durable.replace(_head_path(path), _head_line(entries[-1]))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, History(entries)


def _checked_lines(data: bytes, head: tuple[int, str] | None, path: Path) -> Iterator[Entry]:
    """The valid lines; LedgerError if one that the head covers is damaged or missing."""
    if head is None and data.count(b"\n") > 1:
        raise LedgerError(
            f"{_head_path(path)} is missing: without it lost lines cannot be noticed; bring it back"
        )
    last, digest = head or (0, None)
    previous = _FIRST
    lines = data.split(b"\n")[:-1]
    for number in range(max(len(lines), last + 1)):
        entry = _parse(lines[number], number, previous) if number < len(lines) else None
        if entry is None and number > last:
            return  # written but never acknowledged
        if entry is None:
            raise LedgerError(
                f"{path}: line {number + 1} is damaged or missing; bring back a good copy of the ledger"
            )
        if number == last and digest not in (None, entry.hash):
            raise LedgerError(
                f"{path} and {_head_path(path)} do not belong together; bring back a good copy of both"
            )
        previous = entry.hash
        yield entry


def _parse(line: bytes, number: int, previous: str) -> Entry | None:
    """The entry, if the line is exactly what this module would have written here, else None."""
    try:
        found = json.loads(line[:_LONGEST])
        entry = _entry(number, found["kind"], found["body"], previous)
        good = _line(entry) == line + b"\n" and _sensible(entry)
    except (ValueError, TypeError, KeyError, RecursionError, AccountingError, SettingError):
        return None
    return entry if good else None


def _sensible(entry: Entry) -> bool:
    """Whether the body has what its kind needs; raises or returns False if not."""
    body = entry.body
    if entry.number == 0:
        return entry.kind == "begin" and body["format"] == FORMAT and isinstance(body["dataset"], str)
    if entry.kind == "budget":
        return bool(_budget(body))
    if entry.kind == "run":
        texts = ("name", "unit", "stamp", "time")
        return body["adjacency"] in ADJACENCIES and all(isinstance(body[text], str) for text in texts)
    if entry.kind == "charge":
        checked_rate(body["rate"]), checked_noise(body["noise_multiplier"])
        return checked_count("steps", body["steps"]) > 0 and isinstance(body["run"], int)
    return entry.kind == "settle" and isinstance(body["charge"], int) and body["steps"] >= 0


def _budget(body: Mapping[str, Any]) -> Budget:
    return Budget(body["epsilon"], body["delta"], body["order"])


def _entry(number: int, kind: str, body: Mapping[str, Any], previous: str) -> Entry:
    content = {"number": number, "kind": kind, "body": body, "previous": previous}
    return Entry(number, kind, body, previous, _digest(content))


def _line(entry: Entry) -> bytes:
    fields = ("number", "kind", "body", "previous", "hash")
    return _canonical({name: getattr(entry, name) for name in fields}) + b"\n"


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _canonical(value: object) -> bytes:
    """One spelling per value, so that equal content has equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _head_path(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def _head_line(entry: Entry) -> bytes:
    content = {"number": entry.number, "hash": entry.hash}
    return _canonical({**content, "check": _digest(content)}) + b"\n"


def _read_head(path: Path) -> tuple[int, str] | None:
    """(number, hash) of the last line that counts; None if there is no head file."""
    place = _head_path(path)
    try:
        data = place.read_bytes()
        found = json.loads(data)
        content = {"number": found["number"], "hash": found["hash"]}
        good = data == _canonical({**content, "check": _digest(content)}) + b"\n"
        good = good and isinstance(found["number"], int)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError):
        good = False
    except OSError as error:
        raise LedgerError(f"{place} cannot be read ({error.strerror})") from error
    if not good:
        raise LedgerError(f"{place} is damaged; bring back a good copy of it and of the ledger")
    return found["number"], found["hash"]


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be read ({error.strerror}): give the path of a ledger, and the right to read it"
        ) from error


def _checked_name(setting: str, name: object) -> str:
    """Names are short and on one line, so that a ledger can be read with any tool."""
    if isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable():
        return name
    raise SettingError(f"{setting}={name!r}: 1 to 200 printable characters are needed")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
