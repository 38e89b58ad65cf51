"""Shared masks: ask about some coordinates only, the same for every unit, and pay noise for those alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from saltflat.door import AnyMethod, Door, check_method
from saltflat.errors import SettingError
from saltflat.frames import Mask, check_tree
from saltflat.methods.draws import check_seed, public_draws
from saltflat.settings import is_number, is_whole
from saltflat.tree import Tree, add, largest, map_tree, zeros_like


@dataclass(frozen=True)
class Coin:
    """Coordinates drawn anew at every step by a public coin: the same for one seed and step, in every process."""

    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)


@dataclass(frozen=True)
class Earlier:
    """The largest coordinates of what was released before, summed over the steps that asked about all of them.

    Every ``every``-th step does, from the first on. The others say nothing of what their mask left out, and a mask made
    of them would never change.
    """

    every: int = 10

    def __post_init__(self) -> None:
        if not is_whole(self.every):
            raise SettingError(f"every is a whole number of steps, at least 1; got {self.every!r}")


@dataclass(frozen=True)
class Masking:
    """The state of `Masked`: that of the method inside, what was released of all coordinates so far, and the step."""

    inner: object
    seen: Tree = field(repr=False)
    step: int = 0


@dataclass(frozen=True)
class Masked:
    """Ask about ceil(keep D) of D coordinates: units are restricted to them before the clip, answers after the noise.

    The noise is sqrt(keep) times as long, and the clip takes less away. ``by`` says which coordinates: `Earlier` takes
    those that released directions moved most (top-k made of releases), `Coin` random ones (Fed-SMP-rand), a tree the
    largest of its own, such as an update that was computed on public data (Fed-SMP-top).

    *Guarantee*: as the method inside. The mask is fixed before the units are asked, by public numbers and earlier
    releases alone. A top-k of the units' own gradients would not be free, and is not offered.
    Hu et al., "Federated Learning with Sparsified Model Perturbation", 2022.
    """

    method: AnyMethod
    keep: float = 0.4
    by: Earlier | Coin | Tree = field(default_factory=Earlier)
    takes_whole: ClassVar[bool] = (
        True  # the largest of all coordinates: no process may hold a part of them alone
    )

    def __post_init__(self) -> None:
        check_method(self.method)
        if not (is_number(self.keep, 0, 1) and self.keep > 0):
            raise SettingError(
                f"keep is the part of the coordinates that is asked about, in (0, 1]; got {self.keep!r}"
            )
        if isinstance(self.by, dict):
            check_tree("by", self.by)
        elif not isinstance(self.by, Earlier | Coin):
            raise SettingError(f"by is Earlier(), Coin(seed) or a public tree; got {self.by!r}")

    def init(self, params: Tree) -> Masking:
        if isinstance(self.by, dict) and _shapes(self.by) != _shapes(params):
            raise SettingError(
                "the public tree behind a mask has other names or shapes than the trained parameters"
            )
        return Masking(self.method.init(params), zeros_like(params))

    def step(self, ask: Door, params: Tree, state: Masking) -> tuple[Tree, Masking]:
        mask = self.mask(params, state)
        direction, inner = self.method.step(
            ask if mask is None else ask.framed(Mask(mask)), params, state.inner
        )
        seen = add(state.seen, direction) if mask is None and isinstance(self.by, Earlier) else state.seen
        return direction, Masking(inner, seen, state.step + 1)

    def mask(self, params: Tree, state: Masking) -> Tree | None:
        """1 where a coordinate is asked about in this step; None where all of them are."""
        if self.keep == 1:
            return None
        if isinstance(self.by, Coin):
            return largest(_drawn(params, self.by.seed, state.step), self.keep)
        if isinstance(self.by, Earlier):
            return None if state.step % self.by.every == 0 else largest(state.seen, self.keep)
        return largest(self.by, self.keep)


def _shapes(tree: Tree) -> dict[str, torch.Size]:
    return {name: leaf.shape for name, leaf in tree.items()}


def _drawn(like: Tree, seed: int, step: int) -> Tree:
    source = public_draws(seed, step)
    return map_tree(lambda leaf: torch.rand(leaf.shape, generator=source).to(leaf.device), like)
