"""Weight multiplicity: every view of an example at weights of its own, moved uphill on public examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from saltflat.door import AnyMethod, Door, PublicGradients, check_method
from saltflat.errors import SettingError
from saltflat.methods.dplis import MOST_COPIES
from saltflat.methods.known import Stepped, check_known, drawn_gradients
from saltflat.methods.sgd import DPSGD
from saltflat.settings import is_number, is_whole
from saltflat.tree import Tree, add, norm, times

LEAST = 1e-12  # what is added to a length before it divides


@dataclass(frozen=True, kw_only=True)
class WeightMultiplicity:
    """g_t = ask(p + v_1, ..., p + v_K) wherever ``method`` asks at p, view k of every unit at p + v_k alone.

        v_k = radius h_k / ||h_k||,   h_k the gradient at p over public minibatch k of ``batch`` examples
        adaptive: v_k = radius w^2 h_k / ||w h_k||, so that ||v_k / w|| = radius (as in ASAM)

    K is ``copies``, as many as the contribution has views, or a multiple; with one view all points see it. At
    ``radius`` 0 it is augmentation multiplicity. Whether ``public`` holds real or synthetic examples is the user's
    choice; the paper does not say which it took.

    *Guarantee*: as DP-SGD. A unit's views and points are averaged before the clip; v_k is made of public examples, by
    draws from a public ``seed``, at weights that were released.
    """

    public: PublicGradients
    radius: float
    method: AnyMethod = field(default_factory=DPSGD)
    copies: int = 16
    batch: int = 64
    adaptive: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_known(self.public, self.batch, self.seed)
        check_method(self.method)
        if not is_number(self.radius, 0):
            raise SettingError(f"the radius of the climb must be 0 or more, and finite; got {self.radius!r}")
        if not is_whole(self.copies, 1, MOST_COPIES):
            raise SettingError(f"copies is a whole number, from 1 to {MOST_COPIES}; got {self.copies!r}")
        if not isinstance(self.adaptive, bool):
            raise SettingError(f"adaptive is True or False; got {self.adaptive!r}")

    def init(self, params: Tree) -> Stepped:
        return Stepped(self.method.init(params))

    def step(self, ask: Door, params: Tree, state: Stepped) -> tuple[Tree, Stepped]:
        def spread(point: Tree, unit: int) -> list[tuple[Tree, float]]:
            return [(moved, 1 / self.copies) for moved in self._climbed(point, state.steps)]

        direction, inner = self.method.step(ask.spread(spread, by_view=True), params, state.inner)
        return direction, Stepped(inner, state.steps + 1)

    def _climbed(self, point: Tree, step: int) -> Iterator[Tree]:
        """p + v_k for every k."""
        if self.radius == 0:
            return iter([point] * self.copies)
        keys = [(self.seed, step, k) for k in range(self.copies)]
        return (self._moved(point, h) for h in drawn_gradients(self.public, point, self.batch, *keys))

    def _moved(self, point: Tree, uphill: Tree) -> Tree:
        """p + v, where ``uphill`` is h."""
        if self.adaptive:
            uphill = times(uphill, point)  # w h, whose length is that of v / w
        length = float(norm(uphill)) + LEAST
        return add(point, times(uphill, point) if self.adaptive else uphill, scale=self.radius / length)
