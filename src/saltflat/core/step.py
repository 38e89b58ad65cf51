"""One private step, part by part: begin, draw, charge, open the door, advance.

Whoever trains takes these in this order: `train`, and a loop of one's own. A run is a value, its `Position`, and
every part is a function of it; only `charge` leaves a trace, and it stands before the door.
"""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from saltflat.core.allowance import Allowance
from saltflat.core.ask import Ask, Release
from saltflat.core.contribution import Private, chunks_of
from saltflat.core.group import Group
from saltflat.core.mechanism import Noise
from saltflat.core.plan import Phase, Plan
from saltflat.core.sampling import Batch, Indices, Sampler, pick
from saltflat.core.shards import own_source
from saltflat.core.spot import Spot, check_answer, check_moved
from saltflat.errors import ModelError, PrivacyError, SaltflatError, SettingError
from saltflat.gradients.width import full_float32
from saltflat.privacy.noise import VOUCHED, SecureNoise, SecureSampling, is_secret
from saltflat.privacy.record.costs import Cost, words
from saltflat.tree import Tree, copied, has_shards, own_parts

LOOK_EVERY = (
    600  # steps' worth of units between two looks of the spot check, which costs little more than one
)


class Meter(Protocol):
    """Where steps are charged: a ledger's run. It must have written the cost before it returns."""

    def step(self, rate: float, noise_multiplier: float) -> None: ...


@runtime_checkable
class AnyMeter(Protocol):
    """A meter that charges for samples of any kind: a ledger's run."""

    def take(self, cost: Cost) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Safeguards:
    """What the promise rests on beside the plan. Leave it out, and the promise holds.

    ``noise`` and ``sampling`` are secret and fresh from the operating system unless given; ``meter``, a ledger's run,
    is charged before each step and may refuse it. A generator of numpy, which can be repeated, makes a run that is not
    private, and is said to be so.
    """

    noise: Noise = field(default_factory=SecureNoise)
    sampling: Sampler = field(default_factory=SecureSampling)
    meter: Meter | None = None

    def __post_init__(self) -> None:
        needs = {"noise": ("private", "normal"), "sampling": ("random",), "meter": ("step",)}
        for name, parts in needs.items():
            value = getattr(self, name)
            ways = [getattr(value, part, None) for part in parts]
            absent = isinstance(value, type) or not all(callable(w) or isinstance(w, bool) for w in ways)
            if absent and not (name == "meter" and value is None):
                raise SettingError(
                    f"{name} is a value with {' and '.join(parts)}; got a {type(value).__name__}: leave it out, and a "
                    "sound one is taken"
                )

    @property
    def secret(self) -> bool:
        """Whether nobody can repeat the noise, nor who was drawn."""
        return is_secret(self.noise) and is_secret(self.sampling)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What cannot be told of sources that are not saltflat's own, in words for the statement."""
        ours = {"noise": VOUCHED, "sampling": (SecureSampling,)}
        given = {name: type(getattr(self, name)) for name in ours}
        return tuple(
            f"whether nobody can repeat what the source of {name}, a {kind.__name__}, draws"
            for name, kind in given.items()
            if kind not in ours[name]
        )


@dataclass(frozen=True)
class Position:
    """Where a run stands after ``step`` steps of its plan, ``within`` of them in ``phase``.

    It holds the weights, and what method and optimizer remember. ``dropped`` of the ``step`` steps were passed without
    being taken, since the run was interrupted and their cost had been spent.
    """

    step: int
    params: Tree = field(repr=False)
    state: Any = field(default=None, repr=False)  # the method's
    memory: Any = field(default=None, repr=False)  # the optimizer's
    mean: Any = field(default=None, repr=False)  # the running mean's: (count, weights)
    phase: int = 0
    within: int = 0
    dropped: int = 0
    proven: bool = False  # whether a step since this process began was seen to noise and move every parameter

    @property
    def ending(self) -> Tree:
        """The weights that the run would end with now: the running mean, if there is one."""
        return self.params if self.mean is None else self.mean[1]


def start(plan: Plan, params: Tree) -> Position:
    """Before the first step."""
    return Position(0, params, mean=plan.ema and plan.ema.init(params))


