"""DPLIS: descend on a smoothed loss, the mean over jittered copies of the weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from saltflat.door import AnyMethod, Door, check_method
from saltflat.errors import SettingError
from saltflat.methods.draws import check_seed, public_draws
from saltflat.methods.sgd import DPSGD
from saltflat.settings import is_number, is_whole
from saltflat.tree import Tree, add, cut, map_tree, mul

MOST_COPIES = 1024  # of the weights, in memory together


@dataclass(frozen=True)
class Smoothing:
    """The state of `DPLIS`: how many steps were taken, which numbers the jitter, and the state of the method inside."""

    inner: object
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class DPLIS:
    """g_t = ask(p + u_1, ..., p + u_K) wherever ``method`` asks at p;   u_k ~ N(0, (reach lr s)^2 I).

    DP-SGD asks at p = w_t, which is the method of the paper; SAT at its climb. s = sigma C / expected is the noise
    on an answer.

    lr s is the noise that one step of SGD at learning rate ``lr`` leaves on each weight, so ``reach`` counts steps
    of noise; 10 is the all-purpose value. It follows the noise through calibration.

    ``antithetic`` jitters by pairs, u and -u, and needs an even number of ``copies``. ``per_example`` draws anew for
    every unit, which must then be run one by one: slow, a check on the shared draws that everybody uses.
    ``total`` (legacy) adds the copies' gradients up where the paper takes their mean, as the authors' code does:
    clip(K g, C) = K clip(g, C / K), so compare with DP-SGD at C / K and K lr.

    *Guarantee*: as DP-SGD. A unit's copies are combined before the clip, and the jitter comes from a public
    ``seed`` and the step's number: it is independent of the data, and need not be secret.
    Wang et al., "DPlis: Boosting Utility of Differentially Private Deep Learning via Randomized Smoothing",
    PoPETs 2021.
    """

    method: AnyMethod = field(default_factory=DPSGD)
    lr: float
    copies: int = 10
    reach: float = 10.0
    antithetic: bool = False
    per_example: bool = False
    total: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_method(self.method)
        for name in ("lr", "reach"):
            if not is_number(getattr(self, name), 0):
                raise SettingError(f"{name} must be 0 or more, and finite; got {getattr(self, name)!r}")
        for name in ("antithetic", "per_example", "total"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} is True or False; got {getattr(self, name)!r}")
        if not is_whole(self.copies, 1 + self.antithetic, MOST_COPIES):
            raise SettingError(
                f"copies must be a whole number, at least {1 + self.antithetic} and at most {MOST_COPIES}; got "
                f"{self.copies!r}"
            )
        check_seed(self.seed)
        if self.antithetic and self.copies % 2:
            raise SettingError(f"antithetic jitter comes in pairs: copies must be even; got {self.copies}")

    def init(self, params: Tree) -> Smoothing:
        return Smoothing(self.method.init(params))

    def step(self, ask: Door, params: Tree, state: Smoothing) -> tuple[Tree, Smoothing]:
        std, count = self.reach * self.lr * ask.noise_std, state.steps
        weight = 1.0 if self.total else 1 / self.copies

        def spread(point: Tree, unit: int) -> list[tuple[Tree, float]]:
            return [(add(point, draw), weight) for draw in self._jitter(point, std, (self.seed, count, unit))]

        smooth = ask.spread(spread, by_unit=self.per_example)
        direction, inner = self.method.step(smooth, params, state.inner)
        return direction, Smoothing(inner, count + 1)

    def _jitter(self, like: Tree, std: float, key: tuple[int, ...]) -> list[Tree]:
        """u_1 ... u_K; one ``key`` always gives the same."""
        source = public_draws(*key)
        draws = [_drawn(like, std, source) for _ in range(self.copies // (1 + self.antithetic))]
        return [*draws, *(mul(draw, -1.0) for draw in draws)] if self.antithetic else draws


def _drawn(like: Tree, std: float, source: torch.Generator) -> Tree:
    def normal(leaf: Tensor) -> Tensor:
        return cut(std * torch.randn(leaf.shape, generator=source, dtype=leaf.dtype), leaf)

    return map_tree(normal, like)
