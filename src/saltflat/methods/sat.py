"""DP-SAT: look for flat minima along the last released direction, for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from saltflat.core.tree import Tree, add, climb, zeros_like
from saltflat.errors import SettingError


@dataclass(frozen=True)
class SAT:
    """g_t = ask(w_t + radius d_t / ||d_t||),   d_t = g_(t-1) + momentum d_(t-1),   d_1 = 0.

    With ``momentum`` 0 the climb follows the last release; with the optimizer's own momentum it follows the
    last update (DP-SAT-Momentum, which wants a radius about ten times larger).

    *Guarantee*: as DP-SGD. d_t is made of earlier releases, so using it is free, and it is added once for
    the whole logical batch, never to the weights themselves.
    Park et al., "Differentially Private Sharpness-Aware Training", ICML 2023.
    """

    radius: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.radius < float("inf"):
            raise SettingError(f"the radius of the climb must be 0 or more, and finite; got {self.radius}")
        if not 0 <= self.momentum < 1:
            raise SettingError(f"the momentum of the climb must lie in [0, 1); got {self.momentum}")

    def init(self, params: Tree) -> Tree:
        return zeros_like(params)

    def step(self, ask: Callable[..., Tree], params: Tree, last: Tree) -> tuple[Tree, Tree]:
        gradient = ask(climb(params, last, self.radius))
        return gradient, add(gradient, last, scale=self.momentum) if self.momentum else gradient