def next_phase(plan: Plan, at: Position) -> int | None:
    """The phase that takes the next step, or None at the end.

    A phase ends when it has taken its steps and those that earlier ones left, or when its ``until`` says so.
    """
    phase = plan.phases[at.phase]
    over = at.step == plan.through(at.phase) or (
        at.within > 0 and phase.until is not None and phase.until(at.state)
    )
    number = at.phase + 1 if over else at.phase
    return number if number < len(plan.phases) else None


def pass_over(plan: Plan, at: Position, allowance: Allowance | None) -> Position:
    """The position after all steps that may not be taken any more, up to the next one that may or to the end.

    Nothing is passed without an ``allowance``. What method and optimizer remember is left as it is.
    """
    while allowance is not None and (number := next_phase(plan, at)) is not None:
        within = at.within if number == at.phase else 0
        if allowance.room(plan.costs_at(number, within), 1):
            break
        # all steps that are left of a phase cost the same, unless a schedule changes the noise
        steps = 1 if callable(plan.phases[number].noise_schedule) else plan.through(number) - at.step
        at = replace(
            at, phase=number, step=at.step + steps, within=within + steps, dropped=at.dropped + steps
        )
    return at


def left_out(plan: Plan, at: Position, allowance: Allowance | None) -> int:
    """How many planned steps are dropped in all, if the run goes on to its end and no phase ends ``until``."""
    if allowance is None:
        return at.dropped
    step, dropped, allowance = at.step, at.dropped, copy.deepcopy(allowance)
    for number in range(at.phase, len(plan.phases)):
        end, begun = plan.through(number), plan.through(number) - plan.phases[number].steps
        while step < end:
            steps = 1 if callable(plan.phases[number].noise_schedule) else end - step
            costs = plan.costs_at(number, max(0, step - begun))
            taken = allowance.room(costs, steps)
            allowance.take(costs, taken)
            step, dropped = step + steps, dropped + steps - taken
    return dropped


def is_over(plan: Plan, at: Position, allowance: Allowance | None) -> bool:
    """Whether no step follows."""
    return next_phase(plan, pass_over(plan, at, allowance)) is None


def begin(plan: Plan, at: Position, allowance: Allowance | None = None) -> Position | None:
    """Where the next step begins: here, or in another phase, with empty memories; None at the end of all.

    Steps that the ``allowance`` does not cover are passed over and counted as dropped.
    """
    passed = pass_over(plan, at, allowance)
    number = next_phase(plan, passed)
    if number is None:
        return None
    within = passed.within if number == passed.phase else 0
    if number == at.phase and at.step > 0:
        return passed
    phase = plan.phases[number]
    state, memory = phase.method.init(at.params), phase.optimizer.init(at.params)
    return replace(passed, phase=number, within=within, state=state, memory=memory)


def draw(plan: Plan, at: Position, count: int, sampling: Sampler) -> Sequence[Indices]:
    """The step's units: a sample, and another one if the method draws two; drawn once for all processes."""
    one = lambda: plan.draw.units(count, plan.rate, plan.size, sampling)
    return Group.here().told(lambda: [one() for _ in _noises(plan, at)])


def charge(plan: Plan, at: Position, meter: Meter | None) -> None:
    """Put the step on record, sample by sample; without a meter the plan alone accounts for it.

    Of several processes the first one charges, and all of them wait for it.
    """

    def on_record() -> None:
        if meter is not None:
            for noise_multiplier in _noises(plan, at):
                _charge(meter, plan.cost(noise_multiplier))

    Group.here().told(on_record)


def _charge(meter: Meter, cost: Cost) -> None:
    if isinstance(cost, tuple):
        meter.step(*cost)
    elif isinstance(meter, AnyMeter):
        meter.take(cost)
    else:
        raise PrivacyError(
            f"the meter, a {type(meter).__name__}, charges for Poisson samples only, and the plan's are of another "
            f"kind ({words(cost)}): give a ledger's run"
        )


