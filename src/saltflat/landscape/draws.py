"""Random vectors that are the same for one seed on every machine, device and precision."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from saltflat.tree import Tree, map_tree


def source(*key: int) -> torch.Generator:
    """A generator that is the same for one key in every process."""
    words = np.random.SeedSequence([abs(number) for number in key]).generate_state(2)
    return torch.Generator().manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)


def rademacher(size: int, generator: torch.Generator) -> Tensor:
    """``size`` fair signs, -1.0 or 1.0, in float64.

    >>> set(rademacher(100, source(0)).tolist()) == {-1.0, 1.0}
    True
    """
    return torch.randint(2, (size,), generator=generator).double() * 2 - 1


def gaussian(like: Tree, generator: torch.Generator) -> Tree:
    """A standard normal tree: drawn in float64 on the CPU, so that precision and device do not change it."""

    def normal(leaf: Tensor) -> Tensor:
        return torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf)

    return map_tree(normal, like)
