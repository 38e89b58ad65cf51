"""Your own loop: batches come from here, the model, the optimizer and the scheduler stay yours."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import torch
from torch import nn

from saltflat.clipping import Clip
from saltflat.core import step as parts
from saltflat.core.alike import check_sharded
from saltflat.core.allowance import Allowance
from saltflat.core.contribution import Loss, Private
from saltflat.core.group import Group
from saltflat.core.plan import Plan
from saltflat.core.public import check_apart
from saltflat.core.record import check_record
from saltflat.core.resume import Planned, Recorded, difference, expect, outline, todays
from saltflat.core.sampling import Batch, Indices
from saltflat.core.shards import kept_whole, settle
from saltflat.core.spot import Spot
from saltflat.core.state import pack, unpack
from saltflat.core.step import Position, Safeguards
from saltflat.core.train import OnRecord, Progress, Running, Spent, put, trainable, why_left_out
from saltflat.door import AnyMethod
from saltflat.errors import DataError, ModelError, PrivacyError, SettingError
from saltflat.front.answers import answering
from saltflat.front.given import Ready, Settings, around, declared_by, given, recorded, stated
from saltflat.front.usual import METHOD, OPTIMIZER
from saltflat.privacy.record.costs import Cost, from_row, place, to_row
from saltflat.privacy.record.single import Single
from saltflat.privacy.record.statement import Statement
from saltflat.tree import Tree, has_shards, map_tree


@dataclass(frozen=True)
class OnModel:
    """A `torch.optim` optimizer that moves the model's own parameters along released directions."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise SettingError(
                "optimizer is a torch.optim optimizer over model.parameters(), already built; got "
                f"{self.optimizer!r}; saltflat's own update rules go to fit"
            )
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise SettingError("LBFGS asks for the loss many times in a step; take another optimizer")
        settle(self.model)
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        own = self.model.named_parameters()
        missing = [name for name, p in own if p.requires_grad and id(p) not in held]
        if missing:
            raise SettingError(
                f"the optimizer does not hold {missing[0]!r} ({len(missing)} trained parameters in all): build it "
                "on this very model's parameters, or freeze them, since they would be clipped for nothing"
            )

    def init(self, params: Tree) -> None:
        return None

    def step(self, params: Tree, direction: Tree, state: None) -> tuple[Tree, None]:
        """Put the direction where the optimizer looks for gradients, let it step, and leave nothing behind.

        Whatever stood there before, in frozen parameters too, was never noised: it goes first.
        """
        own = dict(self.model.named_parameters())
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                p.grad = None
        for name, leaf in direction.items():
            own[
                name
            ].grad = leaf.clone()  # a method may keep its answer, and an optimizer may change gradients
        self.optimizer.step()
        for name in direction:
            own[name].grad = None  # so that a second optimizer.step() does not take the same step again
        return trainable(self.model), None


@dataclass(frozen=True, eq=False)
class Drawn:
    """A batch that was drawn, to be given to `PrivateLoop.step` once. Whose rows are in it is private."""

    number: int  # counted from 1
    samples: Sequence[Indices] = field(repr=False)


