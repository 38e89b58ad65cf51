"""Random directions to look along, each filter as long as the model's own."""

from __future__ import annotations

import torch
from torch import Tensor

from saltflat.landscape.draws import gaussian, source
from saltflat.tree import Tree, map_tree


def filter_normalised(direction: Tree, params: Tree, *, vectors: bool = False) -> Tree:
    """d_f <- d_f ||w_f|| / ||d_f|| for each filter f: an output channel of a convolution, a row of a matrix.

    Parameters with one axis (biases, scales of norms) stay where they are, unless ``vectors`` asks to take each as
    one filter. So a model whose weights are twice as large is looked at twice as far away.
    Li et al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018.

    >>> d = filter_normalised({"w": torch.tensor([[3.0, 4.0]])}, {"w": torch.tensor([[0.0, 10.0]])})
    >>> d["w"]
    tensor([[6., 8.]])
    """

    def normalised(d: Tensor, w: Tensor) -> Tensor:
        if w.ndim < 2 and not vectors:
            return torch.zeros_like(w)
        rows = (len(w), -1) if w.ndim >= 2 else (1, -1)
        ours, theirs = (torch.linalg.vector_norm(t.reshape(rows), dim=1, keepdim=True) for t in (w, d))
        # the tiny number lets a direction of 0 stay 0
        return (d.reshape(rows) * (ours / theirs.clamp_min(1e-30))).view(w.shape)

    return map_tree(normalised, direction, params)


def random_directions(params: Tree, *, count: int = 2, seed: int = 0, vectors: bool = False) -> list[Tree]:
    """``count`` independent Gaussian directions, filter-normalised to ``params``.

    One seed draws the same Gaussians for all models of one architecture; each model then scales them to its own
    filters.
    """
    drawn = source(seed, 6)
    return [filter_normalised(gaussian(params, drawn), params, vectors=vectors) for _ in range(count)]
