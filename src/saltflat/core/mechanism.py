"""From private rows to a released tree: bound each unit, sum, add noise that fits the bound.

The sensitivity travels inside `Bounded`, so the clip and the noise cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from scipy.special import gammaincinv
from torch import Tensor

from saltflat.clipping import COUNT, Chunk, Clip, as_clip
from saltflat.errors import PrivacyError
from saltflat.privacy.noise import VOUCHED, disowned
from saltflat.tree import Tree, wide


class Noise(Protocol):
    """A source of independent standard Gaussians, in the shape of a tree; never the same twice."""

    @property
    def private(self) -> bool: ...

    def normal(self, like: Tree) -> Tree: ...


@runtime_checkable
class Exact(Protocol):
    """A source that adds its noise itself, because scaling and adding in floating point would round it."""

    def release(self, total: Tree, *, sensitivity: float, noise_multiplier: float) -> Tree: ...


@runtime_checkable
class InParts(Protocol):
    """A source of which each of several processes may take what is its own.

    ``part(number)`` gives the source of process ``number``; no two of them draw alike, and their coordinates together
    are as one draw for all.
    """

    def part(self, number: int) -> Noise: ...


@dataclass(frozen=True)
class Bounded:
    """A sum over units, and how far one unit can move it."""

    total: Tree = field(repr=False)  # nothing was added to it yet
    sensitivity: float  # L2, when one unit is added or removed


def clipped_sum(chunks: Iterable[Chunk], clip: float | Clip, like: Tree) -> Bounded:
    """The sum over all units of all chunks, each bounded by ``clip``; a number is the bound of `Flat`.

    *Guarantee*: adding or removing one unit moves the total by at most ``clip``'s sensitivity in L2 norm,
    whatever the unit holds. No chunks at all give zero.
    """
    rule = as_clip(clip)
    total = _added_up(_totals(rule, chunks, like))
    return Bounded(_nothing(rule.leaves(like)) if total is None else total, rule.sensitivity)


def _totals(rule: Clip, chunks: Iterable[Chunk], like: Tree) -> Iterator[Tree]:
    """The bounded sum of every chunk, which is let go of before the next one is made: two take twice the memory."""
    for chunk in chunks:
        total = rule.total(chunk, like)
        del chunk
        yield total
        del total


def _nothing(like: Tree) -> Tree:
    """The sum over nobody, as wide as every other sum."""
    return {name: torch.zeros_like(leaf, dtype=wide(leaf.dtype)) for name, leaf in like.items()}


def clamped_sum(values: Iterable[Tensor], bound: float) -> Bounded:
    """sum_i clamp(v_i, -bound, bound), one number per unit; a unit whose number is not finite adds 0.

    *Guarantee*: sensitivity ``bound``.

    >>> clamped_sum([torch.tensor([3.0, -0.5]), torch.tensor([float("nan")])], bound=1.0).total[COUNT]
    tensor([0.5000], dtype=torch.float64)
    """
    total = torch.zeros(1, dtype=torch.float64)
    for each in values:
        sound = torch.where(torch.isfinite(each), each.double(), 0)
        total = total + sound.clamp(-bound, bound).sum().cpu()
    return Bounded({COUNT: total}, bound)


def _added_up(parts: Iterable[Tree]) -> Tree | None:
    """The sum of trees that nobody else holds, or None if there are none."""
    total: Tree | None = None
    for part in parts:
        if total is None:
            total = part
        else:
            for name, leaf in part.items():
                total[name] += leaf
    return total


def noised(bounded: Bounded, noise_multiplier: float, noise: Noise) -> Tree:
    """total + noise_multiplier * sensitivity * N(0, I).

    *Guarantee*: the Gaussian mechanism. An empty batch gets the same noise as any other. What a source of one's own
    draws is looked at before it is used: too little of it is refused.
    """
    if noise_multiplier == 0:  # not private, and the plan says so: its epsilon is refused
        return bounded.total
    std = noise_multiplier * bounded.sensitivity
    doubted = type(noise) not in VOUCHED and not disowned(noise)
    if isinstance(noise, Exact):
        before = {name: leaf.clone() for name, leaf in bounded.total.items()} if doubted else {}
        given = noise.release(
            bounded.total, sensitivity=bounded.sensitivity, noise_multiplier=noise_multiplier
        )
        check_drawn(noise, {name: (given[name] - leaf) / std for name, leaf in before.items()})
        return given
    fresh = noise.normal(bounded.total)
    check_drawn(noise, fresh if doubted else {})
    return {
        name: torch.add(bounded.total[name], leaf, alpha=std, out=leaf)  # one pass, into our own memory
        for name, leaf in fresh.items()
    }


_SELDOM = 1e-12  # how often a sound source may be refused, for each leaf of a release


def check_drawn(source: Noise, drawn: Tree) -> None:
    """Refuse noise whose squares add up to less, in a leaf or in all, than standard Gaussians' do once in 1e12 draws.

    A sum of n squares of standard Gaussians follows chi-square with n degrees of freedom, 2 Gamma(n / 2).

    >>> from saltflat.privacy.noise import SecureNoise
    >>> check_drawn(SecureNoise(), {"w": torch.zeros(3)})
    Traceback (most recent call last):
    saltflat.errors.PrivacyError: the source of noise, a SecureNoise, drew 3 numbers of mean square 0, ...
    """
    leaves = [(float(leaf.double().square().sum()), leaf.numel()) for leaf in drawn.values()]
    whole = tuple(map(sum, zip(*leaves, strict=True))) or (0.0, 0)
    for square, count in [*leaves, whole]:
        if count and not square >= 2 * gammaincinv(count / 2, _SELDOM):  # NaN is refused as well
            raise PrivacyError(
                f"the source of noise, a {type(source).__name__}, drew {count} numbers of mean square "
                f"{square / count:.3g}, and standard Gaussians have 1: the epsilon of this run would not hold; leave "
                "noise out, and a sound source is taken"
            )
