"""What goes over the wire: plain tensors by name, as bytes, and a few numbers. Nothing in it can run.

A tensor is the name of its type, its shape and its bytes, little end first; half precision goes as float32. Whoever
reads one says what it must be and compares; nothing is parsed, and nothing is made in a size that the sender chose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from saltflat.tree import Tree, wide

TRAIN, LOSSES, WHO = "train", "losses", "who"
"""What may be asked: the difference that training makes, losses at points, and which client a node is."""


@dataclass(frozen=True)
class Packed:
    """One tensor as it is sent."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)


Parcel = Mapping[str, Packed]


@dataclass(frozen=True)
class Question:
    """What a node is asked in one round; ``nonce`` tells the question from every other one, of earlier rounds too."""

    kind: str
    round: int
    nonce: str
    points: tuple[Parcel, ...] = field(default=(), repr=False)
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reply:
    """What came back, and from where. Nothing in it was checked, but for ``node``, which the way itself tells."""

    node: int
    round: object
    nonce: object
    parcel: object = field(repr=False)
    client: object = None  # the number that a node gives when it is asked who it is


class Post(Protocol):
    """The way to the nodes and back: Flower's grid, or one of a test."""

    def nodes(self) -> Set[int]:
        """Which nodes are there."""
        ...

    def send(self, question: Question, nodes: Iterable[int], *, seconds: float) -> None:
        """Begin to ask; replies that come later than ``seconds`` from now are of no use."""
        ...

    def receive(self) -> Iterable[Reply]:
        """What has arrived since the last call. A node that sends what cannot be read has sent nothing."""
        ...


def packed(tree: Tree) -> dict[str, Packed]:
    """A tree as it is sent.

    >>> packed({"w": torch.ones(2)})["w"]
    Packed(dtype='float32', shape=(2,))
    """
    return {name: _packed(leaf) for name, leaf in tree.items()}


def unpacked(parcel: object, like: Tree) -> Tree | None:
    """The tree that was sent, in the form of ``like``; None if it is anything else, or not finite.

    >>> there = {"w": torch.ones(2)}
    >>> unpacked(packed(there), there)
    {'w': tensor([1., 1.])}
    >>> unpacked(packed({"w": torch.ones(3)}), there) is None
    True
    """
    if not isinstance(parcel, Mapping) or parcel.keys() != like.keys():
        return None
    leaves = {name: _unpacked(parcel[name], leaf) for name, leaf in like.items()}
    sound = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    return sound if len(sound) == len(like) else None


def _packed(leaf: Tensor) -> Packed:
    values = leaf.detach().to("cpu", wide(leaf.dtype)).contiguous().numpy()
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return Packed(values.dtype.name, tuple(leaf.shape), little.tobytes())


def _unpacked(packed: object, like: Tensor) -> Tensor | None:
    kind = torch.empty(0, dtype=wide(like.dtype)).numpy().dtype
    if not (
        isinstance(packed, Packed)
        and packed.dtype == kind.name
        and packed.shape == tuple(like.shape)
        and isinstance(packed.data, bytes)
        and len(packed.data) == math.prod(like.shape) * kind.itemsize
    ):
        return None
    values = np.frombuffer(packed.data, kind.newbyteorder("<")).astype(kind).reshape(tuple(like.shape))
    if not np.isfinite(values).all():
        return None
    leaf = torch.from_numpy(values).to(like)
    return leaf if bool(torch.isfinite(leaf).all()) else None  # narrowed to half precision it may not be
