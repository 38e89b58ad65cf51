"""From private rows to a released tree: bound each unit, sum, add noise that fits the bound.

The sensitivity travels inside `Bounded`, so the clip and the noise cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from saltflat.core.tree import Tree, zeros_like


class Chunk(Protocol):
    """Some units' gradients, however they are represented."""

    def norms(self) -> Tensor: ...

    def dot(self, direction: Tree) -> Tensor: ...

    def weighted_sum(self, weights: Tensor) -> Tree: ...

    def scaled(self, scale: Tree) -> Chunk: ...


class Noise(Protocol):
    """A source of independent standard Gaussians, in the shape of a tree; never the same twice."""

    @property
    def private(self) -> bool: ...

    def normal(self, like: Tree) -> Tree: ...


@dataclass(frozen=True)
class Bounded:
    """A sum over units, and how far one unit can move it."""

    total: Tree
    sensitivity: float  # L2, when one unit is added or removed


def clip_weights(norms: Tensor, bound: float) -> Tensor:
    """c_i = min(1, bound / ||g_i||), and 0 for a unit whose norm is not finite.

    >>> clip_weights(torch.tensor([0.5, 4.0, float("nan"), float("inf")]), bound=1.0)
    tensor([1.0000, 0.2500, 0.0000, 0.0000])
    """
    return torch.where(torch.isfinite(norms), (bound / norms).clamp(max=1), 0)


def clipped_sum(chunks: Iterable[Chunk], bound: float, like: Tree) -> Bounded:
    """sum_i min(1, bound / ||g_i||) g_i over all units of all chunks.

    *Guarantee*: adding or removing one unit moves the total by at most ``bound`` in L2 norm, whatever the
    unit holds. No chunks at all give zero.
    """
    total: Tree | None = None
    for chunk in chunks:
        part = chunk.weighted_sum(clip_weights(chunk.norms(), bound))
        if total is None:
            total = part
        else:
            for name, leaf in part.items():
                total[name] += leaf
    return Bounded(zeros_like(like) if total is None else total, bound)


def noised(bounded: Bounded, noise_multiplier: float, noise: Noise) -> Tree:
    """total + noise_multiplier * sensitivity * N(0, I).

    *Guarantee*: the Gaussian mechanism. An empty batch gets the same noise as any other.
    """
    if noise_multiplier == 0:  # not private, and the plan says so: its epsilon is refused
        return bounded.total
    std = noise_multiplier * bounded.sensitivity
    fresh = noise.normal(bounded.total)
    return {name: leaf.mul_(std).add_(bounded.total[name]) for name, leaf in fresh.items()}