class PrivateLoop(Single):
    """See `make_private`. Threads may share it, and copies are refused: two would take the same steps twice."""

    def __init__(
        self,
        ready: Ready,
        private: Private,
        statement: Statement,
        *,
        spot: Spot,
        safeguards: Safeguards,
        running: Running,
    ) -> None:
        self.plan = plan = ready.plan
        self.statement = statement  # of the whole plan
        self._ready = ready
        self._private = private
        self._spot = spot
        self._safeguards = safeguards
        self._running = running
        model = private.contribution.model
        if not has_shards(trainable(model)):
            put(Group.here().told(lambda: trainable(model)), model)  # of several processes, the first one's
        self._at = parts.start(plan, trainable(model))
        self._spent = Spent(plan, safeguards.secret and ready.private)
        self._again: Counter[Cost] = Counter()  # what was lost when a state was loaded
        self._allowance: Allowance | None = (
            None  # what may still be taken; None: all that is left of the plan
        )
        if isinstance(safeguards.meter, Planned):
            safeguards.meter.limit(plan.by_cost())
        self._waiting: Drawn | None = None
        self._stepping = False
        self._lock = RLock()

    def state_dict(self) -> dict[str, Any]:
        """Where the loop stands, to be kept beside the model's and the optimizer's own ``state_dict()``.

        It is made of tensors and plain values, all of them released or public: ``torch.save`` writes it, and
        ``torch.load`` reads it with ``weights_only=True``. With sharded weights all processes call it, and the first
        one gets the tensors, whole; write that one, and load it in all of them.
        """
        with self._alone():
            meter, at = self._safeguards.meter, self._at
            leaves, shape = pack(self.plan.phases[at.phase].method, at.state) if at.step else ({}, None)
            if has_shards(at.params):
                leaves = kept_whole(leaves, Group.here())
            return {
                "version": _VERSION,
                "plan": outline(_without_optimizers(self.plan)),
                "step": at.step,
                "phase": at.phase,
                "within": at.within,
                "dropped": at.dropped,
                "spent": _rows(self._spent.steps),
                "again": _rows(self._again),
                "method": {"tensors": map_tree(torch.clone, leaves), "shape": shape},
                "head": meter.head if isinstance(meter, Recorded) else None,
                "run": getattr(meter, "account", None),
            }

    def load_state_dict(
        self, state: Mapping[str, Any], *, lost: int | None = None, allow_more: bool = False
    ) -> None:
        """Go on where ``state`` was taken; load the model's and the optimizer's own ``state_dict()`` as well.

        Steps that ran after ``state`` was taken cost what they cost, although their result is lost. So the loop is
        shorter by as many steps, `finished` comes earlier, and a warning and the statement say so.

        Args:
            state: What `state_dict` returned.
            lost: How many steps ran after ``state`` was taken, in all processes that went on from it; 0 if the loop
                ended right there. A ledger's run as the meter knows, and this is not needed. Without such a meter and
                if left out, all steps that were left of the plan count as taken: nobody knows better.
            allow_more: Take all planned steps all the same. The loop then costs more than was asked for, and the
                statement says by how much.

        *Guarantee*: `epsilon` and ``statement`` count every step on record, or what ``state`` counts and ``lost``
        more; without ``allow_more`` they stay at or below the epsilon of the plan. Batches are drawn afresh: nothing of
        the sampler is kept.
        """
        if not isinstance(allow_more, bool):
            raise SettingError(f"allow_more is True or False; got {allow_more!r}")
        with self._alone():
            if self.done or self._waiting is not None:
                raise PrivacyError("steps were drawn here already: load a state into a loop that is new")
            kept = _Kept.of(state, self.plan)
            meter = self._safeguards.meter
            expect("the state of the loop", state, meter)
            known = isinstance(meter, OnRecord) or lost is not None
            if isinstance(meter, OnRecord):
                again = Counter(meter.charged()) - kept.spent
            else:
                steps = kept.left if lost is None else _checked_lost(lost, kept.left)
                again = _next(self.plan, kept, steps, allow_more=allow_more)
            params, method = self._weights(), self.plan.phases[kept.phase].method
            memory = unpack(method, dict(kept.tensors), kept.shape, params) if kept.step else None
            self._at = Position(
                kept.step, params, memory, None, None, kept.phase, kept.within, dropped=kept.dropped
            )
            self._spent.steps, self._again = kept.spent + again, kept.again + again
            if self._ready.private and not allow_more:
                self._allowance = Allowance(self.plan.by_cost(), self._spent.steps)
            self._restate(known=known)

    def _restate(self, *, known: bool) -> None:
        """Say what the whole loop costs now: with ``allow_more`` all of the plan, and what was lost on top of it."""
        if not self._ready.private:
            return
        dropped = parts.left_out(self.plan, self._at, self._allowance)
        total = self._spent.steps if self._allowance is not None else self.plan.by_cost() + self._again
        why = why_left_out(
            dropped,
            self.plan,
            known=known,
            switch="load_state_dict(..., allow_more=True) takes them on top of it",
        )
        if not known:
            why += "; say lost=..., or give a ledger's run as the meter, which knows" * bool(why)
        unit = self._private.contribution.unit
        declared = declared_by(self._ready, unit, self._safeguards)
        self.statement = recorded(self.plan, declared, total, why)
        if why:
            warnings.warn(why, stacklevel=4)

    @property
    def done(self) -> int:
        """Steps taken on the way to these weights; what was lost before a state was loaded counts in `epsilon` only."""
        return self._at.step - self._at.dropped

    def __iter__(self) -> Iterator[Drawn]:
        """All batches that are left of the plan."""
        return self._batches(self.plan.steps)

    def epoch(self) -> Iterator[Drawn]:
        """The batches up to the end of this epoch: 1 / rate steps, rounded."""
        return self._batches(_end_of_epoch(self._at.step, self.plan.rate))

    def step(self, batch: Drawn) -> None:
        """Charge the batch, take its private step, and let the optimizer move the model.

        *Guarantee*: a batch is stepped once, whichever thread comes first. It counts as spent as soon as the door is
        open, even if the step fails; a meter that refuses leaves everything as it was.
        """
        with self._alone():
            self._check(batch)
            here = replace(self._at, params=self._weights())
            guards, physical = self._safeguards, self._running.physical
            parts.charge(self.plan, here, guards.meter)
            self._count(here)
            ask = parts.open_door(
                self.plan, here, batch.samples, self._private, safeguards=guards, physical=physical
            )
            at = self._at = parts.advance(self.plan, here, ask)
            last = self.finished
            parts.look_again(
                self.plan, at, batch.samples, self._private, spot=self._spot, physical=physical, last=last
            )
            if last:
                self._spot(at.params, None)
        if self._running.watch is not None:
            model, delta = self._private.contribution.model, self.statement.delta
            told = Progress(
                *(at.step, at.phase, at.params, at.params, self.plan.steps, model, self._spent, delta),
                is_last=last,
            )
            self._running.watch(told)

    def epsilon(self, delta: float | None = None) -> float:
        """An upper bound on what the steps so far have cost; infinite if the noise is seeded.

        *Guarantee*: for a run that was always going to stop here. One that stops when its results please is
        covered by the whole plan, ``statement``, as is every run; a plan whose phases end by results always says that.
        """
        return self._spent.epsilon(self.statement.delta if delta is None else delta)

    @property
    def finished(self) -> bool:
        """Whether every planned step was taken, but for those that were lost before a state was loaded."""
        return parts.is_over(self.plan, self._at, self._allowance)

    def _batches(self, end: int) -> Iterator[Drawn]:
        if self.finished:
            raise PrivacyError(
                f"all {self.done} planned steps were taken: one more would cost more than was planned; "
                "plan more epochs from the start"
                if not parts.left_out(self.plan, self._at, self._allowance)
                else f"{self.done} steps were taken, and those that were lost count too: one more would cost more than "
                "was planned; load_state_dict(..., allow_more=True) takes it all the same"
            )
        while (batch := self._next(end)) is not None:
            yield batch
            if self._waiting is batch:
                raise PrivacyError(
                    f"batch {batch.number} was drawn and not stepped: step every batch, an empty one too, since "
                    "which ones are left out would tell about the data"
                )

    def _next(self, end: int) -> Drawn | None:
        """The batch that is waiting, or a new one; None after ``end`` steps, or at the end of the plan."""
        with self._alone():
            here = parts.begin(self.plan, self._at, self._allowance) if self._at.step < end else None
            if here is None:
                return None
            self._at = here
            self._waiting = self._waiting or self._draw()
            return self._waiting

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time draws or steps, and none begins a step inside another: it would not be counted."""
        with self._lock:
            if self._stepping:
                raise PrivacyError(
                    "a step is being taken: let it end before the next batch is drawn or stepped"
                )
            self._stepping = True
            try:
                yield
            finally:
                self._stepping = False

    def _draw(self) -> Drawn:
        samples = parts.draw(self.plan, self._at, self._private.count, self._safeguards.sampling)
        return Drawn(self.done + 1, samples)

    def _check(self, batch: Drawn) -> None:
        if not isinstance(batch, Drawn):
            raise SettingError(
                f"step takes a batch that was drawn here, `for batch in private`; got a {type(batch).__name__}: "
                "batches of your own are no Poisson samples"
            )
        if batch is not self._waiting:
            raise PrivacyError(
                f"batch {batch.number} is not the one that is waiting: each is stepped once, in its own loop"
            )

    def _weights(self) -> Tree:
        """The model's own weights, which may have been changed between two steps."""
        params = trainable(self._private.contribution.model)
        if params.keys() != self._at.params.keys():
            raise ModelError(
                "other parameters are trained than when make_private was called: call it again after freezing"
            )
        return params

    def _count(self, here: Position) -> None:
        """The step counts from now on, whatever becomes of it."""
        self._spent.take(here.phase, here.within)
        if self._allowance is not None:
            self._allowance.take(self.plan.costs_at(here.phase, here.within))
        self._at = replace(here, step=here.step + 1, within=here.within + 1)
        self._waiting = None


