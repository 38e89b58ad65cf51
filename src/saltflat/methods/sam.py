"""DP-SAM: ask for the way uphill first, then for the gradient up there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from saltflat.core.tree import Tree, climb
from saltflat.errors import SettingError


@dataclass(frozen=True)
class SAM:
    """a_t = ask(w_t) with ``ascent_share`` of the step;  g_t = ask(w_t + radius a_t / ||a_t||) with the rest.

    A share s of the step has noise sigma / sqrt(s). The default 0.1 gives the ascent, which only needs a
    direction, three times the noise of the descent.

    *Guarantee*: both answers are about one Poisson sample, and together cost one release with the step's
    noise multiplier.
    Foret et al., "Sharpness-Aware Minimization", ICLR 2021; the private form is the baseline of Park et
    al., ICML 2023.
    """

    radius: float
    ascent_share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.radius < float("inf"):
            raise SettingError(f"the radius of the climb must be 0 or more, and finite; got {self.radius}")
        if not 0 <= self.ascent_share < 1:
            raise SettingError(f"ascent_share must lie in [0, 1); got {self.ascent_share}")

    def init(self, params: Tree) -> None:
        return None

    def step(self, ask: Callable[..., Tree], params: Tree, state: None) -> tuple[Tree, None]:
        point = params
        if self.ascent_share > 0:
            point = climb(params, ask(params, share=self.ascent_share), self.radius)
        return ask(point, share=1 - self.ascent_share), None
