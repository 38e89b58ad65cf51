"""The one loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import nn

from saltflat.core.ask import Ask, Release
from saltflat.core.check import check_model, check_step
from saltflat.core.contribution import Contribution, PerExample, chunks_of
from saltflat.core.mechanism import Noise
from saltflat.core.plan import Phase, Plan
from saltflat.core.sampling import Indices, Units, poisson
from saltflat.core.tree import Tree
from saltflat.errors import ModelError
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


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a run needs beside its plan, model and data.

    ``physical`` bounds the units in memory at once and never changes a result. ``noise`` and ``sampling``
    are fresh from the operating system unless given; ``meter`` is charged before each step.
    """

    physical: int = 256
    noise: Noise = field(default_factory=SecureNoise)
    sampling: np.random.Generator = field(default_factory=np.random.default_rng)
    meter: Meter | None = None
    watch: Callable[[Progress], None] = lambda progress: None


def trainable(model: nn.Module) -> Tree:
    """The model's trained parameters, by name: copies, so that nothing moves behind the model's back."""
    params = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    if not params:
        raise ModelError("the model has no parameter that requires a gradient; unfreeze at least one")
    return params


def train(plan: Plan, contribution: PerExample, units: Units, around: Surroundings | None = None) -> Tree:
    """Run the plan and return the weights that it ends with; the model itself gets them too.

    *Guarantee*: the released weights, and every weight on the way, cost `plan.event()` for one
    ``contribution.unit``, added or removed, under Poisson sampling.
    """
    around = around or Surroundings()
    model = contribution.model
    check_model(model)
    params, count = trainable(model), units.count
    check_step(contribution, params, units.take, count)
    done = planned = 0
    for number, phase in enumerate(plan.phases):
        planned += phase.steps  # what an earlier phase did not need is left to this one
        steps = _steps(plan, phase, (contribution, units, count), around, params)
        for params in itertools.islice(steps, planned - done):
            done += 1
            around.watch(Progress(done, number, params))
    put(params, model)
    return params


Private = tuple[Contribution, Units, int]


def _steps(plan: Plan, phase: Phase, private: Private, around: Surroundings, params: Tree) -> Iterator[Tree]:
    """The weights after each step of one phase: draw, charge, ask, update."""
    state, memory = phase.method.init(params), phase.optimizer.init(params)
    for step in itertools.count():
        ask = door(plan, phase, step, draw(plan, phase, private[2], around), private, around)
        direction, state = phase.method.step(ask, params, state)
        params, memory = phase.optimizer.step(params, direction, memory)
        yield params
        if phase.until is not None and phase.until(state):
            return


def draw(plan: Plan, phase: Phase, count: int, around: Surroundings) -> Sequence[Indices]:
    """The units of one step: a Poisson sample, and another one if the method draws two."""
    return [poisson(count, plan.rate, around.sampling) for _ in phase.noise_at(0)]


def door(
    plan: Plan, phase: Phase, step: int, drawn: Sequence[Indices], private: Private, around: Surroundings
) -> Ask:
    """Charge a step's samples, and open the door on them; the first one leads to the next."""
    contribution, units, _ = private
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


def put(params: Tree, model: nn.Module) -> None:
    """Give the model these weights."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, leaf in params.items():
            own[name].copy_(leaf)