_VERSION = 2


@dataclass(frozen=True)
class _Kept:
    """The state of a loop, looked at before anything of it is used."""

    step: int
    phase: int
    within: int
    dropped: int
    spent: Counter[Cost]
    again: Counter[Cost]
    tensors: Mapping[str, torch.Tensor]
    shape: Any
    left: int

    @classmethod
    def of(cls, state: Mapping[str, Any], plan: Plan) -> _Kept:
        try:
            version, there, _ = state["version"], state["plan"], state["head"]
            spent, again = (_counted(state[key]) for key in ("spent", "again"))
            step, phase, within = (int(state[key]) for key in ("step", "phase", "within"))
            dropped = int(state["dropped"]) if version != 1 else 0
            tensors, shape = state["method"]["tensors"], state["method"]["shape"]
        except (KeyError, TypeError, ValueError):
            raise DataError("this is no state of a loop: give what private.state_dict() returned") from None
        if version not in (1, _VERSION):  # the first one dropped no steps
            raise DataError(f"the state of the loop is of version {version}, and this one reads {_VERSION}")
        other = difference(todays(there), outline(_without_optimizers(plan)))
        if other is not None:
            raise SettingError(
                f"the state of the loop belongs to another plan: {other}; give make_private what it was given then"
            )
        sound = 0 <= within <= step <= plan.steps and 0 <= phase < len(plan.phases) and 0 <= dropped <= step
        if not sound or spent.total() < step - dropped + again.total():
            raise DataError(
                "the state of the loop counts fewer steps than it took: it was changed, or is damaged"
            )
        return cls(step, phase, within, dropped, spent, again, tensors, shape, plan.steps - step)


