"""Trees as vectors, and back: linear algebra is written on vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.tree import Tree, size


def flatten(tree: Tree) -> Tensor:
    """All leaves in one vector, in the tree's own order.

    >>> flatten({"w": torch.ones(1, 2), "b": torch.zeros(1)})
    tensor([1., 1., 0.])
    """
    return torch.cat([leaf.reshape(-1) for leaf in tree.values()])


def unflatten(vector: Tensor, like: Tree) -> Tree:
    """The vector in the shapes, dtypes and devices of ``like``; `flatten` undoes it."""
    if vector.shape != (size(like),):
        raise SettingError(f"a vector of {size(like)} numbers is needed; got shape {tuple(vector.shape)}")
    parts = vector.split([leaf.numel() for leaf in like.values()])
    return {
        name: part.view(leaf.shape).to(leaf) for (name, leaf), part in zip(like.items(), parts, strict=True)
    }
