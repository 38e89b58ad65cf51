"""Adaptive clipping: let the clip norm follow a quantile of the units' gradient norms, by a query of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from saltflat.door import AnyMethod, Door, check_method
from saltflat.errors import SettingError
from saltflat.settings import is_fraction, is_number
from saltflat.tree import Tree

MOST_SPEED = 100.0  # exp of more than a few hundred is no number


@dataclass(frozen=True)
class Following:
    """The state of `Quantile`: C_t / C_1, and the state of the method inside."""

    inner: object
    factor: float = 1.0


@dataclass(frozen=True)
class Quantile:
    """C_(t+1) = C_t exp(-speed (b_t - quantile)),   b_t the noisy fraction of units with ||g_i|| <= C_t.

    C_1 is the phase's clip norm. Any ``method`` goes inside; b_t is read off its own questions.

    *Guarantee*: b_t is a question like any other. ``share`` of every answer goes to it (noise sigma / (2 sqrt(share))
    on the count) and the rest to the gradients (noise sigma C_t / sqrt(1 - share)); together they cost the step's
    sigma, so the plan's event accounts for both. C_t is made of earlier releases, and only sigma, not C_t,
    enters the cost.
    Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021.
    """

    method: AnyMethod
    quantile: float = 0.5
    speed: float = 0.2
    share: float = 0.01

    def __post_init__(self) -> None:
        check_method(self.method)
        if not is_number(self.quantile, 0, 1):
            raise SettingError(f"a quantile lies in [0, 1]; got {self.quantile!r}")
        if not is_number(self.speed, 0, MOST_SPEED):
            raise SettingError(
                f"the speed of an adaptive clip norm is 0 or more, at most {MOST_SPEED:g}; got {self.speed!r}"
            )
        if not is_fraction(self.share):
            raise SettingError(f"the count's share of a step lies in [0, 1); got {self.share!r}")

    def init(self, params: Tree) -> Following:
        return Following(self.method.init(params))

    def step(self, ask: Door, params: Tree, state: Following) -> tuple[Tree, Following]:
        counting = ask.counting(state.factor, self.share)
        direction, inner = self.method.step(counting, params, state.inner)
        return direction, Following(inner, self._next(state.factor, counting.fraction))

    def _next(self, factor: float, fraction: float | None) -> float:
        """C_(t+1) / C_1. The noisy fraction may lie far outside [0, 1]; then the norm moves as for 0 or 1."""
        if fraction is None:
            return factor
        return factor * math.exp(-self.speed * (min(max(fraction, 0.0), 1.0) - self.quantile))
