"""saltflat's engines: the parts of one private step, on the whole batch at once, as the peers do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from cases import Batch
from engines import CLIP_NORM, NOISE_MULTIPLIER, Build, Step
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat import per_example, supervised
from saltflat.clipping import Chunk, Clip
from saltflat.core.ask import Ask, Release
from saltflat.core.contribution import PerExample
from saltflat.core.sampling import pick
from saltflat.core.train import trainable
from saltflat.data import Augment
from saltflat.door import AnyMethod, PointsOf
from saltflat.methods import DPSGD, SAM, SAT
from saltflat.optimizers import SGD, Optimizer
from saltflat.privacy.noise import SecureNoise
from saltflat.tree import Tree

MOMENTUM = SGD(lr=0.1, momentum=0.9)


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """One cross-entropy per unit: the mean over its tokens, if it has any."""
    each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


@dataclass
class Place:
    """How far training has come: the weights, and what each optimizer remembers.

    Methods that are compared train from one place, step by step in turns: two sets of weights would lie at two
    addresses, and by that alone one method may seem some percent slower than the other.
    """

    params: Tree
    memories: dict[Optimizer, Any] = field(default_factory=dict)

    def move(self, optimizer: Optimizer, direction: Tree) -> None:
        """Take the optimizer's step."""
        if optimizer not in self.memories:
            self.memories[optimizer] = optimizer.init(self.params)
        self.params, self.memories[optimizer] = optimizer.step(
            self.params, direction, self.memories[optimizer]
        )


@dataclass(frozen=True)
class Whole:
    """The batch as a step's units, ``most`` of them at a time, with views that may have points of their own."""

    contribution: PerExample
    batch: Batch
    most: int

    def __call__(self, points: Sequence[Tree], weights: Sequence[float]) -> Iterator[Chunk]:
        units = torch.arange(len(self.batch[0])).split(self.contribution.at_once(self.most, points))
        for some in units if len(units) > 1 else ():
            yield self.contribution(points, weights, pick(self.batch, some))
        if len(units) == 1:  # the peers' batches are not copied either
            yield self.contribution(points, weights, self.batch)

    def by_view(self, places: Sequence[int]) -> Whole:
        return replace(self, contribution=self.contribution.by_view(places))

    def apart(self, points_of: PointsOf, weights: Sequence[float], groups: int | None) -> list[Chunk]:
        raise NotImplementedError("no method here asks units apart")

    def losses(self, points: Sequence[Tree]) -> list[Tensor]:
        return [self.contribution.losses(points, self.batch)]


def private(
    model: nn.Module,
    batch: Batch,
    *,
    place: Place | None = None,
    method: AnyMethod,
    optimizer: Optimizer = MOMENTUM,
    clip_norm: float | Clip = CLIP_NORM,
    augment: Augment | None = None,
    physical: int | None = None,
) -> Step:
    """One step with ``method`` from ``place``, or else a place of its own; noise from the default source.

    ``physical`` units are taken at a time; the whole batch without it.
    """
    contribution = per_example(
        model, supervised(losses), views=augment.views if augment else 1, augment=augment
    )
    release = Release(
        clip_norm=clip_norm,
        noise_multiplier=NOISE_MULTIPLIER,
        expected_units=len(batch[0]),
        noise=SecureNoise(),
    )
    at = place or Place(trainable(model))
    state = method.init(at.params)

    def step() -> None:
        nonlocal state
        ask = Ask(Whole(contribution, batch, physical or len(batch[0])), release)
        direction, state = method.step(ask, at.params, state)
        at.move(optimizer, direction)

    return step


def team(builds: dict[str, Build], model: nn.Module, batch: Batch) -> dict[str, Step]:
    """Steps of several of these engines from one place, which all of them move."""
    place = Place(trainable(model))
    return {name: build(model, batch, place=place) for name, build in builds.items()}


ENGINES: dict[str, Build] = {
    "saltflat": partial(private, method=DPSGD()),
    "saltflat-sat": partial(private, method=SAT(radius=0.03)),
    "saltflat-sam": partial(private, method=SAM(radius=0.03)),
}
