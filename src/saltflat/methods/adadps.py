"""AdaDPS: scale axes by what public gradients say of them, then clip."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saltflat.door import Door, PublicGradients
from saltflat.errors import SettingError
from saltflat.frames import Precondition
from saltflat.methods.known import check_known, drawn_gradient
from saltflat.settings import is_fraction, is_number, is_positive, is_whole
from saltflat.tree import Tree, map_tree, zeros_like


@dataclass(frozen=True)
class Scaling:
    """The state of `AdaDPS`: the running mean of squared public gradients, and how many steps were taken."""

    square: Tree
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class AdaDPS:
    """g_t = (1 / expected) (sum_i clip(g_i / (A + floor)^power) + noise),   A <- decay A + (1 - decay) h^2.

    h is the gradient at w_t over ``batch`` public examples, taken every so many steps; A begins at 0. With ``power``
    1/2 it is the method of the paper, with 0 it is DP-SGD. The answer stays scaled: it is the step of an adaptive
    method, and wants another learning rate and clip norm than DP-SGD.

    *Guarantee*: as DP-SGD. The scale is made of public examples at released weights, and comes before the clip; after
    the noise it would be a matter of the optimizer.
    Li et al., "Private Adaptive Optimization with Side Information", ICML 2022.
    """

    public: PublicGradients
    batch: int = 64
    power: float = 0.5
    decay: float = 0.9
    floor: float = 1e-5
    every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_known(self.public, self.batch, self.seed)
        if not is_number(self.power, 0, 1):
            raise SettingError(f"power lies in [0, 1]; got {self.power!r}")
        if not is_fraction(self.decay):
            raise SettingError(f"decay must lie in [0, 1); got {self.decay!r}")
        if not is_positive(self.floor):
            raise SettingError(f"floor must be positive and finite; got {self.floor!r}")
        if not is_whole(self.every):
            raise SettingError(f"every is a number of steps, at least 1; got {self.every!r}")

    def init(self, params: Tree) -> Scaling:
        return Scaling(zeros_like(params))

    def step(self, ask: Door, params: Tree, state: Scaling) -> tuple[Tree, Scaling]:
        square = state.square
        if state.steps % self.every == 0:
            known = drawn_gradient(self.public, params, self.batch, self.seed, state.steps)
            square = map_tree(lambda a, h: torch.lerp(a, h * h, 1 - self.decay), square, known)
        scale = map_tree(self._scale, square)
        return ask(params, frame=Precondition(scale)), Scaling(square, state.steps + 1)

    def _scale(self, square: Tensor) -> Tensor:
        return (square + self.floor) ** -self.power
