"""Directions in units of the clip norm, so that the learning rate need not follow it."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.door import AnyMethod, Door, check_method
from saltflat.tree import Released, Tree, mul


@dataclass(frozen=True)
class Rescaled:
    """g_t / C_t, with C_t the sensitivity of the step's clipping rule: `rescale_to_unit_norm` in other code.

    With an adaptive clip norm put it inside, ``Quantile(Rescaled(DPSGD()))``: steps then keep their length.

    *Guarantee*: free post-processing by a public number.
    De et al., "Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022.
    """

    method: AnyMethod

    def __post_init__(self) -> None:
        check_method(self.method)

    def init(self, params: Tree) -> object:
        return self.method.init(params)

    def step(self, ask: Door, params: Tree, state: object) -> tuple[Tree, object]:
        direction, state = self.method.step(ask, params, state)
        scaled = mul(direction, 1 / ask.sensitivity)
        if isinstance(direction, Released):
            return Released(scaled, noise_std=direction.noise_std / ask.sensitivity), state
        return scaled, state
