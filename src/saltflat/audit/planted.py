"""Canaries among real units: any model, any contribution, with units planted beside its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saltflat import Phase, Plan
from saltflat.audit.game import FAR, sensitivity
from saltflat.clipping import Chunk, Flat
from saltflat.errors import SettingError
from saltflat.tree import Tree, wide


@dataclass(frozen=True)
class Spikes:
    """The gradients of some canaries: unit k has ``sizes[k]`` at coordinate ``places[k]`` of all, and else 0."""

    places: Tensor  # (units,)
    sizes: Tensor  # (units,)
    like: Tree

    def norms(self) -> Tensor:
        return self.sizes.abs()

    def dot(self, direction: Tree) -> Tensor:
        return flat(direction)[self.places] * self.sizes

    def weighted_sum(self, weights: Tensor) -> Tree:
        some = next(iter(self.like.values()))
        total = torch.zeros(sum(leaf.numel() for leaf in self.like.values()), dtype=wide(some.dtype))
        total = total.to(some.device).index_add_(0, self.places, (weights * self.sizes).to(total))
        parts = total.split([leaf.numel() for leaf in self.like.values()])
        return {
            name: part.view(leaf.shape) for (name, leaf), part in zip(self.like.items(), parts, strict=True)
        }

    def scaled(self, scale: Tree) -> Spikes:
        return replace(self, sizes=self.sizes * flat(scale)[self.places])

    def only(self, names: Collection[str]) -> Spikes:
        """With respect to these parameters alone: a canary that lies elsewhere has no gradient here."""
        inside = flat({name: torch.full_like(leaf, name in names) for name, leaf in self.like.items()}).bool()
        place = inside.cumsum(0) - 1
        kept = inside[self.places]
        like = {name: leaf for name, leaf in self.like.items() if name in names}
        return Spikes(torch.where(kept, place[self.places], 0), torch.where(kept, self.sizes, 0), like)


@dataclass(frozen=True)
class Both:
    """Some units' own gradients, and after them those of some canaries."""

    own: Chunk = field(repr=False)
    count: int = field(repr=False)
    canaries: Spikes

    def norms(self) -> Tensor:
        return torch.cat([self.own.norms(), self.canaries.norms()])

    def dot(self, direction: Tree) -> Tensor:
        return torch.cat([self.own.dot(direction), self.canaries.dot(direction)])

    def weighted_sum(self, weights: Tensor) -> Tree:
        planted = self.canaries.weighted_sum(weights[self.count :])
        if not self.count:
            return planted
        return {
            name: leaf + planted[name] for name, leaf in self.own.weighted_sum(weights[: self.count]).items()
        }

    def scaled(self, scale: Tree) -> Both:
        return replace(self, own=self.own.scaled(scale), canaries=self.canaries.scaled(scale))

    def only(self, names: Collection[str]) -> Both:
        return replace(self, own=self.own.only(names), canaries=self.canaries.only(names))


@dataclass(frozen=True)
class Among:
    """Units, and after them canaries; a batch is (the units' own batch, the canaries' coordinates)."""

    units: Any = field(repr=False)  # Units
    places: Tensor

    @property
    def count(self) -> int:
        return self.units.count + len(self.places)

    def take(self, indices: np.ndarray) -> tuple[Any, int, Tensor]:
        own, planted = indices[indices < self.units.count], indices[indices >= self.units.count]
        return self.units.take(own), len(own), self.places[torch.from_numpy(planted - self.units.count)]


@dataclass(frozen=True)
class OwnUnits:
    """Looks at the model again while it trains, as the contribution itself would: on its own units alone."""

    inner: Any  # Spot

    def changed(self) -> bool:
        return self.inner.changed()

    def __call__(self, params: Tree, batch: tuple[Any, int, Tensor] | None) -> None:
        if batch is None:
            self.inner(params, None)
        elif batch[1]:
            self.inner(params, batch[0])


@dataclass(frozen=True)
class Planted:
    """A contribution, with canaries of gradient ``size`` beside the units that it knows.

    *Guarantee*: units stay what they are: their gradients are the contribution's own, and its own check is asked.
    """

    inner: Any  # Contribution
    size: float
    examples: int

    @property
    def model(self) -> nn.Module:
        return self.inner.model

    @property
    def unit(self) -> str:
        return self.inner.unit

    def check(self, params: Tree, take: Callable[[np.ndarray], Any], count: int) -> OwnUnits:
        own = self.inner.check(params, lambda indices: take(indices)[0], min(count, self.examples))
        return OwnUnits(own)

    def __call__(
        self, points: Sequence[Tree], weights: Sequence[float], batch: tuple[Any, int, Tensor]
    ) -> Both:
        own, count, places = batch
        some = next(iter(points[0].values()))
        sizes = torch.full((len(places),), self.size * math.fsum(weights), dtype=wide(some.dtype))
        spikes = Spikes(places.to(some.device), sizes.to(some.device), points[0])
        return Both(self.inner(points, weights, own), count, spikes)

    def losses(self, points: Sequence[Tree], batch: tuple[Any, int, Tensor]) -> Tensor:
        """A canary's loss is its size times its coordinate."""
        own, count, places = batch
        planted = torch.stack([flat(point)[places] * self.size for point in points])
        if not count:
            return planted
        return torch.cat([self.inner.losses(points, own), planted], dim=1)


def flat(tree: Tree) -> Tensor:
    """All coordinates, one after the other."""
    return torch.cat([leaf.reshape(-1) for leaf in tree.values()])


def planted(plan: Plan, contribution: Any, examples: int) -> Planted:
    """The contribution with canaries far beyond every clip norm of the plan."""
    return Planted(contribution, FAR * max(sensitivity(phase) for phase in plan.phases), examples)


def chosen_places(params: Tree, canaries: int, source: Any) -> Tensor:
    """A coordinate for each canary, no two the same."""
    size = sum(leaf.numel() for leaf in params.values())
    if canaries > size:
        raise SettingError(
            f"each canary needs a weight of its own: {canaries} canaries do not fit into {size} weights; take fewer"
        )
    return torch.from_numpy(np.argsort(source.random(size))[:canaries])


def expected_sum(
    plan: Plan, contribution: Any, units: Any, physical: int = 512
) -> Callable[[Tree, Phase], Tree]:
    """What the units themselves are expected to add to a step at some weights: rate x the sum of all, clipped.

    The adversary knows them all, so it may take this away from what it sees. It is exact without sampling, for methods
    that ask at the weights themselves; else what is left is small beside the noise.
    """

    def total(params: Tree, phase: Phase) -> Tree:
        found: Tree | None = None
        for part in np.array_split(np.arange(units.count), -(-units.count // physical)):
            chunk = contribution([params], [1.0], units.take(part))
            here = _clipped(chunk, phase, params)
            found = here if found is None else {name: leaf + here[name] for name, leaf in found.items()}
        assert found is not None
        return {name: plan.rate * leaf for name, leaf in found.items()}

    return total


def _clipped(chunk: Chunk, phase: Phase, like: Tree) -> Tree:
    rule = phase.clip_norm
    return (Flat(float(rule)) if isinstance(rule, int | float) else rule).total(chunk, like)