def _rows(steps: Counter[Cost]) -> list[list[Any]]:
    return [[*to_row(cost), steps[cost]] for cost in sorted(steps, key=place)]


def _counted(rows: Any) -> Counter[Cost]:
    found = Counter({from_row(cost): int(count) for *cost, count in rows})
    if min(found.values(), default=0) < 0:
        raise ValueError
    return found


def _without_optimizers(plan: Plan) -> Plan:
    """The plan, but for the model and the optimizer, which keep their own state."""
    return replace(plan, phases=tuple(replace(phase, optimizer=OPTIMIZER) for phase in plan.phases))


def _checked_lost(lost: object, left: int) -> int:
    if isinstance(lost, int) and not isinstance(lost, bool) and 0 <= lost <= left:
        return lost
    raise SettingError(
        f"lost is the number of steps that ran after the state was taken, 0 to {left}; got {lost!r}"
    )


def _next(plan: Plan, kept: _Kept, steps: int, *, allow_more: bool) -> Counter[Cost]:
    """What the next so many steps cost; where results may end a phase, as if each had the least noise of all.

    Without ``allow_more`` they were steps of the plan, which has a few of them with so little noise.
    """
    found, number, within = Spent(plan, secret=True), kept.phase, kept.within
    if any(phase.until is not None for phase in plan.phases):
        samples = steps * max(len(phase.noise_at(0)) for phase in plan.phases)
        dearest_first = sorted(plan.by_cost(), key=place)
        if allow_more or not plan.covers(kept.spent):
            return +Counter({dearest_first[0]: samples})
        most, allowance = Counter[Cost](), Allowance(plan.by_cost(), kept.spent)
        for cost in dearest_first:
            most[cost] = allowance.room([cost], samples - most.total())
            allowance.take([cost], most[cost])
        return +most
    for _ in range(steps):
        if within == plan.phases[number].steps:
            number, within = number + 1, 0
        found.take(number, within)
        within += 1
    return found.steps


