"""Your own loop: batches come from here, the model, the optimizer and the scheduler stay yours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import torch
from torch import nn

from saltflat.clipping import Clip
from saltflat.core import step as parts
from saltflat.core.check import Spot
from saltflat.core.contribution import Loss, Private
from saltflat.core.plan import Plan
from saltflat.core.record import check_record
from saltflat.core.sampling import Batch, Indices
from saltflat.core.step import Position, Safeguards
from saltflat.core.train import Progress, Running, trainable
from saltflat.door import AnyMethod
from saltflat.errors import ModelError, PrivacyError, SettingError
from saltflat.front.given import METHOD, Settings, around, given, stated
from saltflat.privacy.record.history import epsilon_of
from saltflat.privacy.record.single import Single
from saltflat.privacy.record.statement import Statement
from saltflat.tree import Tree


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
        plan: Plan,
        private: Private,
        statement: Statement,
        *,
        spot: Spot,
        safeguards: Safeguards,
        running: Running,
    ) -> None:
        self.plan = plan
        self.statement = statement  # of the whole plan
        self._private = private
        self._spot = spot
        self._safeguards = safeguards
        self._running = running
        self._at = parts.start(plan, trainable(private.contribution.model))
        self._spent: Counter[tuple[float, float]] = Counter()
        self._waiting: Drawn | None = None
        self._stepping = False
        self._lock = RLock()

    @property
    def done(self) -> int:
        """Steps charged."""
        return self._at.step

    def __iter__(self) -> Iterator[Drawn]:
        """All batches that are left of the plan."""
        return self._batches(self.plan.steps)

    def epoch(self) -> Iterator[Drawn]:
        """The batches up to the end of this epoch: 1 / rate steps, rounded."""
        return self._batches(_end_of_epoch(self.done, self.plan.rate))

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
            parts.look_again(self.plan, at, batch.samples, self._private, spot=self._spot, physical=physical)
            if self.finished:
                self._spot(at.params, None)
        self._running.watch(Progress(at.step, at.phase, at.params, at.params))

    def epsilon(self, delta: float | None = None) -> float:
        """An upper bound on what the steps so far have cost; infinite if the noise is seeded.

        *Guarantee*: for a run that was always going to stop here. One that stops when its results please is
        covered by the whole plan, ``statement``, as is every run; a plan whose phases end by results always says that.
        """
        delta = self.statement.delta if delta is None else delta
        if not self._safeguards.secret:
            return math.inf
        if self.plan.data_driven:
            return self.plan.epsilon(delta)
        return epsilon_of(self._spent, delta, "add-or-remove")

    @property
    def finished(self) -> bool:
        """Whether every planned step was taken."""
        return parts.next_phase(self.plan, self._at) is None

    def _batches(self, end: int) -> Iterator[Drawn]:
        if self.finished:
            raise PrivacyError(
                f"all {self.done} planned steps were taken: one more would cost more than was planned; "
                "plan more epochs from the start"
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
            here = parts.begin(self.plan, self._at) if self.done < end else None
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
        noises = self.plan.phases[here.phase].noise_at(here.within)
        self._spent.update((self.plan.rate, noise) for noise in noises)
        self._at = replace(here, step=here.step + 1, within=here.within + 1)
        self._waiting = None


def _end_of_epoch(done: int, rate: float) -> int:
    """The first multiple of 1 / rate, rounded, that is after ``done`` steps.

    >>> [_end_of_epoch(done, 0.4) for done in range(6)]
    [2, 2, 5, 5, 5, 8]
    """
    epoch = math.floor(done * rate)
    while round(epoch / rate) <= done:
        epoch += 1
    return round(epoch / rate)


def make_private(
    model: nn.Module,
    loss: nn.Module | Loss,
    data: Any,
    *,
    optimizer: torch.optim.Optimizer,
    epsilon: float | None = None,
    delta: float = 1e-5,
    method: AnyMethod = METHOD,
    batch_size: int = 2048,
    epochs: float = 40,
    clip_norm: float | Clip = 0.1,
    size: int | None = None,
    plan: Plan | None = None,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
    safeguards: Safeguards | None = None,
    running: Running | None = None,
) -> PrivateLoop:
    """The private steps of a loop that is yours; settings as for `fit`.

    ``optimizer`` is built on the model's parameters, and a scheduler on the optimizer, as ever. Each `step` puts the
    released direction into ``p.grad`` and calls ``optimizer.step()``: do not call it yourself. Between steps the
    model is yours to evaluate, to save, to change: it keeps its class, its state_dict and its parameters. Points
    away from the weights, as DP-SAT asks for, are values that the model never holds. With ``plan`` the phases' own
    optimizers are not used.

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
    settings = Settings(epsilon, delta, method, batch_size, epochs, clip_norm, plan, size=size)
    private = given(model, loss, data, views=views, augment=augment)
    own = OnModel(model, optimizer)
    plan = settings.planned(private.count)
    if running.checkpoints is not None or plan.ema is not None:
        raise SettingError(
            "checkpoints and a running mean belong to fit and train: in a loop of your own, save the model and "
            "average its weights as you like, and leave checkpoints and ema out"
        )
    plan = replace(plan, phases=tuple(replace(phase, optimizer=own) for phase in plan.phases))
    statement = stated(plan, settings, private.contribution.unit, safeguards, running)
    check_record(plan, private.contribution.unit, safeguards)
    private = Private.of(private.contribution, private.units)
    spot = private.contribution.check(trainable(model), private.units.take, private.count)
    return PrivateLoop(plan, private, statement, spot=spot, safeguards=safeguards, running=running)
