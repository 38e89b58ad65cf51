"""The durable record of what was spent on one data set, shared by every run that touches it: its one writer.

    truth <= ledger <= truth + block        after any crash, whatever checkpoint is restored

`format` is how it looks on disk, `history` what is known from it.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any

from saltflat.errors import AccountingError, BudgetError, LedgerError, SettingError
from saltflat.privacy.limits import SEEDED, STEPS_CEILING, checked_count, checked_noise, checked_rate
from saltflat.privacy.record import durable
from saltflat.privacy.record.costs import (
    ADJACENCIES,
    Cost,
    check_adjacency,
    checked,
    to_body,
    words,
)
from saltflat.privacy.record.format import (
    Entry,
    entry_after,
    first_entry,
    head_line,
    head_path,
    line,
    read_entries,
    read_head,
)
from saltflat.privacy.record.history import Budget, History, gone_of, read
from saltflat.privacy.record.single import Single

PORTION = 50  # a run whose plan is known reserves one in so many of its steps at a time, at most
MOST_NOISES = 500  # in a list of steps that results choose from


class Ledger(Single):
    """The one writer of a ledger; other processes may read it at any time.

    *Guarantee*: a step is on disk before :meth:`Run.step` returns, whichever thread takes it. After a crash the
    ledger holds every step that began and at most the rest of one block; nothing but :meth:`Run.close` gives steps
    back. Files that are no longer as this process left them allow no further block.

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
        self._size = os.fstat(descriptor).st_size  # as this process left it
        self._lock = RLock()
        self._gate: tuple[object, _Gate] | None = None
        self._runs: list[Run] = []
        _OPEN.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, dataset: str, budget: Budget | None = None) -> Ledger:
        """Open a ledger for writing, or begin one; a second writer gets a LedgerError at once.

        A budget, once recorded, stays; another one is refused (see :meth:`set_budget`).
        """
        place = Path(path).absolute()  # the process may go to another folder while the ledger is open
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
        identity: str | None = None,
        timed: bool = True,
    ) -> Run:
        """Begin a run, durably. ``block`` steps are reserved at a time: the most that a crash can waste.

        A run that goes on after a crash is begun again with the ``identity`` it had, whatever its name is by then; it
        is kept with the run, and no two runs share one. Without an identity the name tells which run goes on.
        A run with seeded noise (``private=False``) is stamped "NOT PRIVATE: seeded" and makes the ledger's
        epsilon infinite, so it is refused where there is a budget. ``timed=False`` leaves the time out of the line: for
        a run whose duration would tell what is private, such as how many trials a selection had.
        """
        block = checked_count("block", block)
        name, unit = _checked_name("name", name), _checked_name("unit", unit)
        body = {"name": name, "unit": unit, "adjacency": adjacency, "stamp": "" if private else SEEDED}
        if identity is not None:
            body["identity"] = _checked_name("identity", identity)
        with self._lock:  # two runs that begin at once must agree on the unit too
            self._check_run(unit, adjacency, private)
            run = Run(self, self._append("run", {**body, "time": _now() if timed else ""}).number, block)
            self._runs.append(run)
        return run

    def room(self, rate: float, noise_multiplier: float, *, steps: int) -> int:
        """How many of ``steps`` more steps fit in the budget; nothing is charged."""
        return self.room_for((rate, noise_multiplier), steps=steps)

    def room_for(self, cost: Cost, *, steps: int) -> int:
        """As :meth:`room`, for steps of any kind of cost."""
        cost = checked(cost)
        with self._lock:
            budget = self.history.budget
            if budget is None:
                return steps
            spent = self.history.steps()
            used = spent.pop(cost, 0)
            key = (cost, spent)  # while other costs do not change, what is known about this one stays true
            if self._gate is None or self._gate[0] != key:
                self._gate = (key, _Gate(partial(_fits, budget, spent, cost, self.history.adjacency)))
            return self._gate[1].room(used, steps)

    def set_budget(self, budget: Budget) -> None:
        """Record another budget; the former stays in the ledger for everyone to see."""
        gone_of(budget, {}, self.history.adjacency)  # raises if nothing could ever be spent
        numbers = {"epsilon": budget.epsilon, "delta": budget.delta, "order": budget.order}
        with self._lock:
            self._check_budget(budget)
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
            try:
                for run in self._runs:
                    run.close()
            finally:
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

    def _check_budget(self, budget: Budget) -> None:
        if self.history.stamp:
            raise BudgetError(
                f"{self.path} is {self.history.stamp}, so its epsilon is infinite: use another ledger"
            )
        if self.history.chosen:
            self._check_order(budget)

    def _check_order(self, budget: Budget | None) -> None:
        """Refuse a budget that composes lists as if they were fixed, where results choose one."""
        if budget is not None and budget.order is None:
            raise BudgetError(
                f"results decide when the noise of a run in {self.path} changes, and {budget} holds only for steps "
                f"that are fixed in advance: give the ledger Budget(epsilon={budget.epsilon:g}, "
                f"delta={budget.delta:g}, order=plan.filter({budget.delta:g}).order); nothing was charged"
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

    def _reserve(self, run: int, cost: Cost, *, steps: int, least: int, claim: bool = False) -> Entry:
        """Charge ``steps`` steps, or as many as fit but ``least``; durable when this returns."""
        check_adjacency(cost, self.history.adjacency)
        granted = self.room_for(cost, steps=steps)
        if granted < least:
            raise BudgetError(
                f"{least} more step(s) at {words(cost)} would pass "
                f"{self.history.budget} of {self.path}: {granted} would fit; nothing was charged"
            )
        body = {"run": run, **to_body(cost), "steps": granted, **({"claim": True} if claim else {})}
        return self._append("charge", body)

    def _append(self, kind: str, body: Mapping[str, Any]) -> Entry:
        """Write a line, then the head that names it; whatever fails, no step is allowed on it."""
        with self._lock, _one_line(self.path):
            descriptor = self._intact()
            entry = entry_after(self.history.entries[-1], kind, body)
            try:
                durable.append(descriptor, line(entry))
                durable.replace(head_path(self.path), head_line(entry), mode=_mode_of(descriptor))
                self.history = History((*self.history.entries, entry))
                self._size += len(line(entry))
            except BaseException:
                self._drop()  # the file may hold half a line: only a new reading can tell
                raise
            return entry

    def _intact(self) -> int:
        """The descriptor, if path and head are what this process left; else LedgerError, and nothing is written again.

        What is written to a file that has lost its name, or beside lines of someone else, is on nobody's record.
        """
        descriptor = self._writable()
        try:
            self._check_files(descriptor)
        except BaseException:
            self._drop()
            raise
        return descriptor

    def _check_files(self, descriptor: int) -> None:
        last = self.history.entries[-1]
        held = os.fstat(descriptor)
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise self._changed(f"is gone ({error.strerror})") from error
        if (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            raise self._changed("is another file than the one that was opened")
        if found.st_size != self._size:
            raise self._changed("was changed by someone else")
        if read_head(self.path) != (last.number, last.hash):
            raise self._changed("has another head than its own, or none")

    def _changed(self, how: str) -> LedgerError:
        return LedgerError(
            f"{self.path} {how} while this process had it open: no further step is allowed; bring back the newest "
            "copy of it and of its head, and run again"
        )

    def _writable(self) -> int:
        if self._descriptor is None:
            raise LedgerError(f"{self.path} is not open for writing in this process: call Ledger.open in it")
        return self._descriptor

    def _drop(self) -> None:
        """Unlock, whoever else has the file open: a child that was forked just now may not have closed it yet."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._forget()

    def _forget(self) -> None:
        """Close the file, and leave the lock to whoever shares it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Run(Single):
    """One run's account in a ledger; its threads may share it."""

    def __init__(self, ledger: Ledger, number: int, block: int) -> None:
        """Not for direct use: see :meth:`Ledger.run`."""
        self._ledger = ledger
        self._number = number
        self._block = block
        self._open: Entry | None = None  # the reservation in use,
        self._cost: Cost | None = None  # what a step of it costs,
        self._left = 0  # and how many of its steps have not begun
        self._planned: Counter[Cost] | None = None  # steps that may still be reserved, if that is known
        self._most = block  # steps that are reserved at a time

    @property
    def stamp(self) -> str:
        """Empty, or that this run's noise can be repeated."""
        return str(self._body["stamp"])

    @property
    def unit(self) -> str:
        """Whose privacy its steps cost."""
        return str(self._body["unit"])

    @property
    def adjacency(self) -> str:
        """Whether a unit is added or removed, or replaced."""
        return str(self._body["adjacency"])

    @property
    def account(self) -> str:
        """What this run is found by when it goes on: its identity, or its name."""
        return str(self._body.get("identity", self._body["name"]))

    @property
    def head(self) -> str:
        """See :attr:`Ledger.head`."""
        return self._ledger.head

    def expect(self, head: str) -> None:
        """See :meth:`History.expect`."""
        self._ledger.expect(head)

    def limit(self, planned: Mapping[Cost, int]) -> None:
        """Reserve no steps that are not ``planned`` for this run in all its starts, and at most 2 % of them at a time.

        What a crash wastes is then a small part of the plan, and never more than the plan has. Steps beyond the planned
        ones are still charged, one by one: only a budget refuses them. `train`, `fit` and `make_private` call this.
        """
        with self._ledger._lock:
            self._settle()
            self._planned = Counter(planned)
            self._planned.subtract(self._ledger.history.steps(self._starts()))
            self._most = max(1, min(self._block, sum(planned.values()) // PORTION))

    def step(self, rate: float, noise_multiplier: float) -> None:
        """Charge one step; call it, and let it return, before any noise of the step is drawn.

        *Guarantee*: when it returns the step is on disk, in a block reserved earlier or now. Past the
        budget it raises BudgetError and nothing is charged.
        """
        self.take((rate, noise_multiplier))

    def take(self, cost: Cost) -> None:
        """As :meth:`step`, for a step of any kind of cost (`FixedSize`, `CappedUser`, `RenyiBound`, or a pair)."""
        with self._ledger._lock:
            self._ledger._writable()
            if self._left == 0 or self._cost != cost:
                self._next_block(checked(cost))
            self._left -= 1

    def charge(self, rate: float, noise_multiplier: float, steps: int = 1) -> None:
        """Charge ``steps`` steps at once, all or none, durably."""
        self.pay((rate, noise_multiplier), steps)

    def pay(self, cost: Cost, steps: int = 1) -> None:
        """As :meth:`charge`, for steps or releases of any kind of cost."""
        cost, steps = checked(cost), checked_count("steps", steps)
        with self._ledger._lock:
            self._ledger._reserve(self._number, cost, steps=steps, least=steps)

    def claim(self, cost: Cost) -> Claim:
        """Charge what dominates a whole interaction, once, and give what its questions draw from.

        A claim of this cost that an earlier start of this run made is gone on with, and not charged again.

        *Guarantee*: the charge is on disk when this returns. As the cost is fixed here, whatever answers decide about
        later questions, it is what :meth:`History.epsilon` counts.
        """
        cost = checked(cost)
        with self._ledger._lock:
            found = self._ledger.history.claimed(self._starts(), cost)
            entry = found or self._ledger._reserve(self._number, cost, steps=1, least=1, claim=True)
            return Claim(self, entry.number)

    def choose(self, planned: Mapping[Cost, int]) -> None:
        """Put on record, durably, that from now on results choose the steps of this run among those ``planned``.

        ``planned`` counts steps by (rate, noise multiplier), at one rate, as `Plan.by_cost` does. `train`, `fit` and
        `make_private` call this themselves for a plan that results may change.

        *Guarantee*: such a run counts with the whole of ``planned``, however few steps it takes, and by Renyi
        accounting (see :meth:`History.epsilon`); a budget without an ``order`` refuses it.
        """
        body = {"run": self._number, **_choice(planned)}
        with self._ledger._lock:
            self._ledger._check_order(self._ledger.history.budget)
            self._settle()  # a block that was reserved before belongs to what was before
            self._ledger._append("chosen", body)

    def charged(self) -> dict[Cost, int]:
        """Steps on record for this run, those of its earlier starts too; what it has not begun is given back first."""
        self.close()
        return self._ledger.history.steps(self._starts())

    def epsilon(self, delta: float) -> float:
        """See :meth:`History.epsilon`, of what is on record for this run: of :meth:`charged`."""
        self.close()
        return self._ledger.history.epsilon(delta, self._starts())

    def close(self) -> None:
        """Give back the reserved steps that never began; sound, as this process knows which ones did.

        Raises LedgerError if the files are no longer what this process wrote: what was spent is then not on record.
        """
        with self._ledger._lock:
            if self._ledger._descriptor is not None:
                self._settle()
                self._ledger._intact()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _starts(self) -> list[int]:
        """The lines at which it began and went on; by its name, if it has no identity."""
        history = self._ledger.history
        identity = self._body.get("identity")
        return history.named(self._body["name"]) if identity is None else history.identified(identity)

    @property
    def _body(self) -> Mapping[str, Any]:
        return self._ledger.history.entries[self._number].body

    def _next_block(self, cost: Cost) -> None:
        self._settle()
        steps = self._most if self._planned is None else max(1, min(self._most, self._planned[cost]))
        self._open = self._ledger._reserve(self._number, cost, steps=steps, least=1)
        self._cost, self._left = cost, self._open.body["steps"]
        if self._planned is not None:
            self._planned[cost] -= self._left

    def _settle(self) -> None:
        if self._open is not None and self._left > 0:
            body = {"charge": self._open.number, "steps": self._open.body["steps"] - self._left}
            if self._planned is not None and self._cost is not None:
                self._planned[self._cost] += self._left
            self._open, self._cost, self._left = None, None, 0
            self._ledger._append("settle", body)


class Claim(Single):
    """One charge from which many small questions are drawn, each on record before its noise is.

    *Guarantee*: when :meth:`draw` returns, what it drew is on disk; a start after a crash finds all of it. So an
    interaction never asks more than its claim allows, however often it is killed.
    """

    def __init__(self, run: Run, number: int) -> None:
        """Not for direct use: see :meth:`Run.claim`."""
        self._run = run
        self._number = number

    @property
    def run(self) -> Run:
        """Whose claim it is."""
        return self._run

    @property
    def used(self) -> dict[str, int]:
        """What was drawn by now, by name."""
        return self._run._ledger.history.drawn(self._number)

    def draw(self, allowed: Callable[[Mapping[str, int]], bool], **more: int) -> None:
        """Put ``more`` on record as drawn, or raise BudgetError and draw nothing; call it before any noise."""
        with self._run._ledger._lock:
            total = _summed(self.used, more)
            if not allowed(total):
                raise BudgetError(f"{_listed(more)} more would pass what was claimed: nothing was drawn")
            self._write(total)

    def give_back(self, **unused: int) -> None:
        """Take back what was drawn and never used; sound, as this process knows what it asked."""
        with self._run._ledger._lock:
            total = _summed(self.used, unused, sign=-1)
            if min(total.values(), default=0) < 0:
                raise SettingError(f"{_listed(unused)} were not drawn, and cannot be given back")
            if any(unused.values()):
                self._write(total)

    def _write(self, total: Mapping[str, int]) -> None:
        self._run._ledger._append("drawn", {"charge": self._number, "used": dict(total)})


def _summed(used: Mapping[str, int], more: Mapping[str, int], sign: int = 1) -> dict[str, int]:
    for number in more.values():
        if type(number) is not int or number < 0:
            raise SettingError(f"what is drawn is counted in whole numbers of 0 or more; got {number!r}")
    return {name: used.get(name, 0) + sign * more.get(name, 0) for name in {**used, **more}}


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())


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
        ledger._forget()


os.register_at_fork(after_in_child=_leave_to_parent)


def _fits(budget: Budget, others: Mapping[Cost, int], cost: Cost, adjacency: str, steps: int) -> bool:
    return gone_of(budget, {**others, cost: steps}, adjacency) <= 1


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one line that says which file and what failed."""
    try:
        yield
    except BlockingIOError as error:
        raise LedgerError(
            f"{path} has another writer: wait until that run ends. Another ledger is a second record: neither "
            "counts what is in the other, and the data set has lost what both say together"
        ) from error
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be written ({error.strerror or error}): no step was allowed, nothing recorded is "
            "lost; free the disk or the folder and run again"
        ) from error


def _begin(path: Path, dataset: str) -> None:
    if read_head(path) is not None:
        raise LedgerError(f"{path} is missing, but {head_path(path)} is not; bring back the ledger")
    identity = os.urandom(8).hex()  # so that no two ledgers share a hash, whatever they hold
    body = {"dataset": _checked_name("dataset", dataset), "id": identity, "time": _now()}
    try:
        durable.create(path, line(first_entry(body)))
    except FileExistsError:
        return  # another process began it just now


def _lock_and_mend(path: Path) -> tuple[int, History]:
    """Lock, check, and drop half a line that a crash left behind the head: no step was allowed on it."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        durable.lock(descriptor, path)
        head = read_head(path)
        entries = read_entries(path, head)
        size = sum(len(line(entry)) for entry in entries)
        if os.fstat(descriptor).st_size > size:
            durable.cut(descriptor, size)
        if head != (entries[-1].number, entries[-1].hash):
            durable.replace(head_path(path), head_line(entries[-1]), mode=_mode_of(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, History(entries)


def _mode_of(descriptor: int) -> int:
    """Who may read a ledger may read its head: 0600, unless its owner gave it another mode."""
    return os.fstat(descriptor).st_mode & 0o777


def _choice(planned: Mapping[Cost, int]) -> dict[str, Any]:
    """A list that results choose from, as it is recorded; it must fit in a line."""
    pairs = {cost: steps for cost, steps in planned.items() if isinstance(cost, tuple)}
    rates = {checked_rate(rate) for rate, _ in pairs}
    if len(rates) != 1 or len(planned) > MOST_NOISES or len(pairs) < len(planned):
        raise SettingError(
            f"the steps that results choose from have one rate and at most {MOST_NOISES} noise multipliers; got "
            f"{len(rates)} and {len(planned)}: use constant noise in more phases, or train without until"
        )
    costs = sorted(
        (checked_noise(noise), checked_count("steps", steps)) for (_, noise), steps in pairs.items()
    )
    return {"rate": rates.pop(), "planned": [list(cost) for cost in costs]}


def _checked_name(setting: str, name: object) -> str:
    """Names are short and on one line, so that a ledger can be read with any tool."""
    if isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable():
        return name
    raise SettingError(f"{setting}={name!r}: 1 to 200 printable characters are needed")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