def _end_of_epoch(done: int, rate: float) -> int:
    """The first multiple of 1 / rate, rounded, that is after ``done`` steps.

    >>> [_end_of_epoch(done, 0.4) for done in range(6)]
    [2, 2, 5, 5, 5, 8]
    """
    epoch = math.floor(done * rate)
    while round(epoch / rate) <= done:
        epoch += 1
    return round(epoch / rate)


@answering
def make_private(
    model: nn.Module,
    loss: nn.Module | Loss,
    data: Any,
    *,
    optimizer: torch.optim.Optimizer,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    advantage: float | None = None,
    method: AnyMethod = METHOD,
    batch_size: int | None = None,
    epochs: float | None = None,
    clip_norm: float | Clip = 0.1,
    size: int | None = None,
    plan: Plan | None = None,
    private: bool = True,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
    workers: int = 0,
    safeguards: Safeguards | None = None,
    running: Running | None = None,
) -> PrivateLoop:
    """The private steps of a loop that is yours; settings as for `fit`.

    ``optimizer`` is built on the model's parameters, and a scheduler on the optimizer, as ever. Each `step` puts the
    released direction into ``p.grad`` and calls ``optimizer.step()``: do not call it yourself. Between steps the
    model is yours to evaluate, to save, to change: it keeps its class, its state_dict and its parameters. Points
    away from the weights, as DP-SAT asks for, are values that the model never holds. With ``plan`` the phases' own
    optimizers are not used. To go on another day keep `PrivateLoop.state_dict` beside those of model and optimizer.

    *Guarantee*: the steps taken cost `PrivateLoop.epsilon`, at most ``epsilon`` at ``delta``, for one example, added or
    removed. Batches are Poisson samples, charged when they are stepped; there are as many as planned, and no more.

    >>> x, y = torch.randn(300, 5), torch.randint(2, (300,))
    >>> model = nn.Linear(5, 2)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> slower = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.9)
    >>> criterion = nn.CrossEntropyLoss(reduction="none")
    >>> private = make_private(model, criterion, (x, y), optimizer=sgd, epsilon=3, batch_size=60, epochs=2)
    >>> while not private.finished:
    ...     for batch in private.epoch():
    ...         private.step(batch)
    ...     slower.step()
    >>> private.done, 2.9 < private.epsilon() <= 3
    (10, True)
    """
    safeguards, running = around(safeguards, running)
    settings = Settings(
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        advantage=advantage,
        method=method,
        batch_size=batch_size,
        epochs=epochs,
        clip_norm=clip_norm,
        plan=plan,
        size=size,
        private=private,
    )
    known = given(model, loss, data, views=views, augment=augment, workers=workers)
    own = OnModel(model, optimizer)
    ready = known.planned(settings)
    if running.checkpoints is not None or ready.plan.ema is not None:
        raise SettingError(
            "checkpoints and a running mean belong to fit and train: in a loop of your own, keep the model, the "
            "optimizer and private.state_dict(), average weights as you like, and leave checkpoints and ema out"
        )
    phases = tuple(replace(phase, optimizer=own) for phase in ready.plan.phases)
    ready = replace(ready, plan=replace(ready.plan, phases=phases))
    unit = known.contribution.unit
    statement = stated(ready, unit, safeguards, running)
    check_record(ready.plan, unit, safeguards)
    check_apart(ready.plan.public, known.units)
    check_sharded(model, ready.plan, known.contribution, safeguards)
    rows = Private.of(known.contribution, known.units, max_tokens=running.max_tokens)
    spot = rows.check(trainable(model), running.example)
    return PrivateLoop(ready, rows, statement, spot=spot, safeguards=safeguards, running=running)
