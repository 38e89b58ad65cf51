"""DP-SAT: look for flat minima along the last released direction, for nothing."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.door import Door
from saltflat.errors import SettingError
from saltflat.settings import is_fraction, is_number, is_whole
from saltflat.tree import Tree, add, climb, zeros_like

MOST_DRIFT = 1024  # points, in memory together


@dataclass(frozen=True)
class SAT:
    """g_t = ask(w_t + radius d_t / ||d_t||),   d_t = g_(t-1) + momentum d_(t-1),   d_1 = 0.

    With ``momentum`` 0 the climb follows the last release; with the optimizer's own momentum it follows the
    last update (DP-SAT-Momentum, which wants a radius about ten times larger).

    ``drift`` = m > 1 repeats what public code does when a batch is split into m physical ones: the climb is added
    anew for each, so the j-th part is asked at w_t + j radius d_t / ||d_t||, and is taken off once, so the weights
    keep (m - 1) climbs. For the second half give the phase ``AntiNoise(optimizer, (m - 1) * radius)``. A unit
    belongs to a part by chance, never by its place: a unit that leaves may not move the others.

    *Guarantee*: as DP-SGD. d_t is made of earlier releases, so using it is free, and it is added once for
    the whole logical batch, never to the weights themselves.
    Park et al., "Differentially Private Sharpness-Aware Training", ICML 2023.
    """

    radius: float
    momentum: float = 0.0
    drift: int = 1

    def __post_init__(self) -> None:
        if not is_number(self.radius, 0):
            raise SettingError(f"the radius of the climb must be 0 or more, and finite; got {self.radius!r}")
        if not is_fraction(self.momentum):
            raise SettingError(f"the momentum of the climb must lie in [0, 1); got {self.momentum!r}")
        if not is_whole(self.drift, 1, MOST_DRIFT):
            raise SettingError(
                f"drift is a number of physical batches, 1 for none, at most {MOST_DRIFT}; got {self.drift!r}"
            )
        if self.drift > 1 and self.momentum:
            raise SettingError("drift belongs to the code of DP-SAT without momentum; set one of them only")

    def init(self, params: Tree) -> Tree:
        return zeros_like(params)

    def step(self, ask: Door, params: Tree, last: Tree) -> tuple[Tree, Tree]:
        if self.drift == 1:
            gradient = ask(climb(params, last, self.radius))
        else:
            points = [climb(params, last, self.radius * part) for part in range(1, self.drift + 1)]
            gradient = ask.apart(lambda part: [points[part]], weights=[1.0], groups=self.drift)
        return gradient, add(gradient, last, scale=self.momentum) if self.momentum else gradient
