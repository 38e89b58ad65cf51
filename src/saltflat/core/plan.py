"""The plan: what a run will do, and what it will cost, before anything runs."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dp_accounting.dp_event import DpEvent

from saltflat.clipping import LARGEST, SMALLEST, Clip, as_clip
from saltflat.core.allowance import Allowance
from saltflat.core.draw import Draw, Poisson, WithoutReplacement
from saltflat.door import (
    AnyMethod,
    PublicGradients,
    check_method,
    check_pair,
    fresh_noise,
    public_in,
)
from saltflat.errors import SettingError
from saltflat.optimizers import EMA, Optimizer
from saltflat.privacy.accounting import bounds, risk
from saltflat.privacy.accounting.calibration import ACCOUNTANTS, calibrate_scale
from saltflat.privacy.accounting.events import ADD_REMOVE, REPLACE, Adjacency, ChosenDpEvent, compose
from saltflat.privacy.accounting.filters import RdpFilter, planned_order
from saltflat.privacy.limits import STEPS_CEILING
from saltflat.privacy.record.costs import ADJACENCIES, Cost, event_of
from saltflat.privacy.record.history import most
from saltflat.schedules import Schedule, at
from saltflat.settings import is_number, is_positive, is_whole

SCHEDULED = 10_000_000  # steps; a schedule of the noise is looked at for each of them
LARGEST_SIZE = 10**15  # units of a data set


@dataclass(frozen=True, kw_only=True)
class Phase:
    """``steps`` steps with one method, noise level, clipping rule and optimizer.

    ``clip_norm`` is a number for flat clipping, or a rule (`PerLayer`, `Automatic`). ``noise_schedule`` multiplies
    ``noise_multiplier`` step by step and is fixed in advance. ``until`` may end the phase early: it sees the
    method's state, which is made of releases; the steps that it saves go to the next phase.
    """

    method: AnyMethod
    steps: int
    noise_multiplier: float
    clip_norm: float | Clip
    optimizer: Optimizer
    noise_schedule: Schedule = 1.0
    until: Callable[[Any], bool] | None = None

    def __post_init__(self) -> None:
        check_method(self.method)
        check_pair(
            "optimizer", self.optimizer, "SGD(lr=2.0) or Torch(lambda p: torch.optim.AdamW(p, lr=1e-3))"
        )
        if not is_whole(self.steps, 1, STEPS_CEILING):
            raise SettingError(
                f"a phase takes a whole number of steps, from 1 to {STEPS_CEILING}; got steps={self.steps!r}"
            )
        if not is_number(self.noise_multiplier, 0):
            raise SettingError(
                f"noise_multiplier must be 0 or more, and finite; got {self.noise_multiplier!r}"
            )
        bound = as_clip(self.clip_norm).sensitivity
        if not (is_number(bound, SMALLEST, LARGEST) or bound == math.inf):
            raise SettingError(
                f"clip_norm must be positive, from {SMALLEST:g} to {LARGEST:g}, where float32 can tell norms apart "
                f"(infinity: no clipping, without noise only); got {self.clip_norm}"
            )
        if math.isinf(bound) and self.noise_multiplier > 0:
            raise SettingError("noise needs a finite clip_norm: its scale is noise_multiplier x clip_norm")
        if self.until is not None and not callable(self.until):
            raise SettingError(f"until is a function of the method's state, or None; got {self.until!r}")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if callable(self.noise_schedule) and self.steps > SCHEDULED:
            raise SettingError(f"noise_schedule serves at most {SCHEDULED} steps; got {self.steps}")
        _ = self._factors, self._fresh

    @cached_property
    def _factors(self) -> Sequence[float]:
        """What the noise of each step is multiplied by, or one number for all.

        The schedule is asked once: a function that remembers could tell the accountant other factors than it runs with.
        """
        factors = array("d")
        for step in range(self.steps) if callable(self.noise_schedule) else (0,):
            try:
                factor: object = at(self.noise_schedule, step)
            except Exception as error:  # it may be anything that was handed in
                factor = error
            if not is_positive(factor):
                raise SettingError(
                    f"noise_schedule gives positive, finite factors; got {factor!r} at step {step}"
                )
            factors.append(factor)
        return factors

    @cached_property
    def _fresh(self) -> float | None:
        """The noise of a second sample, relative to the first one's, if the method draws one; it is asked once, too."""
        return fresh_noise(self.method)

    def noise_at(self, step: int) -> tuple[float, ...]:
        """The noise multipliers of the samples drawn in a step: one, and another if the method draws two."""
        noise = self.noise_multiplier * self._factors[step if callable(self.noise_schedule) else 0]
        return (noise,) if self._fresh is None else (noise, noise * self._fresh)

    def noises(self) -> Counter[float]:
        """How many samples of its steps are answered with which noise multiplier."""
        if callable(self.noise_schedule):
            return Counter(noise for step in range(self.steps) for noise in self.noise_at(step))
        return Counter({noise: k * self.steps for noise, k in Counter(self.noise_at(0)).items()})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Phases over one data set, each step on a secret sample at ``rate`` of ``size`` declared units.

    ``draw`` says how a sample is drawn: `Poisson` or, exactly ``rate x size`` units, `WithoutReplacement`. With
    ``ema`` the run ends with the running mean of its weights instead of the last ones.

    *Guarantee*: `event` is derived from what will run. Sampling, clipping and noise take their settings
    from here and nowhere else. What a phase that ends ``until`` does not use goes to the next one, whose steps
    may therefore not cost more: on every path, and at every Renyi order, the run costs at most what is planned.

    >>> from saltflat.optimizers import SGD
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
    draw: Draw = field(default_factory=Poisson)

    def __post_init__(self) -> None:
        if not (isinstance(self.phases, tuple | list) and all(type(p) is Phase for p in self.phases)):
            raise SettingError(f"phases is a tuple of Phase; got a {type(self.phases).__name__}")
        if not self.phases:
            raise SettingError("a plan needs at least one phase: phases=(Phase(...),)")
        if not (is_positive(self.rate) and self.rate <= 1):
            raise SettingError(
                f"rate is each unit's probability to join a step, in (0, 1]; got {self.rate!r}"
            )
        if not is_whole(self.size, 1, LARGEST_SIZE):
            raise SettingError(
                f"size is the declared number of units, a whole number from 1 to {LARGEST_SIZE}; got {self.size!r}"
            )
        if not (self.ema is None or isinstance(self.ema, EMA)):
            raise SettingError(f"ema is an EMA(decay=...), or None; got {self.ema!r}")
        if type(self.draw) not in (Poisson, WithoutReplacement):  # nor a subclass, which may draw otherwise
            raise SettingError(f"draw is Poisson() or WithoutReplacement(); got {self.draw!r}")
        self.draw.check(self.rate, self.size)
        for phase, following in zip(self.phases, self.phases[1:], strict=False):
            if phase.until is not None:
                _check_handover(phase, following)
        if self.data_driven and not isinstance(self.draw, Poisson):
            raise SettingError(
                "results decide when the noise changes (until), which is accounted for with Poisson() draws only: fix "
                "the number of steps, or draw so"
            )

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def through(self, phase: int) -> int:
        """The steps planned for this phase and those before it."""
        return sum(each.steps for each in self.phases[: phase + 1])

    @property
    def expected_units(self) -> float:
        """rate x declared size: a public constant that divides every sum, whatever was drawn."""
        return self.rate * self.size

    @property
    def public(self) -> tuple[PublicGradients, ...]:
        """The public examples that its methods and optimizers use."""
        return public_in(*(owner for phase in self.phases for owner in (phase.method, phase.optimizer)))

    @property
    def adjacency(self) -> str:
        """Whether its cost is that of a unit that is added or removed, or of one that is replaced."""
        return self.draw.adjacency

    @property
    def relation(self) -> Adjacency:
        """The adjacency, as the accountants call it."""
        return REPLACE if self.adjacency == ADJACENCIES[1] else ADD_REMOVE

    def cost(self, noise_multiplier: float) -> Cost:
        """What one sample costs, as a ledger charges it."""
        return self.draw.cost(self.rate, self.size, noise_multiplier)

    @property
    def data_driven(self) -> bool:
        """Whether results decide how many steps have which noise."""
        return any(
            phase.until is not None and phase.noise_at(0) != following.noise_at(0)
            for phase, following in zip(self.phases, self.phases[1:], strict=False)
        )

    def event(self) -> DpEvent:
        """The whole privacy cost: a subsampled Gaussian for each sample of each step.

        If results decide when the noise changes, the list of steps is not known in advance; then it is an event
        that only a Renyi filter accounts for, and that says so.
        """
        planned = self._planned()
        return ChosenDpEvent(planned) if self.data_driven else planned

    def _planned(self) -> DpEvent:
        """The cost of the list as it is planned."""
        phases = [
            [event_of(self.cost(noise), count) for noise, count in phase.noises().items()]
            for phase in self.phases
        ]
        return compose(*(events[0] if len(events) == 1 else compose(*events) for events in phases))

    def by_cost(self) -> Counter[Cost]:
        """How many steps are planned at each cost, mostly (rate, noise multiplier), as a ledger counts: by samples."""
        total: Counter[Cost] = Counter()
        for phase in self.phases:
            total.update({self.cost(noise): count for noise, count in phase.noises().items()})
        return total

    def covers(self, charged: Mapping[Cost, int]) -> bool:
        """Whether what is planned costs at least as much as the ``charged`` steps (see `Allowance`)."""
        return Allowance(self.by_cost(), charged).covers

    def costs_at(self, phase: int, within: int) -> tuple[Cost, ...]:
        """What the samples cost of the step that follows ``within`` others in this phase."""
        return tuple(self.cost(noise) for noise in self.phases[phase].noise_at(within))

    def event_on_record(self, charged: Mapping[Cost, int]) -> DpEvent:
        """The plan's cost, and that of every step on record beyond it: steps that ran again after a crash.

        ``charged`` counts steps by cost, as a ledger does.

        *Guarantee*: at least the cost of what is planned, and at least the cost of what was charged. If results decide
        when the noise changes, steps beyond the planned number count as the dearest ones (see `most`).
        """
        if self.covers(charged):
            return self.event()
        if self.data_driven:
            total = most(self.by_cost(), charged)
            return ChosenDpEvent(compose(*(event_of(cost, n) for cost, n in total.items())))
        again: Counter[Cost] = Counter(charged)
        again.subtract(self.by_cost())
        return compose(self.event(), *(event_of(cost, n) for cost, n in (+again).items()))

    def filter(self, delta: float) -> RdpFilter:
        """A meter that refuses the step that would pass the plan's own epsilon, at an order fixed now.

        Give it to `Safeguards` as the meter of a run whose phases end ``until``. By the plan's guarantee it
        never refuses; it is there so that a mistake in this reasoning, or in a phase, stops the run.
        """
        event, adjacency = self._planned(), self.relation
        slack = 1 + 1e-9  # so that rounding does not refuse the last step
        epsilon = bounds.rdp_epsilon(event, delta, adjacency=adjacency) * slack
        order = planned_order(event, delta, adjacency=adjacency)
        return RdpFilter(epsilon=epsilon, delta=delta, order=order, adjacency=adjacency)

    def epsilon(self, delta: float) -> float:
        """An upper bound on epsilon; unit: as the contribution says; adjacency: as its draw says."""
        return bounds.epsilon(self.event(), delta, adjacency=self.relation)

    def tradeoff(self) -> risk.TradeOff:
        """The most that any attack learns of one unit: advantage, true positive rates, posteriors.

        >>> from saltflat.optimizers import SGD
        >>> from saltflat.methods import DPSGD
        >>> phase = Phase(method=DPSGD(), steps=100, noise_multiplier=4.0, clip_norm=0.1, optimizer=SGD(lr=2))
        >>> found = Plan(phases=(phase,), rate=0.05, size=1000).tradeoff()
        >>> round(found.advantage, 3), round(found.posterior(prior=0.1), 2)
        (0.051, 0.13)
        """
        return risk.tradeoff(self.event(), adjacency=self.relation)

    def scaled(self, factor: float) -> Plan:
        """The same plan with every noise multiplier times ``factor``."""
        noisier = (replace(p, noise_multiplier=p.noise_multiplier * factor) for p in self.phases)
        return replace(self, phases=tuple(noisier))


