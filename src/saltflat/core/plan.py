"""The plan: what a run will do, and what it will cost, before anything runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

from dp_accounting.dp_event import DpEvent

from saltflat.core.ask import Ask
from saltflat.core.optim import EMA, Optimizer
from saltflat.core.tree import Tree
from saltflat.errors import SettingError
from saltflat.privacy import accounting
from saltflat.privacy.calibration import calibrate_scale
from saltflat.privacy.events import compose, phase_event


class Method(Protocol):
    """How a step's questions are put and what is made of the answers. Everything but ``ask`` is free."""

    def init(self, params: Tree) -> Any: ...

    def step(self, ask: Ask, params: Tree, state: Any) -> tuple[Tree, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Phase:
    """``steps`` steps with one method, noise level, clip norm and optimizer."""

    method: Method
    steps: int
    noise_multiplier: float
    clip_norm: float
    optimizer: Optimizer

    def __post_init__(self) -> None:
        if not (isinstance(self.steps, int) and self.steps >= 1):
            raise SettingError(f"a phase takes a whole number of steps, at least 1; got steps={self.steps}")
        if not self.noise_multiplier >= 0 or math.isinf(self.noise_multiplier):
            raise SettingError(f"noise_multiplier must be 0 or more, and finite; got {self.noise_multiplier}")
        if not self.clip_norm > 0:
            raise SettingError(
                f"clip_norm must be positive (infinity: no clipping, without noise only); got {self.clip_norm}"
            )
        if math.isinf(self.clip_norm) and self.noise_multiplier > 0:
            raise SettingError("noise needs a finite clip_norm: its scale is noise_multiplier x clip_norm")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Phases over one data set, each step on a Poisson sample at ``rate`` of ``size`` declared units.

    With ``ema`` the run ends with the running mean of its weights instead of the last ones.

    *Guarantee*: `event` is derived from what will run. Sampling, clipping and noise take their settings
    from here and nowhere else.

    >>> from saltflat.core.optim import SGD
    >>> from saltflat.methods import DPSGD
    >>> phase = Phase(method=DPSGD(), steps=1200, noise_multiplier=1.790, clip_norm=0.1, optimizer=SGD(lr=2))
    >>> plan = Plan(phases=(phase,), rate=1 / 30, size=60_000)
    >>> round(plan.epsilon(delta=1e-5), 2), plan.expected_units
    (3.0, 2000.0)
    """

    phases: tuple[Phase, ...]
    rate: float
    size: int
    ema: EMA | None = None

    def __post_init__(self) -> None:
        if not self.phases:
            raise SettingError("a plan needs at least one phase")
        if not 0 < self.rate <= 1:
            raise SettingError(f"rate is each unit's probability to join a step, in (0, 1]; got {self.rate}")
        if not (isinstance(self.size, int) and self.size >= 1):
            raise SettingError(f"size is the declared number of units, a whole number; got {self.size}")

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def phase_of(self, step: int) -> int:
        """The phase that takes step number ``step``, counted from 0."""
        ends = accumulate(phase.steps for phase in self.phases)
        return next(number for number, end in enumerate(ends) if step < end)

    def starts_phase(self, step: int) -> bool:
        """Whether step number ``step``, counted from 0, is the first of its phase."""
        return step == 0 or self.phase_of(step) != self.phase_of(step - 1)

    @property
    def expected_units(self) -> float:
        """rate x declared size: a public constant that divides every sum, whatever was drawn."""
        return self.rate * self.size

    def event(self) -> DpEvent:
        """The whole privacy cost: a Poisson-subsampled Gaussian for each step."""
        return compose(*(phase_event(self.rate, p.noise_multiplier, p.steps) for p in self.phases))

    def epsilon(self, delta: float) -> float:
        """An upper bound on epsilon; unit: as the contribution says; adjacency: add or remove one unit."""
        return accounting.epsilon(self.event(), delta)

    def scaled(self, factor: float) -> Plan:
        """The same plan with every noise multiplier times ``factor``."""
        noisier = (replace(p, noise_multiplier=p.noise_multiplier * factor) for p in self.phases)
        return replace(self, phases=tuple(noisier))


def calibrate(plan: Plan, *, epsilon: float, delta: float) -> Plan:
    """The plan with its noise multipliers times one common factor, so that it spends ``epsilon``.

    The phases' ratios are kept. The result's epsilon never exceeds the target, and reaches 99 % of it.
    """
    factor = calibrate_scale(lambda scale: plan.scaled(scale).event(), epsilon=epsilon, delta=delta)
    return plan.scaled(factor)
