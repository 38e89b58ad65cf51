"""The one loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import nn

from saltflat.core.ask import Ask, Release
from saltflat.core.check import check_answer, check_model, check_moved, check_stamps, check_step
from saltflat.core.contribution import PerExample, chunks_of
from saltflat.core.mechanism import Noise
from saltflat.core.plan import Phase, Plan
from saltflat.core.resume import Checkpoints, Position, load, next_phase, save
from saltflat.core.sampling import Indices, Units, poisson
from saltflat.core.stop import finish_first
from saltflat.errors import BudgetError, Interrupted, ModelError
from saltflat.privacy.noise import SecureNoise
from saltflat.tree import Tree


class Meter(Protocol):
    """Where steps are charged: a ledger's run. It must have written the cost before it returns."""

    def step(self, rate: float, noise_multiplier: float) -> None: ...


@dataclass(frozen=True)
class Progress:
    """What may be told after a step: nothing that was not released."""

    step: int  # counted from 1
    phase: int
    params: Tree
    ending: Tree  # what the run would end with now: the running mean, if the plan has one


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a run needs beside its plan, model and data.

    ``physical`` bounds the units in memory at once and never changes a result. ``noise`` and ``sampling``
    are fresh from the operating system unless given; ``meter`` is charged before each step. ``checkpoints``
    says where the run is kept, if anywhere.
    """

    physical: int = 256
    noise: Noise = field(default_factory=SecureNoise)
    sampling: np.random.Generator = field(default_factory=np.random.default_rng)
    meter: Meter | None = None
    checkpoints: Checkpoints | None = None
    watch: Callable[[Progress], None] = lambda progress: None


def trainable(model: nn.Module) -> Tree:
    """The model's trained parameters, by name: copies, so that nothing moves behind the model's back."""
    params = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    if not params:
        raise ModelError("the model has no parameter that requires a gradient; unfreeze at least one")
    return params


def train(plan: Plan, contribution: PerExample, units: Units, around: Surroundings | None = None) -> Tree:
    """Run the plan and return the weights that it ends with; the model itself gets them too.

    With ``around.checkpoints`` a run that was killed, stopped or refused goes on where it was when train is
    called again. SIGTERM and Ctrl-C let the step end, keep it and raise `Interrupted`; a second one ends the
    process at once. However it ends, the model has the weights of the last whole step.

    *Guarantee*: the released weights, and every weight on the way, cost `plan.event()` for one
    ``contribution.unit``, added or removed, under Poisson sampling. Steps that run again after a crash cost
    as much again, and the meter is charged for them.
    """
    around = around or Surroundings()
    check_model(contribution.model)
    check_stamps(around.noise, around.meter)
    start, around = _start(plan, trainable(contribution.model), around)
    at, first = start, start.step
    with finish_first() as caught:
        try:
            for at in _steps(plan, start, (contribution, units), around):
                around.watch(Progress(at.step, at.phase, at.params, at.ending))
                if caught or _is_time(plan, at, first, around):
                    _keep(plan, at, around)
                if caught:
                    raise _interrupted(caught[0], plan, at, around)
        except BudgetError:
            if at.step > first:
                _keep(plan, at, around)
            raise
        finally:
            put(at.ending, contribution.model)
    return at.ending


def _start(plan: Plan, params: Tree, around: Surroundings) -> tuple[Position, Surroundings]:
    """The first position, or the one that was kept; and the surroundings to go on in.

    Private noise goes on with a sampler fresh from the operating system: were the old one set back, steps
    that run again would see the same units again, and two answers on one sample cost more than two on
    independent samples, which is what is charged. Only where nothing is private is the sampler set back.
    """
    at = None
    if around.checkpoints is not None:
        at = load(around.checkpoints, plan, params, meter=around.meter, sampler=_repeatable(around))
    if at is None:
        return Position(0, params, mean=plan.ema and plan.ema.init(params)), around
    if around.noise.private:
        around = replace(around, sampling=np.random.default_rng())
    return at, around


def _steps(
    plan: Plan, at: Position, private: tuple[PerExample, Units], around: Surroundings
) -> Iterator[Position]:
    """The position after each step that is left; the first ones are checked."""
    contribution, units = private
    if next_phase(plan, at) is None:
        return
    count, moved = units.count, False
    check_step(contribution, at.params, units.take, count)
    while (number := next_phase(plan, at)) is not None:
        before, phase = at.params, plan.phases[number]
        if at.step == 0 or number != at.phase:  # a phase begins with empty memories
            state, memory = phase.method.init(before), phase.optimizer.init(before)
            at = replace(at, phase=number, within=0, state=state, memory=memory)
        drawn = draw(plan, phase, count, around)
        ask = door(plan, phase, at.within, drawn, private, around)
        at = _step(plan, at, ask)
        if not moved and phase.noise_multiplier > 0:
            for heard in ask.heard:
                check_answer(heard.answer, before)
            moved = check_moved(before, at.params)
        yield at


def draw(plan: Plan, phase: Phase, count: int, around: Surroundings) -> Sequence[Indices]:
    """The units of one step: a Poisson sample, and another one if the method draws two."""
    return [poisson(count, plan.rate, around.sampling) for _ in phase.noise_at(0)]


def door(
    plan: Plan,
    phase: Phase,
    step: int,
    drawn: Sequence[Indices],
    private: tuple[PerExample, Units],
    around: Surroundings,
) -> Ask:
    """Charge a step's samples, and open the door on them; the last one is asked first, and leads to the others.

    ``step`` counts from 0 within the phase.
    """
    contribution, units = private
    ask: Ask | None = None
    for sample, noise_multiplier in zip(drawn, reversed(phase.noise_at(step)), strict=True):
        if around.meter is not None:
            around.meter.step(plan.rate, noise_multiplier)
        release = Release(
            clip_norm=phase.clip_norm,
            noise_multiplier=noise_multiplier,
            expected_units=plan.expected_units,
            noise=around.noise,
        )
        ask = Ask(chunks_of(contribution, units, sample, around.physical), release, fresh=ask)
    assert ask is not None
    return ask


def _step(plan: Plan, at: Position, ask: Ask) -> Position:
    """Ask and update: all that follows the charge."""
    phase = plan.phases[at.phase]
    direction, state = phase.method.step(ask, at.params, at.state)
    params, memory = phase.optimizer.step(at.params, direction, at.memory)
    mean = plan.ema and plan.ema.step(params, at.mean)
    return Position(at.step + 1, params, state, memory, mean, at.phase, at.within + 1)


def _is_time(plan: Plan, at: Position, first: int, around: Surroundings) -> bool:
    """Every so often, at the end, and at once: so that a folder that cannot be written shows early."""
    every = around.checkpoints.every if around.checkpoints else 1
    return at.step == first + 1 or at.step % every == 0 or next_phase(plan, at) is None


def _keep(plan: Plan, at: Position, around: Surroundings) -> None:
    if around.checkpoints is not None:
        save(around.checkpoints, plan, at, meter=around.meter, sampler=_repeatable(around))


def _repeatable(around: Surroundings) -> np.random.Generator | None:
    return None if around.noise.private else around.sampling


def _interrupted(number: int, plan: Plan, at: Position, around: Surroundings) -> Interrupted:
    kept = (
        f"it is kept in {around.checkpoints.folder}: run again to go on" if around.checkpoints else "not kept"
    )
    return Interrupted(
        f"stopped by {signal.Signals(number).name} after step {at.step} of {plan.steps}; {kept}", number
    )


def put(params: Tree, model: nn.Module) -> None:
    """Give the model these weights."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, leaf in params.items():
            own[name].copy_(leaf)
