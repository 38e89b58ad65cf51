"""Public-data mirror descent, in its first-order form: a mixture of the private and the public direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from saltflat.door import AnyMethod, Door, PublicGradients, check_method
from saltflat.errors import SettingError
from saltflat.methods.known import Stepped, check_known, drawn_gradient
from saltflat.methods.sgd import DPSGD
from saltflat.settings import is_number
from saltflat.tree import Released, Tree, add, mul


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """d_t = a_t g_t + (1 - a_t) h_t,   g_t the direction of ``method``, h_t the gradient of public examples at w_t.

    ``weight`` is a_t, a number or a schedule: `QuarterCosine(1, 0, steps=T)` is that of the authors' code, which goes
    from the private direction to the public one. At weight 1 it is ``method`` itself. The exact form, for linear
    models, is the optimizer `MirrorDescent`.

    *Guarantee*: free post-processing of an answer by public examples, drawn by a public ``seed``.
    Amid et al., "Public Data-Assisted Mirror Descent for Private Model Training", ICML 2022.
    """

    public: PublicGradients
    weight: float | Callable[[int], float]
    method: AnyMethod = field(default_factory=DPSGD)
    batch: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        check_known(self.public, self.batch, self.seed)
        check_method(self.method)
        if isinstance(self.weight, type) or not (callable(self.weight) or is_number(self.weight, 0, 1)):
            raise SettingError(
                f"weight is the private part of a direction, from 0 to 1, or its schedule; got {self.weight!r}"
            )

    def init(self, params: Tree) -> Stepped:
        return Stepped(self.method.init(params))

    def step(self, ask: Door, params: Tree, state: Stepped) -> tuple[Tree, Stepped]:
        weight = self._weight(state.steps)
        direction, inner = self.method.step(ask, params, state.inner)
        now = Stepped(inner, state.steps + 1)
        if weight == 1:
            return direction, now
        known = drawn_gradient(self.public, params, self.batch, self.seed, state.steps)
        mixed = add(mul(direction, weight), known, scale=1 - weight)
        if isinstance(direction, Released):
            return Released(mixed, noise_std=weight * direction.noise_std), now
        return mixed, now

    def _weight(self, step: int) -> float:
        weight = self.weight(step) if callable(self.weight) else self.weight
        if not is_number(weight, 0, 1):
            raise SettingError(
                f"the private part of a direction lies in [0, 1]; the schedule gives {weight!r} at step {step}"
            )
        return weight
