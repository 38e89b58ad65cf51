"""The one loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from saltflat.core.contribution import Contribution, Private
from saltflat.core.plan import Plan
from saltflat.core.record import check_record
from saltflat.core.resume import Checkpoints, load, save
from saltflat.core.sampling import Units
from saltflat.core.step import (
    Position,
    Safeguards,
    advance,
    begin,
    charge,
    draw,
    look_again,
    next_phase,
    open_door,
    start,
)
from saltflat.core.stop import finish_first
from saltflat.errors import BudgetError, Interrupted, ModelError, SettingError
from saltflat.privacy.noise import SecureSampling
from saltflat.settings import is_whole
from saltflat.tree import Tree


@dataclass(frozen=True)
class Progress:
    """What may be told after a step: nothing that was not released."""

    step: int  # counted from 1
    phase: int
    params: Tree
    ending: Tree  # what the run would end with now: the running mean, if the plan has one


@dataclass(frozen=True, kw_only=True)
class Running:
    """How a plan is run: nothing here changes what is released or what it costs.

    ``physical`` bounds the units in memory at once; ``checkpoints`` says where the run is kept, if anywhere; ``watch``
    is called after each step.
    """

    physical: int = 256
    checkpoints: Checkpoints | None = None
    watch: Callable[[Progress], None] = lambda progress: None

    def __post_init__(self) -> None:
        if not is_whole(self.physical):
            raise SettingError(f"physical is a whole number of units, at least 1; got {self.physical!r}")
        if not (self.checkpoints is None or isinstance(self.checkpoints, Checkpoints)):
            raise SettingError(f"checkpoints is Checkpoints(folder), or None; got {self.checkpoints!r}")
        if not callable(self.watch):
            raise SettingError(f"watch is a function that is called after each step; got {self.watch!r}")


def trainable(model: nn.Module) -> Tree:
    """The model's trained parameters, by name: copies, so that nothing moves behind the model's back."""
    params = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    if not params:
        raise ModelError("the model has no parameter that requires a gradient; unfreeze at least one")
    return params


def train(
    plan: Plan,
    contribution: Contribution,
    units: Units,
    *,
    safeguards: Safeguards | None = None,
    running: Running | None = None,
) -> Tree:
    """Run the plan and return the weights that it ends with; the contribution's model gets them too.

    With ``running.checkpoints`` a run that was killed, stopped or refused goes on where it was when train is
    called again. SIGTERM and Ctrl-C let the step end, keep it and raise `Interrupted`; a second one ends the
    process at once. However it ends, the model has the weights of the last whole step.

    *Guarantee*: the released weights, and every weight on the way, cost `plan.event()` for one
    ``contribution.unit``, added or removed, under Poisson sampling. Steps that run again after a crash cost
    as much again, and the meter is charged for them. A ledger's run that would say something else than what runs
    (another unit, private noise) is refused, and so is a plan that results may change under a budget without order.
    """
    run = _Run(plan, safeguards or Safeguards(), running or Running())
    check_record(plan, contribution.unit, run.safeguards)
    first, run = run.opened(trainable(contribution.model))
    at = first
    with finish_first() as caught:
        try:
            for at in run.steps(first, contribution, units):
                run.running.watch(Progress(at.step, at.phase, at.params, at.ending))
                if caught or run.is_time(at, first.step):
                    run.keep(at)
                if caught:
                    raise run.interrupted(caught[0], at)
        except BudgetError:
            if at.step > first.step:
                run.keep(at)
            raise
        finally:
            put(at.ending, contribution.model)
    return at.ending


@dataclass(frozen=True)
class _Run:
    """A plan, and what it is run with."""

    plan: Plan
    safeguards: Safeguards
    running: Running

    def opened(self, params: Tree) -> tuple[Position, _Run]:
        """The first position, or the one that was kept; and the run to go on with.

        Private noise goes on with a sampler fresh from the operating system: were the old one set back, steps
        that run again would see the same units again, and two answers on one sample cost more than two on
        independent samples, which is what is charged. Only where nothing is private is the sampler set back.
        """
        at = None
        if self.running.checkpoints is not None:
            meter = self.safeguards.meter
            at = load(self.running.checkpoints, self.plan, params, meter=meter, sampler=self.repeatable)
        if at is None:
            return start(self.plan, params), self
        if self.safeguards.noise.private:
            fresh = replace(self.safeguards, sampling=SecureSampling())
            return at, replace(self, safeguards=fresh)
        return at, self

    def steps(self, at: Position, contribution: Contribution, units: Units) -> Iterator[Position]:
        """The position after each step that is left."""
        if next_phase(self.plan, at) is None:
            return
        plan, guards = self.plan, self.safeguards
        private, physical = Private.of(contribution, units), self.running.physical
        spot = contribution.check(at.params, units.take, private.count)
        while (here := begin(plan, at)) is not None:
            drawn = draw(plan, here, private.count, guards.sampling)
            charge(plan, here, guards.meter)
            ask = open_door(plan, here, drawn, private, safeguards=guards, physical=physical)
            at = advance(plan, here, ask)
            look_again(plan, at, drawn, private, spot=spot, physical=physical)
            yield at
        spot(at.params, None)

    def is_time(self, at: Position, first: int) -> bool:
        """Every so often, at the end, and at once: so that a folder that cannot be written shows early."""
        every = self.running.checkpoints.every if self.running.checkpoints else 1
        return at.step == first + 1 or at.step % every == 0 or next_phase(self.plan, at) is None

    def keep(self, at: Position) -> None:
        if self.running.checkpoints is not None:
            meter = self.safeguards.meter
            save(self.running.checkpoints, self.plan, at, meter=meter, sampler=self.repeatable)

    @property
    def repeatable(self) -> np.random.Generator | None:
        """The sampler, where nothing is private and it can be set back."""
        sampler = self.safeguards.sampling
        return (
            sampler
            if isinstance(sampler, np.random.Generator) and not self.safeguards.noise.private
            else None
        )

    def interrupted(self, number: int, at: Position) -> Interrupted:
        folder = self.running.checkpoints.folder if self.running.checkpoints else None
        kept = f"it is kept in {folder}: run again to go on" if folder else "not kept"
        return Interrupted(
            f"stopped by {signal.Signals(number).name} after step {at.step} of {self.plan.steps}; {kept}",
            number,
        )


def put(params: Tree, model: nn.Module) -> None:
    """Give the model these weights."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, leaf in params.items():
            own[name].copy_(leaf)
