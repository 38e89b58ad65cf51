"""DOPE-SGD: clip how far an example's gradient is from a public one, and add the public one back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from saltflat.door import Door, PublicGradients
from saltflat.errors import SettingError
from saltflat.frames import Shift
from saltflat.methods.known import Stepped, check_known, drawn_gradient, shortened
from saltflat.settings import is_number, is_positive
from saltflat.tree import Tree, mul


@dataclass(frozen=True, kw_only=True)
class DOPE:
    """g_t = h + (1 / expected) (sum_i clip(g_i - h) + noise),   h = strength clip(public gradient at w_t, C_pub).

    Where public and private gradients agree, what is left to clip is small, so that a smaller clip norm and with it
    less noise will do. Without clip and noise, and with as many units as expected, it is plain descent, whatever h
    is. C_pub is ``public_clip_norm``, or else the clip norm of the step: after a warm-up on the public examples
    their gradient can blow up, and would carry the weights away.

    *Guarantee*: as DP-SGD. h is made of public examples at released weights, drawn by a public ``seed``, and is fixed
    before the private ones are looked at; each unit is clipped by itself.
    Nasr et al., "Effectively Using Public Data in Privacy Preserving Machine Learning", ICML 2023. A later paper prints
    the difference the other way round, which would ascend the private loss.
    """

    public: PublicGradients
    batch: int = 64
    strength: float = 1.0
    public_clip_norm: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_known(self.public, self.batch, self.seed)
        if not is_number(self.strength, 0, 1):
            raise SettingError(
                f"strength is the part of the public gradient, from 0 to 1; got {self.strength!r}"
            )
        if self.public_clip_norm is not None and not is_positive(self.public_clip_norm):
            raise SettingError(
                f"public_clip_norm must be positive and finite, or left out; got {self.public_clip_norm!r}"
            )

    def init(self, params: Tree) -> Stepped:
        return Stepped()

    def step(self, ask: Door, params: Tree, state: Stepped) -> tuple[Tree, Stepped]:
        bound = ask.sensitivity if self.public_clip_norm is None else self.public_clip_norm
        known = drawn_gradient(self.public, params, self.batch, self.seed, state.steps)
        origin = mul(known if math.isinf(bound) else shortened(known, bound), self.strength)
        return ask(params, frame=Shift(origin)), Stepped(steps=state.steps + 1)