def open_door(
    plan: Plan,
    at: Position,
    drawn: Sequence[Indices],
    private: Private,
    *,
    safeguards: Safeguards,
    physical: int,
) -> Ask:
    """The door of a step that was charged; the last sample is asked first, and leads to the others."""
    ask: Ask | None = None
    private, group = private.at(at.step), Group.here()
    noise = own_source(safeguards.noise, group) if has_shards(at.params) else safeguards.noise
    for sample, noise_multiplier in zip(drawn, _noises(plan, at), strict=True):
        release = Release(
            clip_norm=_phase(plan, at).clip_norm,
            noise_multiplier=noise_multiplier,
            expected_units=plan.expected_units,
            noise=noise,
            group=group,
        )
        chunks = chunks_of(private, sample, physical, safeguards.sampling, group)
        ask = Ask(chunks, release, fresh=ask)
    assert ask is not None
    return ask


def advance(plan: Plan, at: Position, ask: Ask) -> Position:
    """Ask and update: all that follows the charge.

    Until a step has moved the weights, each is looked at: noise in every parameter, and every parameter moved.
    """
    phase = _phase(plan, at)
    with full_float32():
        direction, state = phase.method.step(ask, at.params, at.state)
        params, memory = phase.optimizer.step(at.params, direction, at.memory)
    proven = at.proven or (phase.noise_multiplier > 0 and _proves(ask, at.params, params))
    mean = plan.ema and plan.ema.step(params, at.mean)
    return Position(at.step + 1, params, state, memory, mean, at.phase, at.within + 1, at.dropped, proven)


def look_again(
    plan: Plan,
    at: Position,
    drawn: Sequence[Indices],
    private: Private,
    *,
    spot: Spot,
    physical: int,
    last: bool,
) -> None:
    """Let the spot check see a physical batch: of the first step, of the last, now and then, and whenever it asks to.

    The first is looked at because the trial before it had few rows: a model may mix in large batches only.
    ``last`` says that no step follows.
    """
    few = min(physical, plan.expected_units)
    due = at.step == 1 or last or at.step % math.ceil(LOOK_EVERY * few / plan.expected_units) == 0
    if (due or spot.changed()) and len(drawn[-1]):
        some = drawn[-1][: max(2, int(few))]
        with full_float32():
            _look(spot, copied(at.params), private, private.largest_batch(some))
        read_again = getattr(private.contribution, "check_read", None)
        if read_again is not None:
            read_again(private.units.take, np.roll(some, secrets.randbelow(len(some))))


def _look(spot: Spot, params: Tree, private: Private, batch: Batch | None) -> None:
    """Units that make anything fail are left out of the sum, and of this look as well; nothing is said of them."""
    try:
        spot(params, batch)
        return
    except SaltflatError:
        raise
    except Exception as error:
        if not hasattr(
            private.contribution, "rows_per_unit"
        ):  # units that are not rows: another check, another word
            raise
        failed, rows = type(error).__name__, private.contribution.rows_per_unit
    norms = private.contribution([params], [1.0], batch).norms()
    sound = torch.isfinite(norms).repeat_interleave(rows).nonzero().flatten().cpu()
    try:
        spot(params, pick(batch, sound) if len(sound) else None)
    except SaltflatError:
        raise
    except Exception:
        raise ModelError(
            f"the model fails with a {failed} where its units are looked at again, and not where they are added up; "
            "its forward must do the same whenever it is called"
        ) from None


def _proves(ask: Ask, before: Tree, after: Tree) -> bool:
    """A parameter that a mask left out of every answer may stay where it is: the next step is looked at again.

    Of sharded weights each process looks at its own parts.
    """
    before, after = own_parts(before), own_parts(after)
    for answer in ask.noised:
        check_answer(own_parts(answer), before)
    heard = [own_parts(each.answer) for each in ask.heard]
    told = {
        name
        for name, leaf in before.items()
        if leaf.numel() == 0 or any(bool(answer[name].any()) for answer in heard)
    }
    moved = check_moved(
        *({name: leaf for name, leaf in each.items() if name in told} for each in (before, after))
    )
    return moved and len(told) == len(before)


def _phase(plan: Plan, at: Position) -> Phase:
    return plan.phases[at.phase]


def _noises(plan: Plan, at: Position) -> Sequence[float]:
    """The noise multipliers of the step's samples, the one that is asked first at the end."""
    return tuple(reversed(_phase(plan, at).noise_at(at.within)))