def with_spare(plan: Plan, spare: int) -> Plan:
    """The plan with so many more steps in each phase: the most that it may take, with what crashes waste."""
    return replace(plan, phases=tuple(replace(each, steps=each.steps + spare) for each in plan.phases))


def _check_handover(phase: Phase, following: Phase) -> None:
    """The steps that ``phase`` saves are taken in the ``following`` one: they may not cost more there."""
    if callable(phase.noise_schedule) or callable(following.noise_schedule):
        raise SettingError(
            "a phase that ends `until`, and the next one, need constant noise: drop noise_schedule"
        )
    here, there = sorted(phase.noise_at(0)), sorted(following.noise_at(0))
    if len(there) > len(here) or any(b < a for a, b in zip(here, there, strict=False)):
        raise SettingError(
            f"a phase that ends `until` leaves its steps to the next one, which must not have less noise or more "
            f"samples; got noise {here}, then {there}: raise the second, or fix the number of steps"
        )


def calibrate(
    plan: Plan,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    spare: int = 0,
    accountant: str = "PLD",
) -> Plan:
    """The plan with its noise multipliers times one common factor, so that it spends ``epsilon``, or ``advantage``.

    The phases' ratios are kept.

    Args:
        plan: What will run. Its noise multipliers say how noise is shared out between phases.
        epsilon: The most that the run may cost, at ``delta``.
        delta: The delta of epsilon.
        advantage: The target in the place of epsilon and delta: the most by which any attack's true positive rate may
            pass its false positive rate. 0.1 keeps guesses about one unit right in at most 55 % of cases.
        spare: So many more steps of each phase are paid for, but not planned. A kill wastes steps that were charged;
            with spare ones the run still takes every planned step within the target.
        accountant: "PLD", which is what `Plan.epsilon` reports, or "RDP", which most papers used and which asks for
            7 to 8 % more noise. It has no part in an advantage.

    Returns:
        The plan. With its spare steps it costs at most the target, and at least 99 % of it by the accountant.

    Guarantee:
        At most ``epsilon`` by `Plan.epsilon` whichever the accountant: both bounds are upper ones, and the smaller
        is reported.
    """
    if not isinstance(plan, Plan):
        raise SettingError(f"plan is a Plan, whose noise is to be scaled; got a {type(plan).__name__}")
    if not is_whole(spare, 0):
        raise SettingError(f"spare is a whole number of steps, 0 or more; got {spare!r}")
    if not (isinstance(accountant, str) and accountant in ACCOUNTANTS):
        raise SettingError(f"accountant is one of {', '.join(ACCOUNTANTS)}; got {accountant!r}")
    longest = with_spare(plan, spare) if spare else plan
    factor = calibrate_scale(
        lambda scale: longest.scaled(scale).event(),
        epsilon=epsilon,
        delta=delta,
        advantage=advantage,
        accountant=ACCOUNTANTS[accountant](plan.relation),
    )
    return plan.scaled(factor)
