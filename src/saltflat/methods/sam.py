"""DP-SAM: ask for the way uphill first, then for the gradient up there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from saltflat.door import Door
from saltflat.errors import SettingError
from saltflat.settings import is_fraction, is_number
from saltflat.tree import Tree, climb


@dataclass(frozen=True)
class SAM:
    """a_t = ask(w_t) with ``ascent_share`` of the step;  g_t = ask(w_t + radius a_t / ||a_t||) with the rest.

    A share s of the step has noise sigma / sqrt(s). The default 0.1 gives the ascent, which only needs a
    direction, three times the noise of the descent. With ``fresh`` the ascent is asked of a second sample,
    with as much more noise, sqrt((1 - s) / s), and the descent has the phase's noise.

    *Guarantee*: both answers are about one Poisson sample, and together cost one release with the step's
    noise multiplier. A fresh sample is one more release, and the plan's event counts it.
    Foret et al., "Sharpness-Aware Minimization", ICLR 2021; the private form is the baseline of Park et
    al., ICML 2023.

    >>> SAM(0.05, fresh=True).fresh_noise
    3.0
    """

    radius: float
    ascent_share: float = 0.1
    fresh: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.radius, 0):
            raise SettingError(f"the radius of the climb must be 0 or more, and finite; got {self.radius!r}")
        if not is_fraction(self.ascent_share):
            raise SettingError(f"ascent_share must lie in [0, 1); got {self.ascent_share!r}")
        if not isinstance(self.fresh, bool):
            raise SettingError(f"fresh is True or False; got {self.fresh!r}")

    @property
    def fresh_noise(self) -> float | None:
        """The second sample's noise, relative to the phase's; None if there is no second sample."""
        if not self.fresh or self.ascent_share == 0:
            return None
        return math.sqrt((1 - self.ascent_share) / self.ascent_share)

    def init(self, params: Tree) -> None:
        return None

    def step(self, ask: Door, params: Tree, state: None) -> tuple[Tree, None]:
        if self.ascent_share == 0:
            return ask(params), None
        if self.fresh:
            return ask(climb(params, ask.fresh(params), self.radius)), None
        ascent = ask(params, share=self.ascent_share)
        return ask(climb(params, ascent, self.radius), share=1 - self.ascent_share), None
