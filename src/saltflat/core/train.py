"""The one loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from saltflat.core.ask import Ask, Chunks, Release
from saltflat.core.check import check_answer, check_model, check_moved, check_stamps, check_step
from saltflat.core.contribution import Contribution, PerExample
from saltflat.core.mechanism import Chunk, Noise
from saltflat.core.plan import Phase, Plan
from saltflat.core.resume import Checkpoints, Position, load, save
from saltflat.core.sampling import Indices, Units, physical, poisson
from saltflat.core.stop import finish_first
from saltflat.core.tree import Tree
from saltflat.errors import BudgetError, Interrupted, ModelError
from saltflat.privacy.noise import SecureNoise


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
                around.watch(Progress(at.step, plan.phase_of(at.step - 1), at.params, at.ending))
                if caught or _is_time(plan, at.step, first, around):
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
    if at.step == plan.steps:
        return
    count, moved = units.count, False
    check_step(contribution, at.params, units.take, count)
    while at.step < plan.steps:
        phase = plan.phases[plan.phase_of(at.step)]
        drawn = poisson(count, plan.rate, around.sampling)
        if around.meter is not None:
            around.meter.step(plan.rate, phase.noise_multiplier)
        ask = Ask(chunks_of(contribution, units, drawn, around.physical), _release(plan, phase, around))
        before, checked = at.params, not moved and phase.noise_multiplier > 0
        at = _step(plan, at, _checked(ask, at.params) if checked else ask)
        moved = moved or (checked and check_moved(before, at.params))
        yield at


def _release(plan: Plan, phase: Phase, around: Surroundings) -> Release:
    return Release(
        clip_norm=phase.clip_norm,
        noise_multiplier=phase.noise_multiplier,
        expected_units=plan.expected_units,
        noise=around.noise,
    )


def _step(plan: Plan, at: Position, ask: Any) -> Position:
    """Ask and update: all that follows the charge. A phase begins with empty memories."""
    phase = plan.phases[plan.phase_of(at.step)]
    params, state, memory, mean = at.params, at.state, at.memory, at.mean
    if plan.starts_phase(at.step):
        state, memory = phase.method.init(params), phase.optimizer.init(params)
    direction, state = phase.method.step(ask, params, state)
    params, memory = phase.optimizer.step(params, direction, memory)
    return Position(at.step + 1, params, state, memory, plan.ema and plan.ema.step(params, mean))


def _checked(ask: Ask, params: Tree) -> Any:
    """The same door, with every answer looked at on its way out."""
    return lambda *points, **how: check_answer(ask(*points, **how), params)


def _is_time(plan: Plan, step: int, first: int, around: Surroundings) -> bool:
    """Every so often, at the end, and at once: so that a folder that cannot be written shows early."""
    every = around.checkpoints.every if around.checkpoints else 1
    return step == first + 1 or step % every == 0 or step == plan.steps


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


def chunks_of(contribution: Contribution, units: Units, drawn: Indices, most: int) -> Chunks:
    """The drawn units' gradients, one physical batch at a time, at whatever points are asked for."""

    def chunks(points: list[Tree], weights: list[float]) -> Iterator[Chunk]:
        for indices in physical(drawn, most):
            yield contribution(points, weights, units.take(indices))

    return chunks  # type: ignore[return-value]


def put(params: Tree, model: nn.Module) -> None:
    """Give the model these weights."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, leaf in params.items():
            own[name].copy_(leaf)
