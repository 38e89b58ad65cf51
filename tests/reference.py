"""Naive references: one example at a time, plain automatic differentiation, nothing clever."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

Tree = dict[str, Tensor]
Losses = Callable[[Tensor, Tensor], Tensor]


def trained(model: nn.Module) -> Tree:
    """The parameters that require a gradient."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def flat(tree: Tree) -> Tensor:
    """All leaves in one vector."""
    return torch.cat([leaf.flatten() for leaf in tree.values()])


def gradient_loop(model: nn.Module, point: Tree, x: Tensor, y: Tensor, losses: Losses) -> Tensor:
    """The gradient of each example's loss, from a forward and a backward pass of its own; (examples, D)."""
    rows = []
    for i in range(len(x)):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in point.items()}
        loss = losses(functional_call(model, leaves, (x[i : i + 1],)), y[i : i + 1]).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        filled = [
            torch.zeros_like(p) if g is None else g.to_dense()
            for p, g in zip(leaves.values(), grads, strict=True)
        ]
        rows.append(torch.cat([g.flatten() for g in filled]))
    size = flat(point).numel()
    return torch.stack(rows) if rows else flat(point).new_zeros(0, size)


def clipped_loop(gradients: Tensor, bound: float) -> Tensor:
    """sum_i g_i min(1, bound / ||g_i||)."""
    total = torch.zeros_like(gradients[0])
    for gradient in gradients:
        total += gradient * min(1.0, bound / float(gradient.norm()))
    return total


class FixedNoise:
    """The same Gaussians in the same order, every time: for comparing runs under equal noise."""

    private = False

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.calls = 0

    def normal(self, like: Tree) -> Tree:
        self.calls += 1
        return {
            name: torch.randn(leaf.shape, generator=self.generator, dtype=torch.float64).to(leaf.dtype)
            for name, leaf in like.items()
        }
