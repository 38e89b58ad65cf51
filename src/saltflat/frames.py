"""Frames: a change of coordinates that gradients go through before they are clipped.

A frame is public: it comes from public data or earlier releases, and is fixed before the private batch is
touched. `enter` changes coordinates of a chunk, `leave` those of the released mean, and `rise` is how much more the
frame expects a unit to lose at one point than at another: what is asked about losses is asked relative to that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from saltflat import tree
from saltflat.clipping import Chunk
from saltflat.errors import SettingError
from saltflat.tree import Tree

__all__ = ["Mask", "Precondition", "Shift"]


class Frame(Protocol):
    """A change of coordinates around the clip."""

    def enter(self, chunk: Chunk) -> Chunk: ...

    def leave(self, direction: Tree) -> Tree: ...

    def rise(self, low: Tree, high: Tree) -> float: ...


@dataclass(frozen=True)
class Shifted:
    """The gradients g_i - origin, without forming them: ||g_i - o||^2 = ||g_i||^2 - 2 <g_i, o> + ||o||^2."""

    chunk: Chunk
    origin: Tree

    def norms(self) -> Tensor:
        norms, length = self.chunk.norms(), tree.norm(self.origin)
        square = norms.square() - 2 * self.chunk.dot(self.origin) + length.square()
        # The terms cancel where g_i is near o: what rounding may have taken away is added, as `gram_square` does.
        square = square + 16 * torch.finfo(norms.dtype).eps * (norms + length).square()
        return torch.where(square < 0, 0, square).sqrt().to(norms.dtype)

    def dot(self, direction: Tree) -> Tensor:
        return self.chunk.dot(direction) - tree.dot(self.origin, direction)

    def weighted_sum(self, weights: Tensor) -> Tree:
        return tree.add(self.chunk.weighted_sum(weights), self.origin, scale=-float(weights.sum()))

    def scaled(self, scale: Tree) -> Chunk:
        return Shifted(self.chunk.scaled(scale), tree.times(self.origin, scale))

    def only(self, names: Collection[str]) -> Chunk:
        return Shifted(self.chunk.only(names), {name: self.origin[name] for name in names})


@dataclass(frozen=True)
class Shift:
    """Clip g_i - origin instead of g_i, and add the origin back to the mean (DOPE-SGD).

    *Guarantee*: the sensitivity stays the clip norm, if ``origin`` comes from public data or earlier
    releases only.
    """

    origin: Tree

    def __post_init__(self) -> None:
        check_tree("origin", self.origin)

    def enter(self, chunk: Chunk) -> Chunk:
        return Shifted(chunk, self.origin)

    def leave(self, direction: Tree) -> Tree:
        return tree.add(direction, self.origin)

    def rise(self, low: Tree, high: Tree) -> float:
        """<origin, high - low>: the rise of a loss whose gradient is the origin."""
        return float(tree.dot(self.origin, tree.sub(high, low)))


@dataclass(frozen=True)
class Precondition:
    """Clip scale * g_i instead of g_i, coordinate by coordinate (AdaDPS); the mean stays scaled.

    *Guarantee*: as `Shift`. Each unit's gradient is formed in memory, so keep the physical batch small.
    Li et al., "Private Adaptive Optimization with Side Information", ICML 2022.
    """

    scale: Tree

    def __post_init__(self) -> None:
        check_tree("scale", self.scale)

    def enter(self, chunk: Chunk) -> Chunk:
        return chunk.scaled(self.scale)

    def leave(self, direction: Tree) -> Tree:
        return direction

    def rise(self, low: Tree, high: Tree) -> float:
        """0: a loss is the same in any coordinates."""
        return 0.0


@dataclass(frozen=True)
class Mask:
    """Clip and release some coordinates only: ``kept`` is 1 where they are, and 0 elsewhere.

    Noise is drawn for all of them, and what falls on the others is thrown away: with k of D coordinates kept, the noise
    is sqrt(k / D) times as long.

    *Guarantee*: as `Shift`. A mask that depends on the units that are asked about would be a release of its own, which
    no epsilon here covers.
    """

    kept: Tree

    def __post_init__(self) -> None:
        check_tree("kept", self.kept)
        if not all(bool(((leaf == 0) | (leaf == 1)).all()) for leaf in self.kept.values()):
            raise SettingError("a mask is 1 where a coordinate is kept, and 0 elsewhere; got other numbers")

    def enter(self, chunk: Chunk) -> Chunk:
        return chunk.scaled(self.kept)

    def leave(self, direction: Tree) -> Tree:
        return tree.times(direction, self.kept)

    def rise(self, low: Tree, high: Tree) -> float:
        """0: a loss is what it is, whatever is released of its gradient."""
        return 0.0


@dataclass(frozen=True)
class Inside:
    """A frame inside another: units enter ``inner`` first, and the answer leaves it last."""

    inner: Frame
    outer: Frame

    def enter(self, chunk: Chunk) -> Chunk:
        return self.outer.enter(self.inner.enter(chunk))

    def leave(self, direction: Tree) -> Tree:
        return self.inner.leave(self.outer.leave(direction))

    def rise(self, low: Tree, high: Tree) -> float:
        return self.inner.rise(low, high) + self.outer.rise(low, high)


def check_frame(frame: Frame) -> None:
    """Refuse a frame of one's own, a subclass too: it would see every unit's gradient before the clip.

    >>> check_frame(Inside(Mask({"w": torch.ones(2)}), Shift({"w": torch.ones(2)})))
    """
    if type(frame) is Inside:
        check_frame(frame.inner)
        check_frame(frame.outer)
    elif type(frame) not in (Shift, Precondition, Mask):
        raise SettingError(
            f"a frame is a Shift, Precondition or Mask; got a {type(frame).__name__}: units' gradients go through it "
            "before they are clipped, so that one of another kind could show them, or undo the clip"
        )


def check_tree(name: str, value: object) -> None:
    """A frame that is no number anywhere would make every unit void: it is a mistake, and said to be one."""
    leaves = list(value.values()) if isinstance(value, dict) else []
    sound = [
        isinstance(leaf, Tensor) and leaf.is_floating_point() and bool(leaf.isfinite().all())
        for leaf in leaves
    ]
    if not (sound and all(sound)):
        raise SettingError(
            f"{name} is a tree, {{parameter: tensor}}, of finite numbers; got a {type(value).__name__}"
        )
