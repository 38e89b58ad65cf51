"""Losses whose Hessians are small enough to be written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saltflat.landscape import PUBLIC, Objective, analytic, of_model
from saltflat.tree import Tree

LOSS = nn.CrossEntropyLoss(reduction="none")


@dataclass(frozen=True)
class Shape:
    """A loss, a point, and the Hessian there, which was computed without saltflat."""

    objective: Objective
    params: Tree
    dense: Tensor


def orthogonal(size: int, seed: int = 0) -> Tensor:
    draw = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(draw)[0]


def rotated(spectrum: Tensor, seed: int = 0) -> Tensor:
    """A dense symmetric matrix with these eigenvalues."""
    turn = orthogonal(len(spectrum), seed)
    return (turn * spectrum.double()) @ turn.T


def quadratic(spectrum: Tensor) -> Shape:
    """L(w) = 1/2 w^T H w, over two leaves."""
    dense = rotated(spectrum)
    half = len(spectrum) // 2

    def loss(params: Tree) -> Tensor:
        w = torch.cat([params["a"], params["b"].flatten()])
        return 0.5 * w @ dense @ w

    start = torch.linspace(-1, 1, len(spectrum), dtype=torch.float64)
    return Shape(analytic(loss), {"a": start[:half], "b": start[half:].view(-1, 1)}, dense)


def logistic(rows: int = 90) -> Shape:
    """Two-class regression; H = (1/n) sum p (1 - p) x x^T, by its formula."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 12, generator=draw, dtype=torch.float64) * torch.linspace(0.2, 3, 12).double()
    y = (torch.rand(rows, generator=draw) < 0.5).double()
    params = {"w": torch.randn(12, generator=draw, dtype=torch.float64)}

    def losses(point: Tree, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(
            batch[0] @ point["w"], batch[1], reduction="none"
        )

    p = torch.sigmoid(x @ params["w"])
    dense = (x * (p * (1 - p)).unsqueeze(1)).T @ x / rows
    batches = list(zip(x.split(40), y.split(40), strict=True))  # 40, 40, 10: of unequal size
    return Shape(Objective(losses=losses, batches=batches, access=PUBLIC), params, dense)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3))  # 224


def examples(rows: int = 70) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(rows, 12, generator=draw, dtype=torch.float64)
    return x, (x[:, :3] + 0.5 * torch.randn(rows, 3, generator=draw)).argmax(1)


def small_network(split: int = 30) -> Shape:
    """A network of about 200 parameters after some training; its Hessian by autograd of the flattened loss."""
    x, y = examples()
    model = network().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        LOSS(model(x), y).mean().backward()
        optimizer.step()
    batches = list(zip(x.split(split), y.split(split), strict=True))
    objective, params = of_model(model, LOSS, batches, access=PUBLIC, dtype=torch.float64)
    return Shape(objective, params, dense_hessian(flat_loss(model, x, y), params))


def flat_loss(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """The mean loss as a function of one vector."""
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def loss(vector: Tensor) -> Tensor:
        parts, at = {}, 0
        for name, shape in shapes.items():
            parts[name] = vector[at : at + shape.numel()].view(shape)
            at += shape.numel()
        return LOSS(torch.func.functional_call(model, parts, (x,)), y).mean()

    return loss


def dense_hessian(loss: Callable[[Tensor], Tensor], params: Tree) -> Tensor:
    vector = torch.cat([leaf.flatten() for leaf in params.values()])
    return torch.autograd.functional.hessian(loss, vector)
