"""When to leave the sharpness-aware phase: measures of sharpness that cost nothing or are paid for.

Each measure wraps a method and keeps the `Readings` so far in its state; `Plateau`, a phase's ``until``, ends the phase
when they stop falling. The Hessian of the *training* loss is not among them: it needs the raw data, and a rule that
reads it is a query that nobody accounts for.

*Guarantee* of all: readings are made of releases, public data and answers of the door, so what they decide is
post-processing; but a run whose noise changes at a moment decided by results has no fixed list of steps, and
its plan accounts for it as a Renyi filter does (`Plan.event`). Wraps methods that ask once at one point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from saltflat.door import AnyMethod, Door, Heard, check_method
from saltflat.errors import SettingError
from saltflat.methods.draws import check_seed, public_draws
from saltflat.methods.sat import SAT
from saltflat.settings import is_fraction, is_number, is_positive, is_whole
from saltflat.tree import Tree, add, climb, dot, mul, norm, size, sub, zeros_like

R = TypeVar("R", bound="Readings")


@dataclass(frozen=True)
class Readings:
    """What a measure has read so far, oldest first, and the state of the method inside."""

    inner: object
    steps: int = 0
    readings: tuple[float, ...] = ()

    def after(self: R, inner: object, read: tuple[float, ...]) -> R:
        """One step later."""
        return replace(self, inner=inner, steps=self.steps + 1, readings=(*self.readings, *read))


def readings_of(state: object) -> Readings:
    """The readings in a state, under however many methods around the one that measures."""
    while not isinstance(state, Readings):
        if not hasattr(state, "inner"):
            raise SettingError(
                "a plateau looks at the readings of a measure: put the phase's method into PublicSharpness, Secant, "
                "Antithetic or Gap"
            )
        state = state.inner
    return state


@dataclass(frozen=True, kw_only=True)
class Plateau:
    """Whether the mean reading over ``window`` has not fallen by more than ``tolerance`` for ``patience`` windows.

    Never before step ``least``; the phase's own ``steps`` is the latest.

    >>> until = Plateau(window=2, patience=1)
    >>> until(Readings(None, 4, (3.0, 3.0, 2.0, 2.0))), until(Readings(None, 4, (3.0, 3.0, 3.0, 3.0)))
    (False, True)
    """

    window: int = 50
    patience: int = 3
    tolerance: float = 0.0
    least: int = 0

    def __post_init__(self) -> None:
        whole = is_whole(self.window) and is_whole(self.patience) and is_whole(self.least, 0)
        if not (whole and is_number(self.tolerance, 0)):
            raise SettingError(
                f"a plateau needs window and patience of at least 1, the rest (tolerance, least) at least 0; got {self}"
            )

    def __call__(self, state: object) -> bool:
        found = readings_of(state)
        readings = found.readings
        whole = len(readings) // self.window
        if found.steps < self.least or whole <= self.patience:
            return False
        means = [
            math.fsum(readings[k * self.window : (k + 1) * self.window]) / self.window for k in range(whole)
        ]
        best, recent = min(means[: -self.patience]), means[-self.patience :]
        return min(recent) >= best - self.tolerance


@dataclass(frozen=True)
class PublicSharpness:
    """S2: read ``measure(w_t)`` every so many steps; it may look at public, synthetic or held-out public data.

    For example the largest Hessian eigenvalue, or loss(w + radius u) - loss(w).

    *Guarantee*: free, as long as ``measure`` never sees private rows; nothing here can check that.
    """

    method: AnyMethod
    measure: Callable[[Tree], float]
    every: int = 1

    def __post_init__(self) -> None:
        check_method(self.method)
        _check_every(self.every)
        if isinstance(self.measure, type) or not callable(self.measure):
            raise SettingError(f"measure is a function of the weights; got a {type(self.measure).__name__}")

    def init(self, params: Tree) -> Readings:
        return Readings(self.method.init(params))

    def step(self, ask: Door, params: Tree, state: Readings) -> tuple[Tree, Readings]:
        read = (float(self.measure(params)),) if state.steps % self.every == 0 else ()
        direction, inner = self.method.step(ask, params, state.inner)
        return direction, state.after(inner, read)


@dataclass(frozen=True)
class Asked(Readings):
    """The readings of `Secant`, where its last step asked, what was answered, and the noise on that."""

    point: Tree | None = None
    answer: Tree | None = None
    noise_std: float = 0.0


@dataclass(frozen=True)
class Secant:
    """S3: the curvature along the way, from released vectors alone.

        k_t = (<d_t, y_t> + c D s^2) / ||d_t||^2,   d_t = p_t - p_(t-1),   y_t = g_t - g_(t-1)
        c = radius / ||direction of the climb|| - lr

    p_t is where step t asked, D the number of weights, s the noise on g_(t-1). d_t contains that noise c times
    and y_t takes it off once, so <d_t, y_t> is too small by c D s^2. ``lr`` must be the optimizer's, which must be
    SGD: a wrong c ruins the estimate. It is noisy: smooth over 50 steps or more, and use it for its trend.

    *Guarantee*: free; it reads answers and the noise's known variance, never the noise.
    """

    method: SAT
    lr: float | Callable[[int], float]

    def __post_init__(self) -> None:
        if not isinstance(self.method, SAT) or self.method.drift > 1:
            raise SettingError(
                f"the secant is known for the method SAT without drift only; got {self.method!r}"
            )
        if isinstance(self.lr, type) or not (callable(self.lr) or is_number(self.lr, 0)):
            raise SettingError(f"lr is the optimizer's learning rate, or its schedule; got {self.lr!r}")

    def init(self, params: Tree) -> Asked:
        return Asked(self.method.init(params))

    def step(self, ask: Door, params: Tree, state: Asked) -> tuple[Tree, Asked]:
        last = state.inner
        assert isinstance(last, dict)  # SAT's state is the direction that it climbs along
        climbed = float(norm(last)) + 1e-16
        direction, inner = self.method.step(ask, params, last)
        heard = ask.heard[-1]
        lr = self.lr(state.steps - 1) if callable(self.lr) else self.lr
        read = _secant(heard, state, self.method.radius / climbed - lr)
        now = replace(state, point=heard.point, answer=heard.answer, noise_std=heard.answer.noise_std)
        return direction, now.after(inner, read)


def _secant(heard: Heard, last: Asked, entered: float) -> tuple[float, ...]:
    """k_t, if there is a step before this one and it moved; ``entered`` is c."""
    if last.point is None or last.answer is None:
        return ()
    moved, turned = sub(heard.point, last.point), sub(heard.answer, last.answer)
    square = float(dot(moved, moved))
    if square == 0:
        return ()
    return ((float(dot(moved, turned)) + entered * size(moved) * last.noise_std**2) / square,)


@dataclass(frozen=True)
class Probed(Readings):
    """The readings of `Antithetic`, the running mean of releases, and the pair of steps under way, if there is one."""

    mean: Tree = field(default_factory=dict)
    along: Tree | None = None
    sign: float = 0.0  # of the next step of the pair
    first: Tree | None = None  # the answer to its first step


@dataclass(frozen=True, kw_only=True)
class Antithetic:
    """S4: every so many steps two steps look at w + radius u and w - radius u, in random order.

        k = +-<u, g_first - g_second> / (2 radius),   u the unit vector along a running mean of older releases

    The noise on k is s / (sqrt(2) radius). The weights move between the two steps: the random order makes the part
    that depends on where they are average out, and leaves (lr / 2) ||H u||^2 by which k reads too high. In between,
    ``method`` runs as it is; during a pair its answers are taken at w +- radius u.

    *Guarantee*: free; u is older than the pair, and the order comes from a public ``seed``.
    """

    method: AnyMethod
    radius: float
    every: int = 10
    decay: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        check_method(self.method)
        _check_every(self.every, least=2)
        if not is_positive(self.radius):
            raise SettingError(f"the radius of a probe must be positive and finite; got {self.radius!r}")
        if not is_fraction(self.decay):
            raise SettingError(f"decay must lie in [0, 1); got {self.decay!r}")
        check_seed(self.seed)

    def init(self, params: Tree) -> Probed:
        return Probed(self.method.init(params), mean=zeros_like(params))

    def step(self, ask: Door, params: Tree, state: Probed) -> tuple[Tree, Probed]:
        read: tuple[float, ...] = ()
        state, door = self._paired(state), ask
        if state.along is not None:
            probe = climb(params, state.along, state.sign * self.radius)
            door = ask.spread(lambda point, unit: [(probe, 1.0)])
        direction, inner = self.method.step(door, params, state.inner)
        if state.along is not None:
            state, read = self._looked(state, ask.heard[-1].answer)
        mean = add(mul(state.mean, self.decay), direction, scale=1 - self.decay)
        return direction, replace(state, mean=mean).after(inner, read)

    def _paired(self, state: Probed) -> Probed:
        """With a new pair, if it is time for one and none is under way."""
        if state.along is not None or state.steps % self.every != self.every - 1:
            return state
        coin = int(torch.randint(2, (), generator=public_draws(self.seed, state.steps)))
        return replace(state, along=state.mean, sign=1.0 if coin else -1.0)

    def _looked(self, state: Probed, answer: Tree) -> tuple[Probed, tuple[float, ...]]:
        """After one step of the pair: on to the second, or its reading."""
        if state.first is None or state.along is None:
            return replace(state, sign=-state.sign, first=answer), ()
        turned = float(dot(state.along, sub(state.first, answer))) / (float(norm(state.along)) + 1e-16)
        read = -state.sign * turned / (2 * self.radius)  # the sign is the second step's by now
        return replace(state, along=None, sign=0.0, first=None), (read,)


@dataclass(frozen=True)
class Climbed(Readings):
    """The readings of `Gap`, and the last direction, along which it looks."""

    last: Tree = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Gap:
    """S5: a paid question, how much more the units of the step lose at w + radius u than at w.

        q_t = (1 / expected) (sum_i clamp(loss_i(w + radius u) - loss_i(w), -bound, bound) + noise)

    u is along the last release. The question is put every so many steps and takes ``share`` of them; ``method`` has
    the rest.

    *Guarantee*: sensitivity ``bound``, and one more answer within the step's sigma, which the plan's event has.
    """

    method: AnyMethod
    radius: float
    bound: float
    share: float = 0.05
    every: int = 1

    def __post_init__(self) -> None:
        check_method(self.method)
        _check_every(self.every)
        for name in ("radius", "bound"):
            if not is_positive(getattr(self, name)):
                raise SettingError(
                    f"the {name} of a gap must be positive and finite; got {getattr(self, name)!r}"
                )
        if not (is_fraction(self.share) and self.share > 0):
            raise SettingError(f"the question's share of a step lies in (0, 1); got {self.share!r}")

    def init(self, params: Tree) -> Climbed:
        return Climbed(self.method.init(params), last=zeros_like(params))

    def step(self, ask: Door, params: Tree, state: Climbed) -> tuple[Tree, Climbed]:
        read: tuple[float, ...] = ()
        if state.steps % self.every == self.every - 1:
            high = climb(params, state.last, self.radius)
            read = (ask.gap(params, high, bound=self.bound, share=self.share),)
            ask = ask.part(1 - self.share)
        direction, inner = self.method.step(ask, params, state.inner)
        return direction, replace(state, last=dict(direction)).after(inner, read)


def _check_every(every: int, *, least: int = 1) -> None:
    if not is_whole(every, least):
        raise SettingError(f"every is a number of steps, at least {least}; got {every!r}")
